"""What this engine learned of loading and computing, for :mod:`kveik.connector.load_choice` to decide by.

No I/O and no clock: the scheduler's side feeds it, and says what time it is.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kveik.agent.protocol import ARENA, EngineRates, TierGain, TierRate
from kveik.connector.load_choice import Choice, Cut, Knowledge, choose, cuts, load_seconds, sounding_blocks
from kveik.connector.plan import Found, Shape, tokens_by_place
from kveik.connector.prefill_rate import PrefillRate
from kveik.kv.frame import frame_bytes
from kveik.kv.groups import GroupKind
from kveik.learned_cost import Cost, LearnedCost

#: How often the agent is told what this engine learned.
TELL_EVERY_S = 1.0
#: A load that took longer than expected makes its tiers count as late by that for a while.
LATE_HALF_LIFE_S = 60.0
LATE_MAX = 2.0
SURELY_LATE = 0.7
#: Loads from the arena that are timed before its own cost counts.
PATH_SAMPLES_MIN = 3
#: Without a load from the arena for so long that cost is forgotten, so that one is tried again: a busy minute may have
#: made it look as if computing were faster, and what is not loaded is not timed.
PATH_FORGOTTEN_S = 30.0


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the engine says of itself: payload bytes of a block by group, ranks, and the most tokens of one step."""

    payload_bytes: Mapping[int, int]
    ranks: int
    step_tokens_max: int


@dataclass(frozen=True, slots=True)
class Load:
    """A load that was begun: the part of a hit from ``local_tokens`` on. ``expected_s`` is 0 where nothing is known."""

    found: Found
    local_tokens: int
    cut: Cut
    expected_s: float


