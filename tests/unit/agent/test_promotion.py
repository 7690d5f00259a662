"""Reads that need a lower tier, over the real tiers with a store that can misbehave."""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from kveik.agent.promotion import Outcome, Promoter
from kveik.clock import Deadline
from kveik.kv import frame
from kveik.kv.keys import BlockKey
from kveik.store.arena import Arena
from kveik.store.arena_file import ArenaRequest, open_arena_file
from kveik.store.base import BlockResult, Status
from kveik.store.faulty import Faults, FaultyStore
from kveik.store.memory import MemoryStore
from kveik.store.tiered import LowerTiers
from kveik.store.writer import Writer
from tests.agents import payload_of, some_keys, wait_until

SIZE = 20_000


class CountingStore(MemoryStore):
    """Counts the keys it is asked for, and waits for ``gate`` before it answers."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[BlockKey] = []
        self.gate = threading.Event()
        self.gate.set()

    def get(self, keys: Sequence[BlockKey], buffers: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        self.asked += keys
        self.gate.wait(20)
        return super().get(keys, buffers, deadline)


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Arena]:
    arena = Arena(open_arena_file(ArenaRequest(str(tmp_path / "arena"), 1 << 20, 256 << 10)))
    yield arena
    arena.close()


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


@pytest.fixture
def promoter(arena: Arena, store: CountingStore) -> Iterator[Promoter]:
    lower = LowerTiers([store], threads=4, queue_bytes=1 << 20)
    yield Promoter(arena, lower)
    store.gate.set()
    lower.close()


def fill(store: MemoryStore, keys: Sequence[BlockKey], size: int = SIZE) -> None:
    for key in keys:
        buffer = memoryview(bytearray(frame.frame_bytes(size)))
        buffer[frame.HEADER_BYTES :] = payload_of(key, size)
        frame.seal(buffer, key, size, 1.0)
        assert store.put([key], [buffer], Deadline.after(1))[0].ok


def read(promoter: Promoter, keys: Sequence[BlockKey], seconds: float = 5, size: int = SIZE) -> list[Outcome]:
    return promoter.read(keys, [size] * len(keys), Deadline.after(seconds))


def test_a_block_of_a_lower_tier_is_brought_up_pinned_and_then_served_from_the_arena(
    promoter: Promoter, arena: Arena, store: CountingStore
) -> None:
    keys = some_keys(3)
    fill(store, keys[:2])
    outcomes = read(promoter, keys)
    assert [(outcome.status, outcome.place) for outcome in outcomes] == [
        (Status.HIT, 2), (Status.HIT, 2), (Status.MISS, 0),
    ]  # fmt: skip
    assert bytes(arena.view(outcomes[0].slot)[frame.HEADER_BYTES :]) == payload_of(keys[0], SIZE)
    assert arena.stats().pinned == 2
    assert [outcome.place for outcome in read(promoter, keys[:2])] == [1, 1]
    assert arena.stats().reserved == 0


def test_two_readers_of_one_block_fetch_it_once(promoter: Promoter, arena: Arena, store: CountingStore) -> None:
    (key,) = some_keys(1)
    fill(store, [key])
    store.gate.clear()
    outcomes: list[Outcome] = []
    threads = [threading.Thread(target=lambda: outcomes.extend(read(promoter, [key]))) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: store.asked == [key], "the block is asked for")
    time.sleep(0.05)  # give the others a chance to ask as well
    store.gate.set()
    for thread in threads:
        thread.join()
    assert [outcome.status for outcome in outcomes] == [Status.HIT] * 3
    assert store.asked == [key]
    assert arena.stats().blocks == 1


def test_a_reader_does_not_wait_beyond_its_deadline_for_another_ones_fetch(
    promoter: Promoter, store: CountingStore
) -> None:
    (key,) = some_keys(1)
    fill(store, [key])
    store.gate.clear()
    patient = threading.Thread(target=lambda: read(promoter, [key], 10))
    patient.start()
    wait_until(lambda: store.asked == [key], "the block is asked for")
    start_s = time.monotonic()
    assert read(promoter, [key], 0.1) == [Outcome(Status.FAILED, reason="timeout")]
    assert time.monotonic() - start_s < 1
    store.gate.set()
    patient.join()


def test_a_slot_is_kept_from_reuse_while_a_hung_store_may_write_it(
    promoter: Promoter, arena: Arena, store: CountingStore
) -> None:
    (key,) = some_keys(1)
    fill(store, [key])
    store.gate.clear()
    assert read(promoter, [key], 0.1)[0] == Outcome(Status.FAILED, reason="timeout")
    assert arena.stats().quarantined == 1
    assert arena.sweep() == 0
    store.gate.set()
    wait_until(lambda: arena.sweep() == 1, "the store ends its late write")
    assert arena.stats().blocks == 0


def test_the_same_key_twice_in_one_read_gets_two_pins_of_one_slot(
    promoter: Promoter, arena: Arena, store: CountingStore
) -> None:
    (key,) = some_keys(1)
    fill(store, [key])
    first, second = read(promoter, [key, key])
    assert first.slot == second.slot >= 0
    arena.unpin([first.slot])
    assert arena.stats().pinned == 1


def test_a_block_of_another_length_is_foreign(promoter: Promoter, arena: Arena, store: CountingStore) -> None:
    below, above = some_keys(2)
    fill(store, [below], SIZE // 2)
    assert read(promoter, [below])[0] == Outcome(Status.FAILED, reason="foreign")
    fill(store, [above])
    (outcome,) = read(promoter, [above])
    arena.unpin([outcome.slot])
    assert read(promoter, [above], size=SIZE + 1)[0] == Outcome(Status.FAILED, reason="foreign")
    assert arena.stats().pinned == 0


def test_blocks_of_several_lengths_are_read_at_once(promoter: Promoter, store: CountingStore) -> None:
    small, large = some_keys(2)
    fill(store, [small], 5_000)
    fill(store, [large], 50_000)
    outcomes = promoter.read([small, large], [5_000, 50_000], Deadline.after(5))
    assert [outcome.status for outcome in outcomes] == [Status.HIT] * 2


def test_a_read_that_finds_no_room_says_so(promoter: Promoter, arena: Arena, store: CountingStore) -> None:
    keys = some_keys(60)
    fill(store, keys)
    outcomes = read(promoter, keys)
    reasons = [outcome.reason for outcome in outcomes if outcome.status is Status.FAILED]
    hits = [outcome for outcome in outcomes if outcome.status is Status.HIT]
    assert set(reasons) == {"no_room"}
    assert len(hits) + len(reasons) == 60
    assert arena.stats().pinned == len(hits)


def test_without_lower_tiers_absent_is_a_miss(arena: Arena) -> None:
    promoter = Promoter(arena, LowerTiers([], threads=1, queue_bytes=0))
    assert read(promoter, some_keys(2)) == [Outcome(Status.MISS)] * 2


def store_in(arena: Arena, keys: Sequence[BlockKey], size: int = SIZE) -> None:
    """Commit blocks, as a writing engine does."""
    slots = [reservation.slot for reservation in arena.reserve(keys, size, Writer.of(os.getpid()))]
    for key, slot in zip(keys, slots, strict=True):
        arena.view(slot)[frame.HEADER_BYTES :] = payload_of(key, size)
    arena.commit(slots, [frame.payload_digest(payload_of(key, size)) for key in keys])


@pytest.fixture
def left_over(tmp_path: Path) -> Iterator[tuple[Arena, list[BlockKey]]]:
    """An arena with three blocks of an earlier agent, none of them checked yet."""
    keys = some_keys(3)
    request = ArenaRequest(str(tmp_path / "left"), 1 << 20, 256 << 10)
    before = Arena(open_arena_file(request))
    store_in(before, keys)
    before.close()
    arena = Arena(open_arena_file(request))
    assert arena.stats().unverified == 3
    yield arena, keys
    arena.close()


def test_a_block_of_an_earlier_agent_is_checked_before_it_is_served(left_over: tuple[Arena, list[BlockKey]]) -> None:
    arena, keys = left_over
    promoter = Promoter(arena, LowerTiers([], threads=1, queue_bytes=0))
    (slot,) = arena.locate([keys[1]])
    arena.view(slot)[frame.HEADER_BYTES + 5] ^= 1
    outcomes = read(promoter, keys)
    assert [(outcome.status, outcome.reason) for outcome in outcomes] == [
        (Status.HIT, ""),
        (Status.CORRUPT, "checksum"),
        (Status.HIT, ""),
    ]
    assert arena.stats().unverified == 0
    assert arena.stats().pinned == 2
    assert read(promoter, [keys[1]]) == [Outcome(Status.MISS)], "what was wrong is gone"


def test_no_time_is_spent_on_checking_after_the_deadline(left_over: tuple[Arena, list[BlockKey]]) -> None:
    arena, keys = left_over
    promoter = Promoter(arena, LowerTiers([], threads=1, queue_bytes=0))
    assert [outcome.reason for outcome in read(promoter, keys, seconds=0)] == ["timeout"] * 3
    assert (arena.stats().unverified, arena.stats().pinned) == (3, 0)
    assert [outcome.status for outcome in read(promoter, keys)] == [Status.HIT] * 3


class LyingStore(MemoryStore):
    """Says that it read a block, and leaves something else in the buffer."""

    def __init__(self, left: bytes) -> None:
        super().__init__()
        self.left = left

    def get(self, keys: Sequence[BlockKey], buffers: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        for buffer in buffers:
            buffer[: len(self.left)] = self.left
        return [BlockResult(Status.HIT, len(buffer)) for buffer in buffers]


@pytest.mark.parametrize(
    "left", [b"", b"not even a header", bytes(frame.HEADER_BYTES)], ids=["nothing", "text", "zeros"]
)
def test_a_tier_that_says_hit_without_a_frame_of_the_block_is_not_believed(arena: Arena, left: bytes) -> None:
    lower = LowerTiers([LyingStore(left)], threads=1, queue_bytes=0)
    assert read(Promoter(arena, lower), some_keys(2)) == [Outcome(Status.FAILED, reason="foreign")] * 2
    assert (arena.stats().reserved, arena.stats().pinned, arena.stats().blocks) == (0, 0, 0)
    lower.close()


def test_those_who_wait_for_anothers_fetch_share_its_failure_and_do_not_ask_again(arena: Arena) -> None:
    store = CountingStore()
    faulty = FaultyStore(store, Faults(fail="io_error", operations=frozenset({"get"})))
    lower = LowerTiers([faulty], threads=4, queue_bytes=0)
    promoter = Promoter(arena, lower)
    keys = some_keys(1)
    outcomes: list[Outcome] = []
    with faulty.hung("get") as gate:
        threads = [threading.Thread(target=lambda: outcomes.extend(read(promoter, keys, 20))) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert gate.wait_held()
        wait_until(lambda: len(promoter._under_way) == 1, "one fetch is under way")
    for thread in threads:
        thread.join(20)
    assert [(outcome.status, outcome.reason) for outcome in outcomes] == [(Status.FAILED, "io_error")] * 3
    assert promoter._under_way == {}
    assert arena.stats().reserved == 0
    lower.close()
