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

    ``clock_s``: how far its clock is ahead. ``least_s``: what is longer than ``LONG_BYTES`` is answered so late at the
    earliest, and no sooner than the last one of its length: whatever a hit saves is lost on the way.
    """

    LONG_BYTES = 1000

    def __init__(
        self,
        engine: str,
        change: Callable[[Body], Body] = dict,
        hidden: tuple[str, ...] = ("/metrics", "/fleet"),
        clock_s: float = 0.0,
        least_s: float = 0.0,
    ) -> None:
        took_s: dict[int, float] = {}
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
                start_s = time.monotonic()
                connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
                connection.request(self.command, self.path, body, {"content-type": "application/json"})
                answer = connection.getresponse()
                piece = answer.read1(4096)
                if least_s and body and len(body) > MeddlingProxy.LONG_BYTES:
                    late_s = max(least_s, took_s.get(len(body), 0.0))
                    time.sleep(max(0.0, start_s + late_s - time.monotonic()))
                    took_s[len(body)] = time.monotonic() - start_s
                self.send_response(answer.status)
                self.send_header("content-type", answer.getheader("content-type", ""))
                self.end_headers()  # HTTP 1.0: the end of the connection ends the body
                while piece:
                    self.wfile.write(piece)
                    piece = answer.read1(4096)
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
