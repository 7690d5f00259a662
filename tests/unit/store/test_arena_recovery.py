"""What a later agent finds in the arena of an earlier one."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kveik.clock import FakeClock
from kveik.kv.frame import HEADER_BYTES, payload_digest
from kveik.kv.keys import BlockKey
from kveik.records import FailureRecord, Record
from kveik.store.arena import Arena
from kveik.store.arena_file import ArenaRequest, open_arena_file
from kveik.store.writer import Writer
from tests.agents import payload_of, some_keys

KIB = 1 << 10
SIZE = 12 * KIB
ME = Writer.of(os.getpid(), 5)
Reopen = Callable[[], Arena]


@pytest.fixture
def records() -> list[Record]:
    return []


@pytest.fixture
def reopen(tmp_path: Path, records: list[Record]) -> Iterator[Reopen]:
    opened: list[Arena] = []
    clock = FakeClock()

    def open_again() -> Arena:
        for arena in opened:
            arena.close()
        opened.clear()
        clock.advance(1)
        file = open_arena_file(ArenaRequest(str(tmp_path / "arena"), 4 * 128 * KIB + 8 * KIB, 128 * KIB))
        assert not file.notes
        opened.append(Arena(file, listener=records.append, clock=clock))
        return opened[0]

    yield open_again
    for arena in opened:
        arena.close()


def store(arena: Arena, keys: list[BlockKey], size: int = SIZE) -> list[int]:
    slots = [found.slot for found in arena.reserve(keys, size, ME)]
    for key, slot in zip(keys, slots, strict=True):
        arena.view(slot)[HEADER_BYTES:] = payload_of(key, size)
    arena.commit(slots, [payload_digest(payload_of(key, size)) for key in keys])
    return slots


def test_every_committed_block_is_found_and_none_counts_as_checked(reopen: Reopen) -> None:
    small, large = some_keys(10), some_keys(2)
    arena = reopen()
    store(arena, small)
    store(arena, large, 60 * KIB)
    arena = reopen()
    assert len(arena.recovered.blocks) == 12
    slots = arena.pin([*small, *large])
    assert arena.unverified_of(slots) == slots
    for key, slot in zip([*small, *large], slots, strict=True):
        size = SIZE if key in small else 60 * KIB
        assert bytes(arena.view(slot)[HEADER_BYTES:]) == payload_of(key, size)
    assert arena.stats().by_namespace == {b"n" * 16: (12, 10 * SIZE + 2 * 60 * KIB)}


def test_a_block_is_checked_once(reopen: Reopen) -> None:
    keys = some_keys(2)
    store(reopen(), keys)
    arena = reopen()
    slots = arena.pin(keys)
    assert arena.check(slots[0])
    assert arena.unverified_of(slots) == slots[1:]
    assert arena.some_unverified(5) == keys[1:]


def test_a_bit_that_flipped_meanwhile_is_found_by_the_check(reopen: Reopen, records: list[Record]) -> None:
    keys = some_keys(2)
    arena = reopen()
    slots = store(arena, keys)
    arena.view(slots[0])[HEADER_BYTES + SIZE - 1] ^= 1
    arena = reopen()
    slots = arena.pin(keys)
    assert [arena.check(slot) for slot in slots] == [False, True]
    assert records == [FailureRecord("arena", "get", "corrupt", "checksum", 1)]
    assert arena.locate(keys)[0] == -1


def test_a_block_with_a_damaged_header_is_free_space(reopen: Reopen) -> None:
    keys = some_keys(2)
    arena = reopen()
    slots = store(arena, keys)
    arena.view(slots[1])[9] ^= 1
    arena = reopen()
    assert [key for key, _ in arena.recovered.blocks] == keys[:1]
    assert arena.recovered.unusable == 1
    assert len(store(arena, some_keys(27))) == 27


def test_a_dropped_block_does_not_come_back(reopen: Reopen) -> None:
    keys = some_keys(3)
    arena = reopen()
    store(arena, keys)
    arena.drop(keys[1:])
    assert [key for key, _ in reopen().recovered.blocks] == keys[:1]


def test_a_block_dropped_while_somebody_reads_it_does_not_come_back_either(reopen: Reopen) -> None:
    keys = some_keys(3)
    arena = reopen()
    store(arena, keys)
    arena.pin(keys[1:])
    arena.drop_namespace(b"")
    arena = reopen()
    assert arena.recovered.blocks == []
    assert arena.stats().free_slabs == 4


def test_a_corrupt_block_that_a_reader_holds_does_not_come_back_either(reopen: Reopen) -> None:
    keys = some_keys(2)
    arena = reopen()
    slots = store(arena, keys)
    arena.pin(keys)
    arena.view(slots[0])[HEADER_BYTES] ^= 1
    assert not arena.check(slots[0])
    assert [key for key, _ in reopen().recovered.blocks] == keys[1:]


def test_a_slot_whose_writer_is_gone_is_free(reopen: Reopen) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    writer = Writer.of(process.pid)
    process.wait()
    reopen().reserve(some_keys(2), SIZE, writer)
    arena = reopen()
    assert not arena.recovered.being_written
    assert arena.stats().free_slabs == 4


def test_a_slot_whose_writer_lives_is_kept_from_reuse_until_it_is_gone(reopen: Reopen) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    keys = some_keys(1)
    reopen().reserve(keys, SIZE, Writer.of(process.pid))
    arena = reopen()
    assert arena.stats().quarantined == 1
    assert arena.locate(keys) == [-1]
    process.kill()
    process.wait()
    assert arena.sweep() == 1
    assert arena.stats().free_slabs == 4


def test_a_living_writer_can_settle_what_it_reserved_from_the_earlier_agent(reopen: Reopen) -> None:
    reopen().reserve(some_keys(2), SIZE, ME)
    arena = reopen()
    assert arena.stats().quarantined == 2
    assert arena.settle([ME.connection]) == 2


def test_a_frame_that_a_store_read_into_a_slot_does_not_count_before_its_commit(reopen: Reopen) -> None:
    keys = some_keys(2)
    arena = reopen()
    (stored,) = store(arena, keys[:1])
    (fetching,) = arena.reserve(keys[1:], SIZE, Writer(ME.pid, ME.started - 1))
    arena.view(fetching.slot)[:] = arena.view(stored)  # a whole, sound frame
    arena = reopen()
    assert [key for key, _ in arena.recovered.blocks] == keys[:1]


def test_the_oldest_blocks_are_evicted_first_after_a_restart(reopen: Reopen) -> None:
    arena = reopen()
    first = some_keys(7)
    store(arena, first)
    arena = reopen()
    rest = some_keys(21)
    store(arena, rest)
    arena = reopen()
    store(arena, some_keys(4))
    assert all(slot >= 0 for slot in arena.locate(rest))
    assert sum(slot >= 0 for slot in arena.locate(first)) <= 3


def test_a_slab_that_changed_its_slot_size_shows_nothing_of_its_past(reopen: Reopen) -> None:
    arena = reopen()
    small = some_keys(28)
    store(arena, small)
    arena.drop(small)
    large = some_keys(4)
    store(arena, large, 60 * KIB)
    arena = reopen()
    assert sorted(key for key, _ in arena.recovered.blocks) == sorted(large)


def test_a_nonsense_slab_table_entry_frees_the_slab(reopen: Reopen) -> None:
    arena = reopen()
    store(arena, some_keys(1))
    arena.file.slab_table[:] = [7, 1 << 40, 4097, 2]
    arena = reopen()
    assert arena.recovered.unusable == 4
    assert arena.stats().free_slabs == 4
