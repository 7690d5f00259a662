"""One thread for everything that has to look now and then and never waits for what it looks at."""

import logging
import threading
from collections.abc import Sequence
from typing import Protocol

TICK_S = 0.25

_log = logging.getLogger(__name__)


class Ticks(Protocol):
    """What looks now and then: ``tick`` never waits for long, ``close`` ends it."""

    def tick(self) -> None:
        """Look, and do what is due."""
        ...

    def close(self) -> None:
        """End it; never waits for a stuck call."""
        ...


class Ticking:
    """Ticks all parts four times a second, on a thread of that name; without parts there is none."""

    def __init__(self, name: str, parts: Sequence[Ticks]) -> None:
        self._parts = parts
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Tick from now on."""
        if self._parts:
            self._thread.start()

    def close(self) -> None:
        """Stop, and end all parts."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        for part in self._parts:
            part.close()

    def _run(self) -> None:
        while not self._stop.wait(TICK_S):
            for part in self._parts:
                try:
                    part.tick()
                except Exception:  # noqa: BLE001
                    # Supervision: without further ticks a fenced tier would stay so for ever, and a node look gone.
                    _log.exception("unexpected error in %r", part)
