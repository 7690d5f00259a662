"""Follows the fleet in etcd: reads all of it, which is little, waits for a change and reads again.

While etcd is away the last known fleet stands, ``trouble`` says so, and the thread tries again with
growing pauses. What people or the watchdog change meanwhile counts here at once, and is written as
soon as etcd answers. An etcd that came back without its data is given what this router knows.
"""

import contextlib
import logging
import math
import secrets
import threading
from dataclasses import dataclass, replace

from kveik.clock import Clock
from kveik.errors import RefusedError, RegistryError, UnknownEngineError
from kveik.fleet import etcd_records as records
from kveik.fleet.etcd_gateway import OPERATIONS_MAX, EtcdGateway, Write
from kveik.fleet.lifecycle import Event
from kveik.fleet.member_file import MemberFile
from kveik.fleet.membership import Membership, Retention, same_to_others
from kveik.fleet.registry import Publication, SteadyTime
from kveik.records import Listener, StateRecord

#: Without a change the fleet is read this often, for what a watch does not tell: that it died itself.
RESYNC_S = 2.0
PAUSE_S, PAUSE_MAX_S = 0.1, 2.0

logger = logging.getLogger("kveik.fleet")


@dataclass(frozen=True, slots=True)
class Change:
    """A change of an engine's state that etcd does not know yet."""

    name: str
    event: Event
    why: str


