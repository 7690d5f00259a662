import math

import pytest

from kveik.fleet import etcd_records as records
from kveik.fleet.etcd_gateway import Entry, Snapshot
from kveik.fleet.lifecycle import Event, State
from kveik.fleet.membership import DEFAULT_RETENTION, Membership
from tests.fleet import engine

NOW = 1000.0
FLEET = Membership().announce(engine(1), NOW).apply("e1", Event.PROVE, "it answered", NOW)


def written(fleet: Membership, *leases: str, now_s: float = NOW) -> Snapshot:
    entries = {"birth": Entry(b"x", 1)}
    for number, member in enumerate(fleet.members.values(), 2):
        entries[f"engines/{member.name}"] = Entry(records.packed(member, now_s), number)
    entries |= {f"leases/{name}": Entry(b"", 9, 77) for name in leases}
    return Snapshot(entries, 9)


def read(snapshot: Snapshot, now_s: float = NOW, grace_from_s: float = NOW) -> Membership:
    recorded = records.read(snapshot)
    return recorded.membership(now_s, grace_from_s=grace_from_s, revision=5, retention=DEFAULT_RETENTION)


def test_a_fleet_that_is_written_down_is_read_again() -> None:
    snapshot = written(FLEET, "e1")
    recorded = records.read(snapshot)
    assert (recorded.leases, recorded.revisions, recorded.birth) == ({"e1": 77}, {"e1": 2}, b"x")
    member = read(snapshot).member("e1")
    assert (member.state, member.why, member.lease_ends_s) == (State.READY, "it answered", math.inf)
    assert records.writes(recorded, read(snapshot), NOW) == {}


def test_a_lease_that_is_not_there_is_over_one_lease_time_after_etcd_could_be_reached() -> None:
    snapshot = written(FLEET)
    assert read(snapshot, NOW + 14.9).member("e1").state is State.READY
    lost = read(snapshot, NOW + 15)
    assert (lost.member("e1").state, lost.member("e1").why) == (State.LOST, "no heartbeat for 15 s")
    (writes,) = records.writes(records.read(snapshot), lost, NOW + 15).values()
    assert [(write.key, write.value is None) for write in writes] == [("engines/e1", False)]


def test_the_end_of_a_lease_is_written_down_once_for_a_hold_too() -> None:
    held = FLEET.apply("e1", Event.DRAIN, "update", NOW)
    snapshot = written(held)
    over = read(snapshot, NOW + 20)
    assert over.member("e1").state is State.DRAINING
    assert list(records.writes(records.read(snapshot), over, NOW + 20)) == ["e1"]
    again = written(over, now_s=NOW + 20)
    later = read(again, NOW + 30)
    assert later.member("e1").lease_ends_s == NOW + 20
    assert records.writes(records.read(again), later, NOW + 30) == {}


def test_an_engine_that_left_leaves_neither_record_nor_lease() -> None:
    recorded = records.read(written(FLEET, "e1"))
    after = FLEET.apply("e1", Event.WITHDRAW, "", NOW)
    (writes,) = records.writes(recorded, after, NOW).values()
    assert {(write.key, write.value) for write in writes} == {("engines/e1", None), ("leases/e1", None)}


def test_an_isolated_engine_that_is_withdrawn_keeps_its_record_and_loses_its_lease() -> None:
    isolated = FLEET.apply("e1", Event.ISOLATE, "hung", NOW)
    after = isolated.apply("e1", Event.WITHDRAW, "", NOW)
    (writes,) = records.writes(records.read(written(isolated, "e1")), after, NOW).values()
    assert [(write.key, write.value is None) for write in writes] == [("engines/e1", False), ("leases/e1", True)]


def test_an_engine_without_a_lease_never_loses_one() -> None:
    fleet = Membership().announce(engine(1, lease_s=0.0), NOW).announce(engine(2), NOW, listed=True)
    for name in ("e1", "e2"):
        member = read(written(fleet), NOW + 1e6).member(name)
        assert (member.state, member.lease_ends_s) == (State.ANNOUNCED, None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("engines/e2", b""),
        ("engines/e2", b"{}"),
        ("engines/e2", records.packed(FLEET.member("e1"), NOW)),  # under another's name
        ("engines/e2", b'{"announcement": {"url": "nonsense"}}'),
        ("engines/e2", b"[" * 10_000),
    ],
)
def test_a_record_that_is_not_understood_is_named_and_touches_no_other(key: str, value: bytes) -> None:
    snapshot = written(FLEET, "e1")
    recorded = records.read(Snapshot({**snapshot.entries, key: Entry(value, 8)}, 9))
    assert recorded.unreadable == (key,)
    assert set(recorded.members) == {"e1"}


def test_what_must_not_have_changed_is_the_engine_s_record_and_the_birth_of_the_data() -> None:
    recorded = records.read(written(FLEET, "e1"))
    assert records.unchanged(recorded, ["e1", "e2"]) == {"birth": 1, "engines/e1": 2, "engines/e2": 0}


def test_an_etcd_without_data_is_given_only_engines_that_still_count() -> None:
    fleet = FLEET.announce(engine(2, lease_s=1.0), NOW).tick(NOW + 5)
    assert [member.name for member in records.beginning(fleet, NOW + 5)] == ["e1"]
