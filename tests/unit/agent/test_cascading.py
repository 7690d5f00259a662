"""Which blocks of the arena go down, and when: with a real arena and a real tier below it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from kveik.agent.cascading import Cascade
from kveik.clock import Deadline
from kveik.kv.frame import HEADER_BYTES, payload_digest
from kveik.kv.keys import BlockKey
from kveik.records import AdmissionRecord, FailureRecord, Record
from kveik.store.admission import ALL, SECOND_TOUCH
from kveik.store.arena import Arena
from kveik.store.arena_file import ArenaRequest, open_arena_file
from kveik.store.faulty import Faults, FaultyStore
from kveik.store.memory import MemoryStore
from kveik.store.tiered import LowerTiers
from kveik.store.writer import Writer
from tests.agents import payload_of, some_keys, wait_until

SIZE = 20_000


class Node:
    """An arena, one tier below, and what connects them."""

    def __init__(self, folder: Path, admission: str = ALL, *, queue_bytes: int = 1 << 20) -> None:
        self.records: list[Record] = []
        file = open_arena_file(ArenaRequest(str(folder / "arena"), 2 << 20, 256 << 10))
        self.arena = Arena(file)
        self.below = FaultyStore(MemoryStore("below"))
        self.lower = LowerTiers([self.below], threads=2, queue_bytes=queue_bytes)
        self.cascade = Cascade(self.arena, self.lower, admission, self.records.append)

    def commit(self, keys: Sequence[BlockKey]) -> list[int]:
        slots = [found.slot for found in self.arena.reserve(keys, SIZE, Writer(1, 2, 3))]
        for key, slot in zip(keys, slots, strict=True):
            self.arena.view(slot)[HEADER_BYTES:] = payload_of(key, SIZE)
        self.arena.commit(slots, [payload_digest(payload_of(key, SIZE)) for key in keys], pin=True)
        self.cascade.committed(slots)
        return slots

    def ask(self, keys: Sequence[BlockKey]) -> None:
        self.cascade.asked_for(self.arena.locate(keys))

    def is_below(self, keys: Sequence[BlockKey]) -> list[bool]:
        assert self.lower.drain(10.0)
        return self.below.lookup(keys, Deadline.after(5.0))

    def told(self) -> dict[str, int]:
        told: dict[str, int] = {}
        for record in self.records:
            if isinstance(record, AdmissionRecord):
                told[record.outcome] = told.get(record.outcome, 0) + record.blocks
        return told

    def assert_unpinned(self) -> None:
        wait_until(lambda: self.arena.stats().pinned == 0, "nothing is pinned any more")

    def close(self) -> None:
        self.lower.close()
        self.arena.close()


@pytest.fixture
def all_go(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.close()


@pytest.fixture
def second(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path, SECOND_TOUCH)
    yield node
    node.close()


def test_new_blocks_go_down_at_once(all_go: Node) -> None:
    keys = some_keys(3)
    all_go.commit(keys)
    assert all_go.is_below(keys) == [True] * 3
    assert all_go.told() == {"new": 3}
    all_go.assert_unpinned()


def test_single_use_blocks_never_go_down(second: Node) -> None:
    keys = some_keys(3)
    second.commit(keys)
    assert second.is_below(keys) == [False] * 3
    assert second.told() == {"single_use": 3}
    second.assert_unpinned()


def test_a_block_that_is_asked_for_goes_down_once(second: Node) -> None:
    asked, other = some_keys(2)
    second.commit([asked, other])
    for _ in range(3):
        second.ask([asked, asked])
    assert second.is_below([asked, other]) == [True, False]
    assert second.told() == {"single_use": 2, "wanted": 1}
    second.assert_unpinned()


def test_a_block_that_is_computed_a_second_time_goes_down(second: Node) -> None:
    keys = some_keys(2)
    second.commit(keys)
    assert second.arena.drop(keys[:1]) == ["deleted"]
    second.commit(keys[:1])
    assert second.is_below(keys) == [True, False]
    second.assert_unpinned()


def test_blocks_that_came_from_below_need_not_go_there_again(second: Node) -> None:
    keys = some_keys(1)
    slots = second.commit(keys)
    second.cascade.brought_up(slots)
    second.ask(keys)
    assert second.is_below(keys) == [False]


def test_what_no_tier_could_store_is_offered_again_when_it_is_asked_for(all_go: Node) -> None:
    keys = some_keys(2)
    all_go.below.faults = Faults(fail="read_only")
    all_go.commit(keys)
    assert all_go.lower.drain(10.0)
    all_go.assert_unpinned()
    all_go.below.faults = Faults()
    all_go.ask(keys[:1])
    assert all_go.is_below(keys) == [True, False]
    all_go.assert_unpinned()


def test_what_found_the_queue_full_is_told_and_offered_again(tmp_path: Path) -> None:
    node = Node(tmp_path, queue_bytes=SIZE + HEADER_BYTES)
    keys = some_keys(2)
    with node.below.hung("put"):
        node.commit(keys)
        assert node.told() == {"new": 1, "queue_full": 1}
        assert FailureRecord("cascade", "put", "failed", "busy", 1) in node.records
    assert node.lower.drain(10.0)
    node.ask(keys)
    assert node.is_below(keys) == [True, True]
    node.assert_unpinned()
    node.close()


def test_a_block_that_waits_and_is_asked_for_goes_first(all_go: Node) -> None:
    first, *others = some_keys(8)
    with all_go.below.hung("put") as gate:
        all_go.commit([first, *others])
        assert gate.wait_held()
        before = all_go.lower.waiting
        all_go.ask(others[-1:])
        assert (before, all_go.lower.waiting) == (4, 4)
        assert next(iter(all_go.lower._write_back[0]._first)) == others[-1]
    assert all_go.is_below([first, *others]) == [True] * 8


def test_without_tiers_nothing_is_pinned(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.cascade = Cascade(node.arena, LowerTiers([], threads=1, queue_bytes=1), ALL, node.records.append)
    keys = some_keys(2)
    node.commit(keys)
    node.ask(keys)
    assert node.arena.stats().pinned == 0
    assert node.records == []
    node.close()
