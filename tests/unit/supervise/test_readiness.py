"""Whether a part does its work, found out by asking it for some."""

import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from kveik.engine.process import free_port
from kveik.supervise.part import Readiness
from kveik.supervise.readiness import ReadinessWatch, answers
from tests.agents import wait_until
from tests.pages import serving

EVENT = b'data: {"choices": [{"token_ids": [5], "text": "x"}]}\n\ndata: [DONE]\n\n'


class Engine(BaseHTTPRequestHandler):
    """Healthy at once, able to compute when the class says so."""

    computes = True

    def do_GET(self) -> None:
        self.send_response(404 if self.path == "/none" else 200)
        self.end_headers()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200 if self.computes else 500)
        self.end_headers()
        self.wfile.write(EVENT)

    def log_message(self, format: str, *args: object) -> None:
        """Tests show what they need to."""


@pytest.fixture
def engine() -> Iterator[str]:
    with serving(Engine) as url:
        yield url


def test_an_engine_is_ready_when_it_computes_not_when_it_says_that_it_is_healthy(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answers(Readiness("inference", engine, "m"))
    monkeypatch.setattr(Engine, "computes", False)
    assert not answers(Readiness("inference", engine, "m"))


def test_nobody_who_listens_means_not_ready() -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    assert not answers(Readiness("inference", nobody, "m"))
    assert not answers(Readiness("http", f"{nobody}/health"))


def test_a_page_is_good_if_it_is_there(engine: str) -> None:
    assert answers(Readiness("http", f"{engine}/health"))
    assert not answers(Readiness("http", f"{engine}/none"))


def test_a_socket_is_good_if_somebody_listens(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    assert not answers(Readiness("socket", path))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        assert answers(Readiness("socket", path))


def test_some_parts_are_ready_as_soon_as_they_run() -> None:
    assert answers(Readiness("running"))


def test_a_watch_asks_until_the_part_answers(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    watch = ReadinessWatch(Readiness("socket", path)).start()
    assert not watch.ready.is_set()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        wait_until(watch.ready.is_set, "the socket was found")
    assert repr(watch) == f"ReadinessWatch(socket {path}, ready: True)"


def test_a_part_that_must_run_for_a_while_is_not_ready_before() -> None:
    watch = ReadinessWatch(Readiness("running", for_s=60)).start()
    assert not watch.ready.wait(0.05)
    watch.stop()
    at_once = ReadinessWatch(Readiness("running", for_s=0.01)).start()
    assert at_once.ready.wait(10)


def test_a_watch_that_is_stopped_asks_no_more(tmp_path: Path) -> None:
    watch = ReadinessWatch(Readiness("socket", str(tmp_path / "s"))).start()
    watch.stop()
    watch._thread.join(10)
    assert not watch._thread.is_alive()
    assert not watch.ready.is_set()
