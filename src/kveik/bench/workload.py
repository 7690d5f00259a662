"""What the demonstration asks, and how often: pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from kveik.engine.client import Completion
from kveik.verify.parity import Distance, distance, float32_rule

DEMO_LENGTHS = (512, 1024, 2048, 4096, 7000)
HIT_REPEATS = 3


class Route(Enum):
    """Where the first tokens of a prompt come from. The value is what people read."""

    COLD = "cold"
    LOCAL = "local hit"
    OTHER = "other engine"
    RESTART = "after kill -9"

    @property
    def shared(self) -> bool:
        """Whether the tokens come from the shared cache."""
        return self in (Route.OTHER, Route.RESTART)


def cold_repeats(tokens: int) -> int:
    """How many different prompts of this length are run cold: more where it is cheap."""
    return max(1, min(3, 4096 // tokens))


@dataclass(frozen=True, slots=True)
class Measurement:
    """All requests of one prompt length over one route.

    ``answers`` are those to the one prompt that all routes share; ``ttfts_s`` may hold more
    (cold runs of other prompts). ``hit_tokens`` is what counters say came from a cache, each time.
    """

    tokens: int
    route: Route
    ttfts_s: Sequence[float]
    answers: Sequence[Completion]
    hit_tokens: int

    @property
    def ttft_s(self) -> float:
        """The median time to first token."""
        return statistics.median(self.ttfts_s)


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt length: the measurements by route, and whether all answers equal the cold one."""

    tokens: int
    measurements: dict[Route, Measurement]
    differences: dict[Route, Distance]

    def ttft_s(self, route: Route) -> float:
        """The median time to first token over one route."""
        return self.measurements[route].ttft_s

    def speedup(self, route: Route) -> float:
        """How many times faster than cold."""
        return self.ttft_s(Route.COLD) / self.ttft_s(route)

    @property
    def equal(self) -> bool:
        """Whether every answer over every route holds against the cold one, by the rule for float32."""
        return not any(float32_rule().complaint(found) for found in self.differences.values())


def rows(measurements: Sequence[Measurement]) -> list[Row]:
    """The measurements by length, each compared with the cold answer of its length."""
    by_length: dict[int, dict[Route, Measurement]] = {}
    for measurement in measurements:
        by_length.setdefault(measurement.tokens, {})[measurement.route] = measurement
    return [
        Row(tokens, by_route, {route: _worst(by_route[Route.COLD], found) for route, found in by_route.items()})
        for tokens, by_route in sorted(by_length.items())
    ]


def _worst(cold: Measurement, other: Measurement) -> Distance:
    """The worst distance of these answers from the cold one: another token first, then the largest difference."""
    found = [distance(cold.answers[0], answer) for answer in other.answers]
    return max(found, key=lambda one: (not one.same_ids, one.logprob))
