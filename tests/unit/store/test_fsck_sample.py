"""Blocks of a tier that can only be asked are read back."""

from collections.abc import Iterator, Sequence

from kveik.clock import Deadline
from kveik.kv.keys import BlockKey
from kveik.store.base import BlockResult
from kveik.store.fsck_sample import sample
from kveik.store.memory import MemoryStore
from tests.blocks import make_block

MEMORY = memoryview(bytearray(8 << 20))


class Listed(MemoryStore):
    """A memory store that names these keys, whether it has them or not."""

    def __init__(self, keys: Sequence[BlockKey]) -> None:
        super().__init__()
        self.named = keys
        self.asked = 0

    def keys(self, namespace: bytes) -> Iterator[Sequence[BlockKey]]:
        for start in range(0, len(self.named), 7):
            yield self.named[start : start + 7]

    def get(self, keys: Sequence[BlockKey], buffers: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        self.asked += len(keys)
        return super().get(keys, buffers, deadline)


def filled(count: int, payload_bytes: int = 8192) -> Listed:
    blocks = [make_block(number, payload_bytes=payload_bytes) for number in range(count)]
    store = Listed([block.key for block in blocks])
    store.put([b.key for b in blocks], [b.frame for b in blocks], Deadline.after(20.0))
    return store


def test_as_many_as_asked_for_are_read_of_all_that_are_listed() -> None:
    store = filled(50)

    report = sample(store, store, MEMORY, most=10, get_s=20.0)

    assert (report.listed, report.read, report.bad) == (50, 10, 0)
    assert report.results == {"hit": 10}
    assert report.by_namespace == {(b"N" * 16).hex(): 50}


def test_fewer_are_read_where_there_are_fewer() -> None:
    store = filled(3)

    assert sample(store, store, MEMORY, most=10, get_s=20.0).read == 3


def test_a_buffer_that_is_too_small_grows() -> None:
    store = filled(1, payload_bytes=3 << 20)

    assert sample(store, store, MEMORY, most=1, get_s=20.0).results == {"hit": 1}
    assert store.asked == 3, "1 MiB, 2 MiB, 4 MiB"


def test_a_block_larger_than_all_memory_is_told() -> None:
    store = filled(1, payload_bytes=9 << 20)

    report = sample(store, store, MEMORY, most=1, get_s=20.0)

    assert report.results == {"too_large": 1}
    assert report.bad == 1


def test_a_block_that_went_meanwhile_is_no_damage_and_a_failed_one_is() -> None:
    store = filled(2)
    store.delete([store.named[0]])
    assert sample(store, store, MEMORY, most=2, get_s=20.0).bad == 0
    store.close()

    report = sample(store, store, MEMORY, most=2, get_s=20.0)

    assert report.bad == 2
    assert len(report.wrong) == 2
    assert report.document()["results"] == {"closed": 2}
