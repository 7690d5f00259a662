"""One sweeper among many, without comparing clocks."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kveik.clock import FakeClock
from kveik.store.filesystem_files import FileTree, check_root
from kveik.store.filesystem_lease import LeaseNote, Step, SweeperLease, next_step
from kveik.store.filesystem_space import Count

OWN = LeaseNote("me", "host", 10)
THEIRS = LeaseNote("them", "host", 20, beat=7)
STALE_S = 30.0


@pytest.mark.parametrize(
    ("raw", "owner_alive", "unchanged_s", "step"),
    [
        (None, True, 0.0, Step.CREATE),
        (OWN.pack(), True, 1.0, Step.REST),
        (OWN.pack(), True, 10.0, Step.BEAT),
        (THEIRS.pack(), True, 29.9, Step.WAIT),
        (THEIRS.pack(), True, 30.0, Step.TAKE),
        (THEIRS.pack(), False, 0.0, Step.TAKE),  # same host, and its process is gone
        (replace(THEIRS, host="other").pack(), False, 0.0, Step.WAIT),
        (b"not a lease", True, 0.0, Step.WAIT),
        (b"not a lease", True, 30.0, Step.TAKE),
        (b"", True, 30.0, Step.TAKE),
    ],
)
def test_what_to_do_about_the_lease(raw: bytes | None, owner_alive: bool, unchanged_s: float, step: Step) -> None:
    assert next_step(raw, own=OWN, owner_alive=owner_alive, unchanged_s=unchanged_s, stale_s=STALE_S) is step


def test_a_note_survives_its_text_form() -> None:
    note = LeaseNote("me", "host", 10, 3, Count(2, 100, 1 << 40))

    assert LeaseNote.parse(note.pack()) == note


def test_a_note_says_what_room_was_given_to_whom_if_it_is_of_a_version_that_does() -> None:
    note = LeaseNote("me", "host", 10, 3, Count(2, 100, 1 << 40), 7, 1 << 30, {"a": 5, "b": 0})
    fields = json.loads(note.pack())
    older = {name: value for name, value in fields.items() if name not in ("gift", "room_bytes", "writers")}

    assert LeaseNote.parse(note.pack()) == note
    assert LeaseNote.parse(json.dumps(older).encode()) == replace(note, gift=0, room_bytes=0, writers={})
    assert LeaseNote.parse(json.dumps({**fields, "writers": [1]}).encode()) is None


@pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b"7", b"\xff", b'{"owner": "x", "count": []}', OWN.pack()[:-3]])
def test_other_content_is_no_note(raw: bytes) -> None:
    assert LeaseNote.parse(raw) is None


@given(
    st.binary(max_size=40)
    | st.builds(
        lambda count: json.dumps({"owner": "a", "host": "b", "pid": 1, "beat": 1, "count": count}).encode(),
        st.recursive(
            st.none() | st.floats() | st.text(max_size=3) | st.integers(),
            lambda inner: (
                st.lists(inner, max_size=3) | st.fixed_dictionaries({"round": inner, "blocks": inner, "bytes": inner})
            ),
        ),
    )
)
@example(b"[" * 4096)  # as long as a lease may be, nested deeper than a parser goes
def test_whatever_stands_in_the_lease_file_is_a_note_or_none(raw: bytes) -> None:
    note = LeaseNote.parse(raw)
    assert note is None or type(note.count.blocks) is int


class Host:
    """A process of some host that wants the lease of a folder."""

    def __init__(self, folder: Path, clock: FakeClock) -> None:
        check_root(folder)
        self.clock = clock
        self.lease = SweeperLease(FileTree(folder), STALE_S, clock)

    def keep(self, count: Count = Count()) -> bool:  # noqa: B008
        return self.lease.keep(count)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def one(tmp_path: Path, clock: FakeClock) -> Host:
    return Host(tmp_path, clock)


@pytest.fixture
def two(tmp_path: Path, clock: FakeClock) -> Host:
    return Host(tmp_path, clock)


def lease_file(tmp_path: Path) -> Path:
    return tmp_path / "kveik-1" / "sweeper.lease"


def test_the_first_gets_the_lease_and_the_second_waits(one: Host, two: Host) -> None:
    assert (one.keep(), two.keep(), one.keep()) == (True, False, True)


def test_an_owner_that_beats_keeps_it_for_ever(one: Host, two: Host, clock: FakeClock) -> None:
    for _ in range(20):
        clock.advance(STALE_S / 2)
        assert one.keep()
        assert not two.keep()


def test_an_owner_that_stops_beating_loses_it_and_notices(one: Host, two: Host, clock: FakeClock) -> None:
    one.keep()
    two.keep()

    clock.advance(STALE_S)

    assert two.keep()
    assert not one.keep()


def test_what_the_owner_counted_can_be_read_by_the_others(one: Host, two: Host, clock: FakeClock) -> None:
    one.keep()
    clock.advance(STALE_S / 2)
    one.keep(Count(1, 5, 500))

    two.keep()

    assert two.lease.seen is not None
    assert two.lease.seen.count == Count(1, 5, 500)


def test_a_lease_given_up_is_free_at_once(one: Host, two: Host) -> None:
    one.keep()
    one.lease.release()

    assert two.keep()


def test_nobody_gives_up_the_lease_of_another(one: Host, two: Host, tmp_path: Path) -> None:
    one.keep()
    two.keep()

    two.lease.release()

    assert lease_file(tmp_path).exists()
    assert one.keep()


def test_the_lease_of_a_killed_process_of_this_machine_is_taken_at_once(tmp_path: Path, two: Host) -> None:
    program = """
