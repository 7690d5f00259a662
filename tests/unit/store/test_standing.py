"""Breaker and fence together decide whether a tier may be used, and what an outage is."""

import pytest

from kveik.breaker import CLOSED, HALF_OPEN, OPEN, BreakerPolicy
from kveik.clock import FakeClock
from kveik.records import OutageRecord, Record, StateRecord
from kveik.store.base import BlockResult
from kveik.store.standing import FENCED, PROBE_GRACE_S, Standing


class Kept(Standing):
    """A standing with its clock and its records."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.records: list[Record] = []
        super().__init__(
            "tier",
            policy=BreakerPolicy(failures=2, open_s=10.0, open_max_s=40.0),
            listener=self.records.append,
            clock=self.clock,
        )

    @property
    def changes(self) -> list[tuple[str, str, str]]:
        return [(r.part, r.before, r.after) for r in self.records if isinstance(r, StateRecord)]

    def reason(self) -> str:
        refusal = self.refusal()
        return refusal.reason if isinstance(refusal, BlockResult) else ""


@pytest.fixture
def standing() -> Kept:
    return Kept()


def test_a_fence_refuses_everything_and_says_why(standing: Kept) -> None:
    standing.put_fence("it lies")

    refusal = standing.refusal()
    assert refusal is not None
    assert (refusal.reason, refusal.detail) == ("fenced", "it lies")
    assert (standing.breaker_state, standing.fence, standing.usable) == (FENCED, "it lies", False)
    assert standing.refused().reason == "fenced"


def test_calls_that_work_do_not_lift_a_fence(standing: Kept) -> None:
    standing.put_fence("it lies")
    standing.note("")
    assert standing.reason() == "fenced"

    standing.lift_fence("it is sound")
    assert standing.refusal() is None
    assert standing.changes == [("tier.fence", "sound", FENCED), ("tier.fence", FENCED, "sound")]


def test_an_outage_lasts_from_the_first_bar_to_the_last(standing: Kept) -> None:
    standing.note("refused", timed_out=True)
    standing.cost(not_stored=3)
    standing.clock.advance(20.0)
    standing.put_fence("it is empty")
    assert standing.begin_trial()
    standing.note("")
    assert standing.outages.current is not None
    standing.clock.advance(20.0)
    standing.cost(not_read=2)
    standing.lift_fence("sound", lost_keys=7)

    assert standing.outages.current is None
    (record,) = [record for record in standing.records if isinstance(record, OutageRecord)]
    assert (record.tier, record.seconds) == ("tier", 40.0)
    assert (record.not_stored_blocks, record.not_read_blocks, record.lost_keys) == (3, 2, 7)
    assert "refused" in record.text


def test_costs_outside_an_outage_are_none(standing: Kept) -> None:
    standing.cost(not_stored=5)
    standing.note("refused", timed_out=True)
    current = standing.outages.current
    assert current is not None
    assert current.not_stored_blocks == 0


def test_without_a_probe_the_next_call_is_the_trial(standing: Kept) -> None:
    standing.note("refused", timed_out=True)
    assert standing.reason() == "breaker_open"
    standing.clock.advance(10.0)
    assert standing.reason() == ""
    assert standing.breaker_state == HALF_OPEN
    assert standing.reason() == "breaker_open"


def test_with_a_probe_no_call_is_ever_a_trial(standing: Kept) -> None:
    standing.leave_trials_to_probe()
    standing.note("refused", timed_out=True)
    standing.clock.advance(10.0 + PROBE_GRACE_S - 1)

    assert standing.reason() == "breaker_open"
    assert standing.breaker_state == OPEN
    assert standing.begin_trial()
    assert standing.breaker_state == HALF_OPEN
    assert standing.reason() == "breaker_open"
    assert not standing.begin_trial()
    standing.note("")
    assert standing.refusal() is None


def test_a_probe_that_has_died_is_not_waited_for(standing: Kept) -> None:
    standing.leave_trials_to_probe()
    standing.note("refused", timed_out=True)
    standing.clock.advance(10.0 + PROBE_GRACE_S)
    assert standing.reason() == ""


def test_no_trial_begins_while_nothing_is_wrong_or_before_it_is_due(standing: Kept) -> None:
    assert not standing.begin_trial()
    standing.note("refused", timed_out=True)
    assert not standing.begin_trial()
    assert standing.breaker_out


def test_a_failed_trial_doubles_the_pause(standing: Kept) -> None:
    standing.leave_trials_to_probe()
    standing.note("refused", timed_out=True)
    standing.clock.advance(10.0)
    assert standing.begin_trial()
    standing.note("still refused")
    standing.clock.advance(19.0)
    assert not standing.begin_trial()
    standing.clock.advance(1.0)
    assert standing.begin_trial()
    assert standing.changes[-1] == ("tier.breaker", OPEN, HALF_OPEN)


def test_the_repr_states_the_breaker(standing: Kept) -> None:
    assert repr(standing) == f"Standing('tier', breaker {CLOSED})"


def test_a_medium_that_is_not_open_is_an_outage_too_and_refuses_nothing_by_itself(standing: Kept) -> None:
    standing.note_medium("no such mount")
    standing.note_medium("no such mount, still")
    standing.note("")
    standing.cost(not_stored=2)
    assert standing.refusal() is None
    standing.clock.advance(30.0)
    standing.note_medium("")
    standing.note_medium("")

    (record,) = [record for record in standing.records if isinstance(record, OutageRecord)]
    assert (record.seconds, record.not_stored_blocks) == (30.0, 2)
    assert ": no such mount; 2 blocks" in record.text
