"""Figures of several values, each with how sure it is. Pure.

Two kinds of 95 % intervals, both without resampling, so the same values give the same interval:

- *within one side*, over single requests: order statistics. The number of values below a quantile is binomial,
  whatever the values' distribution (David and Nagaraja, Order Statistics, 7.1). Too few values have no bound.
- *between two sides*, over rounds: Student's t for the mean of the logarithms of each round's ratio. Requests of one
  round influence each other, rounds hardly do; so this one is for claims.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

#: Both kinds leave out 2.5 % on each side.
_TAIL = 0.025

#: The 97.5 % quantile of Student's t by degrees of freedom; between two of them the larger value counts.
_STUDENT = {
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228,
    11: 2.201, 12: 2.179, 13: 2.160, 14: 2.145, 15: 2.131, 16: 2.120, 17: 2.110, 18: 2.101, 19: 2.093, 20: 2.086,
    25: 2.060, 30: 2.042, 40: 2.021, 60: 2.000, 120: 1.980,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its 95 % interval; a bound is None where there are too few values for it."""

    value: float
    low: float | None = None
    high: float | None = None

    def document(self) -> dict[str, float | None]:
        """As a JSON object."""
        return {"value": _short(self.value), "low": _short(self.low), "high": _short(self.high)}


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def quantile(values: Sequence[float], part: float) -> float:
    """The quantile, between two values in proportion, as ``vllm bench serve`` takes it. Raises ValueError for none."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    place = part * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def estimate(values: Sequence[float], part: float) -> Estimate:
    """A quantile with its interval by order statistics. Raises ValueError without values.

    Of a few values a high quantile lies surely above all of them; the interval is then widened down to the estimate.
    """
    ordered = sorted(values)
    low, high = _ranks(len(ordered), part)
    value = quantile(ordered, part)
    return Estimate(
        value,
        min(ordered[low - 1], value) if low >= 1 else None,
        max(ordered[high - 1], value) if high <= len(ordered) else None,
    )


def _ranks(count: int, part: float) -> tuple[int, int]:
    """The ranks, from 1 on, of the values that bound the quantile; 0 and ``count + 1`` where there is none.

    Low is the largest rank whose value is above the quantile with at most 2.5 %, high the smallest that is below.
    """
    below = _binomial_sums(count, part)  # below[k]: at most k values are below the quantile
    low = sum(1 for chance in below[:-1] if chance <= _TAIL)
    high = next((rank for rank in range(1, count + 1) if 1 - below[rank - 1] <= _TAIL), count + 1)
    return low, high


def _binomial_sums(count: int, part: float) -> list[float]:
    sums, total = [], 0.0
    for k in range(count + 1):
        chance = (
            math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
            + k * math.log(part) + (count - k) * math.log1p(-part)
        )  # fmt: skip
        total += math.exp(chance)
        sums.append(total)
    return sums


def mean_ratio(ratios: Sequence[float]) -> Estimate:
    """The geometric mean of ratios above 0, one a round, with its t interval; no interval for one round.

    Raises ValueError without ratios.
    """
    logs = [math.log(ratio) for ratio in ratios]
    if not logs:
        raise ValueError("no ratios")
    middle = fmean(logs)
    if len(logs) < 2:
        return Estimate(math.exp(middle))
    reach = student(len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    return Estimate(math.exp(middle), math.exp(middle - reach), math.exp(middle + reach))


def mean(values: Sequence[float]) -> Estimate:
    """The mean of values, one a round, with its t interval; no interval for one round. Raises ValueError for none."""
    if not values:
        raise ValueError("no values")
    if len(values) < 2:
        return Estimate(values[0])
    reach = student(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Estimate(fmean(values), fmean(values) - reach, fmean(values) + reach)


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t distribution, for at least one degree of freedom."""
    return _STUDENT[max(known for known in _STUDENT if known <= freedom)]
