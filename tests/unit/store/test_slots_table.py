"""The table of slots: slabs go to sizes and back, and its counts always agree with each other."""

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kveik.kv.frame import MAGIC
from kveik.store.arena_file import ArenaFile, ArenaRequest, open_arena_file
from kveik.store.arena_layout import RECORD_COMMITTED, RECORD_FREE, RECORD_WRITING
from kveik.store.slots import Slab, SlotState, SlotTable
from kveik.store.writer import Writer
from tests.agents import some_keys

KIB = 1 << 10
SLAB_BYTES = 128 * KIB
SLABS = 4
SIZES = (8 * KIB, 16 * KIB, 64 * KIB)
WRITER = Writer(1234, 5678, 9)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[ArenaFile]:
    file = open_arena_file(ArenaRequest(str(tmp_path / "arena"), SLABS * SLAB_BYTES + 8 * KIB, SLAB_BYTES))
    yield file
    file.close()


@pytest.fixture
def table(file: ArenaFile) -> SlotTable:
    return SlotTable(file)


def hold(table: SlotTable, slot_bytes: int, count: int) -> list[int]:
    """Take slots and commit a block in each."""
    slots = table.take(slot_bytes, count)
    for slot, key in zip(slots, some_keys(len(slots)), strict=True):
        table.mark_reserved(slot, key, 100, WRITER)
        table.mark_committed(slot)
    return slots


def check_counts(table: SlotTable, held: dict[int, int]) -> None:
    """``held`` is the slot size of every slot in use."""
    assert sorted([*table.free_slabs, *table.slabs]) == list(range(SLABS))
    assert {number: slab for slabs in table.by_size.values() for number, slab in slabs.items()} == table.slabs
    assert all(table.by_size.values())
    for number, slab in table.slabs.items():
        mine = {slot for slot in held if slot // table.layout.stride == number}
        assert slab.used == len(mine) > 0
        assert {held[slot] for slot in mine} == {slab.slot_bytes}
        assert table.file.slab_table[number] == slab.slot_bytes
    assert all(table.file.slab_table[number] == 0 for number in table.free_slabs)


steps = st.lists(st.tuples(st.sampled_from(SIZES), st.integers(0, 20), st.booleans()), max_size=12)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps, choices=st.randoms(use_true_random=False))
def test_slabs_are_free_or_of_one_size_whatever_is_taken_and_given_back(
    file: ArenaFile, steps: list[tuple[int, int, bool]], choices: random.Random
) -> None:
    file.slab_table[:] = 0
    table = SlotTable(file)
    held: dict[int, int] = {}
    for slot_bytes, count, takes in steps:
        if takes:
            slots = hold(table, slot_bytes, count)
            assert len(set(slots)) == len(slots)
            assert not held.keys() & set(slots)
            held |= dict.fromkeys(slots, slot_bytes)
        else:
            ours = sorted(held)
            choices.shuffle(ours)
            for slot in ours[:count]:
                table.free(slot)
                del held[slot]
        check_counts(table, held)
        spans = sorted((table.offset(slot), table.offset(slot) + size) for slot, size in held.items())
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_a_take_that_cannot_be_had_whole_gives_all_that_is_left(table: SlotTable) -> None:
    per_slab = table.layout.slots_in_slab(64 * KIB)
    assert len(table.take(64 * KIB, 1000)) == SLABS * per_slab
    assert table.take(64 * KIB, 1) == []
    assert table.take(8 * KIB, 1) == []


def test_a_size_fills_its_own_slabs_before_it_takes_another(table: SlotTable) -> None:
    per_slab = table.layout.slots_in_slab(16 * KIB)
    slots = hold(table, 16 * KIB, per_slab)
    table.free(slots[2])
    assert hold(table, 16 * KIB, 1) == [slots[2]]
    assert len(table.free_slabs) == SLABS - 1
    hold(table, 16 * KIB, 1)
    assert len(table.free_slabs) == SLABS - 2


