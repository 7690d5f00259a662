"""A tier that is slow to open: the first one holds the opening at an event, as a hung mount would."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kveik.clock import Deadline, FakeClock
from kveik.errors import StoreError
from kveik.kv.namespace import REQUIRED_FACTS, Namespace
from kveik.records import Record, StateRecord
from kveik.store.base import BlockStore, Capabilities, Status
from kveik.store.faulty import FaultyStore
from kveik.store.filesystem import FilesystemStore
from kveik.store.filesystem_options import FilesystemOptions
from kveik.store.memory import MemoryStore
from kveik.store.opening import RETRY_S, OpeningStore
from kveik.store.stored_here import CountingStore
from kveik.store.tiered import LowerTiers, TierDrop
from tests.blocks import Block, make_block

PROMISED = Capabilities(durable=True, shared=True, bounded=False)
LONG_S = 60.0


class Medium:
    """A medium that answers when told to, with a store or with an error."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.clock = FakeClock()
        self.answers = threading.Event()
        self.asked = 0
        self.trouble: Exception | None = None
        self.inner: BlockStore = MemoryStore()
        self.store: OpeningStore | None = None

    def open(self) -> BlockStore:
        self.asked += 1
        assert self.answers.wait(LONG_S)
        if self.trouble is not None:
            raise self.trouble
        return self.inner

    def opening(self, wait_s: float, *, must_open: bool = True) -> OpeningStore:
        self.store = OpeningStore(
            "slow",
            PROMISED,
            self.open,
            wait_s=wait_s,
            must_open=must_open,
            listener=self.records.append,
            clock=self.clock,
        )
        return self.store

    def states(self) -> list[tuple[str, str]]:
        return [(record.before, record.after) for record in self.records if isinstance(record, StateRecord)]


@pytest.fixture
def medium() -> Iterator[Medium]:
    made = Medium()
    yield made
    made.answers.set()
    if made.store is not None:
        made.store.close()


def soon() -> Deadline:
    return Deadline.after(10.0)


def until(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.001)


def put(store: BlockStore, block: Block) -> tuple[Status, str]:
    (result,) = store.put([block.key], [block.frame], soon())
    return result.status, result.reason


def test_a_medium_that_answers_in_time_is_just_its_store(medium: Medium) -> None:
    medium.answers.set()
    store = medium.opening(LONG_S)
    block = make_block(1)
    assert put(store, block) == (Status.STORED, "")
    assert store.lookup([block.key], soon()) == [True]
    assert store.stats() == medium.inner.stats()
    assert medium.records == []
    assert not [
        thread for thread in threading.enumerate() if thread.name.startswith("kveik-slow-open") and blocked(thread)
    ]


def blocked(thread: threading.Thread) -> bool:
    """Whether it is still there after it had time to end."""
    thread.join(5.0)
    return thread.is_alive()


def test_a_medium_that_hangs_is_not_waited_for_and_finds_and_keeps_nothing(medium: Medium) -> None:
    store = medium.opening(0.01)
    block = make_block(1)
    assert store.lookup([block.key], soon()) == [False]
    assert put(store, block) == (Status.FAILED, "not_open")
    (got,) = store.get([block.key], [block.buffer()], soon())
    assert (got.status, got.reason, got.buffer_busy) == (Status.FAILED, "not_open", False)
    assert store.delete([block.key])[0].reason == "not_open"
    assert (store.stats().state, store.stats().notes) == ("opening", ("it did not open within 0.01 s",))
    assert (store.name, store.capabilities) == ("slow", PROMISED)
    assert medium.states() == [("closed", "opening")]
    assert medium.asked == 1


def test_it_joins_when_its_medium_answers(medium: Medium) -> None:
    store = medium.opening(0.01)
    medium.answers.set()
    until(lambda: store.stats().state == "ready")
    assert put(store, make_block(1)) == (Status.STORED, "")
    assert store.stats().blocks == 1
    until(lambda: medium.states() == [("closed", "opening"), ("opening", "ready")])


def test_a_folder_that_cannot_be_used_is_told_at_once(medium: Medium) -> None:
    medium.answers.set()
    medium.trouble = StoreError("name another folder")
    with pytest.raises(StoreError, match="name another folder"):
        medium.opening(LONG_S)
    assert medium.records == []


def test_a_store_that_may_be_down_stops_no_start_and_is_tried_again(medium: Medium) -> None:
    medium.answers.set()
    medium.trouble = StoreError("nobody answers there")
    store = medium.opening(LONG_S, must_open=False)
    assert (store.stats().state, store.stats().notes) == ("out", ("nobody answers there",))
    assert medium.states() == [("opening", "out")]

    medium.trouble = None
    medium.clock.advance(RETRY_S)
    store.lookup([make_block(1).key], soon())
    until(lambda: store.stats().state == "ready")
    assert put(store, make_block(1)) == (Status.STORED, "")


def test_a_defect_stops_the_start_even_of_a_store_that_may_be_down(medium: Medium) -> None:
    medium.answers.set()
    medium.trouble = RuntimeError("a defect")
    with pytest.raises(RuntimeError, match="a defect"):
        medium.opening(LONG_S, must_open=False)


