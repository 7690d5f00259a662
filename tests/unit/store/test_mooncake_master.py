"""What the master tells over HTTP."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kveik.clock import FakeClock
from kveik.engine.process import free_port
from kveik.errors import ConfigError, StoreError
from kveik.store.mooncake_master import REFRESH_S, MasterPage, MasterSizes, MasterWatch, segments_on, sizes_in
from tests.agents import wait_until

METRICS = """\
# HELP master_key_count Total number of keys managed by the master
# TYPE master_key_count gauge
master_key_count 3
# TYPE master_allocated_bytes gauge
master_allocated_bytes 12288
segment_allocated_bytes{segment="127.0.0.1:12345"} 5
master_total_capacity_bytes 2.68435456e+08
"""
PAGES = {"/metrics": METRICS, "/get_all_segments": "127.0.0.1:1\n10.0.0.9:2\n", "/get_all_keys": "a\nb\nc\n"}


class Pages(BaseHTTPRequestHandler):
    """A web server with these pages."""

    def do_GET(self) -> None:
        text = PAGES.get(self.path)
        self.send_response(404 if text is None else 200)
        self.end_headers()
        self.wfile.write((text or "").encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_sizes_are_read_from_metrics() -> None:
    assert sizes_in(METRICS) == MasterSizes(blocks=3, bytes=12288, capacity_bytes=256 << 20)


def test_metrics_without_sizes_are_of_no_use_and_the_message_says_what_lacks() -> None:
    with pytest.raises(StoreError, match="do not tell master_allocated_bytes"):
        sizes_in("master_key_count 3\n")


def test_segments_of_this_machine_are_told_from_those_of_others() -> None:
    assert segments_on("10.0.0.1", "10.0.0.1:12345\n10.0.0.11:1\n10.0.0.1:2\n") == ["10.0.0.1:12345", "10.0.0.1:2"]
    assert segments_on("::1", "[::1]:5\n") == ["[::1]:5"]


@pytest.mark.parametrize("address", ["", "host", "host:", "host:http"])
def test_a_page_needs_an_address(address: str) -> None:
    with pytest.raises(ConfigError, match=r"mooncake\.master_http is"):
        MasterPage(address)


def test_lines_come_in_portions_and_all_of_them(address: str) -> None:
    portions = list(MasterPage(address).lines("/get_all_keys"))

    assert [line for lines in portions for line in lines] == ["a", "b", "c"]


def test_a_page_that_is_not_there_and_a_master_that_is_down_are_errors_in_words(address: str) -> None:
    with pytest.raises(StoreError, match="answers 404 to /nothing"):
        MasterPage(address).text("/nothing")
    with pytest.raises(StoreError, match="cannot be read"):
        MasterPage(f"127.0.0.1:{free_port()}").text("/metrics")


def test_whoever_asks_for_sizes_never_waits_and_has_them_soon(address: str) -> None:
    watch = MasterWatch(MasterPage(address), "127.0.0.1")

    assert watch.sizes is None
    assert watch.trouble
    wait_until(lambda: watch.sizes == MasterSizes(3, 12288, 256 << 20), "the sizes are there")
    assert watch.segments == ["127.0.0.1:1"]
    assert watch.trouble == ""


def test_the_master_is_asked_again_only_after_a_while_and_a_dead_one_has_no_sizes(address: str) -> None:
    clock = FakeClock()
    watch = MasterWatch(MasterPage(address), "127.0.0.1", clock)
    watch.look()
    assert watch.sizes is not None
    wait_until(lambda: threading.active_count() < 50 and "looking" not in repr(watch), "the look is over")

    dead = MasterWatch(MasterPage(f"127.0.0.1:{free_port()}"), "127.0.0.1", clock)
    dead.look()
    assert dead.sizes is None
    assert "cannot be read" in dead.trouble
    clock.advance(REFRESH_S)
    assert dead.sizes is None