import os, signal, sys
from pathlib import Path
from kveik.clock import SYSTEM_CLOCK
from kveik.store.filesystem_files import FileTree
from kveik.store.filesystem_lease import SweeperLease
from kveik.store.filesystem_space import NO_COUNT
assert SweeperLease(FileTree(Path(sys.argv[1])), 30.0, SYSTEM_CLOCK).keep(NO_COUNT)
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert lease_file(tmp_path).exists()

    assert two.keep()


def test_of_two_that_take_a_stale_lease_at_once_one_has_it_in_the_end(
    one: Host, two: Host, tmp_path: Path, clock: FakeClock
) -> None:
    stale = b"left by somebody"
    lease_file(tmp_path).write_bytes(stale)
    assert not one.keep()
    assert not two.keep()
    clock.advance(STALE_S)

    assert one.keep()
    # The other looked at the stale lease before that, and moves away what now has its name.
    with two.lease._tree.directory() as directory:
        assert not two.lease._remove(directory, stale)

    assert one.keep()
    assert not two.keep()


def test_a_damaged_lease_is_replaced_when_it_does_not_change(one: Host, tmp_path: Path, clock: FakeClock) -> None:
    lease_file(tmp_path).write_bytes(b"\x00" * 5000)

    assert not one.keep()
    clock.advance(STALE_S)
    assert one.keep()


def test_nothing_is_left_beside_the_lease(one: Host, two: Host, tmp_path: Path, clock: FakeClock) -> None:
    for _ in range(5):
        one.keep()
        two.keep()
        clock.advance(STALE_S)

    assert [file.name for file in (tmp_path / "kveik-1").iterdir()] == ["sweeper.lease"]


def test_room_is_given_at_once_by_the_owner_and_by_nobody_else(one: Host, two: Host) -> None:
    one.keep()
    two.keep()

    one.lease.announce(Count(1, 5, 500), {"a": 3, "b": 0}, 250)
    two.lease.announce(Count(7, 7, 7), {}, 9)
    two.keep()

    seen = two.lease.seen
    assert seen is not None
    assert (seen.owner, seen.count) == (one.lease.owner, Count(1, 5, 500))
    assert (seen.gift, seen.room_bytes, seen.writers) == (1, 250, {"a": 3, "b": 0})
