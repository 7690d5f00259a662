"""Engines and registries that tests of the fleet share."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from kveik.fleet.announcement import EngineAnnouncement
from kveik.router.fleet_api import FleetAdmin
from tests.pages import serving


def engine(number: int = 1, **fields: Any) -> EngineAnnouncement:
    """The announcement of engine ``number``, named ``e1`` and so on."""
    words = {"url": f"http://10.0.0.{number}:8000", "engine_id": f"e{number}", "models": ("qwen3-8b",), **fields}
    return EngineAnnouncement(**words)


@contextmanager
def served(admin: FleetAdmin, port: int = 0) -> Iterator[str]:
    """The fleet API on loopback without the rest of a router; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, answer = admin.handle(self.command, self.path, headers, body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 (the server's names)

        def log_message(self, format: str, *args: object) -> None:
            """Tests show what they need to."""

    with serving(Handler, port) as url:
        yield url
