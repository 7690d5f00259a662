"""A probe finds every sound store sound, whatever it is made of, and does not fill it."""

from collections.abc import Iterator

import pytest

from kveik.breaker import BreakerPolicy
from kveik.clock import FakeClock
from kveik.records import Record
from kveik.store.base import BlockStore
from kveik.store.guarded import GuardedStore
from kveik.store.probe_round import LEASE_S
from kveik.store.probing import TierProbe
from tests.agents import wait_until
from tests.blocks import make_block
from tests.contract.test_every_store import get, put

PERIOD_S = 15.0
QUICK = BreakerPolicy(open_s=0.01, open_max_s=0.02)


class Rounds:
    """A probe of one store, whose time is moved by hand."""

    def __init__(self, store: BlockStore) -> None:
        self.clock = FakeClock()
        self.records: list[Record] = []
        self.guard = GuardedStore(store, threads=2, hang_s=60.0, policy=QUICK, listener=self.records.append)
        self.probe = TierProbe(store, self.guard, period_s=PERIOD_S, deadline_s=3600.0, clock=self.clock)

    def run(self) -> None:
        self.clock.advance(PERIOD_S)
        self.probe.tick()
        wait_until(lambda: self.probe._job is not None and self.probe._job.done(), "the round ends", 60.0)
        self.probe.tick()


@pytest.fixture
def rounds(store: BlockStore) -> Iterator[Rounds]:
    made = Rounds(store)
    yield made
    made.probe.close()


def test_rounds_of_a_sound_store_are_good_and_leave_few_blocks(rounds: Rounds, store: BlockStore) -> None:
    block = make_block(1)
    put(store, block)
    for number in range(4):
        rounds.run()
        assert (rounds.probe.course.good, rounds.guard.standing.fence) == (number + 1, "")

    assert rounds.records == []
    assert block.is_in(get(store, block)[1])
    assert LEASE_S < PERIOD_S  # what is left from one round can be deleted in the next
    assert len(rounds.probe._kept.left) <= 4


def test_a_trial_with_a_large_canary_closes_the_breaker(rounds: Rounds) -> None:
    rounds.guard.standing.note("refused", timed_out=True)
    wait_until(lambda: not rounds.guard.standing.usable and _trial(rounds), "a trial is due and made", 60.0)
    wait_until(lambda: rounds.guard.standing.usable or _trial(rounds), "it is used again", 60.0)


def _trial(rounds: Rounds) -> bool:
    rounds.probe.tick()
    return rounds.guard.standing.usable or not rounds.probe.idle
