"""Device memory of a node's engines, read once a minute at most and beside the watch: a tool may take seconds."""

import threading
from collections.abc import Callable

from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.engine.device_tools import DeviceUse, read_use
from kveik.watchdog.errand import Errand
from kveik.watchdog.leaks import VITALS_PERIOD_S


class DeviceMemory:
    """The last reading, for all watches of a node; nothing before the first, or without a tool."""

    def __init__(self, read: Callable[[], DeviceUse] = read_use, clock: Clock = SYSTEM_CLOCK) -> None:
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._reading: Errand[DeviceUse] = Errand("device-memory")
        self._due_s = clock.monotonic()
        self._use = DeviceUse()

    def __call__(self) -> DeviceUse:
        """What is known now; never waits. The first call begins the first reading."""
        with self._lock:
            now_s = self._clock.monotonic()
            self._use = self._reading.take() or self._use
            if not self._reading.away and now_s >= self._due_s:
                self._due_s = now_s + VITALS_PERIOD_S
                self._reading.begin(self._read, now_s)
            return self._use
