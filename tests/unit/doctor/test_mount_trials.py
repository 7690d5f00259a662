"""Trials in a real folder, and in one whose server fails in a way."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from kveik.clock import SYSTEM_CLOCK
from kveik.doctor.mount_trials import SPEED_BYTES, measure, room_of, try_direct, try_locks, try_rules, words
from tests.slow_mount import SlowMount, slow_mounts


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowMount]:
    with slow_mounts(tmp_path_factory.mktemp("served")) as mounts:
        found = mounts("one")
        if found is None:
            pytest.skip("may not mount a file system here")
        yield found
        found.set()


def test_a_local_folder_keeps_all_rules_and_its_locks_hold(tmp_path: Path) -> None:
    assert [(trial.what, trial.trouble) for trial in try_rules(tmp_path) if trial.trouble] == []
    assert [(trial.what, trial.trouble) for trial in try_locks(tmp_path) if trial.trouble] == []


def test_room_and_speed_are_measured(tmp_path: Path) -> None:
    room = room_of(tmp_path)
    assert 0 < room.free_bytes <= room.total_bytes
    speed = measure(tmp_path, SYSTEM_CLOCK)
    assert 0 < speed.tried_bytes <= SPEED_BYTES
    assert min(speed.write_bytes_s, speed.read_bytes_s, speed.create_s, speed.open_s) > 0


def test_direct_access_is_tried_for_real(served: SlowMount, tmp_path: Path) -> None:
    assert try_direct(tmp_path).what == "O_DIRECT"
    served.set(errors={"open": errno.EINVAL, "create": errno.EINVAL})
    assert "EINVAL" in try_direct(served.target).trouble
    served.set()


@pytest.mark.parametrize(("operation", "number"), [("create", errno.EIO), ("rename2", errno.EIO), ("link", errno.EIO)])
def test_a_rule_that_the_server_refuses_says_why(served: SlowMount, operation: str, number: int) -> None:
    for leftover in served.target.iterdir():
        leftover.unlink()
    served.set(errors={operation: number, "rename": number} if operation == "rename2" else {operation: number})
    troubles = [trial.trouble for trial in try_rules(served.target) if trial.trouble]
    served.set()
    assert troubles
    assert all("EIO" in trouble for trouble in troubles)


def test_a_file_system_without_links_is_no_trouble(served: SlowMount) -> None:
    for leftover in served.target.iterdir():
        leftover.unlink()
    served.set(errors={"link": errno.EPERM})
    troubles = [trial.trouble for trial in try_rules(served.target) if trial.trouble]
    served.set()
    assert troubles == []


def test_errors_are_told_with_the_name_that_people_search_for() -> None:
    assert words(OSError(errno.ENOSPC, "No space left on device")) == "No space left on device (ENOSPC)"
    assert words(OSError("odd")) == "odd"
