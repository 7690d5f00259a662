"""Files that are written beside the loop: a slow disk must not hold up requests.

Listeners collect in memory on the loop; :class:`BackgroundWriter` takes what they have at each
tick and lets one thread write it. A sink that is still writing is left alone until it is done.
"""

import logging
from collections import deque
from collections.abc import Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol

logger = logging.getLogger("kveik.router")


class Sink(Protocol):
    """Something that collects on the loop and is written on the thread."""

    name: str

    def take(self) -> Any:
        """On the loop: what is to be written, which the sink forgets; None if there is nothing."""
        ...

    def write(self, batch: Any) -> None:
        """On the thread: write it. Raises :class:`OSError` if that is not possible."""
        ...

    def not_written(self, batch: Any) -> None:
        """On the loop: ``batch`` could not be written; keep it for the next time, or count it as lost."""
        ...


class BackgroundWriter:
    """One thread for a few sinks. All methods belong to the loop's thread.

    The thread is a daemon: a disk that hangs cannot keep the router from ending.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks
        self._jobs: SimpleQueue[tuple[Sink, Any] | None] = SimpleQueue()
        self._done: deque[tuple[Sink, Any, Exception | None]] = deque()
        self._busy: set[str] = set()
        self._failing: set[str] = set()
        self._thread = Thread(target=self._write_all, name="kveik-telemetry", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"BackgroundWriter(busy={sorted(self._busy)}, failing={sorted(self._failing)})"

    def tick(self) -> None:
        """Settle what has been written, and hand over what has come together since."""
        self._settle()
        for sink in self._sinks:
            if sink.name not in self._busy:
                self._hand_over(sink)

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what is left; a disk that does not answer in time is not waited for."""
        self._settle()
        for sink in self._sinks:
            self._hand_over(sink)
        self._jobs.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning("telemetry was not written within %g s; the rest is lost", timeout_s)
        self._settle()

    def _hand_over(self, sink: Sink) -> None:
        batch = sink.take()
        if batch is not None:
            self._busy.add(sink.name)
            self._jobs.put((sink, batch))

    def _settle(self) -> None:
        while self._done:
            sink, batch, error = self._done.popleft()
            self._busy.discard(sink.name)
            if error is None:
                self._failing.discard(sink.name)
                continue
            if not isinstance(error, OSError):
                raise error
            sink.not_written(batch)
            if sink.name not in self._failing:  # told once, until it works again
                self._failing.add(sink.name)
                logger.warning("cannot write the %s: %s", sink.name, error)

    def _write_all(self) -> None:
        while (job := self._jobs.get()) is not None:
            sink, batch = job
            error = None
            try:
                sink.write(batch)
            except Exception as raised:  # noqa: BLE001 (goes to the loop's thread, which raises what is no OSError)
                error = raised
            self._done.append((sink, batch, error))
