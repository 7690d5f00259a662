"""Who is in the fleet, as one immutable value: the time is passed in, each step gives a new value.

Times are seconds since the epoch that never run backwards within a process
(:class:`kveik.fleet.registry.SteadyTime`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from kveik.errors import RefusedError, UnknownEngineError
from kveik.fleet.announcement import EngineAnnouncement
from kveik.fleet.lifecycle import HOLDS, Event, State, next_state
from kveik.records import StateRecord


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One engine of the fleet: what it says of itself, its state, and why and since when that is so.

    ``lease_ends_s`` is None for an engine without a lease. ``listed``: a static list named it.
    """

    announcement: EngineAnnouncement
    state: State = State.ANNOUNCED
    why: str = ""
    since_s: float = 0.0
    lease_ends_s: float | None = None
    listed: bool = False

    @property
    def name(self) -> str:
        """Its id in the fleet."""
        return self.announcement.name

    def lease_over(self, now_s: float) -> bool:
        """Whether nothing has been heard of it for its lease."""
        return self.lease_ends_s is not None and now_s >= self.lease_ends_s


@dataclass(frozen=True, slots=True)
class Retention:
    """How long engines without a lease are remembered: those that are lost, and those on hold."""

    lost_s: float = 600.0
    hold_s: float = 86_400.0

    def of(self, state: State) -> float:
        """Seconds after the end of its lease at which an engine in this state is forgotten."""
        return self.hold_s if state in HOLDS else self.lost_s


DEFAULT_RETENTION = Retention()


@dataclass(frozen=True, slots=True)
class Membership:
    """All engines by name. ``revision`` grows with each change that others can see; renewals are none."""

    members: Mapping[str, Member] = field(default_factory=dict)
    revision: int = 0
    retention: Retention = DEFAULT_RETENTION

    def announce(self, announcement: EngineAnnouncement, now_s: float, *, listed: bool = False) -> "Membership":
        """An engine says that it is there: a new one, or one that renews its lease or is another now.

        Raises :class:`RefusedError` while another engine holds its name or its address. What a list
        says of an engine stands, also where the engine says something else of itself.
        """
        self._refuse_conflicts(announcement, now_s, listed=listed)
        name = announcement.name
        known = self.members.get(name)
        if known is not None and known.listed and not listed:
            return self
        lease_s = 0.0 if listed else announcement.lease_s
        lease_ends_s = now_s + lease_s if lease_s else None
        if known is None:
            new = Member(announcement=announcement, why=_JOINED[listed], since_s=now_s)
            return self._with(msgspec.structs.replace(new, lease_ends_s=lease_ends_s, listed=listed))
        same = known.announcement.same_engine(announcement)
        moved = _moved(known, Event.ANNOUNCE if same else Event.REPLACE, _back(known, same=same), now_s)
        return self._with(
            msgspec.structs.replace(moved, announcement=announcement, lease_ends_s=lease_ends_s, listed=listed)
        )

    def renew(self, name: str, now_s: float) -> "Membership":
        """A heartbeat. Raises :class:`UnknownEngineError` for an engine that has to announce itself again."""
        return self.announce(self.member(name).announcement, now_s)

    def apply(self, name: str, event: Event, why: str, now_s: float) -> "Membership":
        """Something happened to an engine. Raises :class:`UnknownEngineError` and :class:`RefusedError`."""
        moved = _moved(self.member(name), event, why, now_s)
        if event is Event.WITHDRAW and moved.state is not State.GONE:
            ended_s = now_s if moved.lease_ends_s is None else min(now_s, moved.lease_ends_s)
            moved = msgspec.structs.replace(moved, lease_ends_s=ended_s, listed=False)
        if event is Event.READMIT and moved.lease_over(now_s):  # the hold is over, and nobody is there
            moved = _moved(moved, Event.EXPIRE, f"{why}; no heartbeat since before", now_s)
        return self._with(moved)

    def tick(self, now_s: float) -> "Membership":
        """Let time pass: leases end, and engines that have been gone for long are forgotten."""
        result = self
        for member in self.members.values():
            if not member.lease_over(now_s):
                continue
            if member.state not in HOLDS and member.state is not State.LOST:
                why = f"no heartbeat for {member.announcement.lease_s:g} s"
                member = _moved(member, Event.EXPIRE, why, now_s)  # noqa: PLW2901 (the same engine, later)
                result = result._with(member)
            if now_s >= self._forget_at_s(member):
                result = result._with(_moved(member, Event.FORGET, "", now_s))
        return result

    def member(self, name: str) -> Member:
        """One engine. Raises :class:`UnknownEngineError`."""
        try:
            return self.members[name]
        except KeyError:
            raise UnknownEngineError(f"no engine {name!r} in the fleet; it has to announce itself (again)") from None

    def _forget_at_s(self, member: Member) -> float:
        ended_s = math.inf if member.lease_ends_s is None else member.lease_ends_s
        return ended_s + self.retention.of(member.state)

    def _refuse_conflicts(self, announcement: EngineAnnouncement, now_s: float, *, listed: bool) -> None:
        for other in self.members.values():
            moved_by_list = listed and other.listed and other.name == announcement.name
            if moved_by_list or other.state is State.LOST or other.lease_over(now_s):
                continue
            same_name, same_url = (
                other.name == announcement.name,
                other.announcement.host_port == announcement.host_port,
            )
            if same_name != same_url:
                taken = f"the name {other.name!r}" if same_name else f"the address {announcement.url}"
                raise RefusedError(
                    f"{taken} belongs to engine {other.name!r} at {other.announcement.url} until that "
                    + ("leaves the static list" if other.listed else "withdraws or its lease ends")
                )

    def _with(self, member: Member) -> "Membership":
        known = self.members.get(member.name)
        if known == member:
            return self
        members = dict(self.members)
        if member.state is State.GONE:
            members.pop(member.name, None)
        else:
            members[member.name] = member
        renewed = known is not None and _but_lease(known) == _but_lease(member)
        return replace(self, members=members, revision=self.revision + (not renewed))


_JOINED = {False: "announced itself", True: "in the static list"}


def _back(known: Member, *, same: bool) -> str:
    if known.state is State.LOST:
        return "is back after its lease had ended"
    return "renewed" if same else "is another engine than before: address, model or namespace differ"


def _moved(member: Member, event: Event, why: str, now_s: float) -> Member:
    """The member after an event; a state that stays keeps its reason, unless a hold is given a new one."""
    after = next_state(member.name, member.state, event)
    if after is member.state and event not in (Event.DRAIN, Event.ISOLATE):
        return member
    since_s = member.since_s if after is member.state else now_s
    return msgspec.structs.replace(member, state=after, why=why, since_s=since_s)


def _but_lease(member: Member) -> Member:
    return msgspec.structs.replace(member, lease_ends_s=None)


def same_to_others(one: Membership, other: Membership) -> bool:
    """Whether both hold the same engines in the same states; leases may differ."""
    return one.members.keys() == other.members.keys() and all(
        _but_lease(member) == _but_lease(other.members[name]) for name, member in one.members.items()
    )


def differences(before: Membership, after: Membership) -> list[StateRecord]:
    """What changed for people to read: one record an engine whose state is another."""
    records = []
    for name in sorted(before.members.keys() | after.members.keys()):
        old, new = before.members.get(name), after.members.get(name)
        was, now = (State.GONE if m is None else m.state for m in (old, new))
        if was is not now:
            why = new.why if new is not None else "left the fleet"
            records.append(StateRecord(f"engine {name}", was.value, now.value, why))
    return records
