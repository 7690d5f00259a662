"""The registry in etcd, which several routers share."""

import contextlib
import math
from collections.abc import Callable

from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.errors import RegistryError
from kveik.fleet import etcd_records as records
from kveik.fleet.announcement import EngineAnnouncement, check_announcement
from kveik.fleet.etcd_follower import Change, EtcdFollower
from kveik.fleet.etcd_gateway import EtcdGateway, Write
from kveik.fleet.lifecycle import Event, State
from kveik.fleet.member_file import MemberFile
from kveik.fleet.membership import DEFAULT_RETENTION, Member, Membership, Retention
from kveik.fleet.registry import ViewListener
from kveik.records import Listener, ignore

_TRIES = 5

_Step = Callable[[Membership, float], Membership]


class EtcdRegistry:
    """Implements :class:`~kveik.fleet.registry.Registry` on etcd.

    Each change reads the fleet, makes one step of :class:`~kveik.fleet.membership.Membership` and
    writes the record of the engine if nobody else wrote it meanwhile; so all routers obey one table.
    ``copy`` is a file with the last known fleet, for a router that starts while etcd is away.
    """

    def __init__(
        self,
        gateway: EtcdGateway,
        *,
        copy: MemberFile | None = None,
        retention: Retention = DEFAULT_RETENTION,
        listener: Listener = ignore,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Begin to follow etcd, after one look at it. An etcd that is away is trouble and no error."""
        self._gateway = gateway
        self._copy = copy
        self._follower = EtcdFollower(gateway, copy=copy, retention=retention, listener=listener, clock=clock)
        self._follower.start()

    def __repr__(self) -> str:
        state = f", trouble: {self.trouble}" if self.trouble else ""
        return f"EtcdRegistry({self._gateway.address}, {len(self.view.members)} engines{state})"

    @property
    def view(self) -> Membership:
        """All engines as last known."""
        return self._follower.publication.view

    @property
    def trouble(self) -> str:
        """Why etcd is away; empty while it answers."""
        return self._follower.trouble

    def members(self) -> tuple[Member, ...]:
        """The engines of the view, ordered by name."""
        return self._follower.publication.members()

    def announce(self, announcement: EngineAnnouncement, *, listed: bool = False) -> Member:
        """Take an engine in, or renew it. Raises :class:`ConfigError` too, for what makes no sense."""
        check_announcement(announcement)
        self._require_etcd()

        def step(view: Membership, now_s: float) -> Membership:
            return view.announce(announcement, now_s, listed=listed)

        if listed or not announcement.lease_s:
            return self._commit(step).member(announcement.name)
        return self._announce_with_lease(step, announcement)

    def renew(self, name: str) -> Member:
        """Take a heartbeat: one call to etcd, as long as the lease holds."""
        self._require_etcd()
        lease, known = self._follower.lease(name), self.view.members.get(name)
        if lease and known is not None and known.state is not State.LOST and self._gateway.keep_alive(lease):
            return known
        self._follower.sync()  # another router may have taken it in, or out
        return self.announce(self.view.member(name).announcement)

    def withdraw(self, name: str, why: str) -> None:
        """Take an engine out."""
        self._require_etcd()
        self._commit(lambda view, now_s: view.apply(name, Event.WITHDRAW, why, now_s))

    def change_state(self, name: str, event: Event, why: str) -> Member:
        """Drain, isolate, readmit or prove an engine: while etcd is away, for this router only."""
        if not self.trouble:
            try:
                return self._commit(lambda view, now_s: view.apply(name, event, why, now_s)).member(name)
            except RegistryError:
                pass  # a sick engine must get out of traffic whatever else is broken
        return self._follower.change_here(Change(name, event, why)).member(name)

    def subscribe(self, listener: ViewListener) -> None:
        """Have ``listener`` called with the current view and each new one."""
        self._follower.publication.subscribe(listener)

    def wait_change(self, revision: int, timeout_s: float) -> Membership:
        """Wait until the view's revision is above ``revision``; the view then, or after the time-out."""
        return self._follower.publication.wait_change(revision, timeout_s)

    def close(self) -> None:
        """Stop following. Leases go on: this router was only their messenger."""
        self._follower.stop()
        if self._copy is not None:
            self._copy.close()

    def _require_etcd(self) -> None:
        """Say no at once while etcd is known to be away: waiting heartbeats would keep threads from other work."""
        if self.trouble:
            raise RegistryError(self.trouble)

    def _announce_with_lease(self, step: _Step, announcement: EngineAnnouncement) -> Member:
        name, lease = announcement.name, self._follower.lease(announcement.name)
        before = self.view.members.get(name)
        same_time = before is not None and before.announcement.lease_s == announcement.lease_s
        if lease and same_time and self._gateway.keep_alive(lease):
            return self._commit(step).member(name)
        lease = self._gateway.grant(math.ceil(announcement.lease_s))
        try:
            return self._commit(step, Write(f"{records.LEASES}{name}", b"", lease)).member(name)
        except Exception:
            with contextlib.suppress(RegistryError):
                self._gateway.revoke(lease)
            raise

    def _commit(self, step: _Step, lease: Write | None = None) -> Membership:
        """Make one step, with the lease's key if there is one. Raises what the step and the gateway raise."""
        for _ in range(_TRIES):
            recorded = records.read(self._gateway.snapshot())
            if recorded.birth != self._follower.birth:  # first contact, or etcd lost its data
                self._follower.sync()
                continue
            now_s = self._follower.time.now_s()
            after = step(self._follower.membership(recorded, now_s), now_s)
            changes = records.writes(recorded, after, now_s)
            writes = [write for name in changes for write in changes[name]] + ([lease] if lease else [])
            if not writes:
                return after
            if self._gateway.commit(writes, records.unchanged(recorded, changes)):
                self._follower.sync()
                return after
        raise RegistryError(f"{self._gateway.address}: other routers changed the same engine {_TRIES} times in a row")
