"""The arena's index: who gets a slot, who loses one, and what is never touched."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from kveik.clock import FakeClock
from kveik.kv.frame import HEADER_BYTES, payload_digest, read_header
from kveik.kv.keys import BlockKey
from kveik.records import EvictionRecord, FailureRecord, Record
from kveik.store.arena import Arena
from kveik.store.arena_file import ArenaRequest, open_arena_file
from kveik.store.quarantine import UNSEEN_WRITER_S
from kveik.store.writer import Writer
from tests.agents import payload_of, some_keys

KIB = 1 << 10
SIZE = 12 * KIB  # slots of 16 KiB
ME = Writer.of(os.getpid(), 99)


@pytest.fixture
def records() -> list[Record]:
    return []


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def arena(tmp_path: Path, records: list[Record], clock: FakeClock) -> Iterator[Arena]:
    # Four slabs, each of seven slots of 16 KiB.
    file = open_arena_file(ArenaRequest(str(tmp_path / "arena"), 4 * 128 * KIB + 8 * KIB, 128 * KIB))
    arena = Arena(file, listener=records.append, clock=clock)
    yield arena
    arena.close()


def store(arena: Arena, keys: Sequence[BlockKey], size: int = SIZE) -> list[int]:
    slots = [found.slot for found in arena.reserve(keys, size, ME)]
    assert -1 not in slots
    for key, slot in zip(keys, slots, strict=True):
        arena.view(slot)[HEADER_BYTES:] = payload_of(key, size)
    arena.commit(slots, [payload_digest(payload_of(key, size)) for key in keys])
    return slots


def present(arena: Arena, keys: Sequence[BlockKey]) -> list[bool]:
    return [slot >= 0 for slot in arena.locate(keys)]


def test_a_committed_block_is_found_with_its_bytes_and_header(arena: Arena) -> None:
    keys = some_keys(3)
    store(arena, keys)
    slots = arena.pin(keys)
    for key, slot in zip(keys, slots, strict=True):
        header = read_header(arena.view(slot))
        assert header.key == key
        assert bytes(arena.view(slot)[HEADER_BYTES:]) == payload_of(key, SIZE)
        assert bytes(arena.file.view[arena.offset(slot) :][: len(arena.view(slot))]) == bytes(arena.view(slot))


def test_a_reserved_block_is_not_visible(arena: Arena) -> None:
    (key,) = some_keys(1)
    arena.reserve([key], SIZE, ME)
    assert present(arena, [key]) == [False]


def test_a_block_has_one_writer_and_then_exists(arena: Arena) -> None:
    (key,) = some_keys(1)
    (first,) = arena.reserve([key], SIZE, ME)
    assert arena.reserve([key], SIZE, ME)[0].reason == "busy"
    arena.commit([first.slot], [payload_digest(bytes(SIZE))])
    assert arena.reserve([key], SIZE, ME)[0].reason == "exists"


def test_one_key_twice_in_a_request_gets_one_slot(arena: Arena) -> None:
    (key,) = some_keys(1)
    answers = arena.reserve([key, key], SIZE, ME)
    assert [answer.reason for answer in answers] == ["", "busy"]
    assert arena.stats().reserved == 1


def test_an_aborted_block_can_be_reserved_again(arena: Arena) -> None:
    (key,) = some_keys(1)
    (first,) = arena.reserve([key], SIZE, ME)
    arena.abort([first.slot])
    assert arena.reserve([key], SIZE, ME)[0].reason == ""


def test_a_block_larger_than_a_slab_is_too_large(arena: Arena) -> None:
    assert arena.reserve(some_keys(2), 200 * KIB, ME)[1].reason == "too_large"
    assert arena.reserve(some_keys(1), 1 << 62, ME)[0].reason == "too_large"


def test_the_least_recently_used_blocks_go_first(arena: Arena, records: list[Record]) -> None:
    keys = some_keys(28)
    store(arena, keys)
    arena.locate(keys[:3])
    store(arena, some_keys(5))
    assert all(present(arena, keys[:3]))
    gone = [index for index, there in enumerate(present(arena, keys)) if not there]
    assert len(gone) >= 5
    assert set(gone) <= set(range(3, 28))
    assert records == [EvictionRecord("arena", len(gone), len(gone) * SIZE)]
    assert isinstance(records[0], EvictionRecord)
    assert set(records[0].keys) == {keys[index] for index in gone}
    assert arena.stats().evicted == len(gone)


def test_of_one_request_the_last_blocks_of_the_prefix_go_first(arena: Arena) -> None:
    keys = some_keys(28)
    store(arena, keys)
    arena.locate(keys)
    store(arena, some_keys(2))
    there = present(arena, keys)
    assert there == sorted(there, reverse=True)
    assert there[0]
    assert not there[-1]


def test_pinned_reserved_and_quarantined_slots_are_never_evicted(arena: Arena) -> None:
    pinned, reserved, held = some_keys(9), some_keys(9), some_keys(10)
    store(arena, pinned)
    slots = arena.pin(pinned)
    writing = [found.slot for found in arena.reserve(reserved, SIZE, ME)]
    for found in arena.reserve(held, SIZE, ME):
        arena.quarantine(found.slot, lambda: True)
    refused = arena.reserve(some_keys(3), SIZE, ME)
    assert {answer.reason for answer in refused} == {"no_room"}
    assert arena.locate(pinned) == slots
    arena.commit(writing, [payload_digest(bytes(SIZE))] * 9)
    assert all(present(arena, reserved))
    arena.unpin(slots)
    assert not any(answer.reason for answer in arena.reserve(some_keys(3), SIZE, ME))


def test_a_slot_that_is_reused_shows_it_in_its_header(arena: Arena) -> None:
    keys = some_keys(28)
    store(arena, keys)
    slot = arena.locate(keys[:1])[0]
    view = arena.view(slot)
    before = bytes(view[:128])
    assert arena.drop(keys[:1]) == ["deleted"]
    assert bytes(view[:128]) != before


def test_a_size_that_starves_gets_the_oldest_slab_of_another_size(arena: Arena) -> None:
    old, young = some_keys(14), some_keys(14)
    store(arena, old)
    store(arena, young)
    store(arena, some_keys(1), 28 * KIB)
    assert sum(present(arena, young)) == 14
    assert sum(present(arena, old)) == 7
    assert set(arena.stats().slabs_by_slot_bytes.values()) == {3, 1}


def test_a_slab_with_one_block_in_use_is_not_taken_away(arena: Arena) -> None:
    keys = some_keys(28)
    store(arena, keys)
    arena.pin(keys[::7])  # one in each slab
    assert arena.reserve(some_keys(1), 28 * KIB, ME)[0].reason == "no_room"


def test_an_empty_slab_returns_to_the_pool(arena: Arena) -> None:
    keys = some_keys(8)
    store(arena, keys)
    assert arena.stats().free_slabs == 2
    arena.drop(keys)
    assert arena.stats().free_slabs == 4
    assert not arena.stats().slabs_by_slot_bytes


def test_a_pinned_block_cannot_be_dropped_one_by_one(arena: Arena) -> None:
    keys = some_keys(2)
    store(arena, keys)
    arena.pin(keys[:1])
    assert arena.drop([*keys, *some_keys(1)]) == ["busy", "deleted", "miss"]


def test_a_pinned_block_of_a_dropped_namespace_goes_with_its_last_pin(arena: Arena) -> None:
    keys, others = some_keys(2), some_keys(2, b"o" * 16)
    store(arena, keys)
    store(arena, others)
    slots = arena.pin(keys)
    arena.pin(keys)
    assert arena.drop_namespace(b"n" * 16) == 2
    assert present(arena, [*keys, *others]) == [False, False, True, True]
    assert bytes(arena.view(slots[0])[HEADER_BYTES:]) == payload_of(keys[0], SIZE)
    arena.unpin(slots)
    assert arena.stats().pinned == 2
    arena.unpin(slots)
    assert arena.stats().pinned == 0
    assert arena.keys() == others


def test_a_wrong_block_is_given_up_once_and_reported_once(arena: Arena, records: list[Record]) -> None:
    (key,) = some_keys(1)
    store(arena, [key])
    slots = arena.pin([key]) + arena.pin([key])
    arena.view(slots[0])[HEADER_BYTES + 5] ^= 1
    assert [arena.check(slot) for slot in slots] == [False, False]
    assert records == [FailureRecord("arena", "get", "corrupt", "checksum", 1)]
    assert present(arena, [key]) == [False]
    arena.unpin(slots)
    assert arena.stats().free_slabs == 4


def test_a_slot_of_a_store_that_is_still_writing_waits_for_it(arena: Arena) -> None:
    (found,) = arena.reserve(some_keys(1), SIZE, ME)
    running = [True]
    arena.quarantine(found.slot, lambda: running[0])
    assert arena.sweep() == 0
    assert arena.stats().quarantined == 1
    running[0] = False
    assert arena.sweep() == 1
    assert arena.stats().free_slabs == 4


def test_a_slot_of_a_writer_without_connection_waits_for_its_process(arena: Arena) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    keys = some_keys(1)
    (found,) = arena.reserve(keys, SIZE, Writer.of(process.pid))
    arena.orphan([found.slot])
    assert arena.stats().quarantined == 1
    assert arena.reserve(keys, SIZE, ME)[0].reason == ""  # the key is free at once, in another slot
    process.kill()
    process.wait()
    assert arena.sweep() == 1


def test_a_writer_that_says_it_stopped_frees_its_slots_early(arena: Arena) -> None:
    mine = arena.reserve(some_keys(2), SIZE, ME)
    other = arena.reserve(some_keys(1), SIZE, Writer(ME.pid, ME.started, 100))
    arena.orphan([found.slot for found in (*mine, *other)])
    assert arena.settle([0, 12345]) == 0
    assert arena.settle([ME.connection]) == 2
    assert arena.stats().quarantined == 1


def test_a_writer_that_cannot_be_seen_is_trusted_after_a_while(arena: Arena, clock: FakeClock) -> None:
    (found,) = arena.reserve(some_keys(1), SIZE, Writer(0, 0))
    arena.orphan([found.slot])
    assert arena.stats().quarantined == 1
    clock.advance(UNSEEN_WRITER_S + 1)
    assert arena.sweep() == 1


def test_sizes_are_counted_by_namespace(arena: Arena) -> None:
    store(arena, some_keys(3))
    others = some_keys(2, b"o" * 16)
    store(arena, others)
    assert arena.stats().by_namespace == {b"n" * 16: (3, 3 * SIZE), b"o" * 16: (2, 2 * SIZE)}
    arena.drop(others)
    assert arena.stats().by_namespace == {b"n" * 16: (3, 3 * SIZE)}
    assert (arena.stats().blocks, arena.stats().payload_bytes) == (3, 3 * SIZE)


def test_many_threads_leave_every_block_whole_and_nothing_pinned(arena: Arena) -> None:
    keys = some_keys(60)
    wrong: list[BlockKey] = []

    def work(seed: int) -> None:
        order = np.random.default_rng(seed)
        for index in order.integers(0, len(keys), 300):
            key = keys[index]
            (slot,) = arena.pin([key])
            if slot >= 0:
                if bytes(arena.view(slot)[HEADER_BYTES:]) != payload_of(key, SIZE):
                    wrong.append(key)
                arena.unpin([slot])
                continue
            (found,) = arena.reserve([key], SIZE, ME)
            if found.slot >= 0:
                arena.view(found.slot)[HEADER_BYTES:] = payload_of(key, SIZE)
                arena.commit([found.slot], [payload_digest(payload_of(key, SIZE))])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = arena.stats()
    assert not wrong
    assert (stats.pinned, stats.reserved, stats.quarantined) == (0, 0, 0)
    assert stats.blocks <= 28
    slots = arena.pin(keys)
    assert all(arena.check(slot) for slot in slots if slot >= 0)


def test_its_text_form_states_the_counts(arena: Arena) -> None:
    store(arena, some_keys(8))
    assert repr(arena) == "Arena(8 blocks, 0 pinned, 2/4 slabs free)"


def test_a_request_that_needs_no_slot_takes_no_slab(arena: Arena) -> None:
    """An empty slab given to a size for nothing would look like the oldest one of all, with nothing to evict."""
    small = some_keys(7)
    store(arena, small)  # one slab, full
    assert {answer.reason for answer in arena.reserve(small, SIZE, ME)} == {"exists"}
    assert arena.reserve([], 60 * KIB, ME) == []
    assert arena.stats().free_slabs == 3
    store(arena, some_keys(3), 100 * KIB)
    assert all(present(arena, small))


def test_what_a_writer_has_already_never_makes_room_for_the_rest_of_its_request(arena: Arena) -> None:
    """The oldest blocks are in the same request as new ones: others have to go."""
    keys = some_keys(28)  # all slots of the arena
    store(arena, keys)
    answers = arena.reserve([*keys[:3], *some_keys(4)], SIZE, ME)
    assert [answer.reason for answer in answers] == ["exists"] * 3 + [""] * 4
    assert present(arena, keys[:3]) == [True] * 3
    everything = arena.reserve([*keys[:3], *some_keys(28)], SIZE, ME)
    assert [answer.reason for answer in everything[:3]] == ["exists"] * 3
    assert present(arena, keys[:3]) == [True] * 3


def test_a_block_that_is_asked_for_may_go_down_once_and_is_pinned_for_it(arena: Arena) -> None:
    slots = store(arena, some_keys(3))
    assert arena.asked_for([slots[1], -1, slots[1]]) == ([slots[1]], [])
    assert arena.stats().pinned == 1
    assert arena.asked_for(slots[1:2]) == ([], [])
    arena.not_given(slots[1:2])
    arena.unpin(slots[1:2])
    assert arena.asked_for(slots[1:2]) == (slots[1:2], [])


def test_what_was_given_is_named_when_it_is_asked_for_first(arena: Arena) -> None:
    keys = some_keys(2)
    slots = store(arena, keys)
    arena.to_give(slots)
    assert arena.asked_for(slots[:1]) == ([], keys[:1])
    assert arena.asked_for(slots[:1]) == ([], [])


def test_a_new_block_in_a_slot_was_never_asked_for(arena: Arena) -> None:
    (slot,) = store(arena, some_keys(1))
    arena.asked_for([slot])
    arena.unpin([slot])
    arena.drop_namespace(b"")
    (again,) = store(arena, some_keys(1))
    assert again == slot
    assert arena.asked_for([slot]) == ([slot], [])


def test_blocks_that_are_gone_being_written_or_in_doubt_do_not_go_down(arena: Arena) -> None:
    gone, doubted = some_keys(2)
    slots = store(arena, [gone, doubted])
    arena.drop([gone])
    arena.doubt([doubted])
    (writing,) = arena.reserve(some_keys(1), SIZE, ME)
    assert arena.asked_for([*slots, writing.slot]) == ([], [])


def test_whether_blocks_are_there_can_be_asked_without_using_them(arena: Arena) -> None:
    keys = some_keys(28)
    store(arena, keys)
    assert arena.holds([*keys[:2], *some_keys(1)]) == [True, True, False]
    store(arena, some_keys(1))
    assert arena.holds(keys) != [True] * 28, "what was only asked about is as old as before"
