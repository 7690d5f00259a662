"""What the facts about a folder mean for a tier in it. Pure."""

from collections.abc import Iterator

from kveik.byte_size import size_text
from kveik.doctor.check import Outcome, Point
from kveik.doctor.mount_facts import Meant, MountFacts, Room, Speed, Trial
from kveik.doctor.mount_table import is_layer, is_memory, is_network, is_told_by_its_type

_MIB, _GIB = 1 << 20, 1 << 30
#: Below so much, or above so long for a small file, loading rarely pays.
SLOW_READ_BYTES_S, SLOW_OPEN_S = 100 * _MIB, 0.02
FEW_FILES_SHARE, FEW_FILES = 0.02, 10_000
_ALMOST_FULL = 0.05
_SOURCES = "proc(5) mountinfo"
_MOUNT_IT = "mount the shared file system at this path on every node and in every container, before the agents start"


def judge_mount(facts: MountFacts, meant: Meant) -> list[Point]:
    """What is to be said of one folder, the worst first."""
    if facts.silent:
        told = f"it does not answer: {facts.silent}; whoever touches it hangs"
        points = [Point(Outcome.WRONG, facts.folder, told, "look after the mount and its server; umount -l frees it")]
    elif facts.trouble:
        told = f"nothing can be written there: {facts.trouble}"
        remedy = f"let this user write there; {_MOUNT_IT}" if meant.nodes > 1 else "let this user write there"
        points = [*_kind(facts, meant), Point(Outcome.WRONG, facts.folder, told, remedy)]
    else:
        points = [*_kind(facts, meant), *_there(facts), *_room(facts, meant), *_rules(facts), *_speed(facts)]
    order = list(Outcome)
    return sorted(points, key=lambda point: order.index(point.outcome))


def judge_pair(one: str, two: str, there: str, back: str) -> Point:
    """Whether two folders are one. ``there``, ``back``: why a nonce did not arrive, each way; empty if it did."""
    about = f"{one} and {two}"
    if not there and not back:
        return Point(Outcome.WELL, about, "they are one folder: what is written through one is read through the other")
    told = "; ".join(filter(None, (there, back)))
    return Point(Outcome.WRONG, about, f"they are not one folder: {told}", _MOUNT_IT, "a nonce was written and read")


def _kind(facts: MountFacts, meant: Meant) -> Iterator[Point]:
    """Whether a folder of this kind can be shared at all."""
    mount, several = facts.mount, meant.nodes > 1
    about = f"{facts.folder} is {mount}"
    if is_layer(mount):
        told = "a container's own layer: it ends with the container, and nobody else sees it"
        outcome = Outcome.WRONG if several else Outcome.BEWARE
        yield Point(outcome, about, told, f"{_MOUNT_IT} (docker run -v)", _SOURCES)
    elif is_memory(mount):
        told = "memory of this machine: no other node sees it, and blocks lie in memory a second time"
        yield Point(Outcome.WRONG if several else Outcome.BEWARE, about, told, _MOUNT_IT, _SOURCES)
    elif is_network(mount) and not is_told_by_its_type(mount):
        told = (
            "whether other nodes have the same is not told by its type; kveik doctor pairs tells it of a running fleet"
        )
        yield Point(Outcome.WELL, about, told, source=_SOURCES)
    elif is_network(mount):
        yield Point(Outcome.WELL, about, "other nodes can mount the same", source=_SOURCES)
    else:
        yield _local(facts, about, several=several)


def _local(facts: MountFacts, about: str, *, several: bool) -> Point:
    if not several:
        if facts.system_disk:
            told = "the machine's own disk: a cache that fills it takes room from all else"
            remedy = "another disk, or agent.filesystem_bytes and agent.filesystem_reserve_bytes"
            return Point(Outcome.BEWARE, about, told, remedy, _SOURCES)
        return Point(Outcome.WELL, about, "a disk of this machine, for its own engines", source=_SOURCES)
    if facts.exported:
        return Point(Outcome.WELL, about, f"this machine exports {facts.exported} to others", source="exports(5)")
    if facts.system_disk:
        told = "the machine's own disk: other nodes have another folder of that name, and find nothing"
        return Point(Outcome.WRONG, about, told, _MOUNT_IT, _SOURCES)
    told = "a disk of this machine: right only if this machine itself serves it to the others"
    return Point(Outcome.BEWARE, about, told, f"{_MOUNT_IT}; kveik doctor pairs proves it on a running fleet", _SOURCES)


