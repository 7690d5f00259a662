"""How a fleet is written down in etcd: pure, from a snapshot to a membership and from changes to writes.

Under the prefix there are three kinds of keys::

    birth            a random name of this data, to notice that etcd lost what it had
    engines/NAME     the member as JSON; stays until the engine is gone
    leases/NAME      bound to an etcd lease: it is there as long as the engine's lease holds
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from kveik.errors import ConfigError
from kveik.fleet.announcement import check_announcement
from kveik.fleet.etcd_gateway import Entry, Snapshot, Write
from kveik.fleet.lifecycle import State
from kveik.fleet.membership import Member, Membership, Retention

BIRTH = "birth"
ENGINES = "engines/"
LEASES = "leases/"


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a snapshot says: members, the revision of each record, the lease of each that has one."""

    members: Mapping[str, Member]
    revisions: Mapping[str, int]
    leases: Mapping[str, int]
    birth: bytes
    birth_revision: int
    unreadable: tuple[str, ...]

    def membership(self, now_s: float, *, grace_from_s: float, revision: int, retention: Retention) -> Membership:
        """The fleet now.

        A lease that is not there any more counts as over only one lease time after ``grace_from_s``,
        when etcd could be reached (again): until then nobody could renew it.
        """
        members = {
            name: msgspec.structs.replace(member, lease_ends_s=self._lease_ends_s(member, now_s, grace_from_s))
            for name, member in self.members.items()
        }
        return Membership(members, revision, retention).tick(now_s)

    def _lease_ends_s(self, member: Member, now_s: float, grace_from_s: float) -> float | None:
        if member.name in self.leases:
            return math.inf
        if member.lease_ends_s is not None:  # somebody noticed that it is over
            return member.lease_ends_s
        if not member.announcement.lease_s or (member.listed and member.state is not State.LOST):
            return None
        grace_ends_s = grace_from_s + member.announcement.lease_s
        return max(now_s, grace_ends_s)


def read(snapshot: Snapshot) -> Recorded:
    """What lies in etcd; records that cannot be understood are named and left alone."""
    members: dict[str, Member] = {}
    unreadable = []
    for key, entry in snapshot.entries.items():
        if not key.startswith(ENGINES):
            continue
        member = _member(entry.value)
        if member is None or f"{ENGINES}{member.name}" != key:
            unreadable.append(key)
        else:
            members[member.name] = member
    birth = snapshot.entries.get(BIRTH, Entry(b"", 0))
    return Recorded(
        members=members,
        revisions={name: snapshot.entries[f"{ENGINES}{name}"].revision for name in members},
        leases=_by_name(snapshot.entries),
        birth=birth.value,
        birth_revision=birth.revision,
        unreadable=tuple(unreadable),
    )


def unchanged(recorded: Recorded, names: Iterable[str]) -> dict[str, int]:
    """Revisions that must still hold when these engines are written: nobody else wrote them, nor was all lost."""
    return {BIRTH: recorded.birth_revision, **{f"{ENGINES}{name}": recorded.revisions.get(name, 0) for name in names}}


def packed(member: Member, now_s: float) -> bytes:
    """A member as its record; only the end of a lease that is over is written down."""
    over = member.lease_over(now_s)
    return msgspec.json.encode(member if over else msgspec.structs.replace(member, lease_ends_s=None))


def writes(recorded: Recorded, after: Membership, now_s: float) -> dict[str, list[Write]]:
    """What has to be written, by engine, so that etcd says ``after``. Renews no lease, but ends those not wanted."""
    result: dict[str, list[Write]] = {}
    for name in sorted(recorded.members.keys() | after.members.keys()):
        known, wanted = recorded.members.get(name), after.members.get(name)
        mine = []
        if wanted is None:
            mine.append(Write(f"{ENGINES}{name}", None))
        elif known is None or packed(known, now_s) != packed(wanted, now_s):
            mine.append(Write(f"{ENGINES}{name}", packed(wanted, now_s)))
        lease_wanted = wanted is not None and wanted.lease_ends_s is not None and not wanted.lease_over(now_s)
        if name in recorded.leases and not lease_wanted:
            mine.append(Write(f"{LEASES}{name}", None))
        if mine:
            result[name] = mine
    return result


def beginning(known: Membership, now_s: float) -> list[Member]:
    """The engines that an etcd without data is given: those that this router still counts in."""
    return [m for m in known.members.values() if m.state is not State.LOST and not m.lease_over(now_s)]


def _member(raw: bytes) -> Member | None:
    try:
        member = msgspec.json.decode(raw, type=Member)
        check_announcement(member.announcement)
    except (msgspec.MsgspecError, ConfigError, RecursionError):
        return None
    return member


def _by_name(entries: Mapping[str, Entry]) -> dict[str, int]:
    return {key.removeprefix(LEASES): entry.lease for key, entry in entries.items() if key.startswith(LEASES)}
