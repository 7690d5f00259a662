"""A tier that lies is found out by reading back, fenced, and let in again; hung ones are held at a gate."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from dataclasses import replace

import pytest

from kveik.breaker import CLOSED, OPEN, BreakerPolicy
from kveik.clock import Deadline, FakeClock
from kveik.kv.keys import BlockKey
from kveik.records import OutageRecord, Record, StateRecord, TransferRecord
from kveik.store.base import OUT, READY, BlockResult, BlockStore, Status, StoreStats
from kveik.store.canary import PROBE_NAMESPACE
from kveik.store.faulty import Faults, FaultyStore, Gate
from kveik.store.guarded import GuardedStore
from kveik.store.instrumented import InstrumentedStore
from kveik.store.memory import MemoryStore
from kveik.store.probe_round import LEASE_S, LEFT_MAX
from kveik.store.probing import GIVE_UP_S, THREADS, TierProbe, TierProbes
from kveik.store.standing import FENCED
from tests.agents import wait_until
from tests.blocks import make_block

PERIOD_S = 15.0
DEADLINE_S = 5.0


class Leased(MemoryStore):
    """Blocks that were read cannot be deleted for a while, as in Mooncake."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock
        self._read_s: dict[BlockKey, float] = {}
        self.refused = 0

    def get(self, keys: object, buffers: object, deadline: Deadline) -> list[BlockResult]:
        for key in keys:  # type: ignore[attr-defined]
            self._read_s[key] = self._clock.monotonic()
        return super().get(keys, buffers, deadline)  # type: ignore[arg-type]

    def _delete(self, key: BlockKey) -> BlockResult:
        if self._clock.monotonic() - self._read_s.get(key, 0.0) < 10.0:
            self.refused += 1
            return BlockResult(Status.FAILED, reason="busy")
        return super()._delete(key)


