"""Deadlines and the breaker of one tier. Hung calls are held at a gate, time is moved by hand."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from kveik.breaker import CLOSED, HALF_OPEN, OPEN, BreakerPolicy
from kveik.clock import Deadline, FakeClock
from kveik.errors import StoreError
from kveik.kv.keys import BlockKey
from kveik.records import FailureRecord, Record, StateRecord
from kveik.store.base import BlockResult, Capabilities, Status
from kveik.store.faulty import Faults, FaultyStore, Gate
from kveik.store.guarded import GuardedStore
from kveik.store.memory import MemoryStore
from tests.blocks import Block, make_block

POLICY = BreakerPolicy(failures=3, open_s=10.0, open_max_s=40.0)
HANG_S = 5.0


class Tier:
    """A memory store that misbehaves on command, guarded, with everything that it reported."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.records: list[Record] = []
        self.faulty = FaultyStore(MemoryStore())
        self.guarded = GuardedStore(
            self.faulty, threads=2, policy=POLICY, hang_s=HANG_S, listener=self.records.append, clock=self.clock
        )

    def put(self, *blocks: Block) -> list[BlockResult]:
        return self.guarded.put([b.key for b in blocks], [b.frame for b in blocks], Deadline.after(10.0))

    def get(self, *blocks: Block, wait_s: float = 10.0) -> list[BlockResult]:
        return self.guarded.get([b.key for b in blocks], [b.buffer() for b in blocks], Deadline.after(wait_s))

    def get_while_hung(self, gate: Gate, *blocks: Block) -> list[BlockResult]:
        """Get with a deadline that passes while as many calls are held as there are threads."""
        keys, buffers = [block.key for block in blocks], [block.buffer() for block in blocks]
        deadline = Deadline.after(60.0, clock := FakeClock())
        answer = self.guarded.begin_get(keys, buffers, deadline)
        assert gate.wait_held(min(len(blocks), 2))
        clock.advance(60.0)
        return answer()

    def found(self, *blocks: Block, wait_s: float = 10.0) -> list[bool]:
        return self.guarded.lookup([block.key for block in blocks], Deadline.after(wait_s))

    def fail(self, times: int) -> None:
        self.faulty.faults = Faults(fail="io_error", operations=frozenset({"get"}))
        for _ in range(times):
            self.get(make_block(1))
        self.faulty.faults = Faults()


@pytest.fixture
def tier() -> Iterator[Tier]:
    made = Tier()
    yield made
    made.guarded.close()


def until(condition: Callable[[], object], wait_s: float = 10.0) -> None:
    give_up = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.001)


def test_a_get_that_hangs_is_answered_at_the_deadline(tier: Tier) -> None:
    with tier.faulty.hung("get"):
        start_s = time.monotonic()
        (result,) = tier.get(make_block(1), wait_s=0.05)

        assert 0.05 <= time.monotonic() - start_s < 5.0
        assert (result.status, result.reason) == (Status.FAILED, "timeout")


def test_the_buffer_of_a_hung_get_stays_busy_until_the_call_has_really_ended(tier: Tier) -> None:
    block = make_block(1)
    tier.put(block)
    with tier.faulty.hung("get") as gate:
        (result,) = tier.get_while_hung(gate, block)
        assert result.buffer_busy

    until(lambda: not result.buffer_busy)


def test_a_key_that_no_thread_began_on_leaves_its_buffer_free(tier: Tier) -> None:
    blocks = [make_block(number) for number in range(4)]
    tier.put(*blocks)
    with tier.faulty.hung("get") as gate:
        results = tier.get_while_hung(gate, *blocks)

        assert [result.reason for result in results] == ["timeout"] * 4
        assert [result.buffer_busy for result in results] == [True, True, False, False]


def test_keys_that_are_done_in_time_count_although_others_are_not(tier: Tier) -> None:
    quick, slow = make_block(1), make_block(2)
    tier.put(quick, slow)
    with tier.faulty.hung("get") as gate:
        begun = tier.guarded.begin_get([quick.key], [quick.buffer()], Deadline.after(10.0))
        assert gate.wait_held()
        (late,) = tier.get(slow, wait_s=0.05)
        gate.open()
        (result,) = begun()

    assert result.status is Status.HIT
    assert late.reason == "timeout"


