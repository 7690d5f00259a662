"""How much of a hit to load: all, the part that lies in fast tiers, or nothing. Pure decisions over plain values.

vLLM computes the rest of a prompt after its load ended, never meanwhile; but while the engine works on others that came
before, a load costs nobody any time. So with ``k`` tokens loaded the first token is expected after ::

    max(seconds to load k tokens, seconds until the engine is free) + seconds to compute from k to the prompt's end

and that ``k`` is chosen for which it is shortest, where a load counts for as long as it may well take (one standard
deviation above what is expected). Where that is no clear difference the load wins: it leaves the engine to others.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kveik.agent.protocol import ARENA, TierRate
from kveik.connector.plan import Found, Shape
from kveik.kv.frame import frame_bytes
from kveik.kv.groups import GroupKind
from kveik.learned_cost import Cost

ALWAYS, MEASURED = "always", "measured"
#: Why it was chosen so; metric labels.
ALL, PART, NONE, UNKNOWN = "all", "part", "none", "unknown"
#: Places where a hit may be cut, at most.
CUTS_MAX = 16
#: A tier's rate counts once it was timed so often.
SAMPLES_MIN = 2
#: What a load may be longer than computing before it is not made: noise, in seconds and as a share.
INDIFFERENT_S = 0.03
INDIFFERENT_SHARE = 0.03
#: A tier that was not loaded from is timed again after so long, by reading blocks that take about so long.
SOUND_AFTER_S = 5.0
SOUND_FOR_S = 0.25
SOUND_BLOCKS_MAX = 16


@dataclass(frozen=True, slots=True)
class Cut:
    """A hit of so many tokens from the prompt's start, and the bytes to load for it by place (all ranks together)."""

    tokens: int
    bytes_by_place: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What is known when a choice is made; None where nothing is yet.

    ``arena`` is this engine's own way from the arena, by bytes; ``tiers`` are the rates of the places below it, as the
    agent told them; ``compute_s`` says how long the tokens from one count to another take; ``ahead_s`` is the work of
    the engine that comes before, ``loads_ahead_s`` that of its load thread. ``lateness`` (of the logarithm) is what
    loads from a place lately took longer than expected.
    """

    arena: Cost | None
    tiers: Mapping[int, TierRate]
    compute_s: Callable[[int, int], float] | None
    ahead_s: float = 0.0
    loads_ahead_s: float = 0.0
    lateness: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Choice:
    """So many tokens of the prompt's start are to be loaded. Seconds are expected ones, 0 where nothing is known."""

    tokens: int
    reason: str
    load_s: float = 0.0
    first_token_s: float = 0.0
    cold_s: float = 0.0


