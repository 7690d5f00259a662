"""Several tiers in order: lookup, bringing up, writing down, and the clean end."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kveik.breaker import OPEN, BreakerPolicy
from kveik.clock import Deadline, FakeClock
from kveik.errors import StoreError
from kveik.kv.keys import BlockKey
from kveik.kv.namespace import REQUIRED_FACTS, Namespace
from kveik.records import LookupRecord, Record
from kveik.store.base import MISS, BlockResult, Status
from kveik.store.canary import PROBE_NAMESPACE, Canary
from kveik.store.faulty import Faults, FaultyStore
from kveik.store.filesystem import FilesystemStore
from kveik.store.filesystem_options import FilesystemOptions
from kveik.store.memory import MemoryStore
from kveik.store.tiered import LowerTiers, TierDrop
from kveik.store.wrapper import StoreWrapper
from tests.blocks import Block, make_block


class Tiers:
    """Two memory tiers that misbehave on command."""

    def __init__(self, *, queue_bytes: int = 1 << 20, hang_s: float = 60.0) -> None:
        self.records: list[Record] = []
        self.clock = FakeClock()
        self.near = FaultyStore(MemoryStore("near"))
        self.far = FaultyStore(MemoryStore("far"))
        self.tiers = LowerTiers(
            [self.near, self.far],
            threads=2,
            queue_bytes=queue_bytes,
            listener=self.records.append,
            clock=self.clock,
            policy=BreakerPolicy(failures=2, open_s=1000.0),
            hang_s=hang_s,
        )

    def put(self, store: FaultyStore, *blocks: Block) -> None:
        store.put([block.key for block in blocks], [block.frame for block in blocks], Deadline.after(10.0))

    def fetch(
        self, *blocks: Block, tiers: list[int] | None = None, wait_s: float = 10.0
    ) -> list[tuple[int, BlockResult]]:
        buffers = [block.buffer() for block in blocks]
        answers = self.tiers.fetch([block.key for block in blocks], tiers, buffers, Deadline.after(wait_s))
        for block, buffer, (_, result) in zip(blocks, buffers, answers, strict=True):
            assert not result.ok or block.is_in(buffer)
        return answers

    def lookup(self, *blocks: Block, wait_s: float = 10.0) -> list[int]:
        return self.tiers.lookup([block.key for block in blocks], Deadline.after(wait_s))


@pytest.fixture
def two() -> Iterator[Tiers]:
    made = Tiers()
    yield made
    made.tiers.close()


def until(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.001)


def test_a_lookup_names_the_first_tier_that_has_each_key(two: Tiers) -> None:
    both, only_far, nowhere = (make_block(number) for number in range(3))
    two.put(two.near, both)
    two.put(two.far, both, only_far)

    assert two.tiers.names == ["near", "far"]
    assert two.lookup(both, only_far, nowhere) == [0, 1, -1]


def test_a_tier_is_asked_only_for_what_those_before_it_lack(two: Tiers) -> None:
    there, absent = make_block(1), make_block(2)
    two.put(two.near, there)

    two.lookup(there, absent)

    asked = {record.tier: record.asked for record in two.records if isinstance(record, LookupRecord)}
    assert asked == {"near": 2, "far": 1}


def test_a_hung_tier_leaves_time_for_the_next(two: Tiers) -> None:
    block = make_block(1)
    two.put(two.far, block)
    with two.near.hung("lookup"):
        assert two.lookup(block, wait_s=6.0) == [1]


def test_a_lookup_never_takes_longer_than_its_deadline(two: Tiers) -> None:
    with two.near.hung("lookup"), two.far.hung("lookup"):
        start_s = time.monotonic()

        assert two.lookup(make_block(1), wait_s=0.05) == [-1]

        assert time.monotonic() - start_s < 5.0


def test_after_the_deadline_nothing_is_asked(two: Tiers) -> None:
    assert two.tiers.lookup([make_block(1).key], Deadline(0.0, FakeClock())) == [-1]
    assert two.tiers.fetch([make_block(1).key], None, [make_block(1).buffer()], Deadline(0.0, FakeClock())) == [
        (-1, BlockResult(Status.FAILED, reason="timeout"))
    ]
    assert two.records == []


def test_fetch_reads_each_block_from_the_first_tier_that_has_it(two: Tiers) -> None:
    near, far, nowhere = (make_block(number) for number in range(3))
    two.put(two.near, near)
    two.put(two.far, far)

    answers = two.fetch(near, far, nowhere)

    assert [(tier, result.status) for tier, result in answers] == [
        (0, Status.HIT),
        (1, Status.HIT),
        (-1, Status.MISS),
    ]


def test_fetch_begins_with_the_tier_that_the_hint_names(two: Tiers) -> None:
    block = make_block(1)
    two.put(two.near, block)
    two.put(two.far, block)

    assert [tier for tier, _ in two.fetch(block, tiers=[1])] == [1]
    assert [tier for tier, _ in two.fetch(block, tiers=[-1])] == [0]


def test_a_block_that_vanished_from_the_hinted_tier_is_taken_from_another(two: Tiers) -> None:
    block = make_block(1)
    two.put(two.near, block)

    assert [(tier, result.status) for tier, result in two.fetch(block, tiers=[1])] == [(0, Status.HIT)]


def test_a_block_that_is_corrupt_in_one_tier_is_taken_from_the_next(two: Tiers) -> None:
    block = make_block(1)
    two.near.put([block.key], [block.damaged()], Deadline.after(10.0))
    two.put(two.far, block)

    assert [(tier, result.status) for tier, result in two.fetch(block)] == [(1, Status.HIT)]


def test_when_no_tier_can_serve_it_the_first_reason_is_told(two: Tiers) -> None:
    block = make_block(1)
    two.near.put([block.key], [block.damaged()], Deadline.after(10.0))

    ((tier, result),) = two.fetch(block)

    assert (tier, result.status, result.reason) == (0, Status.CORRUPT, "checksum")
    assert two.fetch(block) == [(-1, MISS)]


def test_a_hung_tier_fails_its_own_keys_and_the_other_tier_serves_its(two: Tiers) -> None:
    stuck, fine = make_block(1), make_block(2)
    two.put(two.near, stuck)
    two.put(two.far, stuck, fine)
    with two.near.hung("get"):
        answers = two.fetch(stuck, fine, tiers=[0, 1], wait_s=0.5)

        assert [(tier, result.status) for tier, result in answers] == [(0, Status.FAILED), (1, Status.HIT)]
        # The buffer may still be written, so no other tier may have been asked to fill it.
        busy = answers[0][1]
        assert (busy.reason, busy.buffer_busy) == ("timeout", True)
    until(lambda: not busy.buffer_busy)


def test_a_cascade_writes_to_all_tiers_and_calls_done_once(two: Tiers) -> None:
    block = make_block(1)
    done: list[str] = []

    assert two.tiers.cascade(block.key, block.frame, None, lambda: done.append(threading.current_thread().name))
    assert two.tiers.drain(10.0)

    assert len(done) == 1
    assert done[0].startswith("kveik-")
    assert two.near.lookup([block.key], Deadline.after(1.0)) == [True]
    assert two.far.lookup([block.key], Deadline.after(1.0)) == [True]


def test_a_cascade_may_name_its_tiers(two: Tiers) -> None:
    block = make_block(1)

    assert two.tiers.cascade(block.key, block.frame, [1, 1], lambda: None)
    assert two.tiers.drain(10.0)

    assert two.lookup(block) == [1]


def test_done_waits_for_the_slowest_tier(two: Tiers) -> None:
    block = make_block(1)
    done: list[bool] = []
    with two.near.hung("put") as gate:
        two.tiers.cascade(block.key, block.frame, None, lambda: done.append(True))
        assert gate.wait_held()
        until(lambda: two.far.lookup([block.key], Deadline.after(1.0)) == [True])
        assert not done
    assert two.tiers.drain(10.0)
    assert done == [True]


def test_done_is_called_also_when_no_tier_could_store_the_block(two: Tiers) -> None:
    two.near.faults = two.far.faults = Faults(fail="io_error")
    done: list[bool] = []

    two.tiers.cascade(make_block(1).key, make_block(1).frame, None, lambda: done.append(True))
    assert two.tiers.drain(10.0)

    assert done == [True]


def test_a_full_queue_takes_nothing_more_until_there_is_room() -> None:
    block = make_block(1)
    two = Tiers(queue_bytes=2 * len(block.frame))
    done: list[int] = []
    with two.near.hung("put"):
        accepted = [
            two.tiers.cascade(make_block(n).key, make_block(n).frame, [0], lambda: done.append(1)) for n in range(3)
        ]
        assert accepted == [True, True, False]
        assert not two.tiers.drain(0.01)
    assert two.tiers.drain(10.0)
    assert len(done) == 2
    assert two.tiers.cascade(block.key, block.frame, [0], lambda: None)
    two.tiers.close()


def test_a_hung_write_frees_what_waits_behind_it() -> None:
    two = Tiers(hang_s=5.0)
    done: list[int] = []
    with two.near.hung("put") as gate:
        for number in range(4):
            block = make_block(number)
            two.tiers.cascade(block.key, block.frame, [0], lambda number=number: done.append(number))  # type: ignore[misc]
        assert gate.wait_held()
        two.clock.advance(6.0)

        until(lambda: len(done) == 3)  # the watching thread noticed, nobody asked

        assert two.tiers.stats()[0]["breaker"] == OPEN
        assert two.tiers.stats()[0]["stuck_threads"] == 1
        assert "1 blocks" in repr(two.tiers)
    assert two.tiers.drain(10.0)
    two.tiers.close()


class LateReader(MemoryStore):
    """A store whose put returns while it still reads the frame, as network stores do."""

    def __init__(self) -> None:
        super().__init__("late")
        self.reading = threading.Event()
        self.reading.set()

    def put(self, keys: object, frames: object, deadline: object) -> list[BlockResult]:
        return [BlockResult(Status.FAILED, reason="timeout", still_running=self.reading.is_set)]


def test_done_is_not_called_while_a_store_still_reads_the_frame() -> None:
    store = LateReader()
    tiers = LowerTiers([store], threads=1, queue_bytes=1 << 20)
    done: list[bool] = []
    tiers.cascade(make_block(1).key, make_block(1).frame, None, lambda: done.append(True))

    assert not tiers.drain(0.4)
    assert not done
    store.reading.clear()

    assert tiers.drain(10.0)
    assert done == [True]
    tiers.close()


def test_reads_time_their_tier_and_lookups_too(two: Tiers) -> None:
    block = make_block(1)
    two.put(two.far, block)
    assert two.tiers.rate(1).get is None

    def far_away() -> None:
        two.clock.advance(2.0)

    two.tiers._tiers[1].begin_get = _slow(two.tiers._tiers[1].begin_get, far_away)  # type: ignore[method-assign]
    assert two.fetch(block, tiers=[1])[0][1].status is Status.HIT
    two.lookup(block)

    rate = two.tiers.rate(1, with_lookup=True)
    assert rate.get is not None
    assert rate.get.seconds(1, len(block.frame)) == pytest.approx(2.0)
    assert rate.waiting_bytes == 0
    assert two.tiers.rate(0).get is None
    stats = two.tiers.stats()
    assert (stats[0]["rate"], stats[1]["waiting_to_be_written"]) == (two.tiers.rate(0).plain, 0)


def _slow(begin: Callable[..., Callable[[], list[BlockResult]]], wait: Callable[[], None]) -> Callable[..., Any]:
    def slower(*given: Any) -> Callable[[], list[BlockResult]]:
        answer = begin(*given)
        wait()
        return answer

    return slower


def test_the_wanted_go_first_and_those_that_are_asked_for_while_they_wait(two: Tiers) -> None:
    blocks = [make_block(number) for number in range(12)]
    order: list[int] = []
    with two.near.hung("put") as gate:
        for number, block in enumerate(blocks):
            ended = partial(order.append, number)
            assert two.tiers.cascade(block.key, block.frame, [0], ended, first=number == 10)
        assert gate.wait_held()
        assert two.tiers.waiting == 8
        two.tiers.prefer([blocks[11].key, blocks[0].key])
    assert two.tiers.drain(10.0)
    assert order.index(10) < order.index(6)
    assert order.index(11) < order.index(6)


def test_a_block_that_some_tier_took_is_told_so(two: Tiers) -> None:
    two.near.faults = Faults(fail="read_only")
    stored: list[bool] = []
    block = make_block(1)
    two.tiers.cascade(block.key, block.frame, None, lambda: None, stored=lambda: stored.append(True))
    assert two.tiers.drain(10.0)
    assert stored == [True]


def test_known_blocks_are_dropped_and_counted_by_tier(two: Tiers) -> None:
    both, one, none = (make_block(number) for number in range(3))
    two.put(two.near, both, one)
    two.put(two.far, both)

    dropped = two.tiers.drop_namespace(b"N" * 16, [both.key, one.key, none.key])

    assert [(drop.tier, drop.blocks) for drop in dropped] == [("near", 2), ("far", 1)]
    assert two.lookup(both, one) == [-1, -1]


def test_stats_tell_sizes_promises_and_state_of_each_tier(two: Tiers) -> None:
    two.put(two.far, make_block(1))

    near, far = two.tiers.stats()

    assert (near["name"], near["blocks"], near["breaker"], near["durable"]) == ("near", 0, "closed", False)
    assert (far["name"], far["blocks"], far["bytes"], far["stuck_threads"]) == ("far", 1, 4096 + 8192, 0)


def test_without_tiers_everything_is_absent_and_nothing_is_taken() -> None:
    tiers = LowerTiers([], threads=4, queue_bytes=1 << 20)
    block = make_block(1)

    assert tiers.names == []
    assert tiers.lookup([block.key], Deadline.after(1.0)) == [-1]
    assert tiers.fetch([block.key], None, [block.buffer()], Deadline.after(1.0)) == [(-1, MISS)]
    assert not tiers.cascade(block.key, block.frame, None, lambda: None)
    assert tiers.drop_namespace(b"") == []
    assert tiers.stats() == []
    assert tiers.drain(0.0)
    tiers.close()


def test_closing_ends_what_is_queued_and_waits_for_no_stuck_call(two: Tiers) -> None:
    done: list[int] = []
    with two.near.hung("put") as gate:
        for number in range(3):
            block = make_block(number)
            two.tiers.cascade(block.key, block.frame, [0], lambda number=number: done.append(number))  # type: ignore[misc]
        assert gate.wait_held()
        start_s = time.monotonic()

        two.tiers.close()

        assert time.monotonic() - start_s < 5.0
        assert sorted(done) == [1, 2]
        assert not two.tiers.cascade(make_block(9).key, make_block(9).frame, None, lambda: None)
    until(lambda: sorted(done) == [0, 1, 2])


def test_a_namespace_is_dropped_from_every_tier_that_can_say_what_it_has(tmp_path: Path) -> None:
    folder = FilesystemStore(FilesystemOptions(root=tmp_path, sweep_interval_s=0))
    silent = FaultyStore(MemoryStore("silent"))
    tiers = LowerTiers([MemoryStore(), folder, silent], threads=1, queue_bytes=1 << 20)
    ours = [make_block(number) for number in range(3)]
    others = [make_block(9, namespace=b"O" * 16)]
    done: list[int] = []
    for block in [*ours, *others]:
        assert tiers.cascade(block.key, block.frame, None, lambda: done.append(1))
    assert tiers.drain(10.0)

    dropped = tiers.drop_namespace(b"N" * 16, [ours[0].key])

    assert dropped == [
        TierDrop("memory", 3),
        TierDrop("filesystem", 3),
        TierDrop("silent", 1, "the tier cannot say which blocks it has"),
    ]
    assert tiers.lookup([block.key for block in ours], Deadline.after(5.0)) == [-1, 2, 2]
    assert tiers.lookup([others[0].key], Deadline.after(5.0)) == [0]
    tiers.close()


class Sweeping(StoreWrapper):
    """A store that drops a namespace by itself, if it is one that it knows how to drop."""

    def __init__(self, name: str) -> None:
        self._memory = MemoryStore(name)
        super().__init__(self._memory)
        self.lookup, self.get, self.put = self._memory.lookup, self._memory.get, self._memory.put
        self.delete, self.keys = self._memory.delete, self._memory.keys

    def drop(self, namespace: bytes) -> int | None:
        if namespace == b"X" * 16:
            raise StoreError("the master does not answer")
        if namespace == b"O" * 16:
            return None
        return sum(result.ok for portion in self.keys(namespace) for result in self.delete(portion))


def test_a_store_that_drops_a_namespace_by_itself_is_not_listed_for_it_unless_it_cannot_after_all() -> None:
    tiers = LowerTiers([Sweeping("sweeping")], threads=1, queue_bytes=1 << 20)
    blocks = [*(make_block(number) for number in range(3)), make_block(9, namespace=b"O" * 16)]
    for block in blocks:
        assert tiers.cascade(block.key, block.frame, None, lambda: None)
    assert tiers.drain(10.0)

    assert tiers.drop_namespace(b"N" * 16) == [TierDrop("sweeping", 3)]
    assert tiers.drop_namespace(b"O" * 16) == [TierDrop("sweeping", 1)]
    assert tiers.drop_namespace(b"X" * 16) == [TierDrop("sweeping", 0, "the master does not answer")]
    tiers.close()


def test_a_tier_that_cannot_be_read_says_why_blocks_are_left(tmp_path: Path) -> None:
    folder = FilesystemStore(FilesystemOptions(root=tmp_path / "tier", sweep_interval_s=0))
    tiers = LowerTiers([folder, MemoryStore()], threads=1, queue_bytes=1 << 20)
    (tmp_path / "tier" / "kveik-1").rename(tmp_path / "tier" / "away")

    broken, sound = tiers.drop_namespace(b"N" * 16)

    assert "cannot list" in broken.left
    assert sound == TierDrop("memory", 0)
    tiers.close()


class ListedFaultyStore(FaultyStore):
    """A faulty store that can say what it has."""

    def keys(self, namespace: bytes) -> Iterator[Sequence[BlockKey]]:
        assert isinstance(self._inner, MemoryStore)
        return self._inner.keys(namespace)


def test_blocks_that_cannot_be_deleted_are_counted_as_left() -> None:
    store = ListedFaultyStore(MemoryStore())
    tiers = LowerTiers([store], threads=1, queue_bytes=1 << 20)
    block = make_block(1)
    store.put([block.key], [block.frame], Deadline.after(10.0))
    store.faults = Faults(fail="busy", operations=frozenset({"delete"}))

    assert tiers.drop_namespace(b"N" * 16) == [TierDrop("memory", 0, "injected")]

    store.faults = Faults()
    assert tiers.drop_namespace(b"N" * 16) == [TierDrop("memory", 1)]
    tiers.close()


def test_a_tier_that_hangs_while_it_is_listed_is_given_up_and_the_next_one_is_asked() -> None:
    store = ListedFaultyStore(MemoryStore("hanging"))
    tiers = LowerTiers([store, MemoryStore()], threads=1, queue_bytes=1 << 20, hang_s=0.05)
    with store.hung("delete") as gate:
        block = make_block(1)
        store.put([block.key], [block.frame], Deadline.after(10.0))
        hanging, sound = tiers.drop_namespace(b"N" * 16)
        assert gate.wait_held()
        assert hanging.blocks == 0
        assert hanging.left
        assert sound == TierDrop("memory", 0)
    tiers.close()


def test_a_namespace_is_described_where_a_tier_can_keep_it(tmp_path: Path) -> None:
    store = FilesystemStore(FilesystemOptions(root=tmp_path, sweep_interval_s=0))
    tiers = LowerTiers([MemoryStore(), store], threads=1, queue_bytes=1 << 20)
    namespace = Namespace(dict.fromkeys(REQUIRED_FACTS, "x"), "some model")

    tiers.describe(namespace)

    until((tmp_path / "kveik-1" / namespace.digest.hex() / "namespace.json").exists)
    tiers.close()


def test_dropping_everything_spares_the_probes_blocks_unless_they_are_named() -> None:
    store = MemoryStore()
    tiers = LowerTiers([store], threads=1, queue_bytes=1 << 20)
    block, canary = make_block(1), Canary.of("an agent", 1)
    for key, sealed in ((block.key, block.frame), (canary.key, canary.sealed(0.0))):
        store.put([key], [sealed], Deadline.after(10.0))

    assert tiers.drop_namespace(b"") == [TierDrop("memory", 1)]
    assert store.lookup([block.key, canary.key], Deadline.after(10.0)) == [False, True]
    assert tiers.drop_namespace(PROBE_NAMESPACE) == [TierDrop("memory", 1)]
    tiers.close()
