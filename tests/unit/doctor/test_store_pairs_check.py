"""The check ``pairs`` on reports of nodes and on this node's own agent."""

from collections.abc import Mapping
from typing import Any

import pytest

from kveik.doctor.check import Outcome
from kveik.doctor.fleet_described import DescribedFleet
from kveik.doctor.fleet_view import Fleet, SeenAgent
from kveik.doctor.store_pairs import NodeCalls
from kveik.doctor.store_pairs_check import calls_of_nodes, check_pairs, joined
from kveik.fleet.report import SightReport, TierReport
from kveik.fleet.status import NodeStatus
from tests.unit.doctor.paper_fleet import context_of


def state(node: str, **sees: str) -> dict[str, Any]:
    entries = [{"node": other, "presence": presence, "told": presence} for other, presence in sees.items()]
    return {"tiers": [{"name": "redis", "roll_call": {"node": node, "nodes": entries}}]}


def reported(node: str, sees: Mapping[str, str], *, silent: bool = False) -> NodeStatus:
    sights = tuple(SightReport(node=other, presence=presence) for other, presence in sees.items())
    return NodeStatus(
        node=node, fleet="f", age_s=40.0, silent=silent, tiers=(TierReport(name="redis", state="on", sights=sights),)
    )


def test_reports_become_calls_and_silent_nodes_are_named() -> None:
    calls = calls_of_nodes(
        [reported("n0", {"n0": "here"}), reported("n1", {"n1": "here"}, silent=True), reported("n2", {})]
    )
    assert [call.node for call in calls] == ["n0", "n1"]
    assert "40 s old" in calls[1].trouble


def test_a_node_speaks_for_itself_before_any_report_of_it() -> None:
    own, old, other = NodeCalls("n0"), NodeCalls("n0", trouble="old"), NodeCalls("n1")
    assert joined(own, [old, other, NodeCalls("n1", trouble="again")]) == [own, other]
    assert joined(None, [old]) == [old]


@pytest.mark.parametrize(
    ("mine", "theirs", "outcome"),
    [
        ({"n0": "here", "n1": "here"}, {"n0": "here", "n1": "here"}, Outcome.WELL),
        ({"n0": "here", "n1": "never"}, {"n0": "never", "n1": "here"}, Outcome.WRONG),
    ],
)
def test_this_nodes_agent_and_the_routers_reports_are_judged_together(
    mine: dict[str, str], theirs: dict[str, str], outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fleet, "nodes_at", lambda *_: (reported("n1", theirs),))
    agent = SeenAgent("socket", state("n0", **mine))
    verdict = check_pairs(context_of(agent=agent, described=DescribedFleet("paper", routers=("http://127.0.0.1:1",))))
    assert verdict.outcome is outcome
    assert list(verdict.evidence) == ["what the agent of n0 saw in redis", "what the agent of n1 saw in redis"]


def test_a_router_that_does_not_answer_leaves_the_rest_to_be_told() -> None:
    described = DescribedFleet("paper", routers=("http://127.0.0.1:9",))
    verdict = check_pairs(context_of(agent=SeenAgent("socket", state("n0", n0="here")), described=described))
    assert verdict.outcome is Outcome.WELL


def test_without_any_agent_or_with_the_call_off_nothing_is_known() -> None:
    off = SeenAgent("socket", {"tiers": [{"name": "redis", "shared": True, "roll_call": None}]})
    for agent in (None, SeenAgent("socket", trouble="nobody"), off):
        assert check_pairs(context_of(agent=agent)).outcome is Outcome.UNKNOWN


def test_a_node_without_a_shared_tier_has_nobody_to_see() -> None:
    assert check_pairs(context_of(agent=SeenAgent("socket", {"tiers": []}))).outcome is Outcome.WELL