def test_a_lookup_that_hangs_finds_nothing_at_the_deadline(tier: Tier) -> None:
    block = make_block(1)
    tier.put(block)
    with tier.faulty.hung("lookup"):
        assert tier.found(block, wait_s=0.05) == [False]


def test_a_lookup_of_many_keys_keeps_their_order(tier: Tier) -> None:
    blocks = [make_block(number, payload_bytes=16) for number in range(100)]
    tier.put(*blocks[::3])

    assert tier.found(*blocks) == [number % 3 == 0 for number in range(100)]


def test_failures_in_a_row_open_the_breaker_and_the_tier_is_left_out(tier: Tier) -> None:
    block = make_block(1)
    tier.put(block)

    tier.fail(2)
    assert tier.guarded.breaker_state == CLOSED
    tier.fail(1)

    assert tier.guarded.breaker_state == OPEN
    (result,) = tier.get(block)
    assert (result.status, result.reason) == (Status.FAILED, "breaker_open")
    assert tier.put(make_block(2))[0].reason == "breaker_open"
    assert tier.found(block) == [False]
    assert tier.guarded.delete([block.key])[0].reason == "breaker_open"


def test_a_batch_in_which_something_worked_is_no_failure(tier: Tier) -> None:
    blocks = [make_block(number) for number in range(4)]
    tier.put(*blocks)
    tier.faulty.faults = Faults(fail="injected", operations=frozenset({"get"}), every=2)

    for _ in range(5):
        assert sum(result.ok for result in tier.get(*blocks)) == 2

    assert tier.guarded.breaker_state == CLOSED


@pytest.mark.parametrize("reason", ["read_only", "no_room", "too_large", "busy"])
def test_a_tier_that_is_merely_full_is_not_left_out(tier: Tier, reason: str) -> None:
    tier.faulty.faults = Faults(fail=reason, operations=frozenset({"put"}))

    for _ in range(5):
        assert tier.put(make_block(1))[0].reason == reason

    assert tier.guarded.breaker_state == CLOSED


def test_corrupt_blocks_do_not_speak_against_the_tier(tier: Tier) -> None:
    for number in range(5):
        block = make_block(number)
        tier.guarded.put([block.key], [block.damaged()], Deadline.after(10.0))
        assert tier.get(block)[0].status is Status.CORRUPT

    assert tier.guarded.breaker_state == CLOSED


def test_it_comes_back_by_itself_after_the_pause(tier: Tier) -> None:
    block = make_block(1)
    tier.put(block)
    tier.fail(3)

    tier.clock.advance(POLICY.open_s)

    assert tier.get(block)[0].status is Status.HIT
    assert tier.guarded.breaker_state == CLOSED
    assert [(record.before, record.after) for record in tier.records if isinstance(record, StateRecord)] == [
        (CLOSED, OPEN),
        (OPEN, HALF_OPEN),
        (HALF_OPEN, CLOSED),
    ]


def test_only_one_trial_goes_through_while_its_outcome_is_open(tier: Tier) -> None:
    block = make_block(1)
    tier.put(block)
    tier.fail(3)
    tier.clock.advance(POLICY.open_s)
    with tier.faulty.hung("get") as gate:
        trial = tier.guarded.begin_get([block.key], [block.buffer()], Deadline.after(10.0))
        assert gate.wait_held()

        assert tier.get(block)[0].reason == "breaker_open"

        gate.open()
        assert trial()[0].status is Status.HIT


def test_the_opening_says_why(tier: Tier) -> None:
    tier.fail(3)

    assert StateRecord("memory.breaker", CLOSED, OPEN, "injected") in tier.records


def test_a_call_that_runs_far_too_long_opens_the_breaker_though_nobody_waits(tier: Tier) -> None:
    ended: list[BlockResult] = []
    block = make_block(1)
    with tier.faulty.hung("put") as gate:
        tier.guarded.write_behind(block.key, block.frame, ended.append)
        assert gate.wait_held()
        tier.clock.advance(HANG_S + 1)
        tier.guarded.check()

        assert tier.guarded.breaker_state == OPEN
        assert tier.guarded.stuck_threads == 1
        assert ended == []

    until(lambda: len(ended) == 1)
    assert tier.guarded.stuck_threads == 0


