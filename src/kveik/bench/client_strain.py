"""Whether this client kept up: how late its own threads woke, how busy it was, and whether the clock was moved."""

import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from kveik.bench.intervals import quantile

_TICK_S = 0.02


@dataclass(frozen=True, slots=True)
class Strain:
    """What was seen of the client itself. ``late_s``: nine in ten of its wake-ups were less late than that.

    ``busy``: processor seconds of this process a second. ``clock_moved_s``: how far the wall clock left the steady one.
    """

    late_s: float = 0.0
    busy: float = 0.0
    clock_moved_s: float = 0.0


class StrainMeter:
    """Measures the strain on this process while the block lasts."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._late_s: list[float] = []
        self._thread = threading.Thread(target=self._tick, name="strain", daemon=True)

    def __enter__(self) -> Self:
        self._began = (time.monotonic(), time.time(), time.process_time())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    @property
    def strain(self) -> Strain:
        """What was seen so far."""
        steady_s, wall_s, busy_s = (
            now - began
            for now, began in zip((time.monotonic(), time.time(), time.process_time()), self._began, strict=True)
        )
        late_s = quantile(list(self._late_s) or [0.0], 0.9)
        return Strain(late_s, busy_s / max(steady_s, 1e-9), wall_s - steady_s)

    def _tick(self) -> None:
        while not self._over.is_set():
            due_s = time.monotonic() + _TICK_S
            self._over.wait(_TICK_S)
            self._late_s.append(max(0.0, time.monotonic() - due_s))
