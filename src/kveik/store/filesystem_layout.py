"""Names and paths of the filesystem tier. Pure: no I/O.

::

    <root>/kveik-1/                                     1 is the version of this layout
        <namespace digest>/                             32 hex digits
            namespace.json                              what the digest stands for, for people
            <2 hex>/<2 hex>/                            first two bytes of the block hash
                <key text>.kvb                          one frame
                .<key text>.<host>.<pid>.<n>.tmp        a frame being written
        quarantine/<key text>.<reason>.<time>.<host>.<pid>.<n>.bad
        sweeper.lease                                   who sweeps this folder, what was counted, and who writes
        sweeper.wanted                                  somebody needs room: a round is due
        writers/<16 hex>.writer                         a process that writes, as long as it lives

The file name holds the whole key, so a file that was moved or copied elsewhere still says what
it is. All ranks and groups of one block hash share a leaf directory; a million blocks are about
15 a leaf. Temporary files lie in the leaf itself: publishing never leaves the directory.
"""

import re
from dataclasses import dataclass

from kveik.errors import KeyFormatError
from kveik.kv.keys import BlockKey

FORMAT_DIRECTORY = "kveik-1"
QUARANTINE_DIRECTORY = "quarantine"
LEASE_NAME = "sweeper.lease"
WANTED_NAME = "sweeper.wanted"
WRITERS_DIRECTORY = "writers"
NAMESPACE_NAME = "namespace.json"
BLOCK_SUFFIX = ".kvb"

_NAMESPACE = re.compile(r"[0-9a-f]{32}")
_FAN = re.compile(r"[0-9a-f]{2}")
_WRITER_FILE = re.compile(r"[0-9a-f]{16}\.writer")
_WRITER = r"(?P<host>[0-9a-f]{8})\.(?P<pid>[0-9]{1,10})\.[0-9]{1,10}"
_TEMPORARY = re.compile(rf"\.[0-9a-z-]+\.{_WRITER}\.tmp")
_QUARANTINED = re.compile(rf"[0-9a-gr-]+\.[a-z_]+\.(?P<time>[0-9]{{1,20}})\.{_WRITER}\.bad")

Leaf = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class FileWriter:
    """A process that writes: ``host`` is 8 hex digits for one boot and process-id space of a machine."""

    host: str
    pid: int


def leaf_of(key: BlockKey) -> Leaf:
    """The directories, below the format directory, of this block."""
    block_hash = key.block_hash
    return key.namespace.hex(), f"{block_hash[0]:02x}", f"{block_hash[1]:02x}"


def block_path(key: BlockKey) -> str:
    """The path of this block's file below the format directory: what lookups build by the thousand."""
    text = key.text
    hexed = text[text.rindex("-") + 1 :]
    return f"{text[:32]}/{hexed[:2]}/{hexed[2:4]}/{text}{BLOCK_SUFFIX}"


def block_name(key: BlockKey) -> str:
    """The file name of this block."""
    return key.text + BLOCK_SUFFIX


def temporary_name(stem: str, writer: FileWriter, number: int) -> str:
    """A name that no other writer, and no other call of this one, uses."""
    return f".{stem}.{writer.host}.{writer.pid}.{number}.tmp"


def quarantine_name(key: BlockKey, reason: str, time_s: float, writer: FileWriter, number: int) -> str:
    """Where a wrong file goes: the name keeps its key, what was wrong and when."""
    return f"{key.text}.{reason}.{int(time_s)}.{writer.host}.{writer.pid}.{number}.bad"


def parse_block_name(name: str) -> BlockKey | None:
    """The key of a block's file name; None for any other name."""
    if not name.endswith(BLOCK_SUFFIX):
        return None
    try:
        return BlockKey.parse(name.removesuffix(BLOCK_SUFFIX))
    except KeyFormatError:
        return None


def parse_temporary_name(name: str) -> FileWriter | None:
    """Who writes, or wrote, this temporary file; None for a name that is not ours."""
    match = _TEMPORARY.fullmatch(name)
    return FileWriter(match["host"], int(match["pid"])) if match else None


def parse_quarantine_name(name: str) -> int | None:
    """When this file was quarantined, in Unix seconds; None for a name that is not ours."""
    match = _QUARANTINED.fullmatch(name)
    return int(match["time"]) if match else None


def writer_name(owner: str) -> str:
    """The file of a process that writes, by which it is known; ``owner`` is 16 hex digits."""
    return f"{owner}.writer"


def is_writer_name(name: str) -> bool:
    """Whether a file of this name tells of a process that writes."""
    return _WRITER_FILE.fullmatch(name) is not None


def is_namespace_directory(name: str) -> bool:
    """Whether a directory of this name holds the blocks of a namespace."""
    return _NAMESPACE.fullmatch(name) is not None


def is_fan_directory(name: str) -> bool:
    """Whether this is a fan-out directory's name."""
    return _FAN.fullmatch(name) is not None
