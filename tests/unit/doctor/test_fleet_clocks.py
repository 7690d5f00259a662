"""Clocks that agree, that are off, and that nobody tells."""

import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar

from kveik.doctor.check import Outcome
from kveik.doctor.fleet_clocks import check_clocks, judge_clocks
from kveik.doctor.fleet_described import DescribedEngine, DescribedFleet
from kveik.doctor.fleet_view import SeenEngine
from kveik.doctor.server_time import ClockOffset
from kveik.engine.client import ServedModel
from tests.unit.doctor.paper_fleet import context_of


def test_a_clock_within_a_second_is_well() -> None:
    (point,) = judge_clocks({"a": ClockOffset(-0.9, 0.2)})
    assert point.outcome is Outcome.WELL


def test_a_clock_that_is_some_seconds_off_is_told_and_half_a_minute_is_wrong() -> None:
    near, far, behind = judge_clocks(
        {"a": ClockOffset(4.0, 5.0), "b": ClockOffset(300.0, 301.0), "c": ClockOffset(-61.0, -60.0)}
    )
    assert (near.outcome, far.outcome, behind.outcome) == (Outcome.BEWARE, Outcome.WRONG, Outcome.WRONG)
    assert "300 s or more ahead of ours" in far.told
    assert "60 s or more behind ours" in behind.told
    assert "chrony" in far.remedy


def test_a_server_that_tells_no_time_is_left_out_unless_all_are_silent() -> None:
    assert [point.about for point in judge_clocks({"a": None, "b": ClockOffset(-0.5, 0.5)})] == ["b"]
    (point,) = judge_clocks({"a": None})
    assert point.outcome is Outcome.UNKNOWN


def test_the_check_takes_the_engines_clocks_from_what_was_read() -> None:
    described = DescribedEngine("a", "http://127.0.0.1:1")
    engine = SeenEngine(described, models=(ServedModel("m", 0),), clock=ClockOffset(99.0, 100.0))
    verdict = check_clocks(context_of([engine]))
    assert verdict.outcome is Outcome.WRONG
    assert verdict.evidence == ["the time that a tells"]


class LateClock(BaseHTTPRequestHandler):
    """Tells a time that is a minute old once, as a server does that has much to do, then the right one."""

    asked: ClassVar[int] = 0

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def date_time_string(self, timestamp: float | None = None) -> str:
        type(self).asked = self.asked + 1
        return super().date_time_string(time.time() - (60 if self.asked == 1 else 0))

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_server_that_told_an_old_time_once_is_asked_again() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), LateClock)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        described = DescribedFleet("paper", routers=(f"http://127.0.0.1:{server.server_port}",))
        verdict = check_clocks(context_of(described=described))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert verdict.outcome is Outcome.WELL
    assert LateClock.asked == 2
