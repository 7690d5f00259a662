"""The status page by itself: reports taken, samples at their time, a document that is JSON."""

import json
from typing import Any

import msgspec
import pytest

from kveik.clock import FakeClock
from kveik.config import RouterSettings
from kveik.fleet.membership import Membership
from kveik.fleet.report import EngineReport, NodeReport
from kveik.fleet.status import FleetStatus
from kveik.router.engine_set import EngineSet
from kveik.router.gate import Gate
from kveik.router.history import ROWS_MAX, SAMPLE_S
from kveik.router.node_reports import KEPT_S, NODES_MAX
from kveik.router.records import RequestRecord
from kveik.router.status_page import StatusPage
from tests.fleet import engine


class Registered:
    """A registry's view and trouble."""

    def __init__(self) -> None:
        self.view = Membership()
        self.trouble = ""


class Routing:
    """What the page reads of a router."""

    def __init__(self, view: Membership) -> None:
        settings = RouterSettings()
        self.engines = EngineSet(settings, lambda _: None)
        self.engines.apply(view)
        self.gate = Gate(settings, None, 0.0)
        self.draining = False
        self.under_way = 3


class Rig:
    """A page over engines e1 and e2, with a clock of its own."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.registry = Registered()
        self.registry.view = Membership().announce(engine(1), 900.0).announce(engine(2), 950.0)
        self.page = StatusPage(self.registry, "cache-aware", self.clock)
        self.page.router = self.router = Routing(self.registry.view)

    def read(self, query: bytes = b"") -> FleetStatus:
        status, body = self.page.document(query)
        assert status == 200
        return msgspec.json.decode(body, type=FleetStatus)

    def report(self, node: str = "n0", **fields: Any) -> tuple[int, dict[str, Any]]:
        report = NodeReport(node=node, fleet="demo", at_s=1.0, **fields)
        status, body = self.page.take_report(b"PUT", node, msgspec.json.encode(report))
        return status, json.loads(body)

    def later(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.page.tick()


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_the_document_is_one_value_that_its_readers_share(rig: Rig) -> None:
    shown = rig.read()
    assert [shown.id for shown in shown.engines] == ["e1", "e2"]
    assert (shown.router.policy, shown.router.under_way, shown.router.started_s) == ("cache-aware", 3, 1000.0)
    assert shown == msgspec.json.decode(msgspec.json.encode(rig.page.status()), type=FleetStatus)


def test_states_have_the_registry_s_time_and_those_of_the_router_its_own(rig: Rig) -> None:
    rig.later(SAMPLE_S)
    second = rig.router.engines.by_name["e2"]
    second.breaker = second.breaker.failed(0.0, timed_out=True)
    rig.later(SAMPLE_S)
    shown = rig.read()
    assert [(shown.state, shown.since_s) for shown in shown.engines] == [("announced", 900.0), ("out", 1006.0)]
    assert shown.events[-1].text == "engine e2 is out, was announced: announced itself"


def test_a_report_is_shown_until_it_means_nothing_any_more(rig: Rig) -> None:
    assert rig.report(engines=(EngineReport(engine_id="e1", condition="busy"),)) == (200, {"taken": True})
    rig.later(4.0)
    shown = rig.read()
    assert shown.engines[0].report is not None
    assert (shown.engines[0].report.condition, shown.engines[0].report_age_s) == ("busy", 4.0)
    rig.later(KEPT_S)
    assert rig.read().nodes == ()


def test_a_name_in_the_path_may_be_quoted(rig: Rig) -> None:
    body = msgspec.json.encode(NodeReport(node="rack:1", fleet="f", at_s=1.0))
    assert rig.page.take_report(b"PUT", "rack%3A1", body)[0] == 200


def test_what_is_no_report_is_refused_in_words(rig: Rig) -> None:
    status, body = rig.page.take_report(b"PUT", "n0", b"{}")
    assert status == 400
    assert "missing required field `node`" in json.loads(body)["error"]["message"]
    status, body = rig.page.take_report(b"GET", "n0", b"")
    assert (status, json.loads(body)["error"]["message"]) == (405, "GET is not possible here, expected PUT")


def test_one_node_too_many_is_told_so(rig: Rig) -> None:
    for number in range(NODES_MAX):
        assert rig.report(f"n{number}")[0] == 200
    status, answer = rig.report("more")
    assert (status, answer["error"]["code"]) == (409, "refused")


def test_samples_come_with_ticks_and_requests_are_counted_on_the_way(rig: Rig) -> None:
    rig.page.listener(RequestRecord("i", "POST", "/v1/completions", engine="e1", completion_tokens=30))
    rig.later(1.0)
    assert rig.read().history.rows == ()
    assert rig.read().engines[0].measured.requests == 1
    rig.later(SAMPLE_S)
    (row,) = rig.read().history.rows
    assert json.loads(bytes(row))["in_flight"] == {"e1": 0, "e2": 0}


def test_the_page_of_a_router_that_is_not_there_yet_takes_no_samples() -> None:
    page = StatusPage(Registered(), "cache-aware", FakeClock())
    page.tick()


def test_whoever_knows_a_row_gets_those_after_it(rig: Rig) -> None:
    for _ in range(5):
        rig.later(SAMPLE_S)
    assert len(rig.read(b"since=3").history.rows) == 2
    assert len(rig.read(b"since=3&since=5").history.rows) == 0
    assert len(rig.read(b"other=3").history.rows) == 5
    assert len(rig.read(b"history=no").history.rows) == 0


@pytest.mark.parametrize("since", ["-1", "x", "1.5", "", "9" * 20, "%C2%B2"])
def test_a_row_that_is_no_number_is_refused(rig: Rig, since: str) -> None:
    status, body = rig.page.document(f"since={since}".encode())
    if not since:  # the same as not asked
        assert status == 200
        return
    assert (status, json.loads(body)["error"]["param"]) == (400, "since")


def test_the_document_stays_small_however_long_the_router_runs(rig: Rig) -> None:
    for _ in range(ROWS_MAX + 30):
        rig.later(SAMPLE_S)
    _, body = rig.page.document(b"")
    assert len(body) < 100_000
    assert len(rig.page.document(b"since=%d" % (ROWS_MAX + 29))[1]) < 4_000
