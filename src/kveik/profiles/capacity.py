"""What fits: weights, KV cache, tokens, and a goal of requests at a length. Pure; each figure says how it was found.

Estimates before a start. What an engine really has it says itself ("GPU KV cache size: N tokens").
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kveik.errors import ConfigError
from kveik.launch.sizes import DEVICE_BYTES
from kveik.profiles.figure import GIB, Figure, size
from kveik.profiles.kv_groups import KvGroup, Split, kv_groups
from kveik.profiles.parameters import parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model: by its config, or by what is published of it where that does not tell.

    ``weights_bytes``: of its files, 0 if they are not there; ``bits`` of a weight otherwise. ``drafts``: draft layers.
    """

    name: str
    config: Mapping[str, Any] | None = None
    weights_bytes: int = 0
    parameters: float = 0.0
    bits: float = 16.0
    kv_bytes_a_token: int = 0
    drafts: int = 0
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Devices of a group. ``other_bytes``: what else lies on each; ``experts_apart``: spread over all ranks."""

    memory_bytes: int
    utilization: float = 0.9
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    experts_apart: bool = False
    other_bytes: int = DEVICE_BYTES
    kv_dtype: str = "auto"

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "data", "memory_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected at least 1")
        if not 0 < self.utilization <= 1:
            raise ConfigError(f"--utilization is {self.utilization}, expected more than 0 and at most 1")


@dataclass(frozen=True, slots=True)
class Goal:
    """So many requests at once, each of so many tokens (prompt and answer)."""

    context: int
    requests: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """All figures in order, and whether the goal is met; None without one."""

    figures: tuple[Figure, ...]
    fits: bool | None


def capacity(subject: Subject, place: Place, goal: Goal | None = None) -> Capacity:
    """What fits where. Raises :class:`ConfigError` where the model does not say enough, or nothing is left for KV."""
    weights = _weights(subject, place)
    groups = _groups(subject, place)
    token_bytes = sum(group.token_bytes for group in groups)
    fixed = sum(group.request_bytes for group in groups)
    room = place.memory_bytes * place.utilization - weights.bytes - place.other_bytes
    figures = [*weights.figures, *_kv_figures(groups, token_bytes, fixed, subject.source)]
    figures.append(
        Figure(
            "room for KV on a device",
            room,
            "bytes",
            "memory x utilization - weights - other",
            f"{size(place.memory_bytes)} x {place.utilization:g} - {size(weights.bytes)} - {size(place.other_bytes)}",
        )
    )
    if room <= 0:
        figures.append(Figure("fits", "no", "", "room for KV > 0", f"{size(room)}"))
        return Capacity(tuple(figures), fits=False)
    tokens = math.floor(room / token_bytes) if token_bytes else 0
    if tokens:
        figures.append(
            Figure(
                "tokens in the KV cache of a rank",
                tokens,
                "tokens",
                "room / bytes a token",
                f"{size(room)} / {token_bytes:g}",
            )
        )
        figures.append(
            Figure(
                "tokens of all ranks",
                tokens * place.data,
                "tokens",
                "tokens of a rank x ranks",
                f"{tokens:,} x {place.data}",
            )
        )
    if goal is None:
        return Capacity(tuple(figures), None)
    met, told = _goal(goal, place, room, token_bytes, fixed)
    return Capacity((*figures, *told), met)


@dataclass(frozen=True, slots=True)
class _Weights:
    bytes: float
    figures: tuple[Figure, ...]


def _weights(subject: Subject, place: Place) -> _Weights:
    counted = parameters(subject.config) if subject.config else None
    share = counted.experts / counted.total if counted and counted.total else 1.0
    if subject.weights_bytes:
        total = float(subject.weights_bytes)
        first = Figure("weights", total, "bytes", "size of the weights' files", "")
    else:
        count = subject.parameters or (counted.total if counted else 0)
        if not count:
            raise ConfigError(f"{subject.name}: its config.json does not say how many parameters it has: --weights-gib")
        total = count * subject.bits / 8
        how = "published" if subject.parameters else "by its config.json"
        first = Figure(
            "weights",
            total,
            "bytes",
            f"parameters ({how}) x bits / 8",
            f"{count:,.0f} x {subject.bits:g} / 8",
            subject.source if subject.parameters else "",
        )
    split = place.tensor * place.pipeline
    if place.experts_apart and place.data > 1 and share:
        each = total * share / (split * place.data) + total * (1 - share) / split
        formula = "experts / (tensor x pipeline x data) + rest / (tensor x pipeline)"
        filled = f"{size(total * share)} / {split * place.data} + {size(total * (1 - share))} / {split}"
    else:
        each, formula, filled = total / split, "weights / (tensor x pipeline)", f"{size(total)} / {split}"
    return _Weights(each, (first, Figure("weights on a device", each, "bytes", formula, filled)))


def _groups(subject: Subject, place: Place) -> tuple[KvGroup, ...]:
    if subject.kv_bytes_a_token:
        return (
            KvGroup(
                "published",
                subject.kv_bytes_a_token,
                0,
                "published, on each device of a rank",
                str(subject.kv_bytes_a_token),
            ),
        )
    if subject.config is None:
        raise ConfigError(f"{subject.name} has no config.json here: --model-folder or --config")
    split = Split(place.tensor, place.pipeline)
    groups = kv_groups(subject.config, split, place.kv_dtype, subject.drafts)
    if not groups:
        raise ConfigError(f"{subject.name}: its config.json does not say its layers and heads")
    return groups


def _kv_figures(groups: Sequence[KvGroup], token_bytes: float, fixed: float, source: str) -> list[Figure]:
    figures = []
    for group in groups:
        value = group.token_bytes or group.request_bytes
        unit = "bytes a token" if group.token_bytes else "bytes a request"
        figures.append(
            Figure(
                f"KV {group.name}",
                value,
                unit,
                group.formula,
                group.filled,
                source if group.name == "published" else "",
            )
        )
    named = " + ".join(f"{group.token_bytes:g}" for group in groups if group.token_bytes)
    figures.append(
        Figure("KV a token on a device", token_bytes, "bytes a token", "sum of what grows with tokens", named)
    )
    if fixed:
        named = " + ".join(f"{group.request_bytes:g}" for group in groups if group.request_bytes)
        figures.append(Figure("KV a request on a device", fixed, "bytes a request", "sum of windows and states", named))
    return figures


def _goal(goal: Goal, place: Place, room: float, token_bytes: float, fixed: float) -> tuple[bool, tuple[Figure, ...]]:
    if goal.context < 1 or goal.requests < 1:
        raise ConfigError(f"the goal is {goal.requests} requests of {goal.context} tokens, expected at least 1 of each")
    mine = math.ceil(goal.requests / place.data)
    one = goal.context * token_bytes + fixed
    needed = mine * one
    fits = needed <= room
    plus = f" + {fixed:g}" if fixed else ""
    figures = [
        Figure(
            "requests of a rank", mine, "requests", "requests / ranks, rounded up", f"{goal.requests} / {place.data}"
        ),
        Figure(
            "KV that they need",
            needed,
            "bytes",
            "requests x (tokens x bytes a token + bytes a request)",
            f"{mine} x ({goal.context:,} x {token_bytes:g}{plus})",
        ),
        Figure(
            f"{goal.context:,} tokens x {goal.requests} requests",
            "yes" if fits else "no",
            "",
            "needed <= room",
            f"{size(needed)} <= {size(room)}",
        ),
        Figure(
            "requests of that length at most",
            math.floor(room / one) * place.data,
            "requests",
            "room / bytes of a request, rounded down, x ranks",
            f"{size(room)} / {size(one)} x {place.data}",
        ),
    ]
    if token_bytes:
        longest = max(0, math.floor((room / mine - fixed) / token_bytes))
        figures.append(
            Figure(
                "longest context with so many",
                longest,
                "tokens",
                "(room / requests - bytes a request) / bytes a token",
                f"({size(room)} / {mine}{f' - {fixed:g}' if fixed else ''}) / {token_bytes:g}",
            )
        )
    return fits, tuple(figures)


def moved(tokens: int, token_bytes: float, moved_bytes: float) -> tuple[Figure, ...]:
    """What it gains to move a table of so many bytes off each device, to a pool of so many tokens."""
    gained = moved_bytes / token_bytes
    after = tokens + gained
    return (
        Figure(
            "tokens gained",
            gained,
            "tokens",
            "bytes that leave a device / bytes a token",
            f"{moved_bytes:,.0f} / {token_bytes:g}",
        ),
        Figure("tokens after the move", after, "tokens", "tokens before + gained", f"{tokens:,} + {gained:,.0f}"),
        Figure("pool", after / tokens, "times as large", "after / before", f"{after:,.0f} / {tokens:,}"),
    )


def moved_between(before: int, after: int, token_bytes: float) -> tuple[Figure, ...]:
    """What must have left each device where a pool grew from ``before`` to ``after`` tokens. Raises ConfigError."""
    if not 0 < before <= after:
        raise ConfigError(f"the pool went from {before} to {after} tokens, expected that it grew from at least 1")
    gained = after - before
    return (
        Figure("pool", after / before, "times as large", "after / before", f"{after:,} / {before:,}"),
        Figure(
            "left each device",
            gained * token_bytes,
            "bytes",
            "(after - before) x bytes a token",
            f"({after:,} - {before:,}) x {token_bytes:g}",
        ),
    )


def cost(price: float, devices: int, tokens_per_s: float, speedup: float = 1.0) -> tuple[Figure, ...]:
    """The cost of a million tokens: ``price`` of a device for an hour. Raises :class:`ConfigError`."""
    if price < 0 or devices < 1 or tokens_per_s <= 0 or speedup <= 0:
        raise ConfigError("cost needs a price of at least 0, devices, tokens a second and a speedup above 0")
    each = price * devices / (tokens_per_s * 3600) * 1e6
    figures = [
        Figure(
            "cost of a million tokens",
            each,
            "",
            "price x devices / (tokens a second x 3600) x 1,000,000",
            f"{price:g} x {devices} / ({tokens_per_s:g} x 3600) x 1,000,000",
        )
    ]
    if speedup != 1.0:
        figures.append(Figure("with the speedup", each / speedup, "", "cost / speedup", f"{each:.4g} / {speedup:g}"))
        figures.append(
            Figure("saved", (1 - 1 / speedup) * 100, "%", "1 - 1 / speedup, at the same price", f"1 - 1 / {speedup:g}")
        )
    return tuple(figures)


def gib(value: float) -> int:
    """Gibibytes as bytes."""
    return int(value * GIB)
