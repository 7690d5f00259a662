"""What other nodes' checks of their machines mean here. With two real nodes: tests/services/test_two_nodes.py."""

from kveik.doctor.check import Outcome
from kveik.doctor.nodes_check import judge_nodes
from kveik.fleet.report import ChecksReport, FaultReport
from kveik.fleet.status import NodeStatus

FAULT = FaultReport(
    check="memory", outcome="wrong", about="arena", told="64 GiB of 32 GiB", remedy="a smaller agent.arena_bytes"
)


def node(checks: ChecksReport | None, *, silent: bool = False) -> NodeStatus:
    return NodeStatus(node="n1", fleet="f", age_s=41.0 if silent else 1.0, silent=silent, own_checks=checks)


def test_a_node_whose_checks_found_nothing_is_well() -> None:
    (point,) = judge_nodes({"n1": node(ChecksReport(at_s=1.0, checks=8))})
    assert (point.outcome, point.about, point.told) == (Outcome.WELL, "machine of node n1", "8 checks")


def test_what_its_checks_found_is_told_as_they_told_it_with_node_and_check() -> None:
    strange = FaultReport(check="x", outcome="of a later version", about="y")
    first, second = judge_nodes({"n1": node(ChecksReport(at_s=1.0, checks=8, faults=(FAULT, strange)))})
    assert (first.outcome, first.about) == (Outcome.WRONG, "arena on node n1 (memory)")
    assert (first.told, first.remedy) == ("64 GiB of 32 GiB", "a smaller agent.arena_bytes")
    assert second.outcome is Outcome.UNKNOWN


def test_a_node_of_which_nothing_is_known_is_unknown_and_one_that_could_not_look_is_not_done() -> None:
    old = node(ChecksReport(at_s=1.0, checks=8), silent=True)
    failed = node(ChecksReport(at_s=1.0, trouble="ended with 2: there is no kveik.toml"))
    points = list(judge_nodes({"n1": None, "n2": node(None), "n3": old, "n4": failed}))
    assert [point.outcome for point in points] == [Outcome.UNKNOWN] * 3 + [Outcome.NOT_DONE]
    assert "no watchdog of it reports" in points[0].told
    assert "has not looked yet" in points[1].told
    assert "41 s old" in points[2].told
    assert "there is no kveik.toml" in points[3].told
    assert all("--machine" in point.remedy for point in points)
