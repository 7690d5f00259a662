"""What a registry does, whatever keeps it; and what all registries share: publishing a view.

A registry may be asked from any thread. Calls that change something may block (on a file, on the
network), so a router makes them outside its event loop; :attr:`Registry.view` never blocks.
"""

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.fleet.announcement import EngineAnnouncement
from kveik.fleet.lifecycle import Event
from kveik.fleet.membership import Member, Membership, Retention, differences
from kveik.records import Listener, ignore

logger = logging.getLogger("kveik.fleet")

ViewListener = Callable[[Membership], None]


class Registry(Protocol):
    """Who is in the fleet, kept somewhere.

    All calls that change something raise :class:`~kveik.errors.RegistryError` where it cannot be
    kept, :class:`~kveik.errors.UnknownEngineError` and :class:`~kveik.errors.RefusedError`.
    """

    @property
    def view(self) -> Membership:
        """All engines as last known. A value that does not change; reading it never blocks."""
        ...

    @property
    def trouble(self) -> str:
        """What is wrong with the registry itself, for people; empty if nothing is."""
        ...

    def members(self) -> tuple[Member, ...]:
        """The engines of the view, ordered by name."""
        ...

    def announce(self, announcement: EngineAnnouncement, *, listed: bool = False) -> Member:
        """Take an engine in, or renew it; ``listed``: a static list names it."""
        ...

    def renew(self, name: str) -> Member:
        """Take a heartbeat."""
        ...

    def withdraw(self, name: str, why: str) -> None:
        """Take an engine out. New requests no longer reach it; those under way are nobody's to cut."""
        ...

    def change_state(self, name: str, event: Event, why: str) -> Member:
        """Drain, isolate, readmit or prove an engine, with the reason."""
        ...

    def subscribe(self, listener: ViewListener) -> None:
        """Have ``listener`` called with each new view, on a thread of the registry; it must not block."""
        ...

    def wait_change(self, revision: int, timeout_s: float) -> Membership:
        """Wait until the view's revision is above ``revision``; the view then, or after the time-out."""
        ...

    def close(self) -> None:
        """Stop, and keep what has to be kept."""
        ...


class SteadyTime:
    """Seconds since the epoch that never jump: the wall clock at its start, and steady from there."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._offset_s = clock.wall() - clock.monotonic()

    def now_s(self) -> float:
        """The time now."""
        return self._clock.monotonic() + self._offset_s


class Publication:
    """The current view, and who wants to know of new ones. Thread-safe."""

    def __init__(self, retention: Retention, listener: Listener = ignore) -> None:
        self._changed = threading.Condition()
        self._listener = listener
        self._subscribers: list[ViewListener] = []
        self.view = Membership(retention=retention)

    def begin(self, view: Membership, source: str) -> None:
        """Start from what was known before: nobody is told that engines came which were there."""
        if view.members:
            states = ", ".join(f"{member.name} {member.state.value}" for member in view.members.values())
            logger.info("known from %s: %s", source, states)
        self.view = view

    def publish(self, view: Membership) -> None:
        """Make ``view`` the current one, and tell of it if others can see a difference."""
        with self._changed:
            before, self.view = self.view, view
            if view.revision == before.revision:
                return
            self._changed.notify_all()
            # Told under the lock, so that nobody hears of an older view after a newer one.
            for record in differences(before, view):
                self._listener(record)
            for subscriber in self._subscribers:
                subscriber(view)

    def subscribe(self, listener: ViewListener) -> None:
        """Have ``listener`` called with the current view and each new one."""
        with self._changed:
            self._subscribers.append(listener)
            listener(self.view)

    def wait_change(self, revision: int, timeout_s: float) -> Membership:
        """Wait until the view's revision is above ``revision``; the view then, or after the time-out."""
        with self._changed:
            self._changed.wait_for(lambda: self.view.revision > revision, timeout_s)
            return self.view

    def members(self) -> tuple[Member, ...]:
        """The engines of the view, ordered by name."""
        return tuple(member for _, member in sorted(self.view.members.items()))
