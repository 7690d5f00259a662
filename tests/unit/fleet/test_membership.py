from collections.abc import Callable

import pytest

from kveik.errors import RefusedError, UnknownEngineError
from kveik.fleet.lifecycle import Event, State
from kveik.fleet.membership import Membership, Retention, differences
from kveik.records import StateRecord
from tests.fleet import engine

NOW = 1000.0
EMPTY = Membership(retention=Retention(lost_s=100.0, hold_s=1000.0))
ONE = EMPTY.announce(engine(1), NOW)
READY = ONE.apply("e1", Event.PROVE, "it answered", NOW)


def state_of(membership: Membership, name: str = "e1") -> State:
    return membership.member(name).state


def test_an_engine_that_announces_itself_has_to_prove_itself_before_it_is_ready() -> None:
    assert state_of(ONE) is State.ANNOUNCED
    assert ONE.member("e1").lease_ends_s == NOW + 15
    assert state_of(READY) is State.READY
    assert READY.revision == ONE.revision + 1 == EMPTY.revision + 2


def test_a_heartbeat_moves_the_lease_and_is_no_change_for_others() -> None:
    later = READY.renew("e1", NOW + 5)
    assert later.member("e1").lease_ends_s == NOW + 20
    assert later.revision == READY.revision
    assert differences(READY, later) == []


def test_an_engine_without_heartbeats_is_lost_then_forgotten() -> None:
    assert READY.tick(NOW + 14.9) == READY
    lost = READY.tick(NOW + 15)
    assert state_of(lost) is State.LOST
    assert lost.member("e1").why == "no heartbeat for 15 s"
    assert lost.tick(NOW + 114.9) == lost
    assert lost.tick(NOW + 115).members == {}


def test_a_long_sleep_loses_and_forgets_in_one_step() -> None:
    assert READY.tick(NOW + 10_000).members == {}


@pytest.mark.parametrize("renewal", ["announcement", "heartbeat"])
def test_an_engine_that_comes_back_from_lost_has_to_prove_itself_again(renewal: str) -> None:
    lost = READY.tick(NOW + 20)
    back = lost.announce(engine(1), NOW + 30) if renewal == "announcement" else lost.renew("e1", NOW + 30)
    assert state_of(back) is State.ANNOUNCED
    assert back.member("e1").why == "is back after its lease had ended"
    assert back.tick(NOW + 44).member("e1").state is State.ANNOUNCED


@pytest.mark.parametrize(("event", "state"), [(Event.DRAIN, State.DRAINING), (Event.ISOLATE, State.ISOLATED)])
def test_a_hold_keeps_its_reason_through_heartbeats_lost_leases_and_returns(event: Event, state: State) -> None:
    held = READY.apply("e1", event, "for a reason", NOW + 1)
    for later in (held.renew("e1", NOW + 2), held.tick(NOW + 500), held.tick(NOW + 500).announce(engine(1), NOW + 600)):
        assert (state_of(later), later.member("e1").why, later.member("e1").since_s) == (state, "for a reason", NOW + 1)
    assert held.tick(NOW + 1015).members == {}


def test_a_second_reason_for_the_same_hold_replaces_the_first() -> None:
    held = READY.apply("e1", Event.ISOLATE, "hung", NOW).apply("e1", Event.ISOLATE, "answers garbage", NOW + 1)
    assert held.member("e1").why == "answers garbage"
    assert held.member("e1").since_s == NOW


def test_readmitted_engines_prove_themselves_again() -> None:
    back = READY.apply("e1", Event.DRAIN, "update", NOW).apply("e1", Event.READMIT, "done", NOW + 1)
    assert state_of(back) is State.ANNOUNCED


def test_an_engine_that_is_readmitted_after_its_lease_ended_is_lost_until_it_is_heard_of() -> None:
    back = READY.apply("e1", Event.DRAIN, "update", NOW).apply("e1", Event.READMIT, "done", NOW + 20)
    assert state_of(back) is State.LOST
    assert state_of(back.renew("e1", NOW + 21)) is State.ANNOUNCED


