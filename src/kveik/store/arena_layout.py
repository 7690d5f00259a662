"""Where things lie in the arena's file. Pure arithmetic and byte formats, no I/O.

::

    offset 0      file header (one page, protected by its own xxh3_64)
    offset 4096   slab table: one u64 a slab, the size of its slots; 0 means the slab is free
    data_offset   slab 0, slab 1, ...
                  each:  slot records, 32 bytes a slot, padded to a page
                         slot 0, slot 1, ...   (a slot holds one frame of kveik.kv.frame)

Slot records stand apart from the slots because lower tiers read whole frames, header page
included, into a slot: what lies in a slot is never trusted to say whether it is complete.

All slots of a slab have one size. A *slot number* is ``slab * stride + index``, where stride is
the most slots that any slab could have, so numbers stay valid whatever sizes the slabs take.
"""

import struct
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import xxhash

from kveik.errors import ArenaError
from kveik.kv.frame import frame_bytes

PAGE_BYTES = 4096
ARENA_VERSION = 1
ARENA_MAGIC = b"KVEIKARN"
TABLE_OFFSET = PAGE_BYTES
MIN_SLOT_BYTES = 2 * PAGE_BYTES
MIN_SLAB_BYTES = 16 << 20
MAX_SLAB_BYTES = 1 << 30

_FIELDS = struct.Struct("<8sIIQQ")  # magic, version, padding, arena bytes, slab bytes
_DIGEST = struct.Struct("<Q")
HEADER_USED_BYTES = _FIELDS.size + _DIGEST.size

#: One slot record: what survives a kill of the agent. ``pid``, ``started`` and ``writer`` say who
#: may write into a slot that is being written (:class:`kveik.store.writer.Writer`).
RECORD = np.dtype(
    [("state", "<u4"), ("pid", "<u4"), ("started", "<u8"), ("writer", "<u8"), ("spare", "<u8")],
)
RECORD_FREE = 0
RECORD_WRITING = 1
RECORD_COMMITTED = 2


def round_up(value: int, unit: int = PAGE_BYTES) -> int:
    """The smallest multiple of ``unit`` that is at least ``value``."""
    return -(-value // unit) * unit


def slot_bytes_for(payload_bytes: int) -> int:
    """Size of the slots that hold payloads of this length: the frame, rounded up to whole pages."""
    return max(MIN_SLOT_BYTES, round_up(frame_bytes(payload_bytes)))


def default_slab_bytes(arena_bytes: int) -> int:
    """About a 32nd of the arena, 16 MiB to 1 GiB; less in an arena too small for three of those.

    A power of two and a 32nd more: payloads are usually powers of two, and with their header
    pages one slot of each slab would be lost otherwise.
    """
    wanted = min(max(arena_bytes // 32, MIN_SLAB_BYTES), MAX_SLAB_BYTES)
    while wanted > MIN_SLOT_BYTES and 3 * wanted > arena_bytes:
        wanted //= 2
    power = 1 << (wanted.bit_length() - 1)
    return round_up(power + power // 32)


@dataclass(frozen=True)
class ArenaLayout:
    """Sizes of an arena, and every offset that follows from them."""

    arena_bytes: int
    slab_bytes: int

    def __post_init__(self) -> None:
        if self.slab_bytes < MIN_SLOT_BYTES + PAGE_BYTES or self.slab_bytes % PAGE_BYTES:
            raise ArenaError(
                f"slab of {self.slab_bytes} bytes, expected a multiple of {PAGE_BYTES} of at least "
                f"{MIN_SLOT_BYTES + PAGE_BYTES}"
            )
        if self.slab_count < 1:
            raise ArenaError(f"arena of {self.arena_bytes} bytes has no room for one slab of {self.slab_bytes} bytes")

    @cached_property
    def slab_count(self) -> int:
        """How many slabs fit behind header and table."""
        rough = (self.arena_bytes - TABLE_OFFSET) // self.slab_bytes
        while rough > 0 and self._data_offset(rough) + rough * self.slab_bytes > self.arena_bytes:
            rough -= 1
        return max(0, rough)

    @cached_property
    def data_offset(self) -> int:
        """Where slab 0 starts."""
        return self._data_offset(self.slab_count)

    @cached_property
    def stride(self) -> int:
        """Slot numbers of one slab: the most slots that it could have."""
        return self.slots_in_slab(MIN_SLOT_BYTES)

    @staticmethod
    def _data_offset(slabs: int) -> int:
        return TABLE_OFFSET + round_up(8 * slabs)

    def slab_offset(self, slab: int) -> int:
        """Where this slab's slot records start."""
        return self.data_offset + slab * self.slab_bytes

    def slots_in_slab(self, slot_bytes: int) -> int:
        """How many slots of this size one slab holds beside their records."""
        count = self.slab_bytes // (slot_bytes + RECORD.itemsize)
        while count > 0 and round_up(count * RECORD.itemsize) + count * slot_bytes > self.slab_bytes:
            count -= 1
        return count

    def first_slot_offset(self, slab: int, slot_bytes: int) -> int:
        """Where slot 0 of this slab starts when its slots have this size."""
        return self.slab_offset(slab) + round_up(self.slots_in_slab(slot_bytes) * RECORD.itemsize)

    def pack_header(self) -> bytes:
        """The used bytes of the file header."""
        fields = _FIELDS.pack(ARENA_MAGIC, ARENA_VERSION, 0, self.arena_bytes, self.slab_bytes)
        return fields + _DIGEST.pack(xxhash.xxh3_64_intdigest(fields))


@dataclass(frozen=True, slots=True)
class FoundHeader:
    """What the first bytes of an existing file say. ``layout`` is None where they cannot be used.

    ``ours`` tells whether an agent of some version wrote the file at all.
    """

    ours: bool
    layout: ArenaLayout | None
    problem: str = ""


def read_header(raw: bytes) -> FoundHeader:
    """Judge the first :data:`HEADER_USED_BYTES` of a file; never raises."""
    if raw[:8] != ARENA_MAGIC:
        return FoundHeader(False, None, "it is no Kveik arena")
    if len(raw) < HEADER_USED_BYTES:
        return FoundHeader(True, None, "its header is cut off")
    fields = raw[: _FIELDS.size]
    _, version, _, arena_bytes, slab_bytes = _FIELDS.unpack(fields)
    if version != ARENA_VERSION:
        return FoundHeader(True, None, f"it has layout version {version}, this agent needs {ARENA_VERSION}")
    if _DIGEST.unpack(raw[_FIELDS.size : HEADER_USED_BYTES])[0] != xxhash.xxh3_64_intdigest(fields):
        return FoundHeader(True, None, "its header checksum differs")
    try:
        return FoundHeader(True, ArenaLayout(arena_bytes, slab_bytes))
    except ArenaError as error:
        return FoundHeader(True, None, str(error))
