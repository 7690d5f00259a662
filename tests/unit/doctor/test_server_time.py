"""A server's clock by the Date that it tells: whole seconds, so only a range is known."""

import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.doctor.server_time import ClockOffset, ask_time, offset_of


def date(at_s: float) -> str:
    return formatdate(at_s, usegmt=True)


def test_a_right_clock_may_be_right_within_the_second() -> None:
    offset = offset_of(date(1_000_000.0), 1_000_000.2, 1_000_000.3)
    assert offset is not None
    assert offset.least_s < 0 < offset.most_s
    assert offset.certain_s == 0


@pytest.mark.parametrize(("ahead_s", "least_s"), [(60.0, 58.0), (-60.0, 58.0)])
def test_a_wrong_clock_is_certainly_wrong(ahead_s: float, least_s: float) -> None:
    offset = offset_of(date(1_000_000.0 + ahead_s), 1_000_000.2, 1_000_000.4)
    assert offset is not None
    assert least_s <= offset.certain_s <= 60.0


def test_a_slow_answer_widens_the_range() -> None:
    offset = offset_of(date(1_000_005.0), 1_000_000.0, 1_000_010.0)
    assert offset == ClockOffset(-5.0, 6.0)


@pytest.mark.parametrize("text", ["", "yesterday", "Mon, 99 Foo"])
def test_what_is_no_date_tells_nothing(text: str) -> None:
    assert offset_of(text, 0.0, 0.0) is None


@given(
    st.floats(-100_000, 100_000),  # by how much the server is ahead
    st.floats(0, 30),  # on the way there, and back
    st.floats(0, 30),
    st.floats(1_000_000, 2_000_000_000),
)
def test_the_true_offset_is_within_the_range_however_slow_the_answer(
    ahead_s: float, there_s: float, back_s: float, sent_s: float
) -> None:
    offset = offset_of(date(int(sent_s + there_s + ahead_s)), sent_s, sent_s + there_s + back_s)
    assert offset is not None
    assert offset.least_s - 0.001 <= ahead_s <= offset.most_s + 0.001
    assert offset.certain_s <= abs(ahead_s) + 0.001


class Clock(BaseHTTPRequestHandler):
    """Answers with a clock that is ten minutes ahead."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()

    def date_time_string(self, timestamp: float | None = None) -> str:
        return date(time.time() + 600)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_server_is_asked_whatever_its_status() -> None:
    server = HTTPServer(("127.0.0.1", 0), Clock)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        offset = ask_time(f"http://127.0.0.1:{server.server_port}", 10.0)
        assert offset is not None
        assert 500 < offset.certain_s < 601
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert ask_time(f"127.0.0.1:{server.server_port}", 1.0) is None
