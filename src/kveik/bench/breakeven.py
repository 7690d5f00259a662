"""When loading a prompt beats computing it, for each engine and tier of a node: from the agent's state. Pure."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ARENA = "arena"
LENGTHS = tuple(1 << power for power in range(8, 18))  # 256 to 131,072 tokens
#: Lengths at which curves are compared, a step of about 4 %, from one token on.
_GRID = tuple(dict.fromkeys(round(2 ** (step / 16)) for step in range(17 * 16 + 1)))

Seconds = Callable[[int], float]


@dataclass(frozen=True, slots=True)
class Curve:
    """Expected seconds by prompt length. ``sigma`` is the standard deviation of the logarithm of seen over expected."""

    seconds: Seconds
    sigma: float
    samples: int

    def at(self, tokens: int, sigmas: float = 0.0) -> float:
        """Seconds for a prompt of that length, so many standard deviations off."""
        return self.seconds(tokens) * math.exp(sigmas * self.sigma)


@dataclass(frozen=True, slots=True)
class Crossing:
    """The shortest prompt from which on loading is faster, as expected, at best and at worst; None: at no length."""

    tokens: int | None
    low: int | None
    high: int | None


@dataclass(frozen=True, slots=True)
class EngineCurves:
    """One engine: computing, and loading from each tier that is known."""

    label: str
    pid: int
    compute: Curve
    loads: Mapping[str, Curve]

    def crossings(self) -> dict[str, Crossing]:
        """For each tier."""
        return {tier: crossing(self.compute, load) for tier, load in self.loads.items()}


@dataclass(frozen=True, slots=True)
class Gain:
    """What loads from one tier were worth so far, in engine-seconds."""

    tier: str
    tokens: int
    saved_s: float
    lost_s: float


def engines(state: Mapping[str, Any]) -> list[EngineCurves]:
    """The curves of all engines that have told what they learned."""
    rates = {tier["name"]: tier["rate"]["get"] for tier in state["tiers"] if tier.get("rate", {}).get("get")}
    told = [(connection, connection.get("learned")) for connection in state["connections"]]
    return [
        EngineCurves(each["label"], each["pid"], _computing(learned), _loading(learned, rates))
        for each, learned in told
        if learned
    ]


def gains(state: Mapping[str, Any]) -> list[Gain]:
    """What was saved and lost, by tier."""
    return [
        Gain(tier, int(sums["tokens"]), float(sums["saved_s"]), float(sums["lost_s"]))
        for tier, sums in state.get("gains", {}).items()
    ]


def _computing(learned: Mapping[str, Any]) -> Curve:
    step_s, token_s, attended_s = learned["prefill"]
    most = max(1, learned["step_tokens"])
    return Curve(
        lambda tokens: -(-tokens // most) * step_s + tokens * token_s + tokens * tokens / 2 * attended_s,
        learned["prefill_sigma"],
        learned["prefill_steps"],
    )


def _loading(learned: Mapping[str, Any], rates: Mapping[str, Mapping[str, Any]]) -> dict[str, Curve]:
    each = learned["token_bytes"]
    fixed_s, byte_s = learned["path"] or (0.0, 0.0)
    sigma = learned["path_sigma"]
    curves = {ARENA: Curve(_line(fixed_s, byte_s * each), sigma, 0)} if learned["path"] else {}
    for tier, rate in rates.items():
        line = _line(fixed_s + rate["fixed_s"], (byte_s + rate["each_s"]) * each)
        curves[tier] = Curve(line, max(sigma, rate["sigma"]), rate["samples"])
    return curves


def _line(fixed_s: float, token_s: float) -> Seconds:
    return lambda tokens: fixed_s + tokens * token_s


def crossing(compute: Curve, load: Curve) -> Crossing:
    """Where loading begins to pay, with both curves as expected, and one standard deviation for and against it."""
    return Crossing(*(_pays_from(compute, load, sigmas) for sigmas in (0.0, -1.0, 1.0)))


def _pays_from(compute: Curve, load: Curve, sigmas: float) -> int | None:
    first: int | None = None
    for tokens in _GRID:
        if load.at(tokens, sigmas) > compute.at(tokens, -sigmas):
            first = None
        elif first is None:
            first = tokens
    return first


def document(state: Mapping[str, Any], lengths: Sequence[int] = LENGTHS) -> dict[str, Any]:
    """Everything as plain values: seconds by length, crossings, and what was saved and lost."""
    return {
        "lengths": list(lengths),
        "engines": [
            {
                "label": each.label,
                "pid": each.pid,
                "compute": _plain(each.compute, lengths),
                "load": {tier: _plain(curve, lengths) for tier, curve in each.loads.items()},
                "pays_from_tokens": {
                    tier: {"expected": found.tokens, "low": found.low, "high": found.high}
                    for tier, found in each.crossings().items()
                },
            }
            for each in engines(state)
        ],
        "gains": {
            gain.tier: {"tokens": gain.tokens, "saved_s": gain.saved_s, "lost_s": gain.lost_s} for gain in gains(state)
        },
    }


def _plain(curve: Curve, lengths: Sequence[int]) -> dict[str, Any]:
    return {
        "seconds": [round(curve.at(tokens), 6) for tokens in lengths],
        "sigma": round(curve.sigma, 4),
        "samples": curve.samples,
    }
