"""The roll call beside a tier's life: closed tiers, fences, calls that hang, the agent's end."""

from collections.abc import Iterator

import pytest

from kveik.breaker import BreakerPolicy
from kveik.clock import FakeClock
from kveik.store.base import OUT, BlockStore, Capabilities, StoreStats
from kveik.store.canary import PROBE_NAMESPACE
from kveik.store.faulty import FaultyStore
from kveik.store.guarded import GuardedStore
from kveik.store.memory import MemoryStore
from kveik.store.roll_call import Roster
from kveik.store.roll_calling import GIVE_UP_S, HASTE, RollCall, RollCalls
from tests.agents import wait_until

PERIOD_S = 15.0
ROSTER = Roster("f", "n0", ("n0", "n1"))


class Shared(FaultyStore):
    """A store that promises to be shared, and may not be open."""

    open = True

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(durable=False, shared=True, bounded=False)

    def stats(self) -> StoreStats:
        return self._inner.stats() if self.open else StoreStats(0, 0, 0, notes=("no route to it",), state=OUT)


class Called:
    """One node's roll call in one tier, and a clock that is moved by hand."""

    def __init__(self, roster: Roster = ROSTER, memory: MemoryStore | None = None) -> None:
        self.clock = FakeClock()
        self.memory = memory or MemoryStore()
        self.store = Shared(self.memory)
        policy = BreakerPolicy(failures=2, open_s=1.0, open_max_s=2.0)
        self.guard = GuardedStore(self.store, threads=2, policy=policy, hang_s=5.0, clock=self.clock)
        self.call = RollCall(self.store, self.guard, roster, period_s=PERIOD_S, deadline_s=5.0, clock=self.clock)

    def round(self, after_s: float = PERIOD_S) -> None:
        self.clock.advance(after_s)
        self.call.tick()
        wait_until(lambda: self.call._job is None or self.call._job.done(), "the round ends")
        self.call.tick()

    def presence(self, node: str) -> str:
        return {entry["node"]: str(entry["presence"]) for entry in self.call.plain()["nodes"]}[node]

    def told(self, node: str) -> str:
        return {entry["node"]: str(entry["told"]) for entry in self.call.plain()["nodes"]}[node]

    def blocks(self) -> int:
        return sum(len(portion) for portion in self.memory.keys(PROBE_NAMESPACE))


@pytest.fixture
def tier() -> Iterator[Called]:
    made = Called()
    yield made
    made.call.close()
    made.guard.close()


def test_it_begins_at_once_and_its_blocks_go_when_it_ends(tier: Called) -> None:
    tier.round(0.0)
    assert tier.presence("n0") == "here"
    assert tier.presence("n1") == "waiting"
    assert tier.call.own_blocks > 0
    assert tier.blocks() == 1
    tier.call.close()
    assert tier.blocks() == 0


def test_two_of_them_on_one_store_see_each_other(tier: Called) -> None:
    other = Called(Roster("f", "n1", ("n0", "n1")), tier.memory)
    tier.round(0.0)
    other.round(0.0)
    tier.round()
    assert [tier.presence("n1"), other.presence("n0")] == ["here", "here"]
    assert "n1 here" in repr(tier.call)
    other.call.close()
    other.guard.close()


def test_a_tier_that_is_not_open_is_not_called_and_asked_again_soon(tier: Called) -> None:
    tier.store.open = False
    tier.round(0.0)
    assert tier.presence("n1") == "no answer"
    assert "no route to it" in tier.told("n1")
    assert tier.blocks() == 0
    tier.store.open = True
    tier.round(PERIOD_S / HASTE)
    assert tier.presence("n0") == "here"


def test_a_fenced_tier_is_left_alone(tier: Called) -> None:
    tier.guard.standing.put_fence("it lies")
    tier.round(0.0)
    assert tier.told("n0").endswith("it lies")
    tier.guard.standing.lift_fence("it is sound")
    tier.round()
    assert tier.presence("n0") == "here"


def test_a_call_that_hangs_holds_nobody_and_the_next_round_begins_beside_it(tier: Called) -> None:
    tier.round(0.0)
    with tier.store.hung("get") as gate:
        tier.clock.advance(PERIOD_S)
        tier.call.tick()
        assert gate.wait_held()
        tier.clock.advance(GIVE_UP_S)
        tier.call.tick()
        assert "hangs" in tier.told("n1") or tier.presence("n1") == "waiting"
        tier.call.tick()
        assert gate.wait_held(2)
    tier.round()
    assert tier.presence("n0") == "here"


def test_a_round_that_breaks_is_told_and_the_next_one_comes(tier: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a defect")

    monkeypatch.setattr(tier.store, "get", broken)
    tier.round(0.0)
    assert "a defect" in tier.told("n1")
    monkeypatch.undo()
    tier.round()
    assert tier.presence("n0") == "here"


def tiers_of(*stores: BlockStore) -> list[tuple[BlockStore, GuardedStore]]:
    return [(store, GuardedStore(store)) for store in stores]


def test_only_shared_tiers_are_called_and_without_a_period_none() -> None:
    private, shared = MemoryStore("private"), Shared(MemoryStore("shared"))
    calls = RollCalls(tiers_of(private, shared), ROSTER, period_s=0.01, deadline_s=5.0).start()
    try:
        assert calls.plain("private") is None

        def is_here() -> bool:
            plain = calls.plain("shared")
            return plain is not None and plain["nodes"][0]["presence"] == "here"

        wait_until(is_here, "the call was made")
        assert "RollCall('shared'" in repr(calls)
    finally:
        calls.close()
    assert RollCalls(tiers_of(shared), ROSTER, period_s=0.0, deadline_s=5.0).plain("shared") is None
