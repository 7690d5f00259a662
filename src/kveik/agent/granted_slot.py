"""A block that a client may copy out of the arena."""

from kveik.errors import FrameCorruptError, FrameForeignError
from kveik.kv.frame import HEADER_BYTES, HEADER_USED_BYTES, FrameHeader, read_header
from kveik.kv.keys import BlockKey
from kveik.store.copying import copy_and_digest


class GrantedSlot:
    """One granted slot. ``frame`` is header page and payload, in the arena.

    The agent takes back leases that are very old, and a slot's header is cleared before its
    reuse. So a copy counts only if the slot is :meth:`unchanged` after it.
    """

    __slots__ = ("_header_bytes", "frame")

    def __init__(self, frame: memoryview) -> None:
        self.frame = frame
        self._header_bytes = bytes(frame[:HEADER_USED_BYTES])

    @property
    def payload(self) -> memoryview:
        """The block's bytes."""
        return self.frame[HEADER_BYTES:]

    def unchanged(self) -> bool:
        """Whether the slot still holds the block that was granted."""
        return bytes(self.frame[:HEADER_USED_BYTES]) == self._header_bytes

    def header(self, key: BlockKey) -> FrameHeader:
        """The header as it was granted. Raises :class:`FrameError` unless it is that of ``key``."""
        header = read_header(memoryview(self._header_bytes))
        if header.key != key or header.frame_bytes != len(self.frame):
            raise FrameForeignError(f"the slot holds {header.key}, expected {key}")
        return header

    def copy_to(self, key: BlockKey, target: memoryview) -> None:
        """Copy the payload out. Raises :class:`FrameError` unless ``target`` holds the block ``key`` then."""
        header = self.header(key)
        if copy_and_digest(target, self.payload) != header.payload_digest:
            raise FrameCorruptError(f"payload checksum differs: {key}")
        self._demand_unchanged(key)

    def _demand_unchanged(self, key: BlockKey) -> None:
        if not self.unchanged():
            raise FrameForeignError(f"the slot of {key} was reused during the copy")
