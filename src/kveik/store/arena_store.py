"""The arena behind the contract of every tier: blocks copied in and out of slots."""

import os
from collections.abc import Sequence

from kveik.clock import Deadline
from kveik.errors import FrameError
from kveik.kv.frame import HEADER_BYTES, HEADER_USED_BYTES, read_header, verify
from kveik.kv.keys import BlockKey
from kveik.store.arena import Arena
from kveik.store.base import MISS, BlockResult, Capabilities, Status, StoreStats, corrupt
from kveik.store.copying import copy_bytes
from kveik.store.writer import Writer

_CLOSED = BlockResult(Status.FAILED, reason="closed")
_TIMEOUT = BlockResult(Status.FAILED, reason="timeout")
_DROPPED = {
    "deleted": BlockResult(Status.DELETED),
    "busy": BlockResult(Status.FAILED, reason="busy"),
    "miss": MISS,
}


class ArenaStore:
    """An :class:`Arena` as a :class:`kveik.store.base.BlockStore`."""

    name = "arena"
    capabilities = Capabilities(durable=False, shared=False, bounded=True)

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._writer = Writer.of(os.getpid())
        self._closed = False

    def lookup(self, keys: Sequence[BlockKey], deadline: Deadline) -> list[bool]:
        """For each key whether it is in the arena."""
        if self._closed:
            return [False] * len(keys)
        return [slot >= 0 for slot in self._arena.locate(keys)]

    def get(self, keys: Sequence[BlockKey], buffers: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        """Copy each frame into its buffer and verify the copy."""
        if self._closed:
            return [_CLOSED] * len(keys)
        slots = self._arena.pin(keys)
        try:
            return [
                self._get_one(key, slot, buffer, deadline)
                for key, slot, buffer in zip(keys, slots, buffers, strict=True)
            ]
        finally:
            self._arena.unpin(slot for slot in slots if slot >= 0)

    def _get_one(self, key: BlockKey, slot: int, buffer: memoryview, deadline: Deadline) -> BlockResult:
        if slot < 0:
            return MISS
        if deadline.passed:
            return _TIMEOUT
        frame = self._arena.view(slot)
        if len(buffer) < len(frame):
            return BlockResult(Status.FAILED, reason="too_large", detail=f"frame of {len(frame)} bytes")
        copy_bytes(buffer[: len(frame)], frame)
        try:
            verify(buffer[: len(frame)], key, len(frame) - HEADER_BYTES)
        except FrameError as error:
            self._arena.check(slot)  # gives the block up
            return corrupt(error)
        return BlockResult(Status.HIT, len(frame))

    def put(self, keys: Sequence[BlockKey], frames: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        """Copy each sealed frame into a slot and publish it."""
        if self._closed:
            return [_CLOSED] * len(keys)
        return [self._put_one(key, frame, deadline) for key, frame in zip(keys, frames, strict=True)]

    def _put_one(self, key: BlockKey, frame: memoryview, deadline: Deadline) -> BlockResult:
        if deadline.passed:
            return _TIMEOUT
        try:
            header = read_header(frame[:HEADER_USED_BYTES])
        except FrameError as error:
            return BlockResult(Status.FAILED, reason="foreign", detail=str(error))
        if header.key != key or len(frame) < header.frame_bytes:
            return BlockResult(Status.FAILED, reason="foreign", detail=f"the frame holds {header.key}")
        (reservation,) = self._arena.reserve([key], header.payload_bytes, self._writer)
        if reservation.reason:
            if reservation.reason == "exists":
                return BlockResult(Status.EXISTS)
            return BlockResult(Status.FAILED, reason=reservation.reason)
        payload = self._arena.view(reservation.slot)[HEADER_BYTES:]
        copy_bytes(payload, frame[HEADER_BYTES : header.frame_bytes])
        self._arena.commit([reservation.slot], [header.payload_digest])
        return BlockResult(Status.STORED, header.frame_bytes)

    def delete(self, keys: Sequence[BlockKey]) -> list[BlockResult]:
        """Forget each block that nobody is reading."""
        if self._closed:
            return [_CLOSED] * len(keys)
        return [_DROPPED[outcome] for outcome in self._arena.drop(keys)]

    def stats(self) -> StoreStats:
        """Sizes now."""
        stats = self._arena.stats()
        return StoreStats(stats.blocks, stats.payload_bytes, stats.arena_bytes)

    def close(self) -> None:
        """Refuse further calls. The arena itself stays open: its owner closes it."""
        self._closed = True
