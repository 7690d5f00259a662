"""What is remembered of blocks that were lost."""

from kveik.agent.block_fates import BlockFates
from kveik.agent.funnel import DROPPED, EVICTED, REFUSED
from kveik.clock import FakeClock
from kveik.records import EvictionRecord, StateRecord

ONE, TWO, THREE = b"1" * 36, b"2" * 36, b"3" * 36


def test_an_evicted_block_is_remembered_with_the_tier() -> None:
    clock = FakeClock()
    fates = BlockFates(clock)
    fates(EvictionRecord("arena", 2, 4096, (ONE, TWO)))
    fates(StateRecord("arena", "closed", "ready", "nothing of this is a loss"))
    fate = fates.of(TWO, clock.monotonic())
    assert fate is not None
    assert (fate.kind, fate.reason) == (EVICTED, "arena")
    assert fates.of(THREE, clock.monotonic()) is None


def test_the_latest_loss_counts() -> None:
    clock = FakeClock()
    fates = BlockFates(clock)
    fates.note([ONE], EVICTED, "arena")
    clock.advance(5)
    fates.note([ONE], REFUSED, "no_room")
    fate = fates.of(ONE, clock.monotonic())
    assert fate is not None
    assert (fate.kind, fate.reason, fate.at_s) == (REFUSED, "no_room", clock.monotonic())


def test_what_happened_only_after_a_request_asked_explains_nothing() -> None:
    clock = FakeClock()
    fates, asked_s = BlockFates(clock), clock.monotonic()
    clock.advance(1)
    fates.note([ONE], DROPPED, "")
    assert fates.of(ONE, asked_s) is None


def test_the_memory_is_bounded_and_forgets_the_oldest() -> None:
    clock = FakeClock()
    fates = BlockFates(clock, kept=2)
    for key in (ONE, TWO, ONE, THREE):
        fates.note([key], EVICTED, "arena")
    assert repr(fates) == "BlockFates(2 of 2)"
    assert [fates.of(key, clock.monotonic()) is not None for key in (ONE, TWO, THREE)] == [True, False, True]
