"""The reference store beyond the contract."""

from kveik.clock import Deadline
from kveik.records import EvictionRecord, Record
from kveik.store.base import Status
from kveik.store.memory import MemoryStore
from tests.blocks import Block, make_block


def soon() -> Deadline:
    return Deadline.after(10.0)


def put(store: MemoryStore, *blocks: Block) -> list[Status]:
    return [result.status for result in store.put([b.key for b in blocks], [b.frame for b in blocks], soon())]


def test_the_least_recently_read_block_is_evicted_first() -> None:
    one, two, three = (make_block(number) for number in range(3))
    records: list[Record] = []
    store = MemoryStore(limit_bytes=2 * len(one.frame), listener=records.append)
    put(store, one, two)
    store.get([one.key], [one.buffer()], soon())

    put(store, three)

    assert store.lookup([one.key, two.key, three.key], soon()) == [True, False, True]
    assert records == [EvictionRecord("memory", 1, len(two.frame))]


def test_a_block_larger_than_the_limit_is_refused_and_evicts_nothing() -> None:
    small, large = make_block(1, payload_bytes=100), make_block(2, payload_bytes=10_000)
    store = MemoryStore(limit_bytes=len(small.frame) + 100)
    put(store, small)

    (result,) = store.put([large.key], [large.frame], soon())

    assert (result.status, result.reason) == (Status.FAILED, "too_large")
    assert store.lookup([small.key], soon()) == [True]


def test_the_store_keeps_copies_and_not_the_callers_buffer() -> None:
    block = make_block(1)
    frame = memoryview(bytearray(block.frame))
    store = MemoryStore()
    store.put([block.key], [frame], soon())

    frame[:] = bytes(len(frame))

    buffer = block.buffer()
    assert store.get([block.key], [buffer], soon())[0].ok
    assert block.is_in(buffer)


def test_the_repr_states_the_counts() -> None:
    store = MemoryStore("dram")
    put(store, make_block(1))

    assert repr(store) == f"MemoryStore('dram', 1 blocks, {4096 + 8192} bytes)"