class Probed:
    """One tier with its guard and its probe, and a clock that is moved by hand."""

    def __init__(self, memory: MemoryStore | None = None, clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self.records: list[Record] = []
        self.memory = memory or MemoryStore()
        self.faulty = FaultyStore(self.memory)
        self.guard = GuardedStore(
            InstrumentedStore(self.faulty, self.records.append, self.clock),
            threads=2,
            policy=BreakerPolicy(failures=2, open_s=1.0, open_max_s=2.0),
            hang_s=DEADLINE_S,
            listener=self.records.append,
            clock=self.clock,
        )
        self.probe = TierProbe(self.faulty, self.guard, period_s=PERIOD_S, deadline_s=DEADLINE_S, clock=self.clock)

    def round(self, after_s: float = PERIOD_S) -> None:
        """Let time pass until a round is due, and wait for it to be judged."""
        self.clock.advance(after_s)
        self.probe.tick()
        self.settle()

    def settle(self) -> None:
        wait_until(lambda: self.probe._job is None or self.probe._job.done(), "the round ends")
        if self.probe._job is not None:
            self.probe.tick()

    def settle_unless_hung(self) -> None:
        """Wait a moment for a round that runs; one that hangs is none of this."""
        job = self.probe._job
        if job is not None and wait([job], timeout=0.2).done:
            self.probe.tick()

    @property
    def fence(self) -> str:
        return self.guard.standing.fence

    @property
    def outages(self) -> list[OutageRecord]:
        return [record for record in self.records if isinstance(record, OutageRecord)]

    def canaries(self) -> int:
        (portion,) = list(self.memory.keys(PROBE_NAMESPACE))
        return len(portion)

    def get(self, number: int = 1) -> BlockResult:
        block = make_block(number)
        return self.guard.get([block.key], [block.buffer()], Deadline.after(10.0))[0]

    def put(self, number: int = 1) -> BlockResult:
        block = make_block(number)
        return self.guard.put([block.key], [block.frame], Deadline.after(10.0))[0]


@pytest.fixture
def tier() -> Iterator[Probed]:
    made = Probed()
    yield made
    made.probe.close()
    made.guard.close()


def test_a_sound_tier_is_left_alone_and_nothing_is_counted(tier: Probed) -> None:
    for _ in range(4):
        tier.round()

    assert tier.guard.breaker_state == CLOSED
    assert tier.records == []


def test_canaries_never_pile_up_and_are_taken_away_at_the_end(tier: Probed) -> None:
    for _ in range(10):
        tier.round()
        assert 1 <= tier.canaries() <= 3

    tier.probe.close()
    assert tier.canaries() == 0


def test_the_first_round_comes_a_period_after_the_start(tier: Probed) -> None:
    tier.clock.advance(PERIOD_S - 1)
    tier.probe.tick()
    assert tier.canaries() == 0


def test_a_tier_that_acknowledges_and_does_not_serve_is_fenced_after_two_rounds(tier: Probed) -> None:
    tier.put(1)
    tier.faulty.faults = Faults(lose=True)
    tier.round()
    assert tier.guard.breaker_state == CLOSED
    tier.round(PERIOD_S / 3)

    assert tier.fence == "it acknowledges puts and does not serve them"
    assert tier.guard.breaker_state == FENCED
    assert tier.get(1).reason == "fenced"
    assert tier.put(2).reason == "fenced"
    assert tier.guard.lookup([make_block(1).key], Deadline.after(10.0)) == [False]


def test_it_comes_back_by_itself_after_good_rounds_and_the_outage_is_told(tier: Probed) -> None:
    tier.faulty.faults = Faults(lose=True)
    tier.round()
    tier.round(PERIOD_S / 3)
    tier.put(1)
    tier.get(1)
    tier.faulty.faults = Faults()
    tier.round(PERIOD_S / 3)
    assert tier.fence
    tier.round(PERIOD_S / 3)

    assert tier.guard.breaker_state == CLOSED
    assert tier.put(1).status is Status.STORED
    (outage,) = tier.outages
    assert (outage.not_stored_blocks, outage.not_read_blocks) == (1, 1)
    assert "it acknowledges puts and does not serve them" in outage.text
    changes = [(r.part, r.after) for r in tier.records if isinstance(r, StateRecord)]
    assert changes == [("memory.fence", FENCED), ("memory.fence", "sound")]


@pytest.mark.parametrize("unverified", [False, True])
def test_a_tier_that_serves_other_bytes_is_fenced_even_if_it_does_not_see_it_itself(
    tier: Probed, unverified: bool
) -> None:
    tier.faulty.faults = Faults(foreign=True, unverified=unverified)
    tier.round()
    tier.round(PERIOD_S / 3)
    assert tier.fence.startswith("it serves other bytes than were put")


def test_a_tier_that_came_back_empty_is_fenced_at_once_and_the_loss_is_counted(tier: Probed) -> None:
    for number in range(5):
        tier.put(number)
    tier.round()
    tier.round()
    tier.faulty.forget_everything()
    tier.round()

    assert tier.fence.startswith("it is empty")
    tier.round(PERIOD_S / 3)
    tier.round(PERIOD_S / 3)
    assert tier.guard.breaker_state == CLOSED
    (outage,) = tier.outages
    assert outage.lost_keys == 5
    assert "keys lost" in outage.text


def test_a_hung_tier_is_fenced_though_nobody_else_calls_it(tier: Probed) -> None:
    with tier.faulty.hung("put", "get") as gate:
        tier.clock.advance(PERIOD_S)
        tier.probe.tick()
        assert gate.wait_held()
        tier.clock.advance(DEADLINE_S)
        tier.probe.tick()
        assert tier.fence == ""
        tier.clock.advance(PERIOD_S / 3)
        tier.probe.tick()

        assert tier.fence.startswith("it did not answer a probe in time: nothing within 5 s")
        assert gate.wait_held(1)  # still that one call: a hung tier costs one thread more, no matter how long
    tier.settle()
    assert tier.fence  # what came late does not count
    tier.round(PERIOD_S / 3)
    tier.round(PERIOD_S / 3)
    assert tier.fence == ""


def test_an_open_breaker_gets_its_trial_from_the_probe_and_from_nobody_else(tier: Probed) -> None:
    tier.put(1)
    tier.faulty.faults = Faults(fail="unavailable")
    tier.get(1)
    tier.get(1)
    assert tier.guard.breaker_state == OPEN
    tier.faulty.faults = Faults()
    tier.clock.advance(1.0)
    assert tier.get(1).reason == "breaker_open"

    tier.round(0.0)

    assert tier.guard.breaker_state == CLOSED
    assert tier.get(1).status is Status.HIT


def test_a_failed_trial_leaves_it_open_and_the_next_comes_later(tier: Probed) -> None:
    tier.faulty.faults = Faults(fail="unavailable")
    tier.get(1)
    tier.get(1)
    tier.round(1.0)
    assert tier.guard.breaker_state == OPEN
    tier.probe.tick()
    assert tier.probe._job is None  # the pause has doubled
    tier.faulty.faults = Faults()
    tier.round(2.0)
    assert tier.guard.breaker_state == CLOSED


def test_a_trial_moves_a_large_canary_too(tier: Probed) -> None:
    tier.guard.standing.note("refused", timed_out=True)
    tier.round(1.0)
    assert tier.memory.stats().bytes > 1 << 20


def test_a_trial_that_finds_a_liar_does_not_let_it_in(tier: Probed) -> None:
    tier.guard.standing.note("refused", timed_out=True)
    tier.faulty.faults = Faults(lose=True)
    tier.round(1.0)
    assert tier.guard.breaker_state == OPEN


def test_an_outage_after_which_it_is_empty_is_one_outage(tier: Probed) -> None:
    for number in range(5):
        tier.put(number)
    tier.round()
    tier.round()
    tier.faulty.faults = Faults(fail="unavailable")
    tier.get(1)
    tier.get(1)
    tier.faulty.forget_everything()
    tier.faulty.faults = Faults()
    tier.round(1.0)
    assert tier.guard.breaker_state == FENCED
    tier.round(PERIOD_S / 3)
    tier.round(PERIOD_S / 3)

    (outage,) = tier.outages
    assert outage.lost_keys >= 5
    assert tier.guard.breaker_state == CLOSED


def test_a_refusing_tier_that_lost_everything_is_still_found_empty(tier: Probed) -> None:
    tier.round()
    tier.faulty.forget_everything()
    tier.faulty.faults = Faults(fail="unavailable")
    tier.round()
    tier.round(PERIOD_S / 3)
    assert tier.fence.startswith("it refuses a probe")
    tier.faulty.faults = Faults()
    tier.round(PERIOD_S / 3)
    tier.round(PERIOD_S / 3)
    assert tier.fence  # the first of these found it empty
    tier.round(PERIOD_S / 3)
    assert tier.fence == ""
    assert "keys lost" in tier.outages[-1].text


@pytest.mark.parametrize("reason", ["read_only", "no_room"])
def test_a_tier_that_takes_no_puts_is_judged_by_what_it_served_before(tier: Probed, reason: str) -> None:
    tier.put(1)
    assert tier.get(1).status is Status.HIT
    tier.faulty.faults = Faults(fail=reason, operations=frozenset({"put"}))
    for _ in range(3):
        tier.round()
    assert tier.fence == ""

    tier.faulty.faults = Faults(foreign=True, unverified=True)
    tier.faulty.hung("put")
    tier.faulty._put = lambda key, sealed, deadline: BlockResult(Status.FAILED, reason=reason)  # type: ignore[method-assign]
    tier.round()
    tier.round(PERIOD_S / 3)
    assert tier.fence.startswith("it serves other bytes")


def test_a_leased_canary_is_deleted_when_its_lease_is_over() -> None:
    clock = FakeClock()
    leased = Leased(clock)
    tier = Probed(leased, clock)
    for _ in range(6):
        tier.round()
    assert leased.refused == 0
    for _ in range(20):
        tier.round(LEASE_S / 6)
    assert tier.canaries() <= LEFT_MAX
    tier.probe.close()
    tier.guard.close()


def test_memory_that_a_store_may_still_write_is_kept(tier: Probed) -> None:
    tier.round()
    with tier.faulty.late():
        tier.round()
        assert tier.probe._kept.busy
    wait_until(lambda: not any(result.buffer_busy for result, _ in tier.probe._kept.busy), "the late write ended")
    tier.round()
    assert tier.probe._kept.busy == []


def test_a_defect_of_the_store_is_a_refusal_and_not_the_probes_end(tier: Probed) -> None:
    def broken(*_: object) -> list[BlockResult]:
        raise ZeroDivisionError("a defect")

    tier.faulty.put = broken  # type: ignore[method-assign, assignment]
    tier.round()
    tier.round(PERIOD_S / 3)
    assert tier.fence == "it refuses a probe: a defect"


def test_several_tiers_are_probed_on_one_thread_and_the_end_is_clean() -> None:
    stores: list[BlockStore] = [MemoryStore("near"), FaultyStore(MemoryStore("far"), Faults(lose=True))]
    guards = [GuardedStore(store, threads=1) for store in stores]
    records: list[Record] = []
    probes = TierProbes(list(zip(stores, guards, strict=True)), period_s=0.05, deadline_s=5.0).start()
    wait_until(lambda: guards[1].breaker_state == FENCED, "the lying tier is fenced")

    assert guards[0].breaker_state == CLOSED
    assert not any(isinstance(record, TransferRecord) for record in records)
    probes.close()
    assert stores[0].stats().blocks == 0
    for guard in guards:
        guard.close()


def test_without_a_period_nothing_is_probed() -> None:
    store = MemoryStore()
    guard = GuardedStore(store)
    probes = TierProbes([(store, guard)], period_s=0.0, deadline_s=5.0).start()
    assert repr(probes) == "TierProbes([])"
    probes.close()
    guard.close()


def test_closing_waits_for_no_stuck_round(tier: Probed) -> None:
    with tier.faulty.hung("put") as gate:
        tier.clock.advance(PERIOD_S)
        tier.probe.tick()
        assert gate.wait_held()
        start_s = time.monotonic()
        tier.probe.close()
        assert time.monotonic() - start_s < 10.0


def test_the_repr_states_the_course(tier: Probed) -> None:
    assert repr(tier.probe).startswith("TierProbe('memory', ProbeCourse(period_s=15.0")


def test_a_tick_that_fails_is_not_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    class Forgetful(MemoryStore):
        asked = 0

        def stats(self) -> StoreStats:
            self.asked += 1
            if self.asked == 1:
                raise ZeroDivisionError("a defect")
            return super().stats()

    store = Forgetful()
    guard = GuardedStore(store)
    probes = TierProbes([(store, guard)], period_s=0.05, deadline_s=5.0).start()
    wait_until(lambda: probes._probes[0].course.good >= 2, "rounds go on")
    probes.close()
    guard.close()


LIES = {
    "acknowledges and does not store": Faults(lose=True),
    "stores wrong bytes": Faults(corrupt=True),
    "finds another block": Faults(foreign=True),
    "serves another block": Faults(foreign=True, unverified=True),
    "refuses": Faults(fail="unavailable"),
}


def usable_within(tier: Probed, wanted: bool, seconds: float) -> bool:
    """Let time pass in steps as the probing thread does."""
    for _ in range(int(seconds / 0.25)):
        if tier.guard.standing.usable is wanted:
            return True
        tier.clock.advance(0.25)
        tier.probe.tick()
        tier.settle()
    return tier.guard.standing.usable is wanted


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("begins_after_s", [0.0, 7.0, 16.25, 44.75])
def test_whatever_it_does_wrong_is_seen_within_a_minute_and_forgiven_within_half_of_one(
    tier: Probed, lie: str, begins_after_s: float
) -> None:
    assert not usable_within(tier, False, begins_after_s)
    tier.faulty.faults = LIES[lie]
    assert usable_within(tier, False, 60.0)
    tier.faulty.faults = Faults()
    assert usable_within(tier, True, 30.0)


@pytest.mark.parametrize("begins_after_s", [16.25, 44.75])
def test_an_empty_tier_is_seen_within_a_minute(tier: Probed, begins_after_s: float) -> None:
    assert not usable_within(tier, False, begins_after_s)
    tier.faulty.forget_everything()
    assert usable_within(tier, False, 60.0)
    assert usable_within(tier, True, 30.0)


class Closed(MemoryStore):
    """A store whose medium is not open at first."""

    state = OUT

    def stats(self) -> StoreStats:
        return replace(super().stats(), state=self.state, notes=("no such mount",))


def test_the_time_until_a_tiers_medium_is_open_is_an_outage() -> None:
    store = Closed()
    tier = Probed(store)
    tier.probe.tick()
    tier.clock.advance(5.0)
    tier.probe.tick()
    current = tier.guard.standing.outages.current
    assert current is not None
    assert current.why == "no such mount"
    store.state = READY
    tier.probe.tick()
    (outage,) = tier.outages
    assert outage.seconds == 5.0
    tier.probe.close()
    tier.guard.close()


class FirstPutsHang(MemoryStore):
    """A store some of whose calls never end, though later ones work: a mount that was made anew."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.gate = Gate()
        self._hanging = count

    def put(self, keys: Sequence[BlockKey], frames: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        if self._hanging:
            self._hanging -= 1
            self.gate.hold()
        return super().put(keys, frames, deadline)


def pass_time(tier: Probed, seconds: float) -> None:
    for _ in range(int(seconds)):
        tier.clock.advance(1.0)
        tier.probe.tick()
        time.sleep(0)


def test_a_round_that_never_ends_is_given_up_and_the_next_ones_count() -> None:
    store = FirstPutsHang(1)
    tier = Probed(store)
    pass_time(tier, PERIOD_S)
    assert store.gate.wait_held()
    pass_time(tier, GIVE_UP_S - PERIOD_S)
    assert tier.fence.startswith("it did not answer a probe in time")
    for _ in range(60):
        tier.clock.advance(1.0)
        tier.probe.tick()
        tier.settle_unless_hung()
    assert tier.fence == ""
    assert tier.probe.canaries_put >= 3
    store.gate.open()
    tier.probe.close()
    tier.guard.close()


def test_a_tier_that_hangs_for_good_costs_a_few_threads_and_no_more() -> None:
    store = FirstPutsHang(100)
    tier = Probed(store)
    pass_time(tier, 10 * GIVE_UP_S)
    assert store.gate.wait_held(THREADS)
    assert not store.gate.wait_held(THREADS + 1, timeout_s=0.05)
    assert tier.fence
    store.gate.open()
    tier.probe.close()
    tier.guard.close()