def test_a_withdrawn_engine_is_gone_but_an_isolated_one_stays_isolated_whoever_restarts_it() -> None:
    assert READY.apply("e1", Event.WITHDRAW, "", NOW).members == {}
    isolated = READY.apply("e1", Event.ISOLATE, "hung", NOW).apply("e1", Event.WITHDRAW, "", NOW + 1)
    assert state_of(isolated) is State.ISOLATED
    assert isolated.member("e1").lease_over(NOW + 1)
    again = isolated.announce(engine(1), NOW + 5)
    assert (state_of(again), again.member("e1").why) == (State.ISOLATED, "hung")


def test_an_isolated_engine_without_a_lease_is_not_kept_for_ever_after_it_was_withdrawn() -> None:
    isolated = EMPTY.announce(engine(1, lease_s=0.0), NOW).apply("e1", Event.ISOLATE, "hung", NOW)
    assert isolated.tick(NOW + 1e9) == isolated
    assert isolated.apply("e1", Event.WITHDRAW, "", NOW).tick(NOW + 1000).members == {}


def test_an_engine_that_became_another_one_proves_itself_again() -> None:
    told = READY.announce(engine(1, namespace="abcd"), NOW + 1)  # it did not know before
    assert state_of(told) is State.READY
    other = told.announce(engine(1, namespace="ef01"), NOW + 2)
    assert state_of(other) is State.ANNOUNCED
    assert "another engine than before" in other.member("e1").why
    adapter = READY.announce(engine(1, models=("qwen3-8b", "lora")), NOW + 1)
    assert state_of(adapter) is State.READY
    assert adapter.member("e1").announcement.models == ("qwen3-8b", "lora")
    assert adapter.revision == READY.revision + 1


def test_a_name_or_an_address_that_another_engine_holds_is_refused_until_its_lease_ends() -> None:
    thief = engine(1, url="http://10.0.0.9:8000")
    with pytest.raises(RefusedError, match=r"the name 'e1' belongs to engine 'e1' at http://10.0.0.1:8000 until"):
        READY.announce(thief, NOW + 1)
    with pytest.raises(RefusedError, match=r"the address http://10.0.0.1:8000 belongs to engine 'e1'"):
        READY.announce(engine(1, engine_id="e2"), NOW + 1)
    assert state_of(READY.tick(NOW + 15).announce(thief, NOW + 15)) is State.ANNOUNCED


def test_an_engine_of_a_list_has_no_lease_and_what_the_list_says_stands() -> None:
    listed = EMPTY.announce(engine(1), NOW, listed=True)
    assert listed.tick(NOW + 1e9) == listed
    assert listed.announce(engine(1, models=("other",)), NOW) is listed
    assert listed.renew("e1", NOW + 1) is listed
    with pytest.raises(RefusedError, match="until that leaves the static list"):
        listed.announce(engine(1, url="http://10.0.0.9:8000"), NOW)


def test_a_list_may_move_its_own_engine_and_take_over_one_that_announced_itself() -> None:
    moved = EMPTY.announce(engine(1), NOW, listed=True).announce(engine(1, url="http://10.0.0.9:1"), NOW, listed=True)
    assert moved.member("e1").announcement.url == "http://10.0.0.9:1"
    taken = READY.announce(engine(1), NOW, listed=True)
    assert (taken.member("e1").listed, taken.member("e1").lease_ends_s, state_of(taken)) == (True, None, State.READY)


@pytest.mark.parametrize(
    "step",
    [
        lambda: READY.renew("e9", NOW),
        lambda: READY.apply("e9", Event.DRAIN, "", NOW),
        lambda: READY.member("e9"),
    ],
)
def test_an_engine_that_is_not_known_is_told_to_announce_itself(step: Callable[[], object]) -> None:
    with pytest.raises(UnknownEngineError, match="no engine 'e9' in the fleet"):
        step()


def test_differences_are_told_once_an_engine_with_its_reason() -> None:
    after = READY.apply("e1", Event.ISOLATE, "hung for 3 probes", NOW).announce(engine(2), NOW)
    assert differences(READY, after) == [
        StateRecord("engine e1", "ready", "isolated", "hung for 3 probes"),
        StateRecord("engine e2", "gone", "announced", "announced itself"),
    ]
    assert differences(after, EMPTY)[0] == StateRecord("engine e1", "isolated", "gone", "left the fleet")
