"""Finds out whether a part does its work; an answer is waited for on a thread of its own, since it may take minutes."""

import http.client
import os
import threading
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

from kveik.engine.client import EngineClient, warm_up
from kveik.engine.launch import listens
from kveik.errors import EngineError
from kveik.supervise.part import Readiness

ASK_EVERY_S = 0.25
_HTTP_S = 5.0


def answers(readiness: Readiness) -> bool:
    """Ask once."""
    if readiness.kind == "inference":
        return _infers(readiness.target, readiness.model)
    if readiness.kind == "http":
        return _says_ok(readiness.target)
    return readiness.kind == "running" or listens(Path(readiness.target))


class ReadinessWatch:
    """Asks a starting part again and again, until it answers or nobody wants to know any more."""

    def __init__(self, readiness: Readiness) -> None:
        self.ready = threading.Event()
        self._readiness = readiness
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="kveik-readiness", daemon=True)

    def __repr__(self) -> str:
        return f"ReadinessWatch({self._readiness.kind} {self._readiness.target}, ready: {self.ready.is_set()})"

    def start(self) -> "ReadinessWatch":
        """Begin to ask."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ask no more; a question under way is not waited for."""
        self._stop.set()

    def _ask(self) -> None:
        self._stop.wait(self._readiness.for_s)
        while not self._stop.is_set():
            if answers(self._readiness):
                self.ready.set()
                return
            self._stop.wait(ASK_EVERY_S)


def _infers(url: str, model: str) -> bool:
    client = EngineClient(url, api_key=os.environ.get("KVEIK_ENGINE_API_KEY", ""))
    try:
        if client.health():
            warm_up(client, model)
            return True
    except EngineError:
        pass  # it is still loading, or busy
    return False


def _says_ok(url: str) -> bool:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=_HTTP_S)
    try:
        connection.request("GET", parts.path)
        with connection.getresponse() as response:
            return response.status == HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
