"""Processes that write into one folder know each other."""

import json
from pathlib import Path

import pytest

from kveik.clock import FakeClock
from kveik.store.filesystem_files import FileTree, check_root
from kveik.store.filesystem_layout import writer_name
from kveik.store.filesystem_writers import Sighting, WriterFiles, still_there

STALE_S = 30.0
NOTE = json.dumps({"host": "here", "pid": 7, "beat": 1, "written_bytes": 5}).encode()


class Shared:
    """One folder and a clock."""

    def __init__(self, root: Path) -> None:
        check_root(root)
        self.root = root
        self.clock = FakeClock()
        self.folder = root / "kveik-1" / "writers"

    def writer(self, number: int) -> WriterFiles:
        name = writer_name(f"{number:016x}")
        return WriterFiles(FileTree(self.root), name, STALE_S, self.clock)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    return Shared(tmp_path)


def test_writers_see_each_other_as_long_as_they_keep_their_files(shared: Shared) -> None:
    one, two = shared.writer(1), shared.writer(2)
    one.keep(0)
    assert list(one.living()) == [writer_name(f"{1:016x}")]
    two.keep(0)
    assert sorted(one.living()) == sorted(two.living()) == shared.names()

    for _ in range(10):
        shared.clock.advance(11.0)
        one.keep(0)
        two.keep(0)
        assert len(one.living()) == 2


def test_one_that_keeps_its_file_no_more_is_gone_after_a_while_and_its_file_too(shared: Shared) -> None:
    one, two = shared.writer(1), shared.writer(2)
    two.keep(0)
    one.keep(0)
    assert len(one.living()) == 2

    shared.clock.advance(29.0)
    one.keep(0)
    assert len(one.living()) == 2
    shared.clock.advance(1.0)
    assert list(one.living()) == [writer_name(f"{1:016x}")]
    assert shared.names() == [writer_name(f"{1:016x}")]


def test_one_that_leaves_is_gone_at_once(shared: Shared) -> None:
    one, two = shared.writer(1), shared.writer(2)
    one.keep(0)
    two.keep(0)
    two.leave()
    two.leave()

    assert list(one.living()) == [writer_name(f"{1:016x}")]


def test_the_own_file_is_written_only_when_that_is_due(shared: Shared) -> None:
    one = shared.writer(1)
    one.keep(0)
    one.keep(0)
    assert "beat 1," in repr(one)
    shared.clock.advance(STALE_S / 3)
    one.keep(0)
    assert "beat 2," in repr(one)
    one.keep(5)
    assert "beat 3," in repr(one)


def test_what_each_has_written_is_reported(shared: Shared) -> None:
    one, two = shared.writer(1), shared.writer(2)
    one.keep(100)
    two.keep(7)

    assert sorted(one.living().values()) == sorted(two.living().values()) == [7, 100]
    (shared.folder / writer_name(f"{2:016x}")).write_bytes(b"garbage")
    assert sorted(one.living().values()) == [0, 100]


def test_files_of_strangers_are_no_writers_and_stay(shared: Shared) -> None:
    one = shared.writer(1)
    one.keep(0)
    (shared.folder / "notes").write_bytes(b"mine")

    assert list(one.living()) == [writer_name(f"{1:016x}")]
    shared.clock.advance(1000.0)
    one.living()
    assert (shared.folder / "notes").exists()


@pytest.mark.parametrize(
    ("raw", "age_s", "host", "alive", "there"),
    [
        (NOTE, 0.0, "here", True, True),
        (NOTE, 0.0, "here", False, False),
        (NOTE, 0.0, "elsewhere", False, True),
        (NOTE, 30.0, "elsewhere", True, False),
        (b"garbage", 29.0, "here", False, True),
        (b"garbage", 30.0, "here", True, False),
    ],
)
def test_a_writer_is_there_until_its_process_is_dead_or_its_file_has_not_changed(
    raw: bytes, age_s: float, host: str, alive: bool, there: bool
) -> None:
    seen = Sighting(raw, since_s=100.0)

    assert still_there(seen, now_s=100.0 + age_s, stale_s=STALE_S, host=host, alive=lambda _: alive) is there
