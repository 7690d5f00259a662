"""``kveik explain prefixes`` where there is little to ask; with a real router: tests/services/test_prefixes.py."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from kveik.cli.main import main
from kveik.engine.process import free_port
from kveik.router.break_tally import BreakPlace, ClientShare, PrefixesDocument


def place(kind: str, lost: int, requests: int = 5) -> BreakPlace:
    return BreakPlace(
        "[bold]m", kind, "system", f"{kind} changes", f"Move the {kind}.", requests, lost, 4000, 0.25, (1, 1), (7, 7),
        [ClientShare("team", requests, lost)], "r9", 1000.0,
    )  # fmt: skip


@contextmanager
def router(shown: object) -> Iterator[str]:
    """Something that answers like a router's page."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = msgspec.json.encode(shown)
            self.send_response(200 if self.path == "/fleet/prefixes" else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Not into the tests' output."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def shown(*places: BreakPlace) -> PrefixesDocument:
    return PrefixesDocument(
        True, 500.0, 1090.0, 10, 10, 4000, sum(one.lost_tokens for one in places), 3, 4, list(places)
    )


def test_the_greatest_losses_are_shown_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with router(shown(place("date", 900), place("id", 500), place("text", 100))) as url:
        assert main(["explain", "prefixes", "--router", url, "--top", "2"]) == 1
    out = capsys.readouterr().out
    assert "in the last 10 min 10 of 10 answered requests were looked at (100%)" in out
    assert "(last seen 90 s ago in request r9)" in out
    assert "1. Move the date." in out
    assert "2. Move the id." in out
    assert "text" not in out
    assert "[bold]m" in out.replace("\n", "")


def test_what_was_seen_once_is_no_finding(capsys: pytest.CaptureFixture[str]) -> None:
    with router(shown(place("date", 900, requests=1))) as url:
        assert main(["explain", "prefixes", "--router", url]) == 0
    assert "nothing that changes breaks prefixes" in capsys.readouterr().out


def test_several_routers_are_one_and_those_that_are_away_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    gone = f"http://127.0.0.1:{free_port()}"
    with router(shown(place("date", 900))) as one, router(shown(place("date", 50))) as other:
        assert main(["explain", "prefixes", "--router", one, "--router", other, "--router", gone, "--json"]) == 1
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["places"][0]["lost_tokens"] == 950
    assert len(document["routers_away"]) == 1
    assert gone in captured.err


def test_no_router_and_something_else_in_its_place_give_three(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "prefixes", "--router", f"http://127.0.0.1:{free_port()}"]) == 3
    with router({"on": 1}) as url:
        assert main(["explain", "prefixes", "--router", url]) == 3
    assert "in a way that is not understood here" in capsys.readouterr().err


def test_wrong_use_gives_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "prefixes", "--top", "0"]) == 2
    assert main(["explain", "prefixes", "--config", str(tmp_path / "none.toml")]) == 2
    assert "kveik explain prefixes: " in capsys.readouterr().err
