"""What computing costs is learned from the engine's own steps."""

import pytest

from kveik.connector.prefill_rate import SHORTEST_S, STEPS_MIN, UNMEASURED_S, PrefillRate, step_of


def measured(*steps: tuple[int, float], before: int = 0) -> PrefillRate:
    """From steps of one request each: new tokens and seconds."""
    rate, now_s = PrefillRate(), 0.0
    for tokens, seconds in steps:
        rate.step_begins(now_s, [(before, tokens)])
        now_s += seconds
        rate.step_ends(now_s)
    return rate


def test_a_load_may_take_what_computing_would() -> None:
    assert measured((1000, 2.0)).deadline_s(0, 3000, 30, 9.0) == pytest.approx(6.0)


def test_new_steps_move_what_is_expected() -> None:
    rate = measured(*[(1000, 1.0)] * 4, *[(1000, 2.0)] * 3)
    assert 1.2 < rate.seconds(0, 1000, 11.0) <= 2.0


def test_decode_steps_say_nothing_about_prefill() -> None:
    rate = measured((1000, 1.0), (8, 1.0), (1, 0.001))
    assert rate.steps == 1
    assert rate.seconds(0, 2000, 9.0) == pytest.approx(2.0)


def test_a_step_counts_once() -> None:
    rate = measured((1000, 1.0))
    rate.step_ends(100.0)
    assert rate.steps == 1


def test_a_step_that_is_handed_over_early_begins_when_the_one_before_ends() -> None:
    rate = PrefillRate()
    rate.step_begins(0.0, [(0, 1000)])
    rate.step_begins(0.01, [(1000, 1000)])  # vLLM schedules the next step while this one runs
    rate.step_ends(1.0)
    rate.step_ends(2.0)
    assert rate.seconds(0, 1000, 2.0) == pytest.approx(1.0, rel=0.1)


def test_empty_steps_are_not_waited_for() -> None:
    rate = PrefillRate()
    rate.step_begins(0.0, [])
    rate.step_begins(5.0, [(0, 1000)])
    rate.step_ends(6.0)
    assert rate.seconds(0, 1000, 6.0) == pytest.approx(1.0)


def test_far_into_a_prompt_a_token_costs_more() -> None:
    rate, now_s = PrefillRate(), 0.0
    for _ in range(3):
        for before in (0, 4000, 16000, 60000):
            step = step_of([(before, 2000)])
            rate.step_begins(now_s, [(before, 2000)])
            now_s += 0.05 + 1e-3 * step.tokens + 1e-7 * step.attended
            rate.step_ends(now_s)
    first, last = rate.seconds(0, 2000, now_s), rate.seconds(60000, 62000, now_s)
    assert first == pytest.approx(2.25, rel=0.1)
    assert last == pytest.approx(14.25, rel=0.1)


def test_a_long_prompt_takes_several_steps() -> None:
    rate, now_s = PrefillRate(step_tokens_max=1000), 0.0
    for tokens in (100, 300, 1000) * 3:
        rate.step_begins(now_s, [(0, tokens)])
        now_s += 0.5 + 1e-4 * tokens
        rate.step_ends(now_s)
    assert rate.seconds(0, 4000, now_s) == pytest.approx(2.4, rel=0.05)
    assert rate.seconds(0, 4000, now_s, beside_tokens=1000) == pytest.approx(2.8, rel=0.05)


def test_it_is_known_after_a_few_steps() -> None:
    assert not measured(*[(1000, 1.0)] * (STEPS_MIN - 1)).known(9.0)
    assert measured(*[(1000, 1.0)] * STEPS_MIN).known(9.0)


def test_bounds_hold() -> None:
    rate = measured((1000, 1.0))
    assert rate.deadline_s(0, 1, 30, 1.0) == SHORTEST_S
    assert rate.deadline_s(0, 1_000_000, 30, 1.0) == 30
    assert PrefillRate().deadline_s(0, 10, 30, 1.0) == UNMEASURED_S
    assert PrefillRate().deadline_s(0, 10, 1, 1.0) == 1
    assert PrefillRate().seconds(0, 10, 1.0) == 0.0
    assert rate.seconds(500, 500, 1.0) == 0.0
