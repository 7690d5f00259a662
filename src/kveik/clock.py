"""Time as a value: decisions get the time passed in, and tests pass in their own."""

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def monotonic(self) -> float:
        """Seconds that never run backwards; the origin means nothing."""
        ...

    def wall(self) -> float:
        """Seconds since the Unix epoch, comparable between machines."""
        ...


class SystemClock:
    """The machine's clocks: :func:`time.monotonic` and :func:`time.time` themselves, which hot paths ask often."""

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)


class FakeClock:
    """A clock that moves only when told to; starts at ``start_s`` on both scales."""

    def __init__(self, start_s: float = 1_000.0) -> None:
        self._now_s = start_s

    def monotonic(self) -> float:
        """The fake time in seconds."""
        return self._now_s

    def wall(self) -> float:
        """The fake time in seconds."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        self._now_s += seconds


SYSTEM_CLOCK = SystemClock()


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in monotonic time after which nobody waits any more."""

    at_s: float
    clock: Clock = SYSTEM_CLOCK

    @classmethod
    def after(cls, seconds: float, clock: Clock = SYSTEM_CLOCK) -> "Deadline":
        """The deadline ``seconds`` from now."""
        return cls(clock.monotonic() + seconds, clock)

    @property
    def remaining_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at_s - self.clock.monotonic())

    @property
    def passed(self) -> bool:
        """Whether the deadline is over."""
        return self.clock.monotonic() >= self.at_s