def test_a_slab_that_changes_its_size_starts_with_cleared_records(table: SlotTable) -> None:
    (slot,) = hold(table, 8 * KIB, 1)
    number = slot // table.layout.stride
    table.file.records(number, 5)["state"] = RECORD_COMMITTED
    table.free(slot)
    slab = table.assign(number, 64 * KIB)
    assert not table.file.records(number, slab.count)["state"].any()


def test_the_record_of_a_slot_follows_its_life(table: SlotTable) -> None:
    (slot, other) = table.take(8 * KIB, 2)
    slab = table.slab_of(slot)
    record = table.file.records(slab.number, slab.count)[slot - slab.first_slot : slot - slab.first_slot + 1]
    (key, other_key) = some_keys(2)
    table.mark_reserved(other, other_key, 100, WRITER)
    table.mark_reserved(slot, key, 100, WRITER)
    assert record[0].item()[:4] == (RECORD_WRITING, WRITER.pid, WRITER.started, WRITER.connection)
    table.mark_committed(slot)
    assert record["state"][0] == RECORD_COMMITTED
    table.mark_doomed(slot)
    assert record["state"][0] == RECORD_FREE
    assert table.state[slot] == SlotState.DOOMED
    assert table.key(slot) == key
    table.free(slot)
    assert table.state[slot] == SlotState.FREE
    with pytest.raises(LookupError, match=f"slot {slot} is free"):
        table.key(slot)


def test_reserving_and_freeing_take_the_magic_out_of_the_header(table: SlotTable) -> None:
    (slot, _kept) = hold(table, 8 * KIB, 2)
    start = table.offset(slot)
    changes: list[Callable[[], None]] = [
        lambda: table.mark_reserved(slot, some_keys(1)[0], 100, WRITER),
        lambda: table.free(slot),
    ]
    for change in changes:
        table.file.view[start : start + len(MAGIC)] = MAGIC
        change()
        assert not any(table.file.view[start : start + len(MAGIC)])


def test_earlier_blocks_of_one_request_are_younger_and_later_requests_younger_still(table: SlotTable) -> None:
    slots = hold(table, 8 * KIB, 6)
    table.touch(np.array(slots[:3]))
    table.touch(np.array(slots[3:]))
    assert table.victims(8 * KIB, 6) == [slots[2], slots[1], slots[0], slots[5], slots[4], slots[3]]


@pytest.mark.parametrize("state", [SlotState.RESERVED, SlotState.DOOMED, SlotState.QUARANTINED])
def test_only_blocks_that_nobody_uses_are_victims(table: SlotTable, state: SlotState) -> None:
    pinned, other, plain = hold(table, 8 * KIB, 3)
    table.pins[pinned] = 1
    table.state[other] = state
    assert table.victims(8 * KIB, 3) == [plain]
    assert table.victims(16 * KIB, 3) == []
    assert [use.evictable for use in table.slab_uses(16 * KIB)] == [False]
    assert table.slab_uses(8 * KIB) == []


def test_unverified_blocks_can_be_evicted_like_others(table: SlotTable) -> None:
    slots = hold(table, 8 * KIB, 2)
    table.state[slots[0]] = SlotState.UNVERIFIED
    assert sorted(table.victims(8 * KIB, 2)) == sorted(slots)
    assert [use.evictable for use in table.slab_uses(16 * KIB)] == [True]


@given(count=st.integers(1, 20), chosen=st.sets(st.integers(0, 19)))
def test_a_restored_slab_gives_out_exactly_the_slots_that_were_free(count: int, chosen: set[int]) -> None:
    used = [index for index in chosen if index < count]
    slab = Slab(3, 100, 8 * KIB, count, 0)
    slab.restore(used)
    given_out = []
    while (slot := slab.take()) is not None:
        given_out.append(slot)
    assert given_out == [100 + index for index in range(count) if index not in used]
    assert slab.used == count
