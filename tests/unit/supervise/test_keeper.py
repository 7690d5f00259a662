"""One part's life: started, proved ready, started again, given up, ended."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from kveik.supervise.adopt import KeptRecord
from kveik.supervise.backoff import Pauses
from kveik.supervise.child import Child
from kveik.supervise.keeper import Keeper, Surroundings
from kveik.supervise.part import Part, Readiness
from kveik.supervise.states import State
from tests.agents import wait_until
from tests.supervised import (
    FAILS,
    FAMILY,
    LISTENS,
    RUNS,
    SEGMENT,
    STUBBORN,
    Changes,
    a_part,
    group_is_empty,
    never,
    runs,
    script,
)

Keep = Callable[[Part], Keeper]


@pytest.fixture
def changes() -> Changes:
    return Changes()


@pytest.fixture
def around(changes: Changes) -> Surroundings:
    return Surroundings(Pauses(0.01, 0.02), tethered=False, listener=changes)


@pytest.fixture
def keep(around: Surroundings) -> Iterator[Keep]:
    """Keep a part for as long as the test lasts."""
    kept: list[Keeper] = []

    def make(part: Part) -> Keeper:
        kept.append(Keeper(part, around))
        return kept[-1]

    yield make
    for keeper in kept:
        if keeper.record is not None:
            keeper.stop(0)
            until(keeper, State.STOPPED)


def until(keeper: Keeper, *states: State) -> Keeper:
    """Tick until the part is in one of these states."""

    def reached() -> bool:
        keeper.tick()
        return keeper.state in states

    wait_until(reached, f"{states} from {keeper}", 20)
    return keeper


def test_a_part_is_started_and_shown_with_its_process(tmp_path: Path, keep: Keep, changes: Changes) -> None:
    keeper = until(keep(a_part(tmp_path, url="http://u")), State.READY)
    view = keeper.view
    assert (view.name, view.kind, view.state, view.url, view.restarts) == ("part", "router", "ready", "http://u", 0)
    assert runs(view.pid)
    assert changes.states_of("part") == ["starting", "ready"]
    assert repr(keeper).startswith("Keeper(part, ready: after ")


def test_a_part_that_died_is_started_again_with_a_reason(tmp_path: Path, keep: Keep, changes: Changes) -> None:
    keeper = until(keep(a_part(tmp_path)), State.READY)
    first = keeper.view.pid
    os.kill(first, signal.SIGKILL)
    until(keeper, State.STOPPING, State.WAITING)
    assert "ended by SIGKILL; it is started again in 0.01 s" in keeper.view.why
    until(keeper, State.READY)
    assert keeper.view.pid != first
    assert keeper.view.restarts == 1
    assert changes.states_of("part") == ["starting", "ready", "stopping", "waiting", "starting", "ready"]


def test_a_part_without_a_sign_of_life_is_ended_and_started_again(tmp_path: Path, keep: Keep) -> None:
    part = a_part(tmp_path, pulse=str(tmp_path / "pulse"), hung_s=0.5)
    keeper = until(keep(part), State.READY)
    first = keeper.view.pid
    until(keeper, State.STOPPING, State.WAITING)
    assert "it hangs: no sign of life for" in keeper.view.why
    until(keeper, State.READY)
    assert keeper.view.pid != first
    assert keeper.view.restarts == 1


def test_what_a_dead_leader_left_is_ended_before_the_next_start(tmp_path: Path, keep: Keep) -> None:
    pids = tmp_path / "pids"
    keeper = until(keep(a_part(tmp_path, script(FAMILY, str(pids)))), State.READY)
    wait_until(pids.exists, "the family runs")
    leader, child = map(int, pids.read_text().split())
    os.kill(leader, signal.SIGKILL)
    until(keeper, State.WAITING)
    assert not runs(child)


def test_shared_memory_of_a_part_that_somebody_else_killed_whole_is_removed(tmp_path: Path, keep: Keep) -> None:
    socket = str(tmp_path / "s")
    code = SEGMENT.replace("time.sleep(600)", f"import sys; sys.argv = ['', {socket!r}]\n{LISTENS}")
    part = a_part(tmp_path, script(code), kind="engine", readiness=Readiness("socket", socket))
    keeper = until(keep(part), State.READY)
    segment = Path("/dev/shm") / part.log.read_text().strip()
    assert segment.exists()
    os.killpg(keeper.view.pid, signal.SIGKILL)
    until(keeper, State.WAITING)
    assert not segment.exists()


def test_an_engine_that_served_waits_for_an_order(tmp_path: Path, keep: Keep) -> None:
    keeper = until(keep(a_part(tmp_path, kind="engine")), State.READY)
    os.kill(keeper.view.pid, signal.SIGKILL)
    until(keeper, State.WAITING)
    for _ in range(20):
        keeper.tick()
    assert keeper.state is State.WAITING
    assert keeper.view.pid == 0
    assert keeper.view.why.endswith("it waits for an order")
    waited_since_s = keeper.view.since_s
    assert "is being restarted: dead" in keeper.restart("dead", 0)
    assert keeper.view.since_s > waited_since_s, "who waits for its start begins to count with the order"
    until(keeper, State.READY)
    assert keeper.view.restarts == 1


def test_an_engine_that_fails_to_start_goes_down_its_ladder_and_is_degraded(tmp_path: Path, keep: Keep) -> None:
    socket = str(tmp_path / "s")
    ladder = (script(FAILS, mode="full"), script(FAILS, mode="piecewise"), script(LISTENS, socket, mode="eager"))
    part = a_part(tmp_path, *ladder, kind="engine", readiness=Readiness("socket", socket))
    keeper = until(keep(part), State.READY)
    assert keeper.view.mode == "eager"
    assert keeper.view.degraded == (
        "mode full did not start: it ended with exit code 3; its log says: ValueError: no room for the KV cache"
    )
    (tmp_path / "s").unlink()
    keeper.restart("hung", 0)
    until(keeper, State.READY)
    assert keeper.view.mode == "eager"


def test_an_engine_whose_ladder_is_at_its_end_is_given_up_and_can_be_ordered_up(tmp_path: Path, keep: Keep) -> None:
    ladder = (script(FAILS, mode="auto"), script(FAILS, mode="eager"))
    keeper = until(keep(a_part(tmp_path, *ladder, kind="engine", readiness=never(tmp_path))), State.FAILED)
    assert "no room for the KV cache; it is given up" in keeper.view.why
    assert keeper.start() == "part is being started"
    assert (keeper.view.mode, keeper.view.degraded) == ("auto", "")
    until(keeper, State.FAILED)


def test_simpler_modes_are_not_tried_where_they_cannot_help(tmp_path: Path, changes: Changes) -> None:
    def judge(log: str, exit_code: int | None) -> tuple[bool, str]:
        return False, f"exit code {exit_code}, log: {log.strip()}"

    ladder = (script(FAILS, mode="auto"), script(RUNS, mode="eager"))
    around = Surroundings(Pauses(0.01, 0.02), tethered=False, listener=changes, judge=judge)
    keeper = until(Keeper(a_part(tmp_path, *ladder, kind="engine", readiness=never(tmp_path)), around), State.FAILED)
    assert keeper.view.why.startswith("exit code 3, log: ValueError: no room for the KV cache; it is given up")
    assert changes.states_of("part").count("starting") == 1


def test_secrets_in_a_log_are_not_shown_with_the_reason(tmp_path: Path, keep: Keep, changes: Changes) -> None:
    leaks = "print('ValueError: --api-key sk-1234567890abcdef is wrong', flush=True); raise SystemExit(1)"
    ladder = (script(leaks, mode="auto"), script(leaks, mode="eager"))
    keeper = until(keep(a_part(tmp_path, *ladder, kind="engine", readiness=never(tmp_path))), State.FAILED)
    shown = f"{keeper.view} {changes.records} {keeper.record}"
    assert "ValueError: --api-key" in shown
    assert "1234567890abcdef" not in shown


def test_another_part_that_never_works_is_tried_some_times(tmp_path: Path, keep: Keep, changes: Changes) -> None:
    until(keep(a_part(tmp_path, script(FAILS), readiness=never(tmp_path))), State.FAILED)
    assert changes.states_of("part").count("starting") == 3


def test_a_command_that_cannot_be_run_is_a_failed_start(tmp_path: Path, keep: Keep) -> None:
    part = a_part(tmp_path, kind="engine")
    part = msgspec.structs.replace(part, variants=(msgspec.structs.replace(part.variants[0], command=("/no/vllm",)),))
    keeper = until(keep(part), State.FAILED)
    assert "/no/vllm" in keeper.view.why


def test_a_part_that_is_not_ready_in_time_is_ended(tmp_path: Path, keep: Keep) -> None:
    part = a_part(tmp_path, kind="engine", readiness=never(tmp_path), start_s=0.1)
    keeper = until(keep(part), State.FAILED)
    assert "not ready within 0.1 s; its log says: nothing" in keeper.view.why
    assert keeper.record is None


def test_a_part_that_is_stopped_stays_down_until_it_is_started(tmp_path: Path, keep: Keep) -> None:
    keeper = until(keep(a_part(tmp_path)), State.READY)
    pid = keeper.view.pid
    assert keeper.stop() == "part is being stopped"
    assert keeper.state is State.STOPPING
    assert keeper.ends_for_good
    until(keeper, State.STOPPED)
    assert group_is_empty(pid)
    keeper.tick()
    assert keeper.stays_down
    assert keeper.stop() == "part is stopped"
    keeper.start()
    until(keeper, State.READY)
    assert keeper.start() == "part runs already"


def test_a_part_that_does_not_end_is_killed_after_its_grace(tmp_path: Path, keep: Keep) -> None:
    keeper = until(keep(a_part(tmp_path, script(STUBBORN))), State.READY)
    wait_until(lambda: "up" in keeper.part.log.read_text(), "it ignores signals")
    keeper.stop(0.05)
    until(keeper, State.STOPPED)


def test_a_restart_at_once_kills_and_a_new_description_is_used(tmp_path: Path, keep: Keep) -> None:
    keeper = until(keep(a_part(tmp_path, script(STUBBORN), kind="engine")), State.READY)
    first, digest = keeper.view.pid, keeper.view.digest
    keeper.restart("new version", 0, a_part(tmp_path, script(RUNS, mode="eager"), kind="engine"))
    assert keeper.state is State.STOPPING
    until(keeper, State.READY)
    assert keeper.view.pid != first
    assert keeper.view.digest != digest
    assert keeper.view.mode == "eager"


def test_a_start_while_it_ends_brings_it_back(tmp_path: Path, keep: Keep) -> None:
    keeper = until(keep(a_part(tmp_path)), State.READY)
    keeper.stop()
    keeper.start()
    until(keeper, State.READY)


def leave(keeper: Keeper) -> KeptRecord:
    """What the next supervisor finds if this one is killed now."""
    record = keeper.record
    assert record is not None
    return record


def test_the_next_supervisor_goes_on_with_what_it_finds(tmp_path: Path, keep: Keep, changes: Changes) -> None:
    before = until(keep(a_part(tmp_path, kind="engine")), State.READY)
    before.held = "roll"
    record = leave(before)
    after = keep(a_part(tmp_path, kind="engine"))
    child = Child.adopt(record.process, Path(record.log))
    assert child is not None
    after.adopt(record, child)
    assert after.state is State.READY
    assert (after.view.pid, after.view.since_s, after.view.held) == (before.view.pid, before.view.since_s, "roll")
    os.kill(after.view.pid, signal.SIGKILL)
    until(after, State.WAITING)
    assert "it ended; it waits for an order" in after.view.why
    until(before, State.WAITING)


def test_a_part_that_was_still_starting_is_waited_for(tmp_path: Path, keep: Keep) -> None:
    part = a_part(tmp_path, readiness=never(tmp_path))
    record = leave(until(keep(part), State.STARTING))
    after = keep(part)
    child = Child.adopt(record.process, Path(record.log))
    assert child is not None
    after.adopt(record, child)
    after.tick()
    assert after.state is State.STARTING


def test_a_part_whose_description_changed_meanwhile_is_restarted(tmp_path: Path, keep: Keep) -> None:
    before = until(keep(a_part(tmp_path)), State.READY)
    record = leave(before)
    after = keep(a_part(tmp_path, facts="new"))
    child = Child.adopt(record.process, Path(record.log))
    assert child is not None
    after.adopt(record, child)
    assert after.state is State.STOPPING
    wait_until(lambda: not runs(record.process.pid), "the old one ended")
    until(after, State.READY)
    assert after.view.pid != record.process.pid
    until(before, State.READY)
