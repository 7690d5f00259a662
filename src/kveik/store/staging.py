"""Memory that a store's own process can reach, for buffers that it cannot: a detour with one copy.

A store whose transfers are made by another process reaches the arena, which both map. What lies
elsewhere, such as a probe's frame, is copied through a piece of shared memory here.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kveik.store.shared_memory import Mapping

_PAGE_BYTES = 4096


def address_of(buffer: memoryview) -> int:
    """Where a contiguous buffer lies in this process; 0 for an empty one."""
    return int(np.frombuffer(buffer, np.uint8).ctypes.data) if len(buffer) else 0


def offset_within(memory: memoryview, buffer: memoryview) -> int | None:
    """How far into ``memory`` the whole of ``buffer`` lies, or None if any of it lies elsewhere."""
    offset = address_of(buffer) - address_of(memory)
    return offset if len(buffer) and 0 <= offset <= len(memory) - len(buffer) else None


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the staging memory that one caller has."""

    offset: int
    view: memoryview


class Staging:
    """``size`` bytes of anonymous shared memory, given out in pieces. Safe for several threads."""

    def __init__(self, size: int, name: str = "kveik-staging") -> None:
        self.size = -(-size // _PAGE_BYTES) * _PAGE_BYTES
        self.fd = os.memfd_create(name)
        os.ftruncate(self.fd, self.size)
        self._mapping = Mapping(self.fd, self.size)
        self._lock = threading.Lock()
        self._free: list[tuple[int, int]] = [(0, self.size)]  # offset and bytes, in order
        self._lingering: list[tuple[Piece, Callable[[], bool]]] = []

    def __repr__(self) -> str:
        return f"Staging({self.free_bytes} of {self.size} bytes free)"

    @property
    def free_bytes(self) -> int:
        """Bytes that nobody has, in however many pieces."""
        with self._lock:
            self._end_lingering()
            return sum(length for _, length in self._free)

    def take(self, size: int) -> Piece | None:
        """A piece of so many bytes, or None while there is no room for it in one place."""
        wanted = max(_PAGE_BYTES, -(-size // _PAGE_BYTES) * _PAGE_BYTES)
        with self._lock:
            self._end_lingering()
            for index, (offset, length) in enumerate(self._free):
                if length >= wanted:
                    self._free[index : index + 1] = [(offset + wanted, length - wanted)] if length > wanted else []
                    return Piece(offset, self._mapping.view[offset : offset + size])
        return None

    def give(self, piece: Piece, still_running: Callable[[], bool] | None = None) -> None:
        """Give a piece back; with ``still_running``, it is used again only when that has turned false."""
        with self._lock:
            if still_running is not None and still_running():
                self._lingering.append((piece, still_running))
            else:
                self._give(piece)

    def close(self) -> None:
        """Give the memory up; it stays mapped as long as a piece is held."""
        with self._lock:
            self._free = []
        self._mapping.close()
        os.close(self.fd)

    def _end_lingering(self) -> None:
        lingering, self._lingering = self._lingering, []
        for piece, still_running in lingering:
            if still_running():
                self._lingering.append((piece, still_running))
            else:
                self._give(piece)

    def _give(self, piece: Piece) -> None:
        size = max(_PAGE_BYTES, -(-len(piece.view) // _PAGE_BYTES) * _PAGE_BYTES)
        merged: list[tuple[int, int]] = []
        for offset, length in sorted([*self._free, (piece.offset, size)]):
            if merged and sum(merged[-1]) == offset:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((offset, length))
        self._free = merged
