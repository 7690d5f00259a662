"""What is measured, record by record."""

from collections.abc import Sequence

import pytest

from kveik.clock import Deadline, FakeClock
from kveik.kv.keys import BlockKey
from kveik.records import FailureRecord, LookupRecord, Record, TransferRecord
from kveik.store.base import BlockResult
from kveik.store.faulty import Faults, FaultyStore
from kveik.store.instrumented import InstrumentedStore
from kveik.store.memory import MemoryStore
from tests.blocks import make_block


class SlowMemory(MemoryStore):
    """Every call takes two seconds of a fake clock."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._fake = clock

    def lookup(self, keys: Sequence[BlockKey], deadline: Deadline) -> list[bool]:
        self._fake.advance(2.0)
        return super().lookup(keys, deadline)

    def get(self, keys: Sequence[BlockKey], buffers: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        self._fake.advance(2.0)
        return super().get(keys, buffers, deadline)

    def put(self, keys: Sequence[BlockKey], frames: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        self._fake.advance(2.0)
        return super().put(keys, frames, deadline)


@pytest.fixture
def records() -> list[Record]:
    return []


@pytest.fixture
def store(records: list[Record]) -> InstrumentedStore:
    clock = FakeClock()
    return InstrumentedStore(SlowMemory(clock), records.append, clock)


def soon() -> Deadline:
    return Deadline.after(10.0)


def test_a_lookup_tells_how_many_of_the_keys_are_there(store: InstrumentedStore, records: list[Record]) -> None:
    there, absent = make_block(1), make_block(2)
    store.put([there.key], [there.frame], soon())
    records.clear()

    store.lookup([there.key, absent.key], soon())

    assert records == [LookupRecord("memory", asked=2, found=1, seconds=2.0)]


def test_a_put_counts_only_frames_that_were_written(store: InstrumentedStore, records: list[Record]) -> None:
    block, new = make_block(1), make_block(2)
    store.put([block.key], [block.frame], soon())
    records.clear()

    store.put([block.key, new.key], [block.frame, new.frame], soon())

    assert records == [TransferRecord("memory", "put", blocks=1, bytes=len(new.frame), seconds=2.0)]


def test_a_get_counts_only_hits_and_a_miss_is_no_failure(store: InstrumentedStore, records: list[Record]) -> None:
    there, absent = make_block(1), make_block(2)
    store.put([there.key], [there.frame], soon())
    records.clear()

    store.get([there.key, absent.key], [there.buffer(), absent.buffer()], soon())

    assert records == [TransferRecord("memory", "get", blocks=1, bytes=len(there.frame), seconds=2.0)]


def test_failures_are_counted_by_kind_and_reason(store: InstrumentedStore, records: list[Record]) -> None:
    wrong, short = make_block(1), make_block(2)
    store.put([wrong.key, short.key], [wrong.damaged(), short.frame], soon())
    records.clear()

    store.get([wrong.key, short.key, short.key], [wrong.buffer(), short.buffer()[:9], short.buffer()[:8]], soon())

    assert records == [
        FailureRecord("memory", "get", "corrupt", "checksum", blocks=1),
        FailureRecord("memory", "get", "failed", "too_large", blocks=2),
    ]


def test_a_failed_delete_is_reported_and_a_good_one_is_not(records: list[Record]) -> None:
    inner = FaultyStore(MemoryStore())
    store = InstrumentedStore(inner, records.append)
    block = make_block(1)
    store.delete([block.key])
    assert records == []

    inner.faults = Faults(fail="io_error")
    store.delete([block.key])

    assert records == [FailureRecord("memory", "delete", "failed", "io_error", blocks=1)]