def test_what_fails_later_makes_it_out_and_is_tried_again_after_a_pause(medium: Medium) -> None:
    store = medium.opening(0.01)
    medium.trouble = StoreError("stale handle")
    medium.answers.set()
    until(lambda: store.stats().state == "out")
    assert store.stats().notes == ("stale handle",)
    block = make_block(1)
    assert store.lookup([block.key], soon()) == [False]
    assert medium.asked == 1, "not before the pause is over"

    medium.clock.advance(RETRY_S)
    assert store.lookup([block.key], soon()) == [False]
    until(lambda: medium.asked == 2)
    until(lambda: store._retry_at_s < float("inf"))
    assert medium.states() == [("closed", "opening"), ("opening", "out")], "the same trouble is told once"

    medium.trouble = None
    medium.clock.advance(RETRY_S)
    assert put(store, block) == (Status.FAILED, "not_open")
    until(lambda: store.stats().state == "ready")
    assert put(store, block) == (Status.STORED, "")
    until(lambda: medium.states()[-1] == ("out", "ready"))


def test_a_defect_while_opening_is_logged_and_leaves_it_out(medium: Medium, caplog: pytest.LogCaptureFixture) -> None:
    store = medium.opening(0.01)
    medium.trouble = RuntimeError("a defect")
    medium.answers.set()
    until(lambda: store.stats().state == "out")
    assert store.stats().notes == ("a defect",)
    assert "unexpected error while opening the slow tier" in caplog.text


def test_many_callers_lead_to_one_attempt_only(medium: Medium) -> None:
    store = medium.opening(0.01)
    medium.trouble = StoreError("stale handle")
    medium.answers.set()
    until(lambda: store.stats().state == "out")
    medium.answers.clear()
    medium.clock.advance(RETRY_S)
    threads = [threading.Thread(target=store.lookup, args=([make_block(1).key], soon())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5.0)
    until(lambda: medium.asked == 2)
    assert store.lookup([make_block(1).key], soon()) == [False]
    assert medium.asked == 2


def test_closing_waits_for_no_hung_medium_and_closes_what_opens_later(medium: Medium) -> None:
    store = medium.opening(0.01)
    start_s = time.monotonic()
    store.close()
    assert time.monotonic() - start_s < 5.0
    assert put(store, make_block(1)) == (Status.FAILED, "closed")
    medium.answers.set()
    block = make_block(2)
    until(lambda: medium.inner.put([block.key], [block.frame], soon())[0].reason == "closed")
    assert ("opening", "ready") not in medium.states()


def test_namespaces_announced_meanwhile_are_described_once_it_is_open(medium: Medium, tmp_path: Path) -> None:
    medium.inner = FilesystemStore(FilesystemOptions(root=tmp_path, sweep_interval_s=0))
    store = medium.opening(0.01)
    early = Namespace(dict.fromkeys(REQUIRED_FACTS, "early"), "model")
    late = Namespace(dict.fromkeys(REQUIRED_FACTS, "late"), "model")
    store.describe(early)
    medium.answers.set()
    until(lambda: store.stats().state == "ready")
    store.describe(late)
    for namespace in (early, late):
        until((tmp_path / "kveik-1" / namespace.digest.hex() / "namespace.json").exists)


def test_a_drop_says_that_the_tier_was_not_open(medium: Medium) -> None:
    tiers = LowerTiers([medium.opening(0.01)], threads=1, queue_bytes=1 << 20)
    assert tiers.drop_namespace(b"") == [TierDrop("slow", 0, "slow tier is not open: it did not open within 0.01 s")]
    medium.answers.set()
    until(lambda: medium.store is not None and medium.store.stats().state == "ready")
    block = make_block(1)
    assert put(medium.inner, block)[0] is Status.STORED
    until(lambda: tiers.stats()[0]["breaker"] == "closed")
    assert tiers.drop_namespace(b"") == [TierDrop("slow", 1)]
    tiers.close()


def test_a_drop_says_when_the_store_that_opened_cannot_be_listed(medium: Medium) -> None:
    medium.inner = FaultyStore(MemoryStore())
    medium.answers.set()
    with pytest.raises(StoreError, match="cannot say which blocks it has"):
        list(medium.opening(LONG_S).keys(b""))


def test_a_tier_that_is_being_opened_does_not_trip_its_breaker(medium: Medium) -> None:
    tiers = LowerTiers([medium.opening(0.01)], threads=2, queue_bytes=1 << 20, listener=medium.records.append)
    blocks = [make_block(number) for number in range(6)]
    done: list[int] = []
    for block in blocks:
        assert tiers.lookup([block.key], soon()) == [-1]
        assert tiers.cascade(block.key, block.frame, None, lambda: done.append(1))
    assert tiers.drain(10.0)
    assert len(done) == 6
    assert tiers.stats()[0]["breaker"] == "closed"
    assert [answer.reason for _, answer in tiers.fetch([blocks[0].key], None, [blocks[0].buffer()], soon())] == [
        "not_open"
    ]
    tiers.close()


def test_of_a_store_that_cannot_list_its_blocks_those_that_are_known_are_dropped(medium: Medium) -> None:
    medium.inner = CountingStore(MemoryStore())
    medium.answers.set()
    tiers = LowerTiers([medium.opening(LONG_S)], threads=1, queue_bytes=1 << 20)
    known, unknown = make_block(1), make_block(2)
    put(medium.inner, known)
    put(medium.inner, unknown)
    left = "slow tier cannot say which blocks it has"
    assert tiers.drop_namespace(known.key.namespace, [known.key]) == [TierDrop("slow", 1, left)]
    assert medium.inner.lookup([known.key, unknown.key], Deadline.after(LONG_S)) == [False, True]
