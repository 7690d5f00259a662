import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest

from kveik.engine.process import free_port
from kveik.errors import ConfigError
from kveik.telemetry.events import Event
from kveik.telemetry.webhook import QUEUE_MAX, Webhook
from tests.agents import wait_until
from tests.pages import serving


def event(told: str) -> Event:
    return Event(at_s=1.0, kind="isolated", part="engine-1", told=told, node="n0")


@contextmanager
def receiver(statuses: list[int]) -> Iterator[tuple[str, list[tuple[str, dict[str, object]]]]]:
    """Answers with these statuses in turn, then 200; address and what came."""
    got: list[tuple[str, dict[str, object]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(statuses.pop(0) if statuses else 200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with serving(Handler) as url:
        yield url, got


def test_events_are_posted_as_json_in_order() -> None:
    with receiver([]) as (url, got):
        hook = Webhook(f"{url}/alerts?team=7")
        for told in ("one", "two"):
            hook(event(told))
        wait_until(lambda: len(got) == 2, "both events came")
        hook.close()
    assert [path for path, _ in got] == ["/alerts?team=7"] * 2
    assert got[0][1] == {"at_s": 1.0, "kind": "isolated", "part": "engine-1", "told": "one", "node": "n0"}
    assert hook.lost == 0


def test_a_refused_event_is_tried_again() -> None:
    with receiver([500, 503]) as (url, got):
        hook = Webhook(url, pause_s=0.01)
        hook(event("one"))
        wait_until(lambda: len(got) == 3, "it was tried three times")
        hook.close()
    assert hook.lost == 0


def test_an_event_that_does_not_get_through_is_given_up_and_the_address_stays_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hook = Webhook(f"http://127.0.0.1:{free_port()}/services/T0/s3cret?token=s3cret", pause_s=0.01)
    hook(event("one"))
    wait_until(lambda: hook.lost == 1, "the event was given up")
    hook.close()
    assert "did not get 1 event(s)" in caplog.text
    assert "s3cret" not in caplog.text + repr(hook)


def test_who_tells_an_event_never_waits_for_an_address_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hook = Webhook(f"http://127.0.0.1:{silent.getsockname()[1]}/")
        start_s = time.monotonic()
        for number in range(QUEUE_MAX + 50):
            hook(event(str(number)))
        assert hook.lost >= 49
        assert time.monotonic() - start_s < 10, "a deadline of the network was waited for"


def test_close_sends_what_is_left() -> None:
    with receiver([]) as (url, got):
        hook = Webhook(url)
        for number in range(20):
            hook(event(str(number)))
        hook.close(patience_s=20.0)
    assert len(got) == 20


@pytest.mark.parametrize("url", ["", "hooks.example", "ftp://x/y", "http://", "http://h:99999/"])
def test_what_is_no_address_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ConfigError, match=r"fleet\.webhook is no address"):
        Webhook(url)
