"""Posts events to an address, from a thread of its own: whoever tells an event never waits for the network."""

import http.client
import logging
import queue
import threading
import time
import urllib.parse

import msgspec

from kveik.errors import ConfigError
from kveik.telemetry.events import Event

#: Events that may wait; while the address does not answer, more are not sent. The file has them all.
QUEUE_MAX = 256
_TRIES = 3
_PAUSE_S = 1.0
_DEADLINE_S = 10.0

logger = logging.getLogger("kveik.events")


class Webhook:
    """An :data:`~kveik.telemetry.events.EventListener` that posts each event as JSON.

    Each is tried ``_TRIES`` times; one that does not get through is given up, with a line in the log that shows
    neither path nor query of the address, for these often hold a secret.
    """

    def __init__(self, url: str, *, pause_s: float = _PAUSE_S) -> None:
        """Raises :class:`ConfigError` for what is no address."""
        parts = urllib.parse.urlsplit(url)
        try:
            usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
        except ValueError:
            usable = False
        if not usable:
            raise ConfigError("fleet.webhook is no address, expected http://HOST:PORT/PATH or https://HOST/PATH")
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._pause_s = pause_s
        self._queue: queue.Queue[Event | None] = queue.Queue(QUEUE_MAX)
        self._ended = threading.Event()
        self._lost = 0
        self._thread = threading.Thread(target=self._work, name="event-webhook", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"Webhook({self._host})"

    @property
    def lost(self) -> int:
        """Events that were not sent."""
        return self._lost

    def __call__(self, event: Event) -> None:
        """Take one event; returns at once."""
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            self._give_up("too many wait already")

    def close(self, patience_s: float = 2.0) -> None:
        """Send what is left within ``patience_s``."""
        until_s = time.monotonic() + patience_s
        while not self._queue.empty() and time.monotonic() < until_s:
            self._ended.wait(0.02)
        self._ended.set()
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            pass  # the thread looks at `_ended` after the event that it has now
        self._thread.join(patience_s)

    def _work(self) -> None:
        while (event := self._queue.get()) is not None:
            self._send(event)
            if self._ended.is_set():
                return

    def _send(self, event: Event) -> None:
        trouble, body = "", msgspec.json.encode(event)
        for number in range(_TRIES):
            if number and self._ended.wait(self._pause_s * 2 ** (number - 1)):
                break
            trouble = self._post(body)
            if not trouble:
                return
        self._give_up(trouble)

    def _post(self, body: bytes) -> str:
        """Post once; what went wrong."""
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=_DEADLINE_S)
        try:
            connection.request("POST", self._path, body, {"Content-Type": "application/json"})
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException, ValueError) as error:
            return type(error).__name__  # its text may show the path
        finally:
            connection.close()
        return "" if status < 300 else f"HTTP {status}"

    def _give_up(self, why: str) -> None:
        self._lost += 1
        if self._lost & (self._lost - 1) == 0:  # the 1st, 2nd, 4th, 8th ...
            logger.warning("the webhook at %s did not get %d event(s) so far: %s", self._host, self._lost, why)
