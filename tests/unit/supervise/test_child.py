"""One run of a part, started here or taken over."""

import os
import signal
from pathlib import Path

import msgspec
import pytest

from kveik.errors import EngineStartError
from kveik.supervise.child import Child
from kveik.supervise.part import Variant
from tests.agents import wait_until
from tests.supervised import FAILS, FAMILY, SEGMENT, STUBBORN, a_part, group_is_empty, runs, script


def start(folder: Path, variant: Variant, *, tethered: bool = False) -> Child:
    return Child.start(a_part(folder, variant), variant, os.environ, tethered=tethered)


def family(folder: Path, *, tethered: bool = False) -> tuple[Child, list[int]]:
    child = start(folder, script(FAMILY, str(folder / "pids")), tethered=tethered)
    wait_until((folder / "pids").exists, "the family runs")
    return child, [int(pid) for pid in (folder / "pids").read_text().split()]


@pytest.mark.parametrize("tethered", [True, False])
def test_a_kill_reaches_all_of_a_group_and_leaves_nothing(tmp_path: Path, tethered: bool) -> None:
    child, pids = family(tmp_path, tethered=tethered)
    assert set(pids) <= set(child.members)
    assert child.running
    child.kill()
    wait_until(lambda: child.gone, "the group is gone")
    child.reap()
    assert not any(map(runs, pids))
    assert child.exit_code == -signal.SIGKILL


def test_a_child_whose_leader_died_is_not_running_but_not_gone_either(tmp_path: Path) -> None:
    child, (leader, other) = family(tmp_path)
    os.kill(leader, signal.SIGKILL)
    wait_until(lambda: not child.running, "the leader is dead")
    assert not child.gone
    assert child.members == [other]
    child.kill()
    wait_until(lambda: child.gone, "the orphan is gone")
    child.reap()


def test_another_supervisor_takes_a_group_over_and_ends_it(tmp_path: Path) -> None:
    child, pids = family(tmp_path)
    adopted = Child.adopt(child.identity, tmp_path / "part.log")
    assert adopted is not None
    assert adopted.running
    assert set(adopted.members) == set(pids)
    assert repr(adopted) == f"Child({pids[0]}, adopted)"
    adopted.kill()
    wait_until(lambda: adopted.gone, "the group is gone")
    assert adopted.exit_code is None
    adopted.reap()
    child.reap()


def test_a_group_is_adopted_for_its_orphans_too(tmp_path: Path) -> None:
    child, (leader, _) = family(tmp_path)
    os.kill(leader, signal.SIGKILL)
    wait_until(lambda: not child.running, "the leader is dead")
    adopted = Child.adopt(child.identity, tmp_path / "part.log")
    assert adopted is not None
    assert not adopted.running
    adopted.kill()
    wait_until(lambda: adopted.gone, "the orphan is gone")
    child.reap()


def test_a_stranger_with_the_same_number_is_neither_adopted_nor_hurt(tmp_path: Path) -> None:
    child, pids = family(tmp_path)
    stranger = msgspec.structs.replace(child.identity, started_ticks=1)
    assert Child.adopt(stranger, tmp_path / "part.log") is None
    mistaken = Child(stranger, tmp_path / "part.log")
    mistaken.terminate()
    mistaken.kill()
    assert mistaken.gone
    assert all(map(runs, pids))
    child.kill()
    wait_until(lambda: group_is_empty(child.pid), "the group is gone")
    child.reap()


def test_a_child_that_is_asked_to_end_may_refuse_until_it_is_killed(tmp_path: Path) -> None:
    child = start(tmp_path, script(STUBBORN))
    wait_until(lambda: "up" in child.log_text, "it runs")
    child.terminate()
    assert child.running
    child.kill()
    wait_until(lambda: child.gone, "it is gone")
    child.reap()


def test_a_stopped_child_hears_that_it_should_end(tmp_path: Path) -> None:
    child, pids = family(tmp_path)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    child.terminate()
    wait_until(lambda: not child.running, "it ended")
    child.kill()
    wait_until(lambda: child.gone, "its child is gone")
    child.reap()


def test_a_log_is_that_of_this_run(tmp_path: Path) -> None:
    (tmp_path / "part.log").write_text("an earlier run\n")
    child = start(tmp_path, script(FAILS))
    wait_until(lambda: child.gone, "it ended")
    assert child.exit_code == 3
    assert child.log_text == "ValueError: no room for the KV cache\n"
    child.reap()
    assert child.exit_code == 3


def test_a_command_that_cannot_be_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineStartError, match=r"cannot start part: .*/nowhere/vllm"):
        start(tmp_path, Variant(("/nowhere/vllm",)))


@pytest.mark.parametrize("adopted", [True, False])
def test_shared_memory_of_a_killed_group_is_removed(tmp_path: Path, adopted: bool) -> None:
    child = start(tmp_path, script(SEGMENT))
    wait_until(lambda: "\n" in child.log_text, "it maps a segment")
    segment = Path("/dev/shm") / child.log_text.strip()
    assert segment.exists()
    killer = Child.adopt(child.identity, tmp_path / "part.log") if adopted else child
    assert killer is not None
    killer.kill()
    wait_until(lambda: killer.gone, "it is gone")
    killer.reap()
    assert not segment.exists()
    child.reap()
