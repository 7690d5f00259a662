"""What roll calls of several nodes say together: shared, private to a node, half, damaged, or not known."""

from typing import Any

import pytest

from kveik.doctor.check import Outcome, Point
from kveik.doctor.store_pairs import NodeCalls, Seen, calls_of_state, judge_pairs, presence_of
from kveik.store.roll_call_verdict import Presence

UNKNOWN = Outcome.UNKNOWN
HERE, NEVER, OLD, WAITING = Presence.HERE, Presence.NEVER, Presence.OLD, Presence.WAITING


def calls(node: str, tier: str = "filesystem", **sees: Presence) -> NodeCalls:
    return NodeCalls(node, {tier: {other: Seen(presence, presence.value) for other, presence in sees.items()}})


def judged(*told: NodeCalls, nodes: tuple[str, ...] = ("n0", "n1")) -> list[Point]:
    return list(judge_pairs(told, nodes))


def outcomes(*told: NodeCalls) -> list[Outcome]:
    return [point.outcome for point in judged(*told)]


def test_nodes_that_see_each_other_share_the_tier() -> None:
    (point,) = judged(calls("n0", n0=HERE, n1=HERE), calls("n1", n0=HERE, n1=HERE))
    assert point.outcome is Outcome.WELL
    assert "n0, n1" in point.told


def test_nodes_that_see_only_themselves_have_a_store_each() -> None:
    found = judged(calls("n0", n0=HERE, n1=NEVER), calls("n1", n0=NEVER, n1=HERE))
    assert [point.outcome for point in found] == [Outcome.WRONG, Outcome.WRONG]
    assert "n0 never saw what n1 keeps there" in found[0].told
    assert "agent.filesystem" in found[0].remedy


def test_a_share_that_one_node_lost_is_told_of_that_node() -> None:
    found = judged(calls("n0", n0=HERE, n1=HERE), calls("n1", n0=OLD, n1=HERE))
    assert [point.about for point in found] == ["n1 reads n0 in the filesystem tier"]
    assert "no longer sees" in found[0].told


def test_what_one_node_alone_does_not_see_is_not_known() -> None:
    found = judged(calls("n0", n0=HERE, n1=NEVER))
    assert {point.outcome for point in found} == {Outcome.UNKNOWN}
    assert {point.about for point in found} == {"node n1", "n0 reads n1 in the filesystem tier"}


def test_a_node_that_sees_not_even_itself_is_wrong() -> None:
    assert Outcome.WRONG in outcomes(calls("n0", n0=NEVER, n1=HERE), calls("n1", n0=OLD, n1=HERE))
    assert outcomes(calls("n0", n0=Presence.NO_ANSWER, n1=HERE), calls("n1", n0=OLD, n1=HERE)) == [UNKNOWN, UNKNOWN]
    twin = judged(calls("n0", n0=Presence.TWIN), nodes=("n0",))
    assert (twin[0].outcome, "two agents" in twin[0].told) == (Outcome.WRONG, True)


def test_damage_between_two_nodes_is_wrong_whatever_else_holds() -> None:
    found = judged(calls("n0", n0=HERE, n1=Presence.OTHER_BYTES), calls("n1", n0=HERE, n1=HERE))
    assert [(point.outcome, "damaged" in point.told) for point in found] == [(Outcome.WRONG, True)]


@pytest.mark.parametrize("presence", [WAITING, Presence.NO_ANSWER])
def test_what_is_too_early_or_out_is_not_known(presence: Presence) -> None:
    assert outcomes(calls("n0", n0=HERE, n1=presence), calls("n1", n0=HERE, n1=HERE)) == [Outcome.UNKNOWN]


def test_an_agent_that_began_a_moment_ago_is_not_blamed() -> None:
    assert outcomes(calls("n0", n0=WAITING, n1=HERE), calls("n1", n0=HERE, n1=HERE)) == [Outcome.UNKNOWN]


def test_a_node_without_the_tier_is_told() -> None:
    found = judged(calls("n0", n0=HERE, n1=NEVER), calls("n1", "redis", n1=HERE, n0=HERE))
    assert Outcome.BEWARE in {point.outcome for point in found}


def test_a_node_that_is_silent_is_told_with_the_reason() -> None:
    found = judged(calls("n0", n0=HERE, n1=OLD), NodeCalls("n1", trouble="its last report is 40 s old"))
    assert "40 s old" in found[0].told
    assert {point.outcome for point in found} == {Outcome.UNKNOWN}


def test_a_single_node_serves_itself() -> None:
    (point,) = judged(calls("n0", n0=HERE), nodes=("n0",))
    assert (point.outcome, point.told) == (Outcome.WELL, "n0 reads what it put there")


def test_calls_are_read_from_the_state_of_an_agent() -> None:
    entry = {"node": "n0", "presence": "here", "told": "there", "age_s": 1.0}
    state: dict[str, Any] = {
        "tiers": [
            {"name": "filesystem", "roll_call": {"node": "n0", "nodes": [entry, {**entry, "node": "n1"}]}},
            {"name": "private", "roll_call": None},
            {"name": "older"},
        ]
    }
    seen = Seen(HERE, "there")
    assert calls_of_state(state) == NodeCalls("n0", {"filesystem": {"n0": seen, "n1": seen}})
    assert calls_of_state({"tiers": []}) is None
    assert presence_of("a word of another version") is Presence.NO_ANSWER
