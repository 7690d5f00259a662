"""What can happen to a part in which state."""

import itertools

import pytest

from kveik.errors import SuperviseError
from kveik.supervise.states import TABLE, Happening, State, after


def walk(*happenings: Happening, start: State = State.WAITING) -> State:
    state = start
    for happening in happenings:
        state = after(state, happening)
    return state


def test_a_part_starts_answers_and_is_ready() -> None:
    assert walk(Happening.STARTED) is State.STARTING
    assert walk(Happening.STARTED, Happening.ANSWERED) is State.READY


def test_a_part_that_ended_is_cleared_away_before_it_waits_for_its_next_start() -> None:
    ended = walk(Happening.STARTED, Happening.ANSWERED, Happening.ENDED)
    assert ended is State.STOPPING
    assert after(ended, Happening.GONE_AGAIN) is State.WAITING


def test_a_part_that_was_ordered_down_or_given_up_comes_back_by_an_order_only() -> None:
    for last, state in ((Happening.GONE_STAY_DOWN, State.STOPPED), (Happening.GONE_HOPELESS, State.FAILED)):
        down = walk(Happening.STARTED, Happening.ORDERED_DOWN, last)
        assert down is state
        assert after(down, Happening.ORDERED_UP) is State.WAITING
        with pytest.raises(SuperviseError, match=f"a part that is {state.value} cannot be started"):
            after(down, Happening.STARTED)


def test_orders_down_are_possible_in_every_state() -> None:
    for state in State:
        assert after(state, Happening.ORDERED_DOWN) in (State.STOPPING, State.STOPPED)


def test_every_state_is_reached_and_left() -> None:
    assert {state for state, _ in TABLE} == set(State)
    assert set(TABLE.values()) == set(State)


def test_only_states_with_a_process_end_by_stopping() -> None:
    for state, happening in itertools.product(State, (Happening.ENDED, Happening.ORDERED_DOWN)):
        if (state, happening) in TABLE:
            assert (TABLE[state, happening] is State.STOPPING) == state.has_process
