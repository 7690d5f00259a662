from pathlib import Path

import pytest

from kveik.errors import RefusedError
from kveik.fleet.lifecycle import HOLDS, TRANSITIONS, Event, State, next_state, picture


@pytest.mark.parametrize("state", State)
def test_every_state_can_be_reached_and_every_state_but_a_lasting_one_can_be_left(state: State) -> None:
    reached = {State.GONE}
    while True:
        wider = reached | {after for before in reached for after in TRANSITIONS[before].values()}
        if wider == reached:
            break
        reached = wider
    assert state in reached
    assert set(TRANSITIONS[state].values()) - {state}


@pytest.mark.parametrize("state", State)
def test_saying_again_what_is_so_already_is_never_refused(state: State) -> None:
    events = {State.DRAINING: Event.DRAIN, State.ISOLATED: Event.ISOLATE, State.READY: Event.PROVE}
    event = events.get(state, Event.ANNOUNCE)
    if state not in (State.GONE, State.LOST):
        assert next_state("e1", state, event) is state


@pytest.mark.parametrize("hold", sorted(HOLDS, key=str))
@pytest.mark.parametrize("event", [Event.ANNOUNCE, Event.REPLACE, Event.EXPIRE])
def test_nothing_that_an_engine_does_itself_ends_a_hold(hold: State, event: Event) -> None:
    assert next_state("e1", hold, event) is hold


def test_isolation_outlives_the_withdrawal_that_a_restart_brings_and_a_drain_does_not() -> None:
    assert next_state("e1", State.ISOLATED, Event.WITHDRAW) is State.ISOLATED
    assert next_state("e1", State.DRAINING, Event.WITHDRAW) is State.GONE


@pytest.mark.parametrize("state", [State.LOST, State.DRAINING, State.ISOLATED, State.GONE])
def test_no_engine_gets_from_out_of_traffic_to_ready_in_one_step(state: State) -> None:
    assert State.READY not in TRANSITIONS[state].values()


@pytest.mark.parametrize(
    ("state", "event", "message"),
    [
        (State.ISOLATED, Event.DRAIN, "engine e1 is isolated: it gets no requests already; readmit it first"),
        (State.DRAINING, Event.PROVE, "engine e1 is draining: only readmit ends that"),
        (State.LOST, Event.READMIT, "engine e1 is lost: it has to announce itself again"),
        (State.GONE, Event.PROVE, "engine e1 is gone: prove is refused"),
    ],
)
def test_what_the_table_does_not_hold_is_refused_with_the_way_out(state: State, event: Event, message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        next_state("e1", state, event)


def test_the_picture_shows_each_change_once() -> None:
    lines = picture().splitlines()
    assert lines[0] == "stateDiagram-v2"
    assert "    announced --> ready: prove" in lines
    assert "    lost --> announced: announce, replace" in lines
    assert len(lines) == len(set(lines))
    assert not any(line.split(" --> ")[0].strip() == line.split(" --> ")[1].split(":")[0] for line in lines[2:])


def test_the_documentation_shows_the_table_as_it_is() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "fleet.md"
    assert picture() in page.read_text(encoding="utf8"), picture()
