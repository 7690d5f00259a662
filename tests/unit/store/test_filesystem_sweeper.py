"""Turns of processes that share a folder with a limit: who counts, who gets which share, who asks for room."""

import time
from pathlib import Path

import pytest

from kveik.clock import FakeClock
from kveik.records import ignore
from kveik.store.filesystem_files import FileTree, check_root
from kveik.store.filesystem_layout import LEASE_NAME, WANTED_NAME
from kveik.store.filesystem_lease import LeaseNote
from kveik.store.filesystem_options import FilesystemOptions
from kveik.store.filesystem_quota import Allowance
from kveik.store.filesystem_space import FreeSpace, Usage
from kveik.store.filesystem_sweeper import FolderSweeper

LIMIT = 1_000_000


class Node:
    """One process's part in sweeping, driven turn by turn."""

    def __init__(self, root: Path, clock: FakeClock, **options: object) -> None:
        self.clock = clock
        chosen = FilesystemOptions(**{"root": root, "limit_bytes": LIMIT, **options})  # type: ignore[arg-type]
        tree, self.usage = FileTree(root), Usage()
        self.allowance = Allowance(chosen.limit_bytes, clock, alone=False, stale_s=2.0)
        free = FreeSpace(str(root), clock)
        self.sweeper = FolderSweeper("folder", tree, chosen, self.usage, free, self.allowance, ignore, clock)

    def turn(self) -> None:
        self.sweeper._turn()

    @property
    def share(self) -> int:
        """The largest block that it may write now."""
        low, high = 0, LIMIT + 1
        while high - low > 1:
            middle = (low + high) // 2
            if self.allowance.take(middle):
                self.allowance.give_back(middle)
                low = middle
            else:
                high = middle
        return low

    def write(self, size: int) -> None:
        assert self.allowance.take(size)
        self.allowance.wrote(size)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(time.time())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    check_root(tmp_path)
    return tmp_path


def note(root: Path) -> LeaseNote:
    found = LeaseNote.parse((root / "kveik-1" / LEASE_NAME).read_bytes())
    assert found is not None
    return found


def test_nobody_writes_before_the_first_count_and_one_alone_has_most_of_the_room(root: Path, clock: FakeClock) -> None:
    node = Node(root, clock)
    assert node.share == 0

    node.turn()

    assert node.share == LIMIT * 3 // 4
    assert len(note(root).writers) == 1


def test_one_that_joins_gets_a_small_share_at_once_and_its_own_after_the_next_round(
    root: Path, clock: FakeClock
) -> None:
    first, second = Node(root, clock), Node(root, clock)
    first.turn()
    second.turn()
    assert second.share == LIMIT // 16

    clock.advance(3.0)
    first.turn()
    assert first.share == LIMIT // 4
    second.turn()
    assert second.share == LIMIT // 4
    assert len(note(root).writers) == 2
    assert "sweeps" in second.sweeper.state


def test_one_that_leaves_is_no_longer_counted(root: Path, clock: FakeClock) -> None:
    first, second = Node(root, clock), Node(root, clock)
    second.turn()  # the one that was first to look sweeps
    first.turn()
    clock.advance(3.0)
    second.turn()
    assert len(note(root).writers) == 2

    first.sweeper._writers.leave()
    clock.advance(3.0)
    second.turn()

    assert second.share == LIMIT * 3 // 4


def both(root: Path, clock: FakeClock) -> tuple[Node, Node]:
    """Two that have their shares; the first one sweeps."""
    first, second = Node(root, clock), Node(root, clock)
    for node in (first, second):
        node.turn()
    clock.advance(3.0)
    for node in (first, second):
        node.turn()
    assert (first.share, second.share) == (LIMIT // 4, LIMIT // 4)
    return first, second


def test_shares_for_several_are_given_apart_so_that_all_have_looked_in_between(root: Path, clock: FakeClock) -> None:
    first, _ = both(root, clock)
    before = note(root).gift
    first.sweeper.press()
    clock.advance(2.0)
    first.turn()
    assert note(root).gift == before
    clock.advance(0.6)
    first.turn()
    assert note(root).gift == before + 1


def test_one_that_needs_a_share_gets_it_by_its_report_without_a_count(root: Path, clock: FakeClock) -> None:
    first, second = both(root, clock)
    before = note(root)
    second.write(LIMIT // 4)
    assert second.allowance.low
    second.sweeper.press(wanted=100)
    second.turn()
    wanted = root / "kveik-1" / WANTED_NAME
    assert wanted.read_bytes() == b"100"

    clock.advance(3.0)
    first.turn()
    second.turn()

    assert not wanted.exists()
    assert (note(root).gift, note(root).count.round) == (before.gift + 1, before.count.round)
    assert note(root).room_bytes == LIMIT * 3 // 4
    assert first.share == second.share == LIMIT * 3 // 16


def test_what_was_written_after_the_report_counts_against_the_next_share(root: Path, clock: FakeClock) -> None:
    first, second = both(root, clock)
    second.write(1000)
    second.turn()
    second.write(500)
    first.sweeper.press()
    clock.advance(3.0)
    first.turn()
    second.turn()

    assert note(root).room_bytes == LIMIT - 1000
    assert second.share == (LIMIT - 1000) // 4 - 500


def test_near_the_limit_reports_are_not_enough_and_the_folder_is_counted(root: Path, clock: FakeClock) -> None:
    first, second = both(root, clock)
    before = note(root).count.round
    second.sweeper._writers.keep(LIMIT * 96 // 100)

    clock.advance(3.0)
    first.turn()

    assert note(root).count.round == before + 1, "and found empty, as no file was written really"


def test_when_one_is_gone_the_folder_is_counted_before_shares_are_given_again(root: Path, clock: FakeClock) -> None:
    first, second = both(root, clock)
    before = note(root).count.round
    second.write(1000)  # and never reports it
    second.sweeper._writers.leave()

    clock.advance(3.0)
    first.turn()

    assert note(root).count.round == before + 1
    assert len(note(root).writers) == 1
    assert first.share == LIMIT * 3 // 4


@pytest.mark.parametrize("told", [b"", b"garbage", b"-5", b"9" * 40, b"7 full", b"\xff\xfe"])
def test_any_note_is_read_without_harm(root: Path, clock: FakeClock, told: bytes) -> None:
    node = Node(root, clock)
    node.turn()
    (root / "kveik-1" / WANTED_NAME).write_bytes(told)

    clock.advance(1.0)
    node.turn()

    assert not (root / "kveik-1" / WANTED_NAME).exists()


def test_one_that_stopped_looking_may_not_write(root: Path, clock: FakeClock) -> None:
    node = Node(root, clock)
    node.turn()
    clock.advance(2.1)
    assert node.share == 0
    node.turn()
    assert node.share > 0


def test_one_that_does_not_sweep_waits_between_its_turns(root: Path) -> None:
    """Its first turn is at once, the next after the pause."""
    clock = FakeClock(time.time())
    first = Node(root, clock)
    first.turn()
    second = Node(root, clock, shared_turn_s=30.0)
    turns: list[float] = []
    second.sweeper._turn = lambda: turns.append(time.monotonic())  # type: ignore[method-assign]

    second.sweeper.start()
    give_up = time.monotonic() + 20.0
    while not turns:
        assert time.monotonic() < give_up
        time.sleep(0.002)
    second.sweeper.press()
    while len(turns) < 2:
        assert time.monotonic() < give_up
        time.sleep(0.002)
    second.sweeper.close()

    assert len(turns) == 2
