"""What something costs in seconds, learned from what it took. Pure: the time is an argument.

A cost is ``c[0] * x[0] + c[1] * x[1] + ...`` seconds for features ``x``, with no coefficient below zero. By convention
``x[0]`` is 1 (what each call costs whatever its size) and ``x[1]`` the size (tokens, bytes, keys). Samples are kept by
order of magnitude of their features, the latest few of each, so that a thousand small steps leave the large ones known.
The fit weighs errors by their share, later samples more, and one that lies far off less. Where the latest three agree
that everything became faster or slower, it follows them at once: what a tier or engine does beside changes often, how
its cost depends on size hardly ever.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

#: Samples kept of one order of magnitude, and how many orders.
SAMPLES_KEPT = 8
BUCKETS_KEPT = 24
#: Weight of a sample relative to the one after it in its bucket.
FADING = 0.7
#: A log ratio of seen to expected beyond this loses weight.
OUTLIER = 0.7
ROUNDS = 3
#: When the middle one of the latest samples, of whatever size, is off by this, all sizes cost so much more or less.
LATEST = 3
SHIFT = 0.5
#: A further coefficient is believed only if it takes this share off the error that is left, or off one of this size.
GAIN_MIN = 0.05
ERROR_MIN = 1e-3
#: Uncertainty (a standard deviation of the logarithm) before anything is known, and how it grows: in an hour by one.
SIGMA_UNKNOWN = 0.5
DRIFT_S = 3600.0
SECONDS_MIN = 1e-6
#: Errors that differ by less are the same but for rounding; features that hardly differ are no reason to overflow.
SAME = 1e-9
RIDGE = 1e-9


@dataclass(frozen=True, slots=True)
class Sample:
    """Something that took ``seconds``, seen at a monotonic time."""

    features: tuple[float, ...]
    seconds: float
    at_s: float


@dataclass(frozen=True, slots=True)
class Cost:
    """A fit. ``sigma`` is the standard deviation of the logarithm of seen over expected; ``at_s`` the last sample's."""

    coefficients: tuple[float, ...]
    sigma: float
    samples: int
    at_s: float

    def seconds(self, *features: float) -> float:
        """What is expected."""
        return sum(each * feature for each, feature in zip(self.coefficients, features, strict=True))

    def sigma_at(self, now_s: float) -> float:
        """The uncertainty now: it grows while nothing is seen."""
        return math.sqrt(self.sigma**2 + max(0.0, now_s - self.at_s) / DRIFT_S)


@dataclass(frozen=True, slots=True)
class LearnedCost:
    """Samples of one kind of work; each change is a new value. ``half_life_s``: after so long one weighs half."""

    half_life_s: float = 300.0
    buckets: Mapping[tuple[int, ...], tuple[Sample, ...]] = field(default_factory=dict)
    samples: int = 0

    def __repr__(self) -> str:
        return f"LearnedCost({self.samples} samples in {len(self.buckets)} orders of magnitude)"

    def observed(self, features: Sequence[float], seconds: float, now_s: float) -> "LearnedCost":
        """With one more sample. One that took no time, or whose numbers are not finite, says nothing."""
        if not (seconds > 0 and all(map(math.isfinite, (seconds, *features)))):
            return self
        sample = Sample(tuple(features), max(seconds, SECONDS_MIN), now_s)
        bucket = tuple(int(math.log2(1 + feature)) for feature in features[1:])
        buckets = {key: kept for key, kept in self.buckets.items() if key != bucket}
        buckets[bucket] = (*self.buckets.get(bucket, ()), sample)[-SAMPLES_KEPT:]
        while len(buckets) > BUCKETS_KEPT:  # the one that was not seen for longest stands first
            del buckets[next(iter(buckets))]
        return replace(self, buckets=buckets, samples=self.samples + 1)

    def cost(self, now_s: float) -> Cost | None:
        """The fit now; None before the first sample."""
        kept = [sample for bucket in self.buckets.values() for sample in bucket]
        if not kept:
            return None
        fading = [
            FADING ** (len(bucket) - 1 - index) * 0.5 ** (max(0.0, now_s - sample.at_s) / self.half_life_s)
            for bucket in self.buckets.values()
            for index, sample in enumerate(bucket)
        ]
        weights = np.array(fading) / max(fading) if max(fading) > 0 else np.ones(len(kept))
        features = np.array([sample.features for sample in kept], np.float64)
        seconds = np.array([sample.seconds for sample in kept], np.float64)
        coefficients, errors, weights = _fit(features, seconds, weights)
        samples = self.samples
        latest = errors[np.argsort([-sample.at_s for sample in kept], kind="stable")[:LATEST]]
        shift = float(np.median(latest))
        if len(latest) == LATEST and abs(shift) > SHIFT:
            coefficients = coefficients * math.exp(shift)
            errors, weights, samples = latest - shift, np.minimum(1.0, OUTLIER / np.abs(latest - shift + SAME)), LATEST
        spread = (float(np.sum(weights * errors**2)) + SIGMA_UNKNOWN**2 / samples) / (np.sum(weights) + 1 / samples)
        return Cost(tuple(coefficients.tolist()), math.sqrt(spread), self.samples, max(sample.at_s for sample in kept))


_Array = NDArray[np.float64]


def _fit(features: _Array, seconds: _Array, fading: _Array) -> tuple[_Array, _Array, _Array]:
    """Coefficients, log errors and the weights that outliers were left with."""
    expected, weights = seconds, fading
    coefficients = np.zeros(features.shape[1])
    for _ in range(ROUNDS):
        coefficients = _least_squares(features / expected[:, None], seconds / expected, weights)
        fitted = features @ coefficients
        errors = np.log(seconds / np.maximum(fitted, SECONDS_MIN))
        weights = fading * np.minimum(1.0, OUTLIER / np.maximum(np.abs(errors), 1e-9))
        # Of what was seen and what is expected the larger one: else a slow sample would count many times over.
        expected = np.maximum(np.maximum(fitted, seconds / 8), SECONDS_MIN)
    return coefficients, errors, weights


def _least_squares(features: _Array, targets: _Array, weights: _Array) -> _Array:
    """The best coefficients that are not below zero, as few of them as do: the size's own first."""
    count = features.shape[1]
    roots = np.sqrt(weights)
    scales = np.maximum(np.linalg.norm(features * roots[:, None], axis=0), np.finfo(np.float64).tiny)
    columns, wanted = features * roots[:, None] / scales, targets * roots
    normal, right, whole = columns.T @ columns + RIDGE * np.eye(count), columns.T @ wanted, float(wanted @ wanted)
    best, best_error = np.zeros(count), whole
    for size in range(1, count + 1):
        found, found_error = best, math.inf
        for chosen in combinations([*range(1, count), 0], size):
            index = list(chosen)
            solution = np.linalg.solve(normal[np.ix_(index, index)], right[index])
            error = max(0.0, whole - float(solution @ right[index]))
            if solution.min() >= 0 and error < found_error - SAME:
                found, found_error = np.zeros(count), error
                found[index] = solution
        if found_error < best_error - max(GAIN_MIN * best_error, ERROR_MIN * float(np.sum(weights))):
            best, best_error = found, found_error
    scaled: _Array = best / scales
    return scaled