def _there(facts: MountFacts) -> Iterator[Point]:
    if not facts.is_there:
        told = f"it is not there yet, the agent makes it; what is said here was tried in {facts.tried_in}"
        yield Point(Outcome.BEWARE, facts.folder, told, "make it, so that no mount is missing under it unseen")


def _room(facts: MountFacts, meant: Meant) -> Iterator[Point]:
    room = facts.room
    if room is None:
        return
    about = f"room in {facts.folder}"
    shown = f"{size_text(room.free_bytes)} of {size_text(room.total_bytes)} are free"
    if room.free_bytes <= meant.reserve_bytes:
        told = f"{shown}, and {size_text(meant.reserve_bytes)} are left to others: nothing will be written"
        remedy = "make room, or lower agent.filesystem_reserve_bytes"
        yield Point(Outcome.WRONG, about, told, remedy)
    elif meant.limit_bytes > room.total_bytes:
        limit, total = size_text(meant.limit_bytes), size_text(room.total_bytes)
        told = f"agent.filesystem_bytes is {limit}, and all of it has {total}"
        yield Point(Outcome.BEWARE, about, told, "lower agent.filesystem_bytes: the free space is the limit now")
    elif room.free_bytes < _ALMOST_FULL * room.total_bytes and room.free_bytes < 10 * _GIB:
        yield Point(Outcome.BEWARE, about, shown, "make room: a cache without room forgets")
    else:
        yield Point(Outcome.WELL, about, shown)
    yield from _files(facts.folder, room)


def _files(folder: str, room: Room) -> Iterator[Point]:
    if not room.files:
        return
    about, told = (
        f"files in {folder}",
        f"{room.free_files} more of {room.files} can be made (inodes); a block is a file",
    )
    if room.free_files == 0:
        yield Point(Outcome.WRONG, about, told, "a file system with more inodes, or fewer files")
    elif room.free_files < max(FEW_FILES, FEW_FILES_SHARE * room.files):
        yield Point(Outcome.BEWARE, about, told, "a file system with more inodes, or a lower agent.filesystem_bytes")
    else:
        yield Point(Outcome.WELL, about, told)


def _rules(facts: MountFacts) -> Iterator[Point]:
    for rule in facts.rules:
        if rule.trouble:
            told = f"it is not so: {rule.trouble}; blocks would be mixed up or lost"
            yield Point(Outcome.WRONG, rule.what, told, "another file system, or other mount options", "tried out")
        else:
            yield Point(Outcome.WELL, rule.what, "as it should be")
    others = "Kveik does without; connectors that rely on it fail or wait"
    for trial in (*facts.locks, *([facts.direct] if facts.direct else [])):
        yield _other(trial, others)


def _other(trial: Trial, others: str) -> Point:
    if not trial.trouble:
        return Point(Outcome.WELL, trial.what, "works")
    told = f"{trial.trouble}: {others}"
    return Point(
        Outcome.BEWARE, trial.what, told, "turn it off there (LMCache: use_odirect), or another mount", "tried out"
    )


def _speed(facts: MountFacts) -> Iterator[Point]:
    speed = facts.speed
    if facts.unmeasured:
        told = f"a few MiB are too much for it: {facts.unmeasured}"
        yield Point(
            Outcome.BEWARE, f"speed of {facts.folder}", told, "ask again when less is done there; a faster mount"
        )
    if not speed.tried_bytes:
        return
    slow = speed.read_bytes_s < SLOW_READ_BYTES_S or speed.open_s > SLOW_OPEN_S
    remedy = "a faster mount, or more agent.filesystem_threads; kveik breakeven shows from which length on loading pays"
    point = Point(
        Outcome.BEWARE, f"speed of {facts.folder}", f"slow: {speed_text(speed)}", remedy, "measured, one thread"
    )
    yield point if slow else Point(Outcome.WELL, point.about, speed_text(speed))


def speed_text(speed: Speed) -> str:
    """The figures in words."""
    return (
        f"{size_text(speed.write_bytes_s)}/s written and {size_text(speed.read_bytes_s)}/s read by one thread, "
        f"a small file {1000 * speed.create_s:.1f} ms to make and {1000 * speed.open_s:.1f} ms to read"
    )