def test_an_open_breaker_ends_the_writes_that_wait(tier: Tier) -> None:
    ended: list[BlockResult] = []
    blocks = [make_block(number) for number in range(4)]
    with tier.faulty.hung("put") as gate:
        for block in blocks:
            tier.guarded.write_behind(block.key, block.frame, ended.append)
        assert gate.wait_held()
        tier.clock.advance(HANG_S + 1)
        tier.guarded.check()

        assert [result.reason for result in ended] == ["breaker_open"] * 3


def test_when_all_threads_are_stuck_calls_are_refused_at_once_even_after_the_pause(tier: Tier) -> None:
    blocks = [make_block(number) for number in range(2)]
    tier.put(*blocks)
    with tier.faulty.hung("get") as gate:
        stuck = tier.get_while_hung(gate, *blocks)
        tier.clock.advance(HANG_S + POLICY.open_max_s)

        (result,) = tier.get(make_block(9))

        assert (result.reason, result.detail) == ("breaker_open", "all 2 threads of the tier are stuck")
    until(lambda: not any(result.buffer_busy for result in stuck))
    tier.clock.advance(POLICY.open_max_s)
    assert tier.get(blocks[0])[0].status is Status.HIT


def test_failures_of_the_guard_are_reported_and_those_of_the_store_are_left_to_it(tier: Tier) -> None:
    tier.fail(3)
    assert not [record for record in tier.records if isinstance(record, FailureRecord)]

    tier.get(make_block(1), make_block(2))

    assert tier.records[-1] == FailureRecord("memory", "get", "failed", "breaker_open", blocks=2)


def test_an_unexpected_error_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    class Defect(MemoryStore):
        def get(self, keys: object, buffers: object, deadline: object) -> list[BlockResult]:
            raise ZeroDivisionError("a defect")

        def put(self, keys: object, frames: object, deadline: object) -> list[BlockResult]:
            raise ZeroDivisionError("a defect")

    block = make_block(1)
    ended: list[BlockResult] = []
    guarded = GuardedStore(Defect(), threads=1)

    (result,) = guarded.get([block.key], [block.buffer()], Deadline.after(10.0))
    guarded.write_behind(block.key, block.frame, ended.append)
    until(lambda: ended)

    assert (result.reason, ended[0].reason) == ("io_error", "io_error")
    assert caplog.text.count("ZeroDivisionError: a defect") == 2
    guarded.close()


def test_closing_waits_for_no_stuck_call(tier: Tier) -> None:
    block = make_block(1)
    ended: list[BlockResult] = []
    with tier.faulty.hung("put", "get") as gate:
        for number in range(3):
            tier.guarded.write_behind(make_block(number).key, make_block(number).frame, ended.append)
        assert gate.wait_held()
        start_s = time.monotonic()

        tier.guarded.close()

        assert time.monotonic() - start_s < 2.0
        assert [result.reason for result in ended] == ["closed", "closed"]
        assert tier.get(block)[0].reason == "closed"


def test_the_repr_states_breaker_and_stuck_threads(tier: Tier) -> None:
    assert repr(tier.guarded).endswith("breaker closed, 0 threads stuck)")


