"""The last report of each node, as long as it means something."""

import pytest

from kveik.errors import RefusedError
from kveik.fleet.report import NodeReport
from kveik.router.node_reports import KEPT_S, NODES_MAX, SILENT_AFTER_S, NodeReports


def report(node: str, at_s: float = 1.0) -> NodeReport:
    return NodeReport(node=node, fleet="demo", at_s=at_s)


def test_a_node_is_known_by_its_last_report_and_its_age() -> None:
    reports = NodeReports()
    reports.put(report("n0", 1.0), now_s=100.0)
    reports.put(report("n0", 3.0), now_s=102.0)
    (heard,) = reports.heard(105.0)
    assert (heard.report.at_s, heard.age_s, heard.silent) == (3.0, 3.0, False)
    assert repr(reports) == "NodeReports(n0)"


def test_nodes_come_in_order_of_their_names() -> None:
    reports = NodeReports()
    for node in ("n2", "n0", "n1"):
        reports.put(report(node), now_s=0.0)
    assert [heard.report.node for heard in reports.heard(0.0)] == ["n0", "n1", "n2"]


def test_a_node_that_says_nothing_is_silent_and_then_forgotten() -> None:
    reports = NodeReports()
    reports.put(report("n0"), now_s=0.0)
    assert [heard.silent for heard in reports.heard(SILENT_AFTER_S + 0.1)] == [True]
    assert list(reports.heard(KEPT_S + 0.1)) == []
    assert repr(reports) == "NodeReports(none)"


def test_one_node_too_many_is_refused_while_all_others_are_there() -> None:
    reports = NodeReports()
    for number in range(NODES_MAX):
        reports.put(report(f"n{number}"), now_s=0.0)
    with pytest.raises(RefusedError, match="64 nodes report to this router already"):
        reports.put(report("new"), now_s=1.0)
    reports.put(report("n0"), now_s=1.0)  # one that is known may always report


def test_one_node_too_many_takes_the_place_of_the_one_that_is_silent_longest() -> None:
    reports = NodeReports()
    for number in range(NODES_MAX):
        reports.put(report(f"n{number}"), now_s=float(number == 0))
    reports.put(report("n1"), now_s=0.5)
    reports.put(report("new"), now_s=SILENT_AFTER_S + 0.2)
    names = {heard.report.node for heard in reports.heard(SILENT_AFTER_S + 0.2)}
    assert len(names) == NODES_MAX
    assert {"new", "n0", "n1"} <= names
