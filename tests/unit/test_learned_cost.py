"""A cost is learned from samples, follows changes, and is not thrown by one that lies far off."""

import math
import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.learned_cost import BUCKETS_KEPT, SAMPLES_KEPT, Cost, LearnedCost

MIB = 1 << 20


def learned(samples: Iterable[tuple[float, ...]], learner: LearnedCost | None = None, at_s: float = 0.0) -> LearnedCost:
    """From tuples of features after the constant one, and seconds; a sample a second."""
    known = learner or LearnedCost()
    for number, (*features, seconds) in enumerate(samples):
        known = known.observed((1, *features), seconds, at_s + number)
    return known


def cost(known: LearnedCost, now_s: float = 100.0) -> Cost:
    found = known.cost(now_s)
    assert found is not None
    return found


def line(fixed_s: float, each_s: float) -> Callable[[float], tuple[float, float]]:
    return lambda size: (size, fixed_s + each_s * size)


def test_nothing_is_known_before_the_first_sample() -> None:
    assert LearnedCost().cost(0.0) is None


def test_one_sample_is_a_rate_and_very_uncertain() -> None:
    found = cost(learned([(10 * MIB, 0.5)]))
    assert found.seconds(1, 20 * MIB) == pytest.approx(1.0)
    assert found.sigma > 0.3


def test_fixed_cost_and_cost_of_each_byte_are_told_apart() -> None:
    found = cost(learned(map(line(0.02, 1e-9), [2**power * 1000 for power in range(20)])))
    assert found.coefficients == pytest.approx((0.02, 1e-9), rel=1e-3)
    assert found.sigma < 0.15


def test_a_cost_that_is_all_fixed_has_no_slope() -> None:
    found = cost(learned((size, 0.003) for size in (1, 10, 100, 1000)))
    assert found.coefficients == pytest.approx((0.003, 0.0), abs=1e-9)


def test_attention_grows_with_what_stands_before() -> None:
    steps = [(n, n * (before + n / 2)) for n in (128, 512, 2048) for before in (0, 2048, 16384)]
    found = cost(learned((n, attended, 0.01 + 1e-4 * n + 2e-9 * attended) for n, attended in steps))
    assert found.coefficients == pytest.approx((0.01, 1e-4, 2e-9), rel=0.05)


def test_uncertainty_is_the_spread_of_what_was_seen() -> None:
    chance = random.Random(1)
    sizes = [2 ** chance.uniform(10, 24) for _ in range(120)]
    found = cost(learned((size, 1e-8 * size * math.exp(chance.gauss(0, 0.3))) for size in sizes))
    assert found.sigma == pytest.approx(0.3, rel=0.4)
    assert found.seconds(1, MIB) == pytest.approx(1e-8 * MIB, rel=0.25)


def test_one_sample_far_off_changes_little() -> None:
    steady = [(MIB * size, 0.01 * size) for size in (1, 2, 4, 8) for _ in range(6)]
    before = cost(learned(steady)).seconds(1, 4 * MIB)
    after = cost(learned([*steady, (4 * MIB, 4.0)])).seconds(1, 4 * MIB)
    assert after < 1.5 * before


@pytest.mark.parametrize("change", [16.0, 1 / 16])
def test_after_a_few_samples_that_agree_it_has_followed_them(change: float) -> None:
    known = learned([(MIB, 0.1)] * 20)
    for number in range(4):
        known = known.observed((1, MIB), 0.1 * change, 30.0 + number)
    assert cost(known, 34.0).seconds(1, MIB) == pytest.approx(0.1 * change, rel=0.5)


def test_old_samples_of_other_sizes_do_not_hold_back_for_ever() -> None:
    known = learned([(MIB * size, 0.1 * size) for size in (1, 4, 16, 64)] * 3, LearnedCost(half_life_s=60.0))
    for number in range(SAMPLES_KEPT):
        known = known.observed((1, 4 * MIB), 4.0, 3600.0 + number)
    assert cost(known, 3610.0).seconds(1, 64 * MIB) == pytest.approx(64.0, rel=0.1)


def test_many_small_steps_leave_the_large_ones_known() -> None:
    known = learned([(2048, 1.0)])
    for number in range(1000):
        known = known.observed((1, 64 + number % 8), 0.05, float(number))
    assert cost(known, 1000.0).seconds(1, 2048) == pytest.approx(1.0, rel=0.3)


def test_uncertainty_grows_while_nothing_is_seen() -> None:
    found = cost(learned([(MIB, 0.1)] * 8))
    assert found.sigma_at(found.at_s) == pytest.approx(found.sigma)
    assert found.sigma_at(found.at_s + 3600) == pytest.approx(math.sqrt(found.sigma**2 + 1))


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_what_took_no_time_says_nothing(seconds: float) -> None:
    assert LearnedCost().observed((1, 5), seconds, 0.0) == LearnedCost()


def test_memory_is_bounded() -> None:
    known = learned(
        (2.0**power + 0.5, attended, 1.0) for power in range(30) for attended in (1.0, 1e6) for _ in range(3)
    )
    assert len(known.buckets) == BUCKETS_KEPT
    assert all(len(bucket) <= SAMPLES_KEPT for bucket in known.buckets.values())
    assert "180 samples" in repr(known)


@given(
    st.lists(
        st.tuples(st.floats(1, 1e10), st.floats(0, 1e12), st.floats(1e-6, 1e4)),
        min_size=1,
        max_size=40,
    )
)
def test_whatever_is_seen_no_cost_is_below_zero(samples: list[tuple[float, float, float]]) -> None:
    found = cost(learned(samples))
    assert all(math.isfinite(each) and each >= 0 for each in found.coefficients)
    assert math.isfinite(found.sigma)
