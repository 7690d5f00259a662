"""Slow decay: memory that only grows, and an engine that gets slower or guesses worse than it used to. Pure.

Memory goes up and down with its users, so what counts is the *floor*: the least that was seen in each twelfth of
the time. A leak raises the floor again and again, and goes on in the second half of the time; noise, a warm-up and
a cache that fills do not do that. Speed is compared with the engine's own beginning, as far as it had requests.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

DAY_S = 86_400.0
#: How often to take vitals, and how many to keep: two days.
VITALS_PERIOD_S = 60.0
VITALS_KEPT = 2880

#: An engine's first half hour is its own: buffers grow, shapes are compiled.
SETTLED_S = 1800.0
#: Less time shows no slope.
SPAN_MIN_S = 3600.0
_FLOORS = 12
#: Of the eleven differences between floors so many must be up; by chance, that is one case in thirty.
_RISES_MIN = 9
#: Standard errors that a slope must be above 0, and that its range has to both sides.
_SURE, _RANGE = 4.0, 2.0
#: What rises by less of itself in the time seen is no leak yet.
_GROWTH_MIN = 0.01
#: Exhaustion further away is nobody's business today.
WARN_DAYS = 30.0

#: Stretches of service that are compared: three at the beginning with three at the end, each of so many requests
#: or drafted tokens. The best of the last three is compared with the middle one of the first: a rush is no decay.
_COMPARED = 3
_REQUESTS_MIN = 100
_DRAFTS_MIN = 1000
_SLOWER, _WORSE = 2.0, 0.7


@dataclass(frozen=True, slots=True)
class Vitals:
    """What an engine uses and how it serves, at one time; counters only grow. None: not known.

    ``kv_share``: of its KV cache that is in use while it has no request (None while it has any). ``prompt_tokens``,
    ``ttft_sum_s`` (without the time in the queue) and ``ttft_count``: of requests, without the watchdog's probes.
    """

    at_s: float
    host_bytes: float | None = None
    device_bytes: float | None = None
    kv_share: float | None = None
    prompt_tokens: float = 0.0
    ttft_sum_s: float = 0.0
    ttft_count: float = 0.0
    draft_tokens: float = 0.0
    accepted_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """How much there is: bytes that an engine could have at most. None: not known."""

    host_bytes: float | None = None
    device_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Decay:
    """One warning. ``kind``: host memory, device memory, KV cache, TTFT or acceptance. ``days``: until exhaustion."""

    kind: str
    told: str
    days: float | None = None


@dataclass(frozen=True, slots=True)
class Slope:
    """How a quantity rises: units a day, almost certainly between ``low`` and ``high``; ``last`` is its last floor."""

    a_day: float
    low: float
    high: float
    last: float
    span_s: float

    def days_to(self, limit: float) -> tuple[float, float, float]:
        """Days until it reaches the limit: likely, at the soonest, at the latest. None of them is negative."""
        left = max(0.0, limit - self.last)
        return left / self.a_day, left / self.high, left / self.low


def rising(points: Sequence[tuple[float, float]]) -> Slope | None:
    """The slope of (seconds, quantity) if it rises for sure; None if it does not, or who knows."""
    if not points or points[-1][0] - points[0][0] < SPAN_MIN_S:
        return None
    floors = _floors(points)
    rises = sum(after[1] > before[1] for before, after in pairwise(floors))
    if len(floors) < _FLOORS or rises < _RISES_MIN:
        return None
    slope, error = _line(floors)
    later, _ = _line(floors[_FLOORS // 2 :])
    grown = floors[-1][1] - floors[0][1]
    if slope <= _SURE * error or later < slope / 3 or grown < _GROWTH_MIN * abs(floors[0][1]):
        return None
    low, high = slope - _RANGE * error, slope + _RANGE * error
    return Slope(slope * DAY_S, low * DAY_S, high * DAY_S, floors[-1][1], points[-1][0] - points[0][0])


def _floors(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The least quantity of each twelfth of the time that has any, with its time."""
    first_s, span_s = points[0][0], points[-1][0] - points[0][0]
    floors: dict[int, tuple[float, float]] = {}
    for at_s, value in points:
        part = min(_FLOORS - 1, int(_FLOORS * (at_s - first_s) / span_s))
        if part not in floors or value < floors[part][1]:
            floors[part] = (at_s, value)
    return [floors[part] for part in sorted(floors)]


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Slope of the least-squares line, and its standard error."""
    times, values = zip(*points, strict=True)
    slope, start = statistics.linear_regression(times, values)
    left = sum((value - start - slope * at_s) ** 2 for at_s, value in points)
    spread = sum((at_s - statistics.fmean(times)) ** 2 for at_s in times)
    return slope, math.sqrt(left / (len(points) - 2) / spread)


def decays(vitals: Sequence[Vitals], limits: Limits) -> list[Decay]:
    """What is to be told about one engine; ``vitals`` since it was started, oldest first."""
    settled = [one for one in vitals if one.at_s >= vitals[0].at_s + SETTLED_S]
    found = [
        _exhaustion("host memory", [(v.at_s, v.host_bytes) for v in settled], limits.host_bytes),
        _exhaustion("device memory", [(v.at_s, v.device_bytes) for v in settled], limits.device_bytes),
        _exhaustion("KV cache", [(v.at_s, v.kv_share) for v in settled], 1.0),
        _slower(settled),
        _guesses_worse(settled),
    ]
    return [one for one in found if one is not None]


def _exhaustion(kind: str, points: Sequence[tuple[float, float | None]], limit: float | None) -> Decay | None:
    slope = rising([(at_s, value) for at_s, value in points if value is not None])
    if slope is None or limit is None:
        return None
    days, soonest, latest = slope.days_to(limit)
    if days > WARN_DAYS:
        return None
    if kind == "KV cache":
        what = f"without any request, {slope.last:.1%} of the KV cache are in use, {slope.a_day:.1%} more a day"
    else:
        what = f"{kind} of {slope.last / 2**30:.2f} GiB grows by {slope.a_day / 2**30:.2f} GiB a day"
    seen = f"seen over {slope.span_s / 3600:.1f} h"
    return Decay(kind, f"{what} ({seen}): used up in {days:.1f} days ({soonest:.1f} to {latest:.1f})", days)


def _stretches(vitals: Sequence[Vitals], counter: str, least: float) -> list[tuple[Vitals, Vitals]]:
    """Consecutive stretches of time, by their ends, in each of which a counter grew by ``least`` or more."""
    stretches: list[tuple[Vitals, Vitals]] = []
    begin = None
    for one in vitals:
        if begin is None or getattr(one, counter) < getattr(begin, counter):
            begin = one
        elif getattr(one, counter) - getattr(begin, counter) >= least:
            stretches.append((begin, one))
            begin = one
    return stretches


def _slower(vitals: Sequence[Vitals]) -> Decay | None:
    """TTFT against the engine's own beginning, if prompts that are longer do not explain it."""
    served = [_ttft(*stretch) for stretch in _stretches(vitals, "ttft_count", _REQUESTS_MIN)]
    if len(served) < 2 * _COMPARED:
        return None
    then_s, then_tokens = sorted(served[:_COMPARED])[_COMPARED // 2]
    now_s, now_tokens = min(served[-_COMPARED:])
    explained = max(1.0, now_tokens / then_tokens) if then_tokens > 0 else 1.0
    if then_s <= 0 or now_s < _SLOWER * then_s * explained:
        return None
    times = f"{now_s / then_s:.1f} times the {then_s:.3f} s at its beginning"
    prompts = f"prompts had {then_tokens:.0f} tokens then and have {now_tokens:.0f} now"
    return Decay("TTFT", f"TTFT after the queue is {now_s:.3f} s, {times}; {prompts}")


def _ttft(before: Vitals, after: Vitals) -> tuple[float, float]:
    """Mean TTFT in seconds and mean prompt in tokens between two looks."""
    requests = after.ttft_count - before.ttft_count
    return (after.ttft_sum_s - before.ttft_sum_s) / requests, (after.prompt_tokens - before.prompt_tokens) / requests


def _guesses_worse(vitals: Sequence[Vitals]) -> Decay | None:
    """The acceptance rate of speculative decoding against the engine's own beginning."""
    rates = [
        (after.accepted_tokens - before.accepted_tokens) / (after.draft_tokens - before.draft_tokens)
        for before, after in _stretches(vitals, "draft_tokens", _DRAFTS_MIN)
    ]
    if len(rates) < 2 * _COMPARED:
        return None
    then, now = sorted(rates[:_COMPARED])[_COMPARED // 2], max(rates[-_COMPARED:])
    if now >= _WORSE * then:
        return None
    return Decay("acceptance", f"{now:.1%} of drafted tokens are accepted, {then:.1%} were at its beginning")
