import pytest

from kveik.supervise.messages import ProcessView
from kveik.watchdog.healing import Stage
from kveik.watchdog.supervised import SETTLED_S, Supervised, supervised

NOW_S = 1000.0


def view(state: str, *, age_s: float = 60.0, pid: int = 7, **given: object) -> ProcessView:
    words = {"name": "engine-1", "kind": "engine", "state": state, "pid": pid, "since_s": NOW_S - age_s, **given}
    return ProcessView(**words)  # type: ignore[arg-type]


def seen(state: str, stage: Stage = Stage.SERVING, **given: object) -> Supervised:
    return supervised(view(state, **given), stage, NOW_S)  # type: ignore[arg-type]


def test_an_engine_that_nobody_supervises_here_cannot_be_seen() -> None:
    assert supervised(None, Stage.SERVING, NOW_S) == Supervised(pids=None)


def test_of_a_ready_engine_all_processes_are_looked_at_the_leader_first() -> None:
    facts = seen("ready", pids=(9, 7, 8))
    assert (facts.pids, facts.pid, facts.busy) == ((7, 9, 8), 7, "")


@pytest.mark.parametrize("state", ["waiting", "failed"])
def test_an_engine_that_ended_by_itself_has_no_process(state: str) -> None:
    facts = seen(state, pid=0)
    assert (facts.pids, facts.busy) == ((), "")


@pytest.mark.parametrize("state", ["waiting", "failed"])
def test_a_state_that_may_be_passing_is_not_acted_on(state: str) -> None:
    facts = seen(state, pid=0, age_s=SETTLED_S / 2)
    assert facts.pids is None
    assert facts.busy


def test_a_new_engine_that_waits_for_its_next_start_is_its_supervisors_business() -> None:
    facts = seen("waiting", Stage.NEW, pid=0)
    assert (facts.pids, facts.starting) == (None, True)
    assert facts.busy


def test_an_engine_that_its_supervisor_gave_up_is_known() -> None:
    assert seen("failed", Stage.NEW, pid=0).given_up


@pytest.mark.parametrize(
    ("state", "busy"),
    [("stopping", "its supervisor is ending it"), ("starting", "its supervisor is starting it")],
)
def test_a_serving_engine_on_which_its_supervisor_works_is_let_be(state: str, busy: str) -> None:
    assert seen(state).busy == busy


@pytest.mark.parametrize("stage", [Stage.NEW, Stage.RESTARTING])
def test_a_starting_engine_may_answer_before_its_supervisor_knows(stage: Stage) -> None:
    facts = seen("starting", stage)
    assert (facts.pids, facts.busy, facts.starting) == ((7,), "", True)


def test_an_engine_that_was_stopped_on_purpose_leaves_but_not_while_it_is_held() -> None:
    assert seen("stopped", pid=0).stopped
    assert not seen("stopped", pid=0, held="roll").stopped


@pytest.mark.parametrize("state", ["ready", "starting", "stopping", "stopped", "waiting", "failed"])
def test_whatever_state_it_is_in_an_engine_that_is_held_is_let_be(state: str) -> None:
    assert "roll" in seen(state, held="roll").busy
