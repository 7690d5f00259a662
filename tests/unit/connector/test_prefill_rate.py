"""The load deadline follows the engine's measured prefill."""

import pytest

from kveik.connector.prefill_rate import SHORTEST_S, UNMEASURED_S, PrefillRate


def measured(*steps: tuple[int, float]) -> PrefillRate:
    rate, now_s = PrefillRate(), 0.0
    for tokens, seconds in steps:
        rate.step_begins(now_s, tokens)
        now_s += seconds
        rate.step_ends(now_s)
    return rate


def test_a_load_may_take_what_computing_would() -> None:
    assert measured((1000, 2.0)).seconds_for(3000, 30) == pytest.approx(6.0)


def test_new_steps_move_the_average() -> None:
    assert measured((1000, 1.0), (1000, 2.0)).tokens_per_s == pytest.approx(0.3 * 500 + 0.7 * 1000)


def test_decode_steps_say_nothing_about_prefill() -> None:
    assert measured((1000, 1.0), (8, 1.0), (1, 0.001)).tokens_per_s == 1000


def test_a_step_counts_once() -> None:
    rate = measured((1000, 1.0))
    rate.step_ends(100.0)
    assert rate.tokens_per_s == 1000


def test_bounds_hold() -> None:
    rate = measured((1000, 1.0))
    assert rate.seconds_for(1, 30) == SHORTEST_S
    assert rate.seconds_for(1_000_000, 30) == 30
    assert PrefillRate().seconds_for(10, 30) == UNMEASURED_S
    assert PrefillRate().seconds_for(10, 1) == 1
