"""Counts of what passed through a store that has none of its own."""

import pytest

from kveik.clock import Deadline
from kveik.store.base import StoreStats
from kveik.store.faulty import Faults, FaultyStore
from kveik.store.memory import MemoryStore
from kveik.store.stored_here import CountingStore, StoredHere
from tests.agents import some_keys
from tests.blocks import Block, make_block


class SilentStore(MemoryStore):
    """Knows how much it holds, and does not say so."""

    def stats(self) -> StoreStats:
        return StoreStats(0, 0, 7, notes=("a note",))


def soon() -> Deadline:
    return Deadline.after(20.0)


def put(store: CountingStore, *blocks: Block) -> None:
    store.put([block.key for block in blocks], [block.frame for block in blocks], soon())


def sizes(store: CountingStore) -> tuple[int, int]:
    stats = store.stats()
    return stats.blocks, stats.bytes


@pytest.fixture
def store() -> CountingStore:
    return CountingStore(SilentStore())


def test_what_is_stored_and_deleted_is_counted_with_its_size(store: CountingStore) -> None:
    small, large = make_block(1), make_block(2, payload_bytes=50_000)
    put(store, small, large)
    assert sizes(store) == (2, len(small.frame) + len(large.frame))
    store.delete([small.key])
    assert sizes(store) == (1, len(large.frame))


def test_a_block_that_was_there_already_is_not_counted_twice(store: CountingStore) -> None:
    block = make_block(1)
    put(store, block, block)
    put(store, block)
    assert sizes(store) == (1, len(block.frame))


def test_a_block_that_the_store_lost_counts_until_somebody_asks_for_it() -> None:
    inner = SilentStore()
    store = CountingStore(inner)
    block = make_block(1)
    put(store, block)
    inner.delete([block.key])
    assert sizes(store)[0] == 1
    store.get([block.key], [block.buffer()], soon())
    assert sizes(store) == (0, 0)


def test_a_corrupt_block_no_longer_counts(store: CountingStore) -> None:
    block = make_block(1)
    store.put([block.key], [block.damaged()], soon())
    store.get([block.key], [block.buffer()], soon())
    assert sizes(store) == (0, 0)


def outage(inner: FaultyStore, store: CountingStore) -> None:
    inner.faults = Faults(fail="unavailable")
    put(store, make_block(99))
    inner.faults = Faults()


def test_a_store_that_is_empty_after_an_outage_has_no_blocks_any_more() -> None:
    memory = SilentStore()
    inner = FaultyStore(memory)
    store = CountingStore(inner)
    blocks = [make_block(number) for number in range(200)]
    put(store, *blocks)
    memory.delete([block.key for block in blocks])
    outage(inner, store)
    assert sizes(store)[0] == 200
    put(store, make_block(1000))
    assert sizes(store) == (1, len(make_block(1000).frame))


def test_after_an_outage_of_a_store_that_kept_its_blocks_they_still_count() -> None:
    memory = SilentStore()
    inner = FaultyStore(memory)
    store = CountingStore(inner)
    blocks = [make_block(number) for number in range(10)]
    put(store, *blocks)
    memory.delete([blocks[3].key])
    outage(inner, store)
    store.get([blocks[0].key], [blocks[0].buffer()], soon())
    assert sizes(store)[0] == 9


def test_other_facts_are_those_of_the_store(store: CountingStore) -> None:
    stats = store.stats()
    assert (stats.capacity_bytes, stats.notes, store.name) == (7, ("a note",), "memory")
    assert store.capabilities == SilentStore().capabilities


def test_no_more_blocks_are_remembered_than_agreed() -> None:
    stored = StoredHere(limit=3)
    keys = some_keys(5)
    for key in keys:
        stored.add(key, 10)
    assert (len(stored), stored.bytes) == (3, 30)
    stored.remove(keys[0])
    assert (len(stored), stored.bytes) == (3, 30)
    stored.remove(keys[4])
    assert (len(stored), stored.bytes) == (2, 20)
    assert stored.sample(10, {keys[3]}) == [keys[2]]
    assert repr(stored) == "StoredHere(2 blocks, 20 bytes)"