def cuts(
    shape: Shape,
    found: Found,
    hit_tokens: int,
    payload_bytes: Mapping[int, int],
    ranks: int,
    absent: frozenset[tuple[int, bytes]] = frozenset(),
) -> list[Cut]:
    """Where a usable hit may end: at its end, and before each stretch that lies in a slower place than what is before.

    A cut needs all its blocks too: those of windows and states that it needs are others than the whole hit's.
    ``absent`` as for :func:`kveik.connector.plan.usable`.
    """
    partial = [group for group in shape.groups if group.kind is not GroupKind.FULL]
    ends = [tokens for tokens in _slower_from(shape, found, hit_tokens) if found.local_tokens < tokens < hit_tokens]
    if len(ends) > CUTS_MAX:
        ends = ends[: CUTS_MAX // 2] + ends[-CUTS_MAX // 2 :]
    usable = [
        tokens
        for tokens in ends
        if all(found.has(group.index, block, absent) for group in partial for block in group.needed_blocks(tokens))
    ]
    return [
        Cut(tokens, _bytes_by_place(shape, found, tokens, payload_bytes, ranks)) for tokens in [*usable, hit_tokens]
    ]


def _slower_from(shape: Shape, found: Found, hit_tokens: int) -> list[int]:
    """Token counts at which the slowest place of a unit's full-attention blocks gets slower."""
    unit = shape.unit_tokens
    first = -(-found.local_tokens // unit)
    units = hit_tokens // unit - first
    slowest: NDArray[np.uint8] = np.zeros(max(0, units), np.uint8)
    for group in shape.groups:
        if group.kind is GroupKind.FULL and units > 0:
            part, places = found.by_group[group.index]
            each = unit // group.block_tokens
            start = first * each - part.first_block
            row = np.frombuffer(places, np.uint8)[start : start + units * each]
            slowest = np.maximum(slowest, row.reshape(units, each).max(axis=1))
    rises = np.flatnonzero(slowest[1:] > slowest[:-1]) + 1
    return [(first + int(index)) * unit for index in rises]


def _bytes_by_place(
    shape: Shape, found: Found, tokens: int, payload_bytes: Mapping[int, int], ranks: int
) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for group in shape.groups:
        part, places = found.by_group[group.index]
        needed = group.needed_blocks(tokens)
        row = places[max(0, needed.start - part.first_block) : max(0, needed.stop - part.first_block)]
        for place in set(row) - {0}:
            size = row.count(place) * frame_bytes(payload_bytes[group.index]) * ranks
            sizes[place] = sizes.get(place, 0) + size
    return sizes


def load_seconds(cut: Cut, known: Knowledge) -> tuple[float, float] | None:
    """Expected seconds of a load and its uncertainty (of the logarithm); None if a place of it is not known yet.

    Every byte goes through the arena; what lies lower comes up first, behind what others wait for there.
    """
    size = sum(cut.bytes_by_place.values())
    parts = [(known.arena.seconds(1, size), known.arena.sigma)] if known.arena is not None else []
    for place, part in cut.bytes_by_place.items():
        if place == ARENA:
            continue
        rate = known.tiers.get(place)
        if rate is None or rate.samples < SAMPLES_MIN:
            return None
        seconds = rate.fixed_s + (part + rate.waiting_bytes) * rate.byte_s
        parts.append((seconds * math.exp(known.lateness.get(place, 0.0)), rate.sigma))
    seconds = sum(each for each, _ in parts)
    if seconds <= 0:
        return 0.0, 0.0
    return seconds, math.sqrt(sum((each * sigma) ** 2 for each, sigma in parts)) / seconds


def choose(options: Sequence[Cut], local_tokens: int, prompt_tokens: int, known: Knowledge) -> Choice:
    """The best of the cuts, the last of which is the whole hit, or none of them.

    What is not known is loaded: that is how it gets known, and the load's deadline bounds what it may cost.
    """
    whole = options[-1]
    if known.compute_s is None:
        return Choice(whole.tokens, UNKNOWN)
    cold_s = known.ahead_s + known.compute_s(local_tokens, prompt_tokens)
    best = Choice(local_tokens, NONE, 0.0, cold_s, cold_s)
    shortest_s = cold_s * (1 + INDIFFERENT_SHARE) + INDIFFERENT_S
    for cut in options:
        load = load_seconds(cut, known)
        if load is None:
            return Choice(whole.tokens, UNKNOWN, cold_s=cold_s)
        rest_s = known.compute_s(min(cut.tokens, prompt_tokens - 1), prompt_tokens)
        wary_s = max(known.loads_ahead_s + load[0] * math.exp(load[1]), known.ahead_s) + rest_s
        if wary_s < shortest_s:
            shortest_s = wary_s
            first_token_s = max(known.loads_ahead_s + load[0], known.ahead_s) + rest_s
            best = Choice(cut.tokens, ALL if cut is whole else PART, load[0], first_token_s, cold_s)
    return best


def refused_places(options: Sequence[Cut], choice: Choice) -> set[int]:
    """The places of the whole hit from which nothing is loaded."""
    chosen = next((cut.bytes_by_place for cut in options if cut.tokens == choice.tokens), {})
    return set(options[-1].bytes_by_place) - set(chosen) - {ARENA}


def sounding_blocks(rate: TierRate, block_bytes: int, since_last_s: float) -> int:
    """How many blocks of a tier to read in the background so that it is timed again; 0 while that is not due.

    A tier that is not loaded from because it is slow would else never be found to have become fast.
    """
    if min(rate.age_s, since_last_s) < SOUND_AFTER_S or rate.waiting_bytes > 0:
        return 0
    affordable = SOUND_FOR_S / max(rate.byte_s * block_bytes, 1e-9)
    return int(max(1, min(affordable, SOUND_BLOCKS_MAX)))
