"""A sign of life that a process gives to who keeps it: the time of a file, changed from the loop that does its work.

Whether a process runs says little: its loop may stand still. Who starts it names the file in
:data:`VARIABLE`, and looks with :class:`PulseWatch` whether the file still changes.
"""

import contextlib
import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Self

from kveik.clock import SYSTEM_CLOCK, Clock

VARIABLE = "KVEIK_PULSE"
BEAT_S = 1.0
#: Who looks that seldom was stopped itself, and has seen nothing of the others meanwhile.
AWAY_S = 5.0


class Pulse:
    """Beats at most once in :data:`BEAT_S`; without a path it does nothing. For one thread."""

    def __init__(self, path: Path | None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._path = path
        self._clock = clock
        self._due_s = clock.monotonic()

    @classmethod
    def asked_for(cls, environ: MutableMapping[str, str] = os.environ) -> Self:
        """The pulse that the environment asks for; its variable is taken out, so that no child beats in its place."""
        path = environ.pop(VARIABLE, "")
        return cls(Path(path) if path else None)

    def beat(self) -> None:
        """Say: the loop is running. A file that cannot be written is no reason to stop."""
        now_s = self._clock.monotonic()
        if self._path is None or now_s < self._due_s:
            return
        self._due_s = now_s + BEAT_S
        with contextlib.suppress(OSError):
            self._path.touch(mode=0o600)


class PulseWatch:
    """How long a pulse has been still, as far as the watcher was there to see it.

    Only changes count, not the file's time itself: clocks may be set.
    """

    def __init__(self, path: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        self._path = path
        self._clock = clock
        self._changed_ns = self._time_ns()
        self._still_since_s = self._looked_s = clock.monotonic()

    def silent_s(self) -> float:
        """Seconds without a beat; look oftener than every :data:`AWAY_S`."""
        now_s = self._clock.monotonic()
        away, self._looked_s = now_s - self._looked_s > AWAY_S, now_s
        changed_ns = self._time_ns()
        if away or changed_ns != self._changed_ns:
            self._changed_ns, self._still_since_s = changed_ns, now_s
        return now_s - self._still_since_s

    def _time_ns(self) -> int:
        try:
            return self._path.stat().st_mtime_ns
        except OSError:
            return 0
