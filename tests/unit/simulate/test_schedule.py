"""When tokens are ready: exact moments, whoever waits, whoever leaves."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.simulate.schedule import NEVER_S, Schedule, Sequence


def schedule(capacity: int = 8, prefill_tokens_s: float = 100.0, decode_s: float = 0.5, tokens: int = 100) -> Schedule:
    """Every prompt has ``tokens`` to compute: one second each unless said otherwise."""
    return Schedule(capacity, prefill_tokens_s, decode_s, lambda _: tokens)


def timeline(plan: Schedule, until_s: float = 1e9) -> dict[int, list[float]]:
    """When each request (by its owner) got each token, with the schedule asked at every exact moment."""
    moments: dict[int, list[float]] = {}
    while (next_s := plan.next_s) <= until_s and next_s != NEVER_S:
        for sequence, tokens in plan.advance(next_s):
            moments.setdefault(sequence.owner, []).extend([round(next_s, 9)] * tokens)
    return moments


def test_a_request_alone_takes_its_prefill_and_then_one_step_a_token() -> None:
    plan = schedule()
    plan.submit(Sequence(4, owner=1), now_s=10.0)
    assert timeline(plan) == {1: [11.0, 11.5, 12.0, 12.5]}
    assert (plan.running, plan.waiting, plan.next_s) == (0, 0, NEVER_S)


def test_prompts_are_computed_one_after_the_other_and_answers_side_by_side() -> None:
    plan = schedule()
    for owner in (1, 2, 3):
        plan.submit(Sequence(3, owner=owner), now_s=0.0)
    assert timeline(plan) == {1: [1.0, 1.5, 2.0], 2: [2.0, 2.5, 3.0], 3: [3.0, 3.5, 4.0]}


def test_who_is_over_the_capacity_begins_when_somebody_ends() -> None:
    plan = schedule(capacity=1)
    first, second = Sequence(3, owner=1), Sequence(1, owner=2)
    plan.submit(first, 0.0)
    plan.submit(second, 0.25)
    assert (plan.running, plan.waiting) == (1, 1)
    assert timeline(plan) == {1: [1.0, 1.5, 2.0], 2: [3.0]}
    assert second.started_s == 2.0


def test_rates_of_zero_take_no_time() -> None:
    plan = schedule(prefill_tokens_s=0.0, decode_s=0.0)
    sequence = Sequence(50)
    plan.submit(sequence, 7.0)
    assert plan.next_s == 7.0
    assert plan.advance(7.0) == [(sequence, 50)]
    assert sequence.ended


def test_a_late_call_brings_all_that_was_due_and_delays_nobody() -> None:
    punctual, late = schedule(capacity=2), schedule(capacity=2)
    for plan in (punctual, late):
        for owner in range(4):
            plan.submit(Sequence(4, owner=owner), 0.0)
    exact = timeline(punctual)
    counts: dict[int, int] = {}
    for now_s in (1.3, 4.1, 4.6):
        for sequence, tokens in late.advance(now_s):
            counts[sequence.owner] = counts.get(sequence.owner, 0) + tokens
        assert counts == {
            owner: due for owner, moments in exact.items() if (due := sum(moment <= now_s for moment in moments))
        }
    assert {owner: moments[-1] for owner, moments in timeline(late).items()}[3] == exact[3][-1]


def test_the_prompt_s_turn_is_when_the_cache_is_asked() -> None:
    asked: list[int] = []

    def uncached(sequence: Sequence) -> int:
        asked.append(sequence.owner)
        return 100

    plan = Schedule(8, 100.0, 0.0, uncached)
    plan.submit(Sequence(1, owner=1), 0.0)
    plan.submit(Sequence(1, owner=2), 0.0)
    assert asked == [1]
    plan.advance(1.0)
    assert asked == [1, 2]


def test_a_request_that_is_given_up_in_the_queue_is_passed_over() -> None:
    plan = schedule(capacity=1)
    sequences = [Sequence(1, owner=owner) for owner in range(3)]
    for sequence in sequences:
        plan.submit(sequence, 0.0)
    plan.abort(sequences[1], 0.5)
    assert plan.waiting == 1
    assert timeline(plan) == {0: [1.0], 2: [2.0]}


def test_a_prefill_that_is_given_up_makes_room_at_once() -> None:
    plan = schedule()
    first, second, third = (Sequence(1, owner=owner) for owner in (1, 2, 3))
    for sequence in (first, second, third):
        plan.submit(sequence, 0.0)
    plan.abort(first, 0.25)
    plan.abort(second, 0.25)
    assert timeline(plan) == {3: [1.25]}
    assert plan.running == 0


def test_an_answer_that_is_given_up_makes_room_at_once() -> None:
    plan = schedule(capacity=1)
    first, second = Sequence(1000, owner=1), Sequence(1, owner=2)
    plan.submit(first, 0.0)
    plan.submit(second, 0.0)
    plan.advance(2.0)
    plan.abort(first, 2.0)
    plan.abort(first, 2.0)  # twice is once
    assert (plan.running, plan.waiting) == (1, 0)
    assert timeline(plan) == {2: [3.0]}


@given(
    st.integers(1, 4),
    st.sampled_from([0.0, 50.0, 1000.0]),
    st.sampled_from([0.0, 0.01, 0.3]),
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 20), st.floats(0, 10)), min_size=1, max_size=12),
)
def test_whatever_comes_and_goes_all_answers_end_and_nothing_is_left(
    capacity: int, prefill_tokens_s: float, decode_s: float, requests: list[tuple[float, int, float]]
) -> None:
    plan = schedule(capacity, prefill_tokens_s, decode_s)
    sequences = [Sequence(tokens) for _, tokens, _ in requests]
    events = [(arrives_s, "submit", number) for number, (arrives_s, _, _) in enumerate(requests)]
    events += [(leaves_s, "abort", n) for n, (arrives_s, _, leaves_s) in enumerate(requests) if leaves_s > arrives_s]
    emitted = [0] * len(requests)

    def advance(now_s: float) -> None:
        for sequence, tokens in plan.advance(now_s):
            assert tokens >= 1
            emitted[sequences.index(sequence)] += tokens

    for at_s, what, number in sorted(events):
        advance(at_s)
        getattr(plan, what)(sequences[number], at_s)
        assert 0 <= plan.running <= capacity
        assert plan.waiting == 0 or plan.running == capacity
    while not math.isinf(plan.next_s):
        advance(plan.next_s)
    assert all(sequence.ended for sequence in sequences)
    assert (plan.running, plan.waiting) == (0, 0)
    left = {number for _, what, number in events if what == "abort"}
    for number, (_, tokens, _) in enumerate(requests):
        assert emitted[number] == tokens or (number in left and emitted[number] < tokens)


@pytest.mark.parametrize("steps", [3, 1000])
def test_rounding_loses_no_token(steps: int) -> None:
    plan = Schedule(1, 0.0, 0.1, lambda _: 0)
    plan.submit(Sequence(steps, owner=0), 0.1)
    assert len(timeline(plan)[0]) == steps
