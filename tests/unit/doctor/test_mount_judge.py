"""What facts about a folder mean: which kinds can be shared, what a tier needs of names, room and speed."""

from dataclasses import replace

import pytest

from kveik.doctor.check import Outcome, Point
from kveik.doctor.mount_facts import Meant, MountFacts, Room, Speed, Trial, machines
from kveik.doctor.mount_judge import judge_mount, judge_pair
from kveik.store.filesystem_medium import Medium, Mount

GIB, MIB = 1 << 30, 1 << 20
NFS = Mount("/kv", Medium("nfs4", "10.0.0.9:/export/kv"), "0:50")
DISK = Mount("/kv", Medium("xfs", "/dev/sdb1"), "8:17")
FAST = Speed(500.0 * MIB, 900.0 * MIB, 0.001, 0.0005, 16 * MIB)
GOOD = MountFacts(
    "/kv",
    NFS,
    tried_in="/kv",
    room=Room(500 * GIB, 1000 * GIB, 1 << 30, 1 << 31),
    rules=(Trial("a name is given once"), Trial("a rename replaces at once")),
    locks=(Trial("flock"),),
    direct=Trial("O_DIRECT"),
    speed=FAST,
)
SHARED = Meant(nodes=2)


def judged(meant: Meant = SHARED, **changes: object) -> list[Point]:
    return judge_mount(replace(GOOD, **changes), meant)  # type: ignore[arg-type]


def worst(meant: Meant = SHARED, **changes: object) -> Point:
    return judged(meant, **changes)[0]


def test_a_network_file_system_with_room_that_does_as_it_should_is_well() -> None:
    assert {point.outcome for point in judged()} == {Outcome.WELL}


@pytest.mark.parametrize(
    ("mount", "system", "nodes", "outcome", "told"),
    [
        (Mount("/", Medium("overlay", "overlay"), "0:9"), False, 2, Outcome.WRONG, "container's own layer"),
        (Mount("/", Medium("overlay", "overlay"), "0:9"), False, 1, Outcome.BEWARE, "container's own layer"),
        (Mount("/kv", Medium("tmpfs", "tmpfs"), "0:9"), False, 2, Outcome.WRONG, "memory of this machine"),
        (Mount("/kv", Medium("tmpfs", "tmpfs"), "0:9"), False, 1, Outcome.BEWARE, "memory of this machine"),
        (DISK, True, 2, Outcome.WRONG, "other nodes have another folder"),
        (DISK, True, 1, Outcome.BEWARE, "takes room from all else"),
        (DISK, False, 2, Outcome.BEWARE, "only if this machine itself serves it"),
        (DISK, False, 1, Outcome.WELL, "for its own engines"),
        (Mount("/kv", Medium("fuse.juicefs", "kv"), "0:9"), False, 2, Outcome.WELL, "kveik doctor pairs"),
        (NFS, False, 2, Outcome.WELL, "other nodes can mount the same"),
    ],
)
def test_what_a_folder_lies_on_says_whether_it_can_be_shared(
    mount: Mount, system: bool, nodes: int, outcome: Outcome, told: str
) -> None:
    points = [point for point in judged(Meant(nodes=nodes), mount=mount, system_disk=system) if told in point.told]
    assert [point.outcome for point in points] == [outcome]
    assert outcome is Outcome.WELL or points[0].remedy


def test_a_disk_that_this_machine_exports_is_a_share() -> None:
    assert worst(mount=DISK, system_disk=True, exported="/kv").outcome is Outcome.WELL


def test_a_mount_that_hangs_and_one_that_cannot_be_written_are_wrong() -> None:
    assert worst(silent="its size took longer than 8 s").outcome is Outcome.WRONG
    assert "hangs" in worst(silent="its size took longer than 8 s").told
    refused = worst(trouble="Read-only file system (EROFS)")
    assert (refused.outcome, "EROFS" in refused.told) == (Outcome.WRONG, True)


def test_a_folder_that_is_not_there_yet_may_hide_a_missing_mount() -> None:
    found = worst(tried_in="/")
    assert (found.outcome, "tried in /" in found.told) == (Outcome.BEWARE, True)


@pytest.mark.parametrize(
    ("room", "meant", "outcome", "told"),
    [
        (Room(GIB, 1000 * GIB), Meant(reserve_bytes=2 * GIB), Outcome.WRONG, "nothing will be written"),
        (
            Room(90 * GIB, 100 * GIB),
            Meant(limit_bytes=200 * GIB),
            Outcome.BEWARE,
            "agent.filesystem_bytes is 200.0 GiB",
        ),
        (Room(4 * GIB, 100 * GIB), Meant(), Outcome.BEWARE, "4.0 GiB of 100.0 GiB"),
        (Room(400 * GIB, 500 * GIB, 0, 1000), Meant(), Outcome.WRONG, "0 more of 1000"),
        (Room(400 * GIB, 500 * GIB, 5_000, 1 << 20), Meant(), Outcome.BEWARE, "5000 more"),
        (Room(400 * GIB, 500 * GIB, 0, 0), Meant(), Outcome.WELL, ""),  # btrfs does not count files
    ],
)
def test_room_for_bytes_and_for_files_is_judged(room: Room, meant: Meant, outcome: Outcome, told: str) -> None:
    found = worst(meant, room=room)
    assert (found.outcome, told in found.told) == (outcome, True)


def test_a_rule_of_names_that_does_not_hold_is_wrong_and_a_lock_only_something_to_know() -> None:
    broken = worst(rules=(Trial("a name is given once", "a second exclusive create worked"),))
    assert broken.outcome is Outcome.WRONG
    lock = worst(locks=(Trial("flock", "not possible here: No locks available (ENOLCK)"),))
    assert (lock.outcome, "ENOLCK" in lock.told) == (Outcome.BEWARE, True)
    direct = worst(direct=Trial("O_DIRECT", "Invalid argument (EINVAL)"))
    assert (direct.outcome, "EINVAL" in direct.told) == (Outcome.BEWARE, True)


def test_a_slow_mount_is_told_with_its_figures() -> None:
    slow = worst(speed=replace(FAST, read_bytes_s=20.0 * MIB))
    assert (slow.outcome, "20.0 MiB/s read" in slow.told) == (Outcome.BEWARE, True)
    assert worst(speed=replace(FAST, open_s=0.05)).outcome is Outcome.BEWARE
    assert not [point for point in judged(speed=Speed()) if point.about.startswith("speed")]


def test_a_mount_that_is_too_busy_to_be_measured_is_no_hanging_one() -> None:
    busy = worst(speed=Speed(), unmeasured="measuring took longer than 32 s")
    assert (busy.outcome, "longer than 32 s" in busy.told) == (Outcome.BEWARE, True)


def test_two_folders_are_one_only_if_a_nonce_arrives_both_ways() -> None:
    assert judge_pair("/a", "/b", "", "").outcome is Outcome.WELL
    found = judge_pair("/a", "/b", "what is written into /a is not seen in /b", "")
    assert (found.outcome, "not seen in /b" in found.told) == (Outcome.WRONG, True)


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [(["10.0.0.1", "10.0.0.2"], 2), (["127.0.0.2", "127.0.0.3"], 1), ([], 1), (["10.0.0.1", "10.0.0.1"], 1)],
)
def test_nodes_on_addresses_of_one_machine_are_one_machine(addresses: list[str], expected: int) -> None:
    assert machines(addresses) == expected
