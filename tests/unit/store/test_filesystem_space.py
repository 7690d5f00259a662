"""Room: what is stored, what is free, and a disk that was full."""

import errno
import os
from pathlib import Path

import pytest

from kveik.clock import FakeClock
from kveik.records import Record, StateRecord
from kveik.store.filesystem_space import Count, FreeSpace, Usage, WriteGate


def test_usage_follows_what_this_process_does() -> None:
    usage = Usage()
    usage.change(2, 200)
    usage.change(-1, -100)

    assert usage.read() == (1, 100)


def test_a_count_replaces_what_was_believed() -> None:
    usage = Usage()
    usage.change(9, 900)
    usage.begin_count()

    usage.counted(4, 400)

    assert usage.read() == (4, 400)
    assert usage.last_count() == Count(1, 4, 400)


def test_changes_after_a_count_are_added_to_it() -> None:
    usage = Usage()
    usage.begin_count()
    usage.counted(4, 400)
    usage.change(1, 100)

    assert usage.read() == (5, 500)
    assert usage.last_count() == Count(1, 4, 400)


def test_of_changes_during_a_count_half_is_taken_as_seen() -> None:
    usage = Usage()
    usage.begin_count()
    usage.change(4, 400)
    usage.counted(10, 1000)

    assert usage.read() == (12, 1200)


def test_usage_is_never_negative() -> None:
    usage = Usage()
    usage.change(-1, -100)

    assert usage.read() == (0, 0)


def test_free_space_is_asked_for_once_a_second_and_followed_between(tmp_path: Path) -> None:
    clock = FakeClock()
    free = FreeSpace(str(tmp_path), clock)
    before = free.read()
    free.spent(before)

    assert free.read() == 0
    clock.advance(1.0)
    assert free.read() > 0


class Gate:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.records: list[Record] = []
        self.gate = WriteGate("disk.writes", 10.0, self.records.append, self.clock)

    def refuse(self, code: int = errno.ENOSPC) -> None:
        self.gate.refused(OSError(code, os.strerror(code)))


@pytest.fixture
def gate() -> Gate:
    return Gate()


def test_a_full_disk_stops_writing_with_one_clear_line(gate: Gate) -> None:
    for _ in range(3):
        gate.refuse()

    assert gate.gate.read_only
    assert not gate.gate.permit()
    why = "No space left on device (ENOSPC); stored blocks are still read, writing is tried again in 10 s"
    assert gate.records == [StateRecord("disk.writes", "writable", "read-only", why)]


@pytest.mark.parametrize(("code", "name"), [(errno.EDQUOT, "EDQUOT"), (errno.EFBIG, "EFBIG"), (errno.EROFS, "EROFS")])
def test_the_line_names_the_error(gate: Gate, code: int, name: str) -> None:
    gate.refuse(code)

    (record,) = gate.records
    assert isinstance(record, StateRecord)
    assert f"({name})" in record.why


def test_after_the_pause_one_put_tries_and_its_success_ends_it(gate: Gate) -> None:
    gate.refuse()
    gate.clock.advance(10.0)

    assert (gate.gate.permit(), gate.gate.permit()) == (True, False)
    gate.gate.worked()

    assert not gate.gate.read_only
    assert gate.gate.permit()
    assert [record.after for record in gate.records if isinstance(record, StateRecord)] == ["read-only", "writable"]


def test_a_trial_that_fails_is_no_news_and_makes_the_pause_longer(gate: Gate) -> None:
    gate.refuse()
    gate.clock.advance(10.0)
    assert gate.gate.permit()
    gate.refuse()

    gate.clock.advance(10.0)
    assert not gate.gate.permit()
    gate.clock.advance(10.0)
    assert gate.gate.permit()
    assert len(gate.records) == 1
