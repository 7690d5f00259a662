"""The registry inside a router: in memory, and in a file that a restart of the router finds again."""

import logging
import threading
from collections.abc import Callable

from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.errors import RegistryError
from kveik.fleet.announcement import EngineAnnouncement, check_announcement
from kveik.fleet.lifecycle import Event
from kveik.fleet.member_file import MemberFile
from kveik.fleet.membership import DEFAULT_RETENTION, Member, Membership, Retention
from kveik.fleet.registry import Publication, SteadyTime, ViewListener
from kveik.records import Listener, StateRecord, ignore

TICK_S = 0.25
#: Renewals alone are written this often; what others can see is written before it is answered.
RENEWALS_SAVED_S = 2.0

logger = logging.getLogger("kveik.fleet")


class EmbeddedRegistry:
    """Implements :class:`~kveik.fleet.registry.Registry` for one router.

    A file that cannot be written is trouble, told once, and does not stop the fleet: it is tried
    again with every tick.
    """

    def __init__(
        self,
        file: MemberFile,
        *,
        retention: Retention = DEFAULT_RETENTION,
        listener: Listener = ignore,
        clock: Clock = SYSTEM_CLOCK,
        ticking: bool = True,
    ) -> None:
        """Take over ``file`` and what it knows. Without ``ticking``, :meth:`tick` is the caller's to call.

        Raises :class:`RegistryError` if the file cannot be read.
        """
        self._file = file
        self._time = SteadyTime(clock)
        self._lock = threading.Lock()
        self._listener = listener
        self._publication = Publication(retention, listener)
        self._stopped = threading.Event()
        self._saved_s = self._time.now_s()
        self._saved = file.load(retention, self._saved_s)
        self._publication.begin(self._saved, str(file.path))
        self.trouble = ""
        self._thread = threading.Thread(target=self._keep_ticking, name="fleet-registry", daemon=True)
        if ticking:
            self._thread.start()

    def __repr__(self) -> str:
        return f"EmbeddedRegistry({self._file.path}, {len(self.view.members)} engines, revision {self.view.revision})"

    @property
    def view(self) -> Membership:
        """All engines now."""
        return self._publication.view

    def members(self) -> tuple[Member, ...]:
        """The engines of the view, ordered by name."""
        return self._publication.members()

    def announce(self, announcement: EngineAnnouncement, *, listed: bool = False) -> Member:
        """Take an engine in, or renew it. Raises :class:`ConfigError` too, for what makes no sense."""
        check_announcement(announcement)
        after = self._step(lambda view, now_s: view.announce(announcement, now_s, listed=listed))
        return after.member(announcement.name)

    def renew(self, name: str) -> Member:
        """Take a heartbeat."""
        return self._step(lambda view, now_s: view.renew(name, now_s)).member(name)

    def withdraw(self, name: str, why: str) -> None:
        """Take an engine out."""
        self._step(lambda view, now_s: view.apply(name, Event.WITHDRAW, why, now_s))

    def change_state(self, name: str, event: Event, why: str) -> Member:
        """Drain, isolate, readmit or prove an engine."""
        return self._step(lambda view, now_s: view.apply(name, event, why, now_s)).member(name)

    def subscribe(self, listener: ViewListener) -> None:
        """Have ``listener`` called with the current view and each new one."""
        self._publication.subscribe(listener)

    def wait_change(self, revision: int, timeout_s: float) -> Membership:
        """Wait until the view's revision is above ``revision``; the view then, or after the time-out."""
        return self._publication.wait_change(revision, timeout_s)

    def tick(self) -> None:
        """Let the time pass that has passed."""
        self._step(Membership.tick)

    def close(self) -> None:
        """Stop ticking, write what is not written, and let go of the file."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()
        with self._lock:
            self._save(self._time.now_s())
        self._file.close()

    def _step(self, step: Callable[[Membership, float], Membership]) -> Membership:
        with self._lock:
            now_s = self._time.now_s()
            after = step(self.view, now_s)
            seen = after.revision != self.view.revision
            self._publication.publish(after)
            due = after is not self._saved and now_s - self._saved_s >= RENEWALS_SAVED_S
            if seen or due:
                self._save(now_s)
            return after

    def _save(self, now_s: float) -> None:
        self._saved_s = now_s
        try:
            self._file.save(self.view, now_s)
        except RegistryError as error:
            self._tell_trouble(str(error))
        else:
            self._saved = self.view
            self._tell_trouble("")

    def _tell_trouble(self, trouble: str) -> None:
        if bool(trouble) != bool(self.trouble):
            before, after = ("sound", "failing") if trouble else ("failing", "sound")
            self._listener(StateRecord("registry file", before, after, trouble or "it can be written again"))
        self.trouble = trouble

    def _keep_ticking(self) -> None:
        while not self._stopped.wait(TICK_S):
            try:
                self.tick()
            except Exception:  # supervision: without ticks no lease would ever end
                logger.exception("a tick of the registry failed; the next one follows")