class EtcdFollower:
    """The current view of the fleet and the leases of its engines. Thread-safe."""

    def __init__(
        self,
        gateway: EtcdGateway,
        *,
        copy: MemberFile | None,
        retention: Retention,
        listener: Listener,
        clock: Clock,
    ) -> None:
        self.time = SteadyTime(clock)
        self.publication = Publication(retention, listener)
        self.trouble = ""
        self._gateway = gateway
        self._copy = copy
        self._retention = retention
        self._listener = listener
        self._reading = threading.Lock()  # one reading of etcd at a time, so that none is published late
        self._lock = threading.Lock()  # of the view and what is not written; never held while etcd is asked
        self._leases: dict[str, int] = {}
        self._revision = 0
        self.birth = b""
        self._grace_from_s = math.nan  # while etcd is away
        self._unreadable: tuple[str, ...] = ()
        self._unwritten: tuple[Change, ...] = ()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="fleet-etcd", daemon=True)

    def start(self) -> None:
        """Look at etcd once, and follow it from there. An etcd that is away is trouble and no error."""
        try:
            self.sync()
        except RegistryError as error:
            self._away(error)
            self._read_copy()
        self._thread.start()

    def _read_copy(self) -> None:
        if self._copy is None:
            return
        try:
            self.publication.begin(self._copy.load(self._retention, self.time.now_s()), str(self._copy.path))
        except RegistryError as error:
            logger.warning("%s; no engines are known until etcd answers", error)

    def stop(self) -> None:
        """Follow no longer."""
        self._stopped.set()
        self._gateway.close()
        self._thread.join()

    def lease(self, name: str) -> int:
        """The id of the etcd lease of an engine, as last read; 0 if it has none."""
        return self._leases.get(name, 0)

    def membership(self, recorded: records.Recorded, now_s: float) -> Membership:
        """What etcd says and what it does not know yet, as a membership that continues the view."""
        grace_from_s = now_s if math.isnan(self._grace_from_s) else self._grace_from_s
        revision = self.publication.view.revision
        result = recorded.membership(now_s, grace_from_s=grace_from_s, revision=revision, retention=self._retention)
        for change in self._unwritten:
            # Refused or unknown: another router was faster with something that stands against it.
            with contextlib.suppress(RefusedError, UnknownEngineError):
                result = result.apply(change.name, change.event, change.why, now_s)
        return result

    def change_here(self, change: Change) -> Membership:
        """Make a change that etcd is told later, without waiting for it.

        Raises :class:`RefusedError` and :class:`UnknownEngineError`.
        """
        with self._lock:
            after = self.publication.view.apply(change.name, change.event, change.why, self.time.now_s())
            self._unwritten = (*self._unwritten, change)
            self.publication.publish(after)
            return after

    def sync(self) -> None:
        """Read etcd and publish what it says. Raises :class:`RegistryError`."""
        with self._reading:
            snapshot = self._gateway.snapshot()
            recorded = records.read(snapshot)
            if not recorded.birth:
                self._begin()
                snapshot = self._gateway.snapshot()
                recorded = records.read(snapshot)
            self._note_unreadable(recorded.unreadable)
            with self._lock:
                now_s = self.time.now_s()
                if math.isnan(self._grace_from_s):
                    self._grace_from_s = now_s
                self.birth, self._leases, self._revision = recorded.birth, dict(recorded.leases), snapshot.revision
                after, included = self.membership(recorded, now_s), self._unwritten
                self._publish(after, snapshot.revision)
            if self._write_back(recorded, after, now_s):
                with self._lock:
                    self._unwritten = tuple(change for change in self._unwritten if change not in included)

    def _write_back(self, recorded: records.Recorded, after: Membership, now_s: float) -> bool:
        """Tell all what time, or this router while etcd was away, has changed.

        False where another router was faster: its change is read next, and then it is tried again.
        """
        due = records.writes(recorded, after, now_s)
        return all(self._gateway.commit(due[name], records.unchanged(recorded, [name])) for name in due)

    def _begin(self) -> None:
        """Name the data of an etcd that has none, and put back what it lost while this router ran."""
        known = self.publication.view if self.birth else Membership(retention=self._retention)
        now_s = self.time.now_s()
        pieces: list[list[Write]] = [[Write(records.BIRTH, secrets.token_hex(8).encode())]]
        for member in records.beginning(known, now_s):
            writes = [Write(f"{records.ENGINES}{member.name}", records.packed(member, now_s))]
            if member.lease_ends_s is not None:
                lease = self._gateway.grant(math.ceil(member.announcement.lease_s))
                writes.append(Write(f"{records.LEASES}{member.name}", b"", lease))
            if len(pieces[-1]) + len(writes) > OPERATIONS_MAX:
                pieces.append([])
            pieces[-1] += writes
        if known.members:
            logger.warning("%s had lost its data; %d engines are put back", self._gateway.address, len(known.members))
        for piece in pieces:
            # Where another router was faster, its word counts: then nothing of the piece is written.
            self._gateway.commit(piece, {write.key: 0 for write in piece})

    def _publish(self, after: Membership, etcd_revision: int) -> None:
        before = self.publication.view
        seen = not same_to_others(before, after)
        revision = max(before.revision + 1, etcd_revision) if seen else before.revision
        if self._thread.ident is None:
            self.publication.begin(replace(after, revision=revision), str(self._gateway.address))
        else:
            self.publication.publish(replace(after, revision=revision))
        if seen and self._copy is not None:
            try:
                self._copy.save(self.publication.view, self.time.now_s())
            except RegistryError as error:
                logger.warning("%s; only a router that starts while etcd is away needs it", error)

    def _note_unreadable(self, unreadable: tuple[str, ...]) -> None:
        if unreadable and unreadable != self._unreadable:
            logger.warning("%s: not understood and left alone: %s", self._gateway.address, ", ".join(unreadable))
        self._unreadable = unreadable

    def _away(self, error: RegistryError) -> None:
        self._grace_from_s = math.nan
        if not self.trouble:
            self._listener(StateRecord("registry", "following", "away", f"{error}; the last known fleet stands"))
        self.trouble = str(error)

    def _here(self) -> None:
        if self.trouble:
            self.trouble = ""
            self._listener(StateRecord("registry", "away", "following", "etcd answers again"))

    def _follow(self) -> None:
        pause_s = 0.0
        while not self._stopped.wait(pause_s):
            try:
                self.sync()
                self._here()
                pause_s = self._wait_event()
            except RegistryError as error:
                if not self._stopped.is_set():
                    self._away(error)
                pause_s = min(max(PAUSE_S, 2 * pause_s), PAUSE_MAX_S)
            except Exception:  # supervision: a router that no longer follows would never know
                logger.exception("following %s failed; it is tried again", self._gateway.address)
                pause_s = PAUSE_MAX_S

    def _wait_event(self) -> float:
        """Wait for a change; the pause before the next reading.

        A watch that breaks says little: the member of etcd that it was at may have ended, and the
        next reading, at another one, tells whether etcd is away.
        """
        try:
            self._gateway.wait_event(self._revision, RESYNC_S)
        except RegistryError:
            return PAUSE_S
        return 0.0
