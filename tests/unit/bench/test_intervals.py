"""Quantiles and intervals against values from textbooks."""

import math
import random

import pytest

from kveik.bench.intervals import Estimate, estimate, mean, mean_ratio, quantile, student


def test_quantiles_are_those_of_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    values = random.Random(1).sample(range(1000), 37)
    for part in (0.0, 0.1, 0.5, 0.9, 0.99, 1.0):
        assert quantile(values, part) == pytest.approx(float(numpy.percentile(values, 100 * part)))
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)


@pytest.mark.parametrize(
    ("count", "low", "high"),
    # Ranks of the 95 % interval of the median, as tables of the sign test have them.
    [(6, 1, 6), (8, 1, 8), (9, 2, 8), (10, 2, 9), (15, 4, 12), (20, 6, 15), (25, 8, 18), (50, 18, 33), (100, 40, 61)],
)
def test_the_median_lies_between_the_ranks_that_tables_give(count: int, low: int, high: int) -> None:
    found = estimate(list(range(1, count + 1)), 0.5)
    assert (found.low, found.high) == (low, high)


def test_too_few_values_bound_nothing() -> None:
    assert estimate([3.0], 0.5) == Estimate(3.0)
    assert estimate([1.0, 2.0, 3.0, 4.0, 5.0], 0.5) == Estimate(3.0)
    tail = estimate([float(n) for n in range(1, 101)], 0.99)
    assert tail.high is None, "the slowest of 100 says nothing about how slow one in a hundred can be"
    assert tail.low is not None


def test_about_95_of_100_intervals_hold_the_true_median() -> None:
    dice = random.Random(7)
    held = 0
    for _ in range(400):
        found = estimate([dice.expovariate(1.0) for _ in range(30)], 0.5)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= math.log(2) <= found.high
    assert 0.92 <= held / 400 <= 0.995


def test_means_have_student_s_interval() -> None:
    # Standard deviation 1, three values: 4.303 / sqrt(3) on each side.
    found = mean([9.0, 10.0, 11.0])
    assert found.value == 10.0
    assert (found.low, found.high) == pytest.approx((10 - 4.303 / math.sqrt(3), 10 + 4.303 / math.sqrt(3)))
    assert mean([5.0]) == Estimate(5.0)


def test_ratios_are_taken_together_by_their_logarithms() -> None:
    assert mean_ratio([2.0, 8.0]).value == pytest.approx(4.0)
    same = mean_ratio([3.0, 3.0, 3.0])
    assert (same.low, same.value, same.high) == pytest.approx((3.0, 3.0, 3.0))
    assert mean_ratio([1.0]) == Estimate(1.0)
    inverse, ratio = mean_ratio([1 / 2, 1 / 3, 1 / 4]), mean_ratio([2.0, 3.0, 4.0])
    assert inverse.low is not None
    assert ratio.high == pytest.approx(1 / inverse.low)


def test_student_s_quantiles_never_fall_short() -> None:
    assert (student(1), student(2), student(10), student(30)) == (12.706, 4.303, 2.228, 2.042)
    assert student(22) == 2.086
    assert student(1000) == 1.980


def test_estimates_are_written_shortly() -> None:
    assert Estimate(1 / 3, None, 2.0).document() == {"value": 0.333333, "low": None, "high": 2.0}


@pytest.mark.parametrize("figure", [mean, mean_ratio])
def test_nothing_has_no_mean(figure: type) -> None:
    with pytest.raises(ValueError, match="no "):
        figure([])
