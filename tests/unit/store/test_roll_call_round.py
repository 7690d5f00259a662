"""One round of the roll call on stores that are really shared, are not, or misbehave."""

from dataclasses import replace

import pytest

from kveik.clock import FakeClock
from kveik.store.canary import PROBE_NAMESPACE
from kveik.store.faulty import Faults, FaultyStore
from kveik.store.memory import MemoryStore
from kveik.store.roll_call import NAMES
from kveik.store.roll_call_round import KEPT, RollCallRound
from kveik.store.roll_call_verdict import Presence, patience_s
from tests.agents import wait_until
from tests.roll_calls import NODES, RENEW_S, CallingNode


def blocks_in(store: MemoryStore) -> int:
    return sum(len(portion) for portion in store.keys(PROBE_NAMESPACE))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_nodes_that_share_a_store_see_each_other_from_round_to_round(clock: FakeClock) -> None:
    store = MemoryStore()
    nodes = [CallingNode("n0", store, clock, number=3), CallingNode("n1", store, clock, number=14)]
    for _ in range(40):
        for node in nodes:
            node.round()
        clock.advance(15.0)
    assert [node.sees(name) for node in nodes for name in NODES] == [Presence.HERE] * 4
    assert nodes[0].calls.number > 3 + NAMES // 2
    assert blocks_in(store) == 2 * KEPT


def test_nodes_of_two_stores_see_only_themselves(clock: FakeClock) -> None:
    nodes = [CallingNode(name, MemoryStore(), clock) for name in NODES]
    for _ in range(20):
        for node in nodes:
            node.round()
        clock.advance(15.0)
    assert [[node.sees(name) for name in NODES] for node in nodes] == [
        [Presence.HERE, Presence.NEVER],
        [Presence.NEVER, Presence.HERE],
    ]


def test_a_node_that_ends_takes_its_blocks_along_and_grows_old_for_the_other(clock: FakeClock) -> None:
    store = MemoryStore()
    one, two = CallingNode("n0", store, clock), CallingNode("n1", store, clock)
    two.round()
    one.round()
    two.clear()
    assert blocks_in(store) == 1
    assert two.calls.own_blocks == 0
    clock.advance(patience_s(RENEW_S) + 1)
    one.round()
    assert one.sees("n1") is Presence.OLD


def test_an_agent_that_was_killed_leaves_nothing_behind_once_it_began_anew(clock: FakeClock) -> None:
    store = MemoryStore()
    one, two = CallingNode("n0", store, clock), CallingNode("n1", store, clock, number=5)
    for _ in range(9):
        one.round()
        two.round()
        clock.advance(15.0)
    anew = CallingNode("n1", store, clock, number=11, nonce="another life")
    clock.advance(60.0)
    anew.round()
    one.round()
    assert one.sees("n1") is Presence.HERE
    assert one.calls.sights["n1"].entry is not None
    assert one.calls.sights["n1"].entry.nonce == "another life"
    assert blocks_in(store) <= 2 * KEPT
    assert anew.sees("n1") is Presence.HERE


def test_two_agents_of_one_name_notice_each_other(clock: FakeClock) -> None:
    store = MemoryStore()
    agents = [CallingNode("n0", store, clock, number=2), CallingNode("n0", store, clock, number=9, nonce="the other")]
    for _ in range(4):
        for agent in agents:
            agent.round()
        clock.advance(RENEW_S)
    assert [agent.sees("n0") for agent in agents] == [Presence.TWIN, Presence.TWIN]
    for _ in range(3):
        agents[0].round()
        clock.advance(RENEW_S)
    assert agents[0].sees("n0") is Presence.HERE, "the other one has ended"


def test_an_own_block_that_was_evicted_is_put_again_in_the_same_round(clock: FakeClock) -> None:
    store = MemoryStore()
    one = CallingNode("n0", store, clock)
    one.round()
    store.delete([key for portion in store.keys(PROBE_NAMESPACE) for key in portion])
    clock.advance(15.0)
    one.round()
    assert blocks_in(store) == 1
    assert one.sees("n0") is Presence.HERE


def test_a_store_that_acknowledges_and_does_not_serve_has_nobody(clock: FakeClock) -> None:
    faulty = FaultyStore(MemoryStore(), Faults(lose=True))
    one = CallingNode("n0", faulty, clock)
    for _ in range(20):
        one.round()
        clock.advance(15.0)
    assert [one.sees(name) for name in NODES] == [Presence.NEVER, Presence.NEVER]


def test_a_store_that_fails_is_not_taken_for_an_empty_one(clock: FakeClock) -> None:
    faulty = FaultyStore(MemoryStore())
    one, two = CallingNode("n0", faulty, clock), CallingNode("n1", faulty, clock)
    one.round()
    two.round()
    faulty.faults = Faults(fail="unavailable")
    clock.advance(patience_s(RENEW_S) + 1)
    one.round()
    assert [one.sees(name) for name in NODES] == [Presence.NO_ANSWER, Presence.NO_ANSWER]
    faulty.faults = Faults()
    one.round()
    two.round()
    one.round()
    assert [one.sees(name) for name in NODES] == [Presence.HERE, Presence.HERE]


def test_a_tier_that_cannot_be_written_still_shows_the_others(clock: FakeClock) -> None:
    store = MemoryStore()
    two = CallingNode("n1", store, clock)
    two.round()
    read_only = FaultyStore(store, Faults(fail="read_only", operations=frozenset({"put", "delete"})))
    one = CallingNode("n0", read_only, clock)
    one.round()
    assert one.sees("n1") is Presence.HERE
    assert one.sees("n0") is Presence.NO_ANSWER


def test_wrong_bytes_under_the_right_checksum_of_a_store_are_told_by_the_frame(clock: FakeClock) -> None:
    store = MemoryStore()
    two = CallingNode("n1", FaultyStore(store, Faults(corrupt=True)), clock)
    two.round()
    assert two.sees("n1") is Presence.OTHER_BYTES
    clock.advance(15.0)
    two.store = store
    two.round()
    assert two.sees("n1") is Presence.HERE


def test_bytes_that_a_store_takes_for_right_and_are_not_are_told(clock: FakeClock) -> None:
    store = MemoryStore()
    two = CallingNode("n1", store, clock)
    two.round()
    one = CallingNode("n0", FaultyStore(store, Faults(foreign=True, unverified=True)), clock)
    one.round()
    assert one.sees("n1") is Presence.OTHER_BYTES


def test_memory_that_a_store_may_still_touch_is_kept(clock: FakeClock) -> None:
    faulty = FaultyStore(MemoryStore())
    one = CallingNode("n0", faulty, clock)
    one.round()
    with faulty.late():
        clock.advance(15.0)
        one.round()
        assert one.calls.busy
    wait_until(lambda: not any(result.buffer_busy for result, _ in one.calls.busy), "the late writes end")
    one.round()
    assert not one.calls.busy


def test_a_round_changes_nothing_of_what_it_was_given(clock: FakeClock) -> None:
    one = CallingNode("n0", MemoryStore(), clock)
    before = replace(one.calls, sights=dict(one.calls.sights))
    RollCallRound(one.store, one.caller, one.calls, clock).run()
    assert one.calls == before
