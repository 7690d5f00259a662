"""Figures of any values at all."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kveik.bench.intervals import estimate, mean, mean_ratio, quantile, student

VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=60)
PARTS = st.sampled_from([0.5, 0.9, 0.99])
RATIOS = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12)


@given(VALUES, PARTS)
def test_an_interval_holds_its_value_and_its_bounds_are_that_or_values_that_were_seen(
    values: list[float], part: float
) -> None:
    found = estimate(values, part)
    assert min(values) <= found.value <= max(values)
    for bound in (found.low, found.high):
        assert bound is None or bound in (*values, found.value)
    assert found.low is None or found.low <= found.value
    assert found.high is None or found.value <= found.high


@given(VALUES)
def test_quantiles_grow_with_their_part_and_do_not_depend_on_order(values: list[float]) -> None:
    found = [quantile(values, part) for part in (0.0, 0.25, 0.5, 0.9, 0.99, 1.0)]
    assert found == sorted(found)
    assert found[0] == min(values)
    assert found[-1] == max(values)
    assert quantile(values[::-1], 0.9) == found[3]


@given(st.integers(1, 400), PARTS)
def test_of_more_values_the_interval_leaves_out_at_most_five_in_a_hundred(count: int, part: float) -> None:
    """The chance, by the binomial distribution, that the true quantile lies outside."""
    found = estimate([float(n) for n in range(1, count + 1)], part)
    chance = [math.comb(count, k) * part**k * (1 - part) ** (count - k) for k in range(count + 1)]
    if found.low is not None and found.low < found.value:
        assert sum(chance[: int(found.low)]) <= 0.025 + 1e-9
    if found.high is not None:
        assert sum(chance[int(found.high) :]) <= 0.025 + 1e-9


@given(RATIOS)
def test_a_gain_and_the_loss_that_it_is_from_the_other_side_are_one_thing(ratios: list[float]) -> None:
    forth, back = mean_ratio(ratios), mean_ratio([1 / ratio for ratio in ratios])
    assert forth.value == pytest.approx(1 / back.value)
    if forth.low is not None:
        assume(forth.low > 0 and back.high is not None and math.isfinite(back.high))
        assert back.high is not None
        assert forth.low == pytest.approx(1 / back.high, rel=1e-6)


@given(VALUES)
def test_means_lie_in_the_middle_of_their_intervals(values: list[float]) -> None:
    found = mean(values)
    if found.low is None or found.high is None:
        assert len(values) == 1
        return
    assert (found.low + found.high) / 2 == pytest.approx(found.value, abs=1e-6 * (1 + max(values)))


@given(st.integers(1, 500))
def test_student_s_quantiles_fall_with_the_number_of_rounds(freedom: int) -> None:
    assert student(freedom) >= student(freedom + 1) >= 1.96
