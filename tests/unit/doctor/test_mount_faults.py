"""The check ``mount`` on file systems that really have the fault: read-only, full, slow, hung, of one node alone."""

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from kveik.config import AgentSettings
from kveik.doctor import mount_check
from kveik.doctor.check import Context, Outcome, Point
from kveik.doctor.fleet_described import DescribedFleet, DescribedNode
from kveik.doctor.mount_check import check_mount
from kveik.doctor.mount_look import look_at, seen_through
from tests.slow_mount import SlowMount, slow_mounts
from tests.unit.doctor.paper_fleet import context_of

Disk = Callable[[str], Path]
TWO = (DescribedNode("n0", "10.0.0.1"), DescribedNode("n1", "10.0.0.2"))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """File systems in memory with given options."""
    with contextlib.ExitStack() as undo:

        def mounted(options: str) -> Path:
            point = tmp_path / options.replace("=", "-").replace(",", "-")
            point.mkdir()
            command = ["mount", "-t", "tmpfs", "-o", options, "none", str(point)]
            if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
                pytest.skip("may not mount a file system here")
            undo.callback(partial(subprocess.run, ["umount", str(point)], check=True))
            return point

        yield mounted


@pytest.fixture
def served(tmp_path: Path) -> Iterator[SlowMount]:
    with slow_mounts(tmp_path) as mounts:
        found = mounts("one")
        if found is None:
            pytest.skip("may not mount a file system here")
        yield found
        found.set()


def points(folder: Path, nodes: tuple[DescribedNode, ...] = (), **given: int) -> list[Point]:
    """What is said of a tier's folder."""
    settings = AgentSettings(filesystem=str(folder), **{"filesystem_reserve_bytes": 0, **given})  # type: ignore[arg-type]
    described = DescribedFleet("paper", nodes=nodes, agent=settings)
    return list(check_mount(context_of(described=described)).points)


def told(found: list[Point], outcome: Outcome) -> str:
    return "; ".join(f"{point.about}: {point.told}" for point in found if point.outcome is outcome)


def test_a_read_only_mount(disk: Disk) -> None:
    assert "EROFS" in told(points(disk("ro")), Outcome.WRONG)


def test_a_disk_without_room(disk: Disk) -> None:
    assert "ENOSPC" in told(points(disk("size=64k")), Outcome.WRONG)


def test_a_disk_whose_room_is_all_reserved(disk: Disk) -> None:
    found = points(disk("size=40m"), filesystem_reserve_bytes=1 << 30)
    assert "nothing will be written" in told(found, Outcome.WRONG)


def test_a_disk_smaller_than_the_limit_and_with_few_inodes(disk: Disk) -> None:
    found = told(points(disk("size=40m,nr_inodes=40"), filesystem_bytes=1 << 40), Outcome.BEWARE)
    assert "agent.filesystem_bytes is 1.0 TiB" in found
    assert "of 40 can be made (inodes)" in found


def test_a_disk_without_inodes(disk: Disk) -> None:
    assert "ENOSPC" in told(points(disk("size=40m,nr_inodes=1")), Outcome.WRONG)


def test_memory_of_one_node_that_two_are_to_share(disk: Disk) -> None:
    assert "no other node sees it" in told(points(disk("size=40m"), TWO), Outcome.WRONG)
    assert "no other node sees it" in told(points(disk("size=41m")), Outcome.BEWARE)


def test_a_server_that_shares_and_answers_at_once(served: SlowMount) -> None:
    found = points(served.target, TWO)
    assert told(found, Outcome.WRONG) == ""
    assert "kveik doctor pairs" in told(found, Outcome.WELL)


def test_a_server_that_takes_its_time(served: SlowMount) -> None:
    served.set(delay_s={"open": 0.03})
    assert "slow: " in told(points(served.target, TWO), Outcome.BEWARE)


def test_a_server_too_slow_to_be_measured(served: SlowMount, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mount_check, "look_at", partial(look_at, step_s=2.0))
    served.set(hang=("fsync",))
    found = points(served.target, TWO)
    served.set()
    assert told(found, Outcome.WRONG) == ""
    assert "measuring took longer than 8 s" in told(found, Outcome.BEWARE)


def test_a_server_that_hangs(served: SlowMount, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mount_check, "look_at", partial(look_at, step_s=0.3))
    served.set(hang=("lookup", "getattr", "mkdir", "create"))
    assert "whoever touches it hangs" in told(points(served.target, TWO), Outcome.WRONG)


def test_a_mount_that_is_missing_on_one_node(served: SlowMount, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mount_check, "seen_through", partial(seen_through, seen_s=0.3))
    context = Context("python", {}, folders=(served.target, disk("size=42m")))
    found = list(check_mount(context).points)
    assert "they are not one folder" in told(found, Outcome.WRONG)