@dataclass(slots=True)
class LoadAdvice:
    """One engine's. ``shape`` is that of its KV cache; times are monotonic seconds."""

    shape: Shape
    prefill: PrefillRate = field(default_factory=PrefillRate)
    facts: EngineFacts | None = None
    _path: LearnedCost = field(default_factory=LearnedCost)
    _path_cost: Cost | None = None
    _tiers: dict[int, TierRate] = field(default_factory=dict)
    _late: dict[int, tuple[float, float]] = field(default_factory=dict)
    _sounded_s: dict[int, float] = field(default_factory=dict)
    _loads_end_s: float = 0.0
    _loads: int = 0
    _gains: dict[str, TierGain] = field(default_factory=dict)
    _told_s: float = -math.inf

    def __repr__(self) -> str:
        return (
            f"LoadAdvice({self.prefill.steps} prefill steps, {self._path.samples} loads from the arena, {self._tiers})"
        )

    def learn_facts(self, facts: EngineFacts) -> None:
        """The engine's workers have told what they are."""
        self.facts = facts
        self.prefill.step_tokens_max = facts.step_tokens_max

    def hear(self, rates: Iterable[TierRate]) -> None:
        """The agent says how fast tiers are."""
        self._tiers.update({rate.place: rate for rate in rates})

    # -- choosing -------------------------------------------------------------------------------

    def options(self, found: Found, hit_tokens: int, absent: frozenset[tuple[int, bytes]]) -> list[Cut]:
        """Where a hit may be cut; empty as long as the sizes of blocks are not known."""
        if self.facts is None:
            return []
        return cuts(self.shape, found, hit_tokens, self.facts.payload_bytes, self.facts.ranks, absent)

    def choose(
        self, options: Sequence[Cut], local_tokens: int, prompt_tokens: int, load: "EngineLoad", now_s: float
    ) -> Choice:
        """How much to load of a hit."""
        return choose(options, local_tokens, prompt_tokens, self._knowledge(load, now_s))

    def _knowledge(self, load: "EngineLoad", now_s: float) -> Knowledge:
        path = self._path_known(now_s)
        if not self.prefill.known(now_s):
            return Knowledge(path, self._tiers, None)
        return Knowledge(
            arena=path,
            tiers=self._tiers,
            compute_s=lambda start, end: self.prefill.seconds(start, end, now_s, beside_tokens=load.generating),
            ahead_s=sum(self.prefill.seconds(start, end, now_s) for start, end in load.ahead),
            loads_ahead_s=max(0.0, self._loads_end_s - now_s) if self._loads else 0.0,
            lateness={place: self._lateness(place, now_s) for place in self._late},
        )

    def _path_known(self, now_s: float) -> Cost | None:
        if self._path.samples < PATH_SAMPLES_MIN:
            return None
        if self._path_cost is None:
            self._path_cost = self._path.cost(now_s)
        recent = self._path_cost is not None and now_s - self._path_cost.at_s < PATH_FORGOTTEN_S
        return self._path_cost if recent else None

    def _lateness(self, place: int, now_s: float) -> float:
        value, at_s = self._late.get(place, (0.0, now_s))
        return float(value * 0.5 ** ((now_s - at_s) / LATE_HALF_LIFE_S))

    def sounding(self, places: Iterable[int], now_s: float) -> dict[int, int]:
        """Of places that were not loaded from those to time again now, and by how many blocks."""
        if self.facts is None:
            return {}
        block_bytes = frame_bytes(max(self.facts.payload_bytes.values()))
        due: dict[int, int] = {}
        for place in places:
            rate = self._tiers.get(place)
            since_s = now_s - self._sounded_s.get(place, -math.inf)
            if rate is not None and (blocks := sounding_blocks(rate, block_bytes, since_s)):
                due[place] = blocks
                self._sounded_s[place] = now_s
        return due

    # -- loads ----------------------------------------------------------------------------------

    def begin(self, found: Found, local_tokens: int, hit_tokens: int, now_s: float) -> Load | None:
        """vLLM takes an offer; None as long as the sizes of blocks are not known."""
        options = self.options(found, hit_tokens, frozenset())
        if not options:
            return None
        known = Knowledge(self._path_known(now_s), self._tiers, None)
        seconds = load_seconds(options[-1], known)
        expected_s = seconds[0] if seconds is not None else 0.0
        self._loads += 1
        self._loads_end_s = max(self._loads_end_s, now_s) + expected_s
        return Load(found, local_tokens, options[-1], expected_s)

    def ended(
        self, load: Load, used_tokens: int, seconds: float, name_of: Callable[[int], str], now_s: float
    ) -> dict[str, TierGain]:
        """A load ended after ``seconds`` of its own and so many tokens are usable: what it was worth, by tier."""
        self._loads = max(0, self._loads - 1)
        complete = load.local_tokens + used_tokens >= load.cut.tokens
        below = [place for place in load.cut.bytes_by_place if place != ARENA]
        size = sum(load.cut.bytes_by_place.values())
        if seconds > 0 and complete and not below:
            self._path, self._path_cost = self._path.observed((1, size), seconds, now_s), None
        if seconds > 0 and below and load.expected_s > 0:
            whole_s = seconds * (load.cut.tokens - load.local_tokens) / max(used_tokens, self.shape.unit_tokens)
            self._note_lateness(below, math.log(whole_s / load.expected_s), now_s)
        gains = self._gains_of(load, used_tokens, seconds, name_of, now_s)
        for tier, gain in gains.items():
            before = self._gains.get(tier, TierGain())
            self._gains[tier] = TierGain(
                before.tokens + gain.tokens, before.saved_s + gain.saved_s, before.lost_s + gain.lost_s
            )
        return gains

    def _note_lateness(self, places: Iterable[int], late: float, now_s: float) -> None:
        for place in places:
            before = self._lateness(place, now_s)
            value = late if late > SURELY_LATE else 0.5 * (before + late)
            self._late[place] = (min(max(value, 0.0), LATE_MAX), now_s)

    def _gains_of(
        self, load: Load, used_tokens: int, seconds: float, name_of: Callable[[int], str], now_s: float
    ) -> dict[str, TierGain]:
        """Computing counts for the place of each token; the load's time for the places of the bytes, slow ones more."""
        start, end = load.local_tokens, load.local_tokens + used_tokens
        computing_s = self.prefill.seconds(start, end, now_s)
        tokens = tokens_by_place(self.shape, load.found, end) if used_tokens > 0 else {}
        weights = {place: self._weight(place, size) for place, size in load.cut.bytes_by_place.items()}
        total_weight, total_tokens = sum(weights.values()) or 1.0, sum(tokens.values()) or 1
        gains: dict[str, TierGain] = {}
        for place, weight in weights.items():
            gain_s = computing_s * tokens.get(place, 0) / total_tokens - seconds * weight / total_weight
            gains[name_of(place)] = TierGain(tokens.get(place, 0), max(0.0, gain_s), max(0.0, -gain_s))
        return gains

    def _weight(self, place: int, size: int) -> float:
        rate = self._tiers.get(place)
        path = self._path_cost.seconds(0, size) if self._path_cost is not None else 0.0
        below = rate.fixed_s + size * rate.byte_s if rate is not None else 0.0
        return path + below if path + below > 0 else float(size)

    # -- telling --------------------------------------------------------------------------------

    def news(self, now_s: float) -> EngineRates | None:
        """What to tell the agent with the next message; None if that was done a moment ago."""
        cost = self.prefill.cost(now_s)
        if cost is None or self.facts is None or now_s - self._told_s < TELL_EVERY_S:
            return None
        self._told_s = now_s
        gains, self._gains = self._gains, {}
        path = self._path.cost(now_s)
        return EngineRates(
            prefill=list(cost.coefficients),
            prefill_sigma=cost.sigma,
            prefill_steps=cost.samples,
            step_tokens=self.facts.step_tokens_max,
            token_bytes=token_bytes(self.shape, self.facts),
            path=list(path.coefficients) if path is not None else [],
            path_sigma=path.sigma if path is not None else 0.0,
            gains=gains,
        )


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What the engine has to do before a request: token ranges still to compute, and how many requests generate."""

    ahead: Sequence[tuple[int, int]] = ()
    generating: int = 0


def token_bytes(shape: Shape, facts: EngineFacts) -> float:
    """Bytes that a further token of a long hit needs in all: windows and states do not grow with it."""
    growing = [group for group in shape.groups if group.kind is GroupKind.FULL]
    return facts.ranks * sum(
        frame_bytes(facts.payload_bytes[group.index]) / group.block_tokens for group in growing or shape.groups
    )
