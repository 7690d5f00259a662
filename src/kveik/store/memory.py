"""Blocks in a dictionary: the reference that says how every store behaves."""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from kveik.clock import Deadline
from kveik.errors import FrameError
from kveik.kv import frame
from kveik.kv.keys import BlockKey
from kveik.records import EvictionRecord, Listener, ignore
from kveik.store.base import MISS, BlockResult, Capabilities, Status, StoreStats, corrupt, failed, unsealed


class MemoryStore:
    """Keeps copies of frames; with ``limit_bytes`` it drops the least recently used ones."""

    def __init__(self, name: str = "memory", *, limit_bytes: int = 0, listener: Listener = ignore) -> None:
        self._name = name
        self._limit_bytes = limit_bytes
        self._listener = listener
        self._lock = threading.Lock()
        self._frames: OrderedDict[BlockKey, bytes] = OrderedDict()
        self._bytes = 0
        self._closed = False

    def __repr__(self) -> str:
        return f"MemoryStore({self._name!r}, {len(self._frames)} blocks, {self._bytes} bytes)"

    @property
    def name(self) -> str:
        """Short name used in metrics and messages."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """Lives and dies with the process."""
        return Capabilities(durable=False, shared=False, bounded=self._limit_bytes > 0)

    def lookup(self, keys: Sequence[BlockKey], deadline: Deadline) -> list[bool]:
        """Whether each key is there."""
        with self._lock:
            return [not deadline.passed and key in self._frames for key in keys]

    def get(self, keys: Sequence[BlockKey], buffers: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        """Copy each frame into its buffer and verify it there."""
        return [self._get(key, buffer, deadline) for key, buffer in zip(keys, buffers, strict=True)]

    def _get(self, key: BlockKey, buffer: memoryview, deadline: Deadline) -> BlockResult:
        with self._lock:
            if self._closed:
                return failed("closed")
            if deadline.passed:
                return failed("timeout")
            stored = self._frames.get(key)
            if stored is None:
                return MISS
            self._frames.move_to_end(key)
        if len(buffer) < len(stored):
            return failed("too_large", f"frame of {len(stored)} bytes, buffer of {len(buffer)}")
        buffer[: len(stored)] = stored
        try:
            frame.verify(buffer[: len(stored)], key)
        except FrameError as error:
            return corrupt(error) if self._drop(key, stored) else MISS
        return BlockResult(Status.HIT, len(stored))

    def put(self, keys: Sequence[BlockKey], frames: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        """Keep a copy of each frame that is not there yet."""
        return [self._put(key, sealed, deadline) for key, sealed in zip(keys, frames, strict=True)]

    def _put(self, key: BlockKey, sealed: memoryview, deadline: Deadline) -> BlockResult:
        if deadline.passed:
            return failed("timeout")
        try:
            size = frame.verify_header(sealed, key).frame_bytes
        except FrameError as error:
            return unsealed(error)
        if self._limit_bytes and size > self._limit_bytes:
            return failed("too_large", f"frame of {size} bytes, limit {self._limit_bytes}")
        with self._lock:
            if self._closed:
                return failed("closed")
            if key in self._frames:
                return BlockResult(Status.EXISTS)
            self._frames[key] = bytes(sealed[:size])
            self._bytes += size
            self._evict()
        return BlockResult(Status.STORED, size)

    def _evict(self) -> None:
        blocks, freed = 0, 0
        while self._limit_bytes and self._bytes > self._limit_bytes:
            _, stored = self._frames.popitem(last=False)
            self._bytes -= len(stored)
            blocks, freed = blocks + 1, freed + len(stored)
        if blocks:
            self._listener(EvictionRecord(self._name, blocks, freed))

    def _drop(self, key: BlockKey, stored: bytes) -> bool:
        """Remove exactly this copy; false when another thread was faster."""
        with self._lock:
            if self._frames.get(key) is not stored:
                return False
            del self._frames[key]
            self._bytes -= len(stored)
            return True

    def delete(self, keys: Sequence[BlockKey]) -> list[BlockResult]:
        """Forget each key."""
        return [self._delete(key) for key in keys]

    def _delete(self, key: BlockKey) -> BlockResult:
        with self._lock:
            if self._closed:
                return failed("closed")
            stored = self._frames.pop(key, None)
            if stored is None:
                return MISS
            self._bytes -= len(stored)
            return BlockResult(Status.DELETED, len(stored))

    def keys(self, namespace: bytes) -> Iterator[Sequence[BlockKey]]:
        """The blocks of one namespace, or all (empty digest), in one portion."""
        with self._lock:
            found = [key for key in self._frames if key.startswith(namespace)]
        yield found

    def stats(self) -> StoreStats:
        """Sizes now."""
        with self._lock:
            return StoreStats(len(self._frames), self._bytes, self._limit_bytes)

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            self._closed = True
            self._frames.clear()
            self._bytes = 0
