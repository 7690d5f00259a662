"""What lies in the folder of a filesystem tier, and what it is worth. Pure; :mod:`kveik.store.fsck_walk` looks.

A file is judged by its name first (what it should be), then by its bytes (whether it is that). What carries no name of
Kveik's is *unknown*: it is counted and never touched.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from kveik.errors import FrameError
from kveik.kv import frame
from kveik.kv.keys import BlockKey
from kveik.store.base import Status
from kveik.store.filesystem import judge
from kveik.store.filesystem_files import FileIdentity
from kveik.store.filesystem_layout import (
    LEASE_NAME,
    NAMESPACE_NAME,
    QUARANTINE_DIRECTORY,
    WANTED_NAME,
    WRITERS_DIRECTORY,
    FileWriter,
    is_writer_name,
    leaf_of,
    parse_block_name,
    parse_quarantine_name,
    parse_temporary_name,
)

#: Upper ends of the ages that blocks are counted by, in seconds, with names for people.
AGES: tuple[tuple[float, str], ...] = ((3600.0, "1 h"), (86400.0, "1 d"), (604800.0, "7 d"), (float("inf"), "older"))
#: A folder of a million wrong files must not fill the memory; the counts tell of all.
LISTED_MAX = 1000
_VERSION = slice(len(frame.MAGIC), len(frame.MAGIC) + 2)


class Finding(Enum):
    """What a file turned out to be."""

    SOUND = "sound"  # a block, whole
    CORRUPT = "corrupt"  # a block whose bytes are wrong
    TRUNCATED = "truncated"  # a block whose length is not what its header says
    FOREIGN = "foreign"  # another block than its name says, or one where nobody looks for it
    ORPHANED = "orphaned"  # a temporary file whose writer is gone
    UNREADABLE = "unreadable"  # the system refused
    WRITING = "being written"  # a temporary file whose writer lives
    QUARANTINED = "quarantined"  # taken out of use by a reader, for people to look at
    UNKNOWN = "unknown"  # not Kveik's, or of another version of it


#: Findings that tell of damage, and of which ``--repair`` may remove all but the unreadable.
BAD = (Finding.CORRUPT, Finding.TRUNCATED, Finding.FOREIGN, Finding.ORPHANED, Finding.UNREADABLE)


class Depth(Enum):
    """How closely blocks are looked at."""

    SIZES = "sizes"  # names and sizes only
    HEADERS = "headers"  # the header page too
    BYTES = "bytes"  # all bytes, against their digest


@dataclass(frozen=True, slots=True)
class Role:
    """What a file should be, by its place and name alone; ``own`` are the tier's small files about itself."""

    key: BlockKey | None = None
    writer: FileWriter | None = None
    quarantined: bool = False
    own: bool = False


def role_of(directory: str, name: str) -> Role:
    """What a file of this name should be in ``directory``, a path below the format directory."""
    writer = parse_temporary_name(name)
    if writer is not None:
        return Role(writer=writer)
    parts = directory.split("/") if directory else []
    if len(parts) == 3:
        return Role(key=parse_block_name(name))
    if parts == [QUARANTINE_DIRECTORY]:
        return Role(quarantined=parse_quarantine_name(name) is not None)
    if parts == [WRITERS_DIRECTORY]:
        return Role(own=is_writer_name(name))
    return Role(own=name == NAMESPACE_NAME if parts else name in (LEASE_NAME, WANTED_NAME))


def judge_block(
    directory: str, key: BlockKey, present: memoryview, identity: FileIdentity, depth: Depth
) -> tuple[Finding, str]:
    """What a block's file is worth, and why, from the bytes that were read of it (as many as ``depth`` needs)."""
    if "/".join(leaf_of(key)) != directory:
        return Finding.FOREIGN, f"lies in {directory}, where nobody looks for it"
    if not identity.regular:
        return Finding.FOREIGN, "no regular file"
    if depth is Depth.SIZES:
        sound = identity.size >= frame.HEADER_BYTES
        return (Finding.SOUND, "") if sound else (Finding.TRUNCATED, f"{identity.size} bytes hold no frame")
    if bytes(present[: len(frame.MAGIC)]) == frame.MAGIC and len(present) >= frame.HEADER_USED_BYTES:
        version = int.from_bytes(present[_VERSION], "little")
        if version != frame.FRAME_VERSION:
            return Finding.UNKNOWN, f"a frame of version {version}, this Kveik knows {frame.FRAME_VERSION}"
    if depth is Depth.HEADERS and (header := _header(present)) is not None and header.key == key:
        if header.frame_bytes == identity.size:
            return Finding.SOUND, ""
        return Finding.TRUNCATED, f"{identity.size} bytes, the header says {header.frame_bytes}"
    result = judge(key, present, identity)
    if result.status is Status.HIT:
        return Finding.SOUND, ""
    by_reason = {"truncated": Finding.TRUNCATED, "foreign": Finding.FOREIGN, "checksum": Finding.CORRUPT}
    return by_reason.get(result.reason, Finding.UNREADABLE), result.detail


