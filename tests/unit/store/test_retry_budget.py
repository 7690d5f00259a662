"""Retries never make up more than their share of the last minute's calls."""

from hypothesis import given
from hypothesis import strategies as st

from kveik.store.retry_budget import WINDOW_S, RetryBudget


def test_one_retry_in_ten_calls_is_granted() -> None:
    budget, granted = RetryBudget().called(10, 0.0).granted(3, 0.0)
    assert granted == 1
    assert (budget.calls, budget.retries) == (10, 1)
    assert budget.granted(1, 1.0)[1] == 0


def test_a_tier_that_was_hardly_asked_is_not_asked_again() -> None:
    assert RetryBudget().called(9, 0.0).granted(5, 0.0)[1] == 0
    assert RetryBudget().granted(1, 0.0)[1] == 0


def test_calls_of_more_than_a_minute_ago_do_not_count() -> None:
    budget = RetryBudget().called(1000, 0.0)
    assert budget.granted(50, WINDOW_S - 6)[1] == 50
    assert budget.granted(50, WINDOW_S + 6)[1] == 0


def test_retries_of_more_than_a_minute_ago_are_forgiven() -> None:
    budget, _ = RetryBudget().called(100, 0.0).granted(10, 0.0)
    later = budget.called(100, 2 * WINDOW_S)
    assert later.granted(10, 2 * WINDOW_S)[1] == 10


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(0, 30), st.integers(0, 30)), max_size=80))
def test_never_more_than_a_tenth_in_any_minute(moves: list[tuple[float, int, int]]) -> None:
    budget, now_s = RetryBudget(), 0.0
    for passed_s, calls, wanted in moves:
        now_s += passed_s
        budget, granted = budget.called(calls, now_s).granted(wanted, now_s)
        assert 0 <= granted <= wanted
        assert budget.retries <= 0.1 * budget.calls or granted == 0
        assert len(budget.steps) <= WINDOW_S / 5 + 1