def test_a_defect_of_the_store_gives_its_reason_and_tells_against_the_tier(
    tier: Tier, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> int:
        raise RuntimeError("a defect")

    for _ in range(POLICY.failures):
        assert tier.guarded.run(broken) == BlockResult(Status.FAILED, reason="io_error")
    assert "a defect" in caplog.text
    assert tier.guarded.breaker_state == OPEN
    assert tier.guarded.run(lambda: 7) == BlockResult(Status.FAILED, reason="breaker_open")


def test_a_tier_that_says_it_cannot_be_used_is_not_logged_as_a_defect(
    tier: Tier, caplog: pytest.LogCaptureFixture
) -> None:
    def unusable() -> int:
        raise StoreError("the mount is away")

    answer = tier.guarded.run(unusable)
    assert isinstance(answer, BlockResult)
    assert (answer.reason, answer.detail) == ("unavailable", "the mount is away")
    assert caplog.text == ""
    assert tier.guarded.run(lambda: 7) == 7
    assert tier.guarded.breaker_state == CLOSED


def test_what_waits_for_being_written_when_the_tier_closes_ends_without_touching_it(tier: Tier) -> None:
    ended: list[BlockResult] = []
    blocks = [make_block(number) for number in range(4)]
    with tier.faulty.hung("put") as gate:
        for block in blocks:
            tier.guarded.write_behind(block.key, block.frame, ended.append)
        assert gate.wait_held()
        tier.guarded.close()
        assert [result.reason for result in ended] == ["closed"] * 3
    until(lambda: len(ended) == 4)
    tier.guarded.write_behind(blocks[0].key, blocks[0].frame, ended.append)
    assert ended[-1].reason == "closed"


class Batched(MemoryStore):
    """A store that is best asked for several keys at once, and remembers what it was asked for."""

    def __init__(self, batch_keys: int = 4) -> None:
        super().__init__("batched")
        self._batch_keys = batch_keys
        self.calls: list[tuple[str, int]] = []

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, batch_keys=self._batch_keys)

    def get(self, keys: Sequence[BlockKey], buffers: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        self.calls.append(("get", len(keys)))
        return super().get(keys, buffers, deadline)

    def put(self, keys: Sequence[BlockKey], frames: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        self.calls.append(("put", len(keys)))
        return super().put(keys, frames, deadline)

    def sizes(self, direction: str) -> list[int]:
        return sorted(count for called, count in self.calls if called == direction)


def test_a_store_that_likes_batches_gets_them_and_every_key_has_its_own_result() -> None:
    store = Batched()
    guarded = GuardedStore(store, threads=2)
    blocks = [make_block(number) for number in range(11)]
    keys, there = [block.key for block in blocks], blocks[::2]
    guarded.put([block.key for block in there], [block.frame for block in there], Deadline.after(10.0))
    buffers = [block.buffer() for block in blocks]

    results = guarded.get(keys, buffers, Deadline.after(10.0))

    assert [result.status for result in results] == [Status.HIT, Status.MISS] * 5 + [Status.HIT]
    assert all(block.is_in(buffers[number]) for number, block in enumerate(blocks) if block in there)
    assert store.sizes("get") == [2, 3, 3, 3]
    assert store.sizes("put") == [2, 4]
    guarded.close()


def test_what_waits_for_being_written_is_gathered_into_batches() -> None:
    store = Batched()
    guarded = GuardedStore(store, threads=2)
    held = threading.Event()
    guarded.run_behind(lambda: assert_set(held))  # the one writing thread is busy meanwhile
    ended: list[BlockResult] = []
    blocks = [make_block(number) for number in range(9)]
    for block in blocks:
        guarded.write_behind(block.key, block.frame, ended.append)
    held.set()
    until(lambda: len(ended) == 9)

    assert [result.status for result in ended] == [Status.STORED] * 9
    assert store.sizes("put") == [1, 4, 4]
    guarded.close()


def assert_set(event: threading.Event) -> None:
    assert event.wait(20.0)


def test_one_listener_that_fails_keeps_no_other_write_from_being_told() -> None:
    guarded = GuardedStore(Batched(), threads=2)
    held = threading.Event()
    guarded.run_behind(lambda: assert_set(held))
    ended: list[BlockResult] = []

    def broken(_: BlockResult) -> None:
        raise ZeroDivisionError("a defect")

    guarded.write_behind(make_block(1).key, make_block(1).frame, broken)
    guarded.write_behind(make_block(2).key, make_block(2).frame, ended.append)
    held.set()
    until(lambda: len(ended) == 1)
    guarded.close()


class HalfLate(Batched):
    """Answers a batch when the gate opens; of its first key it then still holds the buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.holding = threading.Event()
        self.holding.set()

    def get(self, keys: Sequence[BlockKey], buffers: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        self.gate.hold()
        late = BlockResult(Status.FAILED, reason="timeout", still_running=self.holding.is_set)
        return [late, *super().get(keys[1:], buffers[1:], deadline)]


def test_each_buffer_of_a_batch_that_was_given_up_is_busy_as_long_as_the_store_says() -> None:
    store = HalfLate()
    guarded = GuardedStore(store, threads=1)
    blocks = [make_block(number) for number in range(2)]
    clock = FakeClock()
    answer = guarded.begin_get(
        [block.key for block in blocks], [block.buffer() for block in blocks], Deadline.after(60.0, clock)
    )
    assert store.gate.wait_held()
    clock.advance(60.0)
    first, second = answer()
    assert (first.reason, first.buffer_busy, second.buffer_busy) == ("timeout", True, True)

    store.gate.open()
    until(lambda: not second.buffer_busy)
    assert first.buffer_busy
    store.holding.clear()
    assert not first.buffer_busy
    guarded.close()


def test_a_store_that_forgets_an_answer_fails_the_whole_batch(caplog: pytest.LogCaptureFixture) -> None:
    class Forgetful(Batched):
        def get(self, keys: object, buffers: object, deadline: object) -> list[BlockResult]:
            return [BlockResult(Status.HIT)]

    guarded = GuardedStore(Forgetful(), threads=1)
    blocks = [make_block(number) for number in range(3)]
    results = guarded.get([b.key for b in blocks], [b.buffer() for b in blocks], Deadline.after(10.0))

    assert [result.reason for result in results] == ["io_error"] * 3
    assert "1 results for 3 keys" in caplog.text
    guarded.close()


def test_a_single_failure_among_many_calls_is_tried_once_more(tier: Tier) -> None:
    blocks = [make_block(number) for number in range(30)]
    tier.put(*blocks)
    tier.get(*blocks[:19])
    tier.faulty.faults = Faults(fail="unavailable", operations=frozenset({"get"}), every=2)

    results = tier.get(*blocks[:2])

    assert sum(result.ok for result in results) == 2


def test_a_tier_that_is_down_is_not_asked_more_than_a_tenth_more_often(tier: Tier) -> None:
    calls: list[int] = []
    store = FaultyStore(MemoryStore(), Faults(fail="unavailable"))
    guarded = GuardedStore(store, threads=1, policy=BreakerPolicy(failures=10_000), clock=tier.clock)
    store.get = lambda keys, *_: calls.extend([1] * len(keys)) or [BlockResult(Status.FAILED, reason="unavailable")]  # type: ignore[method-assign, func-returns-value]
    for number in range(100):
        guarded.get([make_block(number).key], [make_block(number).buffer()], Deadline.after(10.0))

    assert 100 < sum(calls) <= 110
    guarded.close()


def test_the_last_block_that_was_served_is_remembered(tier: Tier) -> None:
    assert tier.guarded.last_hit is None
    block = make_block(1)
    tier.put(block)
    tier.get(make_block(2), block)
    assert tier.guarded.last_hit == (block.key, len(block.frame))


def test_a_fenced_tier_ends_the_writes_that_wait(tier: Tier) -> None:
    ended: list[BlockResult] = []
    with tier.faulty.hung("put") as gate:
        for number in range(3):
            tier.guarded.write_behind(make_block(number).key, make_block(number).frame, ended.append)
        assert gate.wait_held()
        tier.guarded.standing.put_fence("it lies")
        tier.guarded.check()
        assert [result.reason for result in ended] == ["fenced"] * 2
    until(lambda: len(ended) == 3)


def test_what_an_outage_kept_from_being_moved_is_counted(tier: Tier) -> None:
    tier.fail(3)
    tier.get(make_block(1), make_block(2))
    tier.put(make_block(3))

    outage = tier.guarded.standing.outages.current
    assert outage is not None
    assert (outage.not_read_blocks, outage.not_stored_blocks, outage.why) == (3, 1, "injected")  # with what opened it


def test_blocks_that_the_store_itself_refuses_in_an_outage_count_among_its_cost(tier: Tier) -> None:
    tier.guarded.standing.note_medium("not open")
    tier.faulty.faults = Faults(fail="not_open")
    ended: list[BlockResult] = []
    tier.get(make_block(1), make_block(2))
    tier.put(make_block(3))
    tier.guarded.write_behind(make_block(4).key, make_block(4).frame, ended.append)
    until(lambda: ended)
    tier.faulty.faults = Faults()
    assert tier.get(make_block(5))[0].status is Status.MISS  # a miss costs nothing

    outage = tier.guarded.standing.outages.current
    assert outage is not None
    assert (outage.not_read_blocks, outage.not_stored_blocks, outage.why) == (2, 2, "not open")