def _header(present: memoryview) -> frame.FrameHeader | None:
    try:
        return frame.read_header(present)
    except FrameError:
        return None


def age_name(age_s: float) -> str:
    """Which of :data:`AGES` an age belongs to."""
    return next(name for limit_s, name in AGES if age_s < limit_s or limit_s == float("inf"))


@dataclass(slots=True)
class NamespaceTally:
    """What was found of one namespace. ``label`` and ``facts`` as its description says; empty without one."""

    label: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    blocks: int = 0
    bytes: int = 0
    oldest_s: float = 0.0  # age
    newest_s: float = float("inf")
    by_age: Counter[str] = field(default_factory=Counter)  # blocks
    findings: Counter[str] = field(default_factory=Counter)

    def add_block(self, size: int, age_s: float, finding: Finding) -> None:
        """Count one file that has a block's name."""
        self.blocks += 1
        self.bytes += size
        self.oldest_s, self.newest_s = max(self.oldest_s, age_s), min(self.newest_s, age_s)
        self.by_age[age_name(age_s)] += 1
        self.findings[finding.value] += 1


@dataclass(frozen=True, slots=True)
class Found:
    """One file that is not sound, or not a block. ``path`` is relative to the format directory."""

    path: str
    finding: Finding
    size: int
    age_s: float
    why: str = ""
    removed: bool = False


@dataclass(slots=True)
class FolderReport:
    """What a walk found. ``listed`` names at most :data:`LISTED_MAX` files; ``counts`` and ``bytes`` have all."""

    folder: str
    medium: str = ""
    namespaces: dict[str, NamespaceTally] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    listed: list[Found] = field(default_factory=list)
    removed: int = 0
    seconds: float = 0.0

    @property
    def blocks(self) -> int:
        """Files with a block's name."""
        return sum(tally.blocks for tally in self.namespaces.values())

    @property
    def block_bytes(self) -> int:
        """Their bytes: what the tier accounts for."""
        return sum(tally.bytes for tally in self.namespaces.values())

    @property
    def bad(self) -> int:
        """How many files tell of damage."""
        return sum(self.counts[finding.value] for finding in BAD)

    def add(self, found: Found) -> None:
        """Count a file, and remember it if it tells something."""
        self.counts[found.finding.value] += 1
        self.bytes[found.finding.value] += found.size
        if found.finding not in (Finding.SOUND, Finding.WRITING, Finding.QUARANTINED) and len(self.listed) < LISTED_MAX:
            self.listed.append(found)

    def document(self) -> dict[str, object]:
        """The report for programs."""
        return {
            "folder": self.folder,
            "medium": self.medium,
            "blocks": self.blocks,
            "bytes": self.block_bytes,
            "bad": self.bad,
            "removed": self.removed,
            "seconds": round(self.seconds, 3),
            "findings": {
                name: {"files": count, "bytes": self.bytes[name]} for name, count in sorted(self.counts.items())
            },
            "namespaces": {digest: _tally_document(tally) for digest, tally in sorted(self.namespaces.items())},
            "files": [
                {
                    "path": found.path,
                    "finding": found.finding.value,
                    "bytes": found.size,
                    "age_s": round(found.age_s, 1),
                    "why": found.why,
                    "removed": found.removed,
                }
                for found in self.listed
            ],
        }


def _tally_document(tally: NamespaceTally) -> dict[str, object]:
    return {
        "label": tally.label,
        "facts": dict(tally.facts),
        "blocks": tally.blocks,
        "bytes": tally.bytes,
        "oldest_s": round(tally.oldest_s, 1),
        "newest_s": round(tally.newest_s, 1) if tally.blocks else None,
        "by_age": {name: tally.by_age[name] for _, name in AGES},
        "findings": dict(sorted(tally.findings.items())),
    }


def may_remove(found: Found, min_age_s: float) -> bool:
    """Whether ``--repair`` may remove this file: what is certainly damage, and too old to be a write under way."""
    if found.finding is Finding.ORPHANED:  # its writer is gone: that was looked at
        return True
    return found.finding in (Finding.CORRUPT, Finding.TRUNCATED, Finding.FOREIGN) and found.age_s >= min_age_s
