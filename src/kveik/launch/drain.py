"""Take an engine out of the pool without a lost request, and let it in again."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from kveik.clock import SYSTEM_CLOCK, Clock, Deadline
from kveik.errors import FleetError, UnknownEngineError
from kveik.launch.pool import PooledEngine

POLL_S = 0.2

#: Waits so many seconds; True if somebody wants us to stop waiting.
Pause = Callable[[float], bool]


class Pooling(Protocol):
    """What draining needs of the routers; see :class:`kveik.launch.pool.Routers`."""

    def look(self) -> Mapping[str, PooledEngine]:
        """All engines by name."""

    def hold(self, name: str, action: str, reason: str) -> None:
        """``drain``, ``isolate`` or ``readmit`` an engine."""


@dataclass(frozen=True, slots=True)
class Drained:
    """How far it came: ``left`` requests are still under way; ``stopped`` if somebody did not want to wait longer."""

    left: int
    seconds: float
    stopped: bool = False


def begin_drain(pool: Pooling, name: str, reason: str) -> None:
    """No new requests for this engine. One that is isolated gets none already, and stays so.

    Raises :class:`UnknownEngineError`, with the names of those that are known, and :class:`FleetError`.
    """
    engines = pool.look()
    if name not in engines:
        known = ", ".join(sorted(engines)) or "none"
        raise UnknownEngineError(f"no engine {name!r} in the fleet; known are {known}")
    pool.hold(name, "drain", reason)


def wait_drained(
    pool: Pooling,
    name: str,
    limit_s: float,
    *,
    pause: Pause,
    told: Callable[[int], None] = lambda _: None,
    clock: Clock = SYSTEM_CLOCK,
) -> Drained:
    """Wait until nothing is under way at an engine that gets nothing new, or until the limit.

    ``told`` gets the number of requests that are left, each time that it is another. A router that does not answer
    may still send requests, so it is asked again; raises :class:`FleetError` if it never did within the limit.
    """
    deadline, began_s = Deadline.after(limit_s, clock), clock.monotonic()
    last = -1
    while True:
        trouble = None
        try:
            engine = pool.look().get(name)
            left = 0 if engine is None else engine.in_flight
            settled = engine is None or engine.out
        except FleetError as error:
            trouble, settled, left = error, False, max(last, 0)
        if trouble is None and left != last:
            told(left)
            last = left
        seconds = clock.monotonic() - began_s
        if settled and not left:
            return Drained(0, seconds)
        if deadline.passed:
            if trouble is not None and last < 0:
                raise trouble
            return Drained(left, seconds)
        if pause(min(POLL_S, deadline.remaining_s)):
            return Drained(left, clock.monotonic() - began_s, stopped=True)


def readmit(pool: Pooling, name: str, reason: str) -> None:
    """End the hold. One that is not on hold, or that has yet to announce itself, needs no readmission.

    Raises :class:`FleetError`.
    """
    engine = pool.look().get(name)
    if engine is not None and engine.state in ("draining", "isolated"):
        pool.hold(name, "readmit", reason)


def wait_ready(
    pool: Pooling, name: str, limit_s: float, *, pause: Pause, clock: Clock = SYSTEM_CLOCK
) -> tuple[bool, str]:
    """Wait until all routers send this engine requests: whether they do, and if not what it is and why."""
    deadline = Deadline.after(limit_s, clock)
    while True:
        try:
            engine = pool.look().get(name)
            if engine is not None and engine.takes:
                return True, ""
            why = _in_words(name, engine)
        except FleetError as error:
            why = str(error)
        if deadline.passed or pause(min(POLL_S, deadline.remaining_s)):
            return False, why


def _in_words(name: str, engine: PooledEngine | None) -> str:
    if engine is None:
        return f"{name} is not announced at the router"
    state = "out after failures" if engine.state == "ready" else engine.state
    return f"{name} is {state}{f': {engine.why}' if engine.why else ''}"
