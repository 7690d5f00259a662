"""Two nodes on any store see each other in the roll call, keep it small, and take their blocks away."""

import pytest

from kveik.clock import Deadline, FakeClock
from kveik.store.base import BlockStore, Status
from kveik.store.roll_call import NAMES, empty
from kveik.store.roll_call_round import KEPT
from kveik.store.roll_call_verdict import Presence
from tests.roll_calls import NODES, CallingNode

ROUNDS = 8


def names_in(store: BlockStore, node: CallingNode) -> int:
    """Under how many of its names a node has a block there."""
    keys = [node.caller.roster.key(node.caller.roster.node, number) for number in range(NAMES)]
    results = store.get(keys, [empty() for _ in keys], Deadline.after(60.0))
    assert {result.status for result in results} <= {Status.HIT, Status.MISS}
    return sum(result.status is Status.HIT for result in results)


@pytest.fixture
def nodes(store: BlockStore) -> list[CallingNode]:
    clock = FakeClock()
    return [CallingNode(name, store, clock, number=5 * place, deadline_s=3600.0) for place, name in enumerate(NODES)]


def test_both_see_both_through_renewals_and_few_blocks_are_there(store: BlockStore, nodes: list[CallingNode]) -> None:
    one, two = nodes
    for _ in range(ROUNDS):
        one.round()
        two.round()
        one.clock.advance(15.0)
    assert [node.sees(name) for node in nodes for name in NODES] == [Presence.HERE] * 4
    assert one.calls.number > 0
    assert [names_in(store, node) <= KEPT for node in nodes] == [True, True]


def test_who_ends_leaves_nothing_there(store: BlockStore, nodes: list[CallingNode]) -> None:
    one, two = nodes
    for node in nodes:
        node.round()
    two.clear()
    assert [names_in(store, node) for node in nodes] == [1, 0]
    one.clear()
    assert names_in(store, one) == 0


def test_what_an_earlier_life_left_is_taken_away(store: BlockStore, nodes: list[CallingNode]) -> None:
    one, _ = nodes
    one.round()
    anew = CallingNode("n0", store, one.clock, number=11, nonce="another life", deadline_s=3600.0)
    anew.round()
    assert names_in(store, anew) == 1
    assert anew.sees("n0") is Presence.HERE
