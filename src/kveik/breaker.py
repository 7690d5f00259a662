"""A circuit breaker as a pure state machine: the time is an argument, nothing is locked.

States::

    closed --(failures in a row >= limit, or one time-out)--> open
    open   --(open_s passed)--> half-open: exactly one trial is let through
    half-open --(trial succeeded)--> closed
    half-open --(trial failed)--> open, with a doubled pause up to open_max_s

A trial whose outcome never comes (its thread hangs) counts as failed after ``open_s``.
"""

from dataclasses import dataclass, replace

CLOSED = "closed"
OPEN = "open"
HALF_OPEN = "half-open"


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """When a breaker opens and for how long. Times in seconds."""

    failures: int = 3
    open_s: float = 1.0
    open_max_s: float = 30.0


DEFAULT_POLICY = BreakerPolicy()


@dataclass(frozen=True, slots=True)
class Breaker:
    """The state of one breaker. Every transition returns a new value."""

    policy: BreakerPolicy = DEFAULT_POLICY
    state: str = CLOSED
    failures_in_a_row: int = 0
    pause_s: float = 0.0
    until_s: float = 0.0

    def permit(self, now_s: float) -> tuple["Breaker", bool]:
        """Whether a call may go through now, and the breaker after that decision."""
        if self.state == CLOSED:
            return self, True
        if now_s < self.until_s:
            return self, False
        trial = replace(self, state=HALF_OPEN, until_s=now_s + max(self.pause_s, self.policy.open_s))
        return trial, True

    def succeeded(self) -> "Breaker":
        """The breaker after a call that worked."""
        if self.state == CLOSED and self.failures_in_a_row == 0:
            return self
        return Breaker(self.policy)

    def failed(self, now_s: float, *, timed_out: bool = False) -> "Breaker":
        """The breaker after a call that failed; a time-out counts as the full number of failures.

        An open breaker stays as it is: late news of calls that began before it opened
        must not lengthen the pause.
        """
        if self.state == OPEN:
            return self
        count = self.failures_in_a_row + (self.policy.failures if timed_out else 1)
        if self.state == CLOSED and count < self.policy.failures:
            return replace(self, failures_in_a_row=count)
        pause = self.policy.open_s if self.state == CLOSED else min(2 * self.pause_s, self.policy.open_max_s)
        return replace(self, state=OPEN, failures_in_a_row=count, pause_s=pause, until_s=now_s + pause)
