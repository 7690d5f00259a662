"""Engines are really asked what they make of the bodies: alike, with an edited template, and without the endpoint."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar

import pytest

from kveik.doctor.check import Context, Outcome, Verdict
from kveik.doctor.fleet_described import DescribedEngine, DescribedFleet
from kveik.doctor.fleet_rendering import check_rendering
from kveik.doctor.fleet_view import Fleet, FleetView, SeenEngine
from kveik.engine.client import ServedModel
from tests.model_folders import CHATML, make_model_folder
from tests.routers import SimProcess
from tests.unit.doctor.paper_fleet import PaperFleet


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[SimProcess]]:
    """Two engines with one template, and a third whose template says one word more."""
    folder = tmp_path_factory.mktemp("models")
    usual = make_model_folder(folder / "usual")
    edited = make_model_folder(folder / "edited", CHATML.replace("<|im_start|>", "<|im_start|>dear "))
    with (
        SimProcess(folder, tokenizer=usual) as one,
        SimProcess(folder, tokenizer=usual) as two,
        SimProcess(folder, tokenizer=edited) as three,
    ):
        yield [one, two, three]


def looked(*urls: str) -> Verdict:
    described = tuple(DescribedEngine(name, url) for name, url in zip("abc", urls, strict=False))
    return check_rendering(Context("python", {}, fleet=Fleet(DescribedFleet("flags", described))))


def test_engines_with_one_template_render_alike(engines: list[SimProcess]) -> None:
    verdict = looked(engines[0].url, engines[1].url)
    assert verdict.outcome is Outcome.WELL, verdict
    assert verdict.evidence == ["14 kinds of bodies at a, b"]


def test_the_engine_with_the_edited_template_is_named_of_three(engines: list[SimProcess]) -> None:
    verdict = looked(engines[2].url, engines[0].url, engines[1].url)
    (point,) = (point for point in verdict.points if point.outcome is Outcome.WRONG)
    assert point.about == "prompts of simulated at a"
    assert "chat: token " in point.told
    assert "prompt text" not in point.told  # no template has a part in it


class Poor(BaseHTTPRequestHandler):
    """Has completions and no more; counts words of messages as Anthropic's API does, partly as cached."""

    status: ClassVar[int] = 404

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/v1/completions":
            self._answer(200, {"usage": {"prompt_tokens": len(body["prompt"])}})
        elif self.path == "/v1/messages":
            self._answer(200, {"usage": {"input_tokens": 100, "cache_read_input_tokens": 23}})
        else:
            self._answer(self.status, {"error": "no such path"})

    def _answer(self, status: int, document: Any) -> None:
        raw = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def poor_engine(name: str, status: int = 404) -> Iterator[SeenEngine]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Poor,), {"status": status}))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        described = DescribedEngine(name, f"http://127.0.0.1:{server.server_port}")
        yield SeenEngine(described, models=(ServedModel("m", 4096),))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def compared(*engines: SeenEngine) -> Verdict:
    view = FleetView(engines, (), None)
    return check_rendering(Context("python", {}, fleet=PaperFleet(DescribedFleet("paper"), view)))


def test_what_an_engine_does_not_offer_is_left_out_and_the_rest_compared_by_numbers() -> None:
    with poor_engine("a") as one, poor_engine("b") as two:
        (point,) = compared(one, two).points
    assert (point.outcome, point.told) == (Outcome.WELL, "2 kinds are rendered alike")


def test_an_engine_that_fails_at_it_is_unknown() -> None:
    with poor_engine("a", status=500) as one, poor_engine("b") as two:
        (point,) = compared(one, two).points
    assert point.outcome is Outcome.UNKNOWN
    assert "12 kinds were not answered" in point.told
    assert "HTTP 500" in point.told
