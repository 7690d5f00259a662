"""A look at real folders: plain ones, missing ones, those of servers that hang, and two that are to be one."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kveik.doctor.mount_look import look_at, seen_through
from kveik.doctor.mount_table import is_memory, is_network
from tests.slow_mount import SlowMount, slow_mounts

Mounts = Callable[[str], SlowMount]


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[Mounts]:
    with slow_mounts(tmp_path) as made:

        def mount(name: str) -> SlowMount:
            found = made(name)
            if found is None:
                pytest.skip("may not mount a file system here")
            return found

        yield mount


@pytest.fixture
def private_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of this machine alone."""
    point = tmp_path / "private"
    point.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=40m", "none", str(point)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("may not mount a file system here")
    yield point
    subprocess.run(["umount", str(point)], check=True)


def test_a_folder_is_looked_at_and_left_as_it_was(tmp_path: Path) -> None:
    facts = look_at(tmp_path)
    assert facts.is_there
    assert (facts.silent, facts.trouble) == ("", "")
    assert facts.mount.point
    assert facts.room is not None
    assert all(not rule.trouble for rule in facts.rules)
    assert facts.speed.tried_bytes > 0
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_tried_in_the_next_one_above_and_not_made(tmp_path: Path) -> None:
    facts = look_at(tmp_path / "a" / "b")
    assert (facts.is_there, facts.tried_in) == (False, str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "ENOTDIR" in look_at(tmp_path / "file").trouble


def test_memory_and_a_network_file_system_are_known(private_disk: Path, mounts: Mounts) -> None:
    assert is_memory(look_at(private_disk).mount)
    served = look_at(mounts("one").target)
    assert (served.mount.medium.type, is_network(served.mount)) == ("fuse.slow", True)
    assert (served.silent, served.trouble) == ("", "")


def test_a_server_that_hangs_is_told_and_holds_nobody(mounts: Mounts) -> None:
    mount = mounts("one")
    mount.set(hang=("getattr", "lookup", "statfs", "mkdir"))
    facts = look_at(mount.target, step_s=0.3)
    mount.set()
    assert "longer than" in facts.silent


def test_two_mounts_of_one_server_are_one_folder(mounts: Mounts) -> None:
    one, two = mounts("one"), mounts("two")
    assert [seen_through(one.target, two.target), seen_through(two.target, one.target)] == ["", ""]
    assert list(one.source.iterdir()) == []


def test_a_disk_of_its_own_is_no_share(mounts: Mounts, private_disk: Path) -> None:
    told = seen_through(mounts("one").target, private_disk, seen_s=0.2)
    assert "is not seen in" in told
    assert list(private_disk.iterdir()) == []


def test_a_folder_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    assert "ENOENT" in seen_through(tmp_path / "nowhere", tmp_path)
