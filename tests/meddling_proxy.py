"""A proxy that changes what it passes on, as proxies do: between a client and an engine."""

import http.client
import json
import threading
import time
import urllib.parse
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

Body = dict[str, Any]


class MeddlingProxy:
    """Passes requests on to ``engine``. ``change`` may change the bodies of completions; ``hidden`` paths are 404.

    ``clock_s``: how far its clock is ahead.
    """

    def __init__(
        self,
        engine: str,
        change: Callable[[Body], Body] = dict,
        hidden: tuple[str, ...] = ("/metrics", "/fleet"),
        clock_s: float = 0.0,
    ) -> None:
        address = urllib.parse.urlsplit(engine)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._pass_on(None)

            def do_POST(self) -> None:
                self._pass_on(self.rfile.read(int(self.headers["content-length"])))

            def _pass_on(self, body: bytes | None) -> None:
                if self.path in hidden:
                    self.send_error(404)
                    return
                if body and self.path == "/v1/completions":
                    body = json.dumps(change(json.loads(body))).encode()
                connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
                connection.request(self.command, self.path, body, {"content-type": "application/json"})
                answer = connection.getresponse()
                self.send_response(answer.status)
                self.send_header("content-type", answer.getheader("content-type", ""))
                self.end_headers()  # HTTP 1.0: the end of the connection ends the body
                while piece := answer.read1(4096):
                    self.wfile.write(piece)
                connection.close()

            def date_time_string(self, timestamp: float | None = None) -> str:
                return super().date_time_string(time.time() + clock_s)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


def without_salt(body: Body) -> Body:
    """What a gateway does that only passes on fields that it knows."""
    return {name: value for name, value in body.items() if name != "cache_salt"}


def shortened(body: Body) -> Body:
    """A limit on answers."""
    return {**body, "max_tokens": min(2, body["max_tokens"])}


def with_instructions(body: Body) -> Body:
    """A system prompt before each prompt."""
    return {**body, "prompt": [1, 2, 3, *body["prompt"]]}


def as_slow_as_ever(body: Body) -> Body:
    """Whatever a hit saves of a long prompt is lost on the way."""
    if len(body["prompt"]) > 100:
        time.sleep(3.0)
    return body
