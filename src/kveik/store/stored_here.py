"""Count what passes through a store that cannot say by itself how much it holds."""

import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from itertools import islice

from kveik.clock import Deadline
from kveik.kv.keys import BlockKey
from kveik.store.base import BlockResult, BlockStore, Status, StoreStats
from kveik.store.wrapper import StoreWrapper

#: About 60 MB of memory at most; older blocks are no longer counted.
BLOCKS_MAX = 1 << 18
#: So many are looked up after an outage, for so long at most.
SAMPLE_BLOCKS, LOOK_S = 64, 1.0
#: Reasons that say that the store did not answer.
_AWAY = frozenset({"timeout", "io_error", "unavailable"})


class StoredHere:
    """The blocks that one process stored and has not seen gone, with their sizes; the oldest ``limit`` at most."""

    def __init__(self, limit: int = BLOCKS_MAX) -> None:
        self._limit = limit
        self._sizes: OrderedDict[BlockKey, int] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def __repr__(self) -> str:
        return f"StoredHere({len(self)} blocks, {self.bytes} bytes)"

    def add(self, key: BlockKey, size: int) -> None:
        """The block was stored."""
        self.remove(key)
        self._sizes[key] = size
        self.bytes += size
        if len(self._sizes) > self._limit:
            _, oldest = self._sizes.popitem(last=False)
            self.bytes -= oldest

    def remove(self, key: BlockKey) -> None:
        """The block is not there, whoever stored it."""
        self.bytes -= self._sizes.pop(key, 0)

    def clear(self) -> None:
        """Nothing of it is there any more."""
        self._sizes.clear()
        self.bytes = 0

    def sample(self, count: int, without: Collection[BlockKey]) -> list[BlockKey]:
        """About so many of the blocks, from all of the time that they were stored in, but none of ``without``."""
        step = max(1, len(self._sizes) // count)
        return [key for key in islice(self._sizes, 0, None, step) if key not in without]


class CountingStore(StoreWrapper):
    """``inner`` with sizes: those of the blocks that were stored through here and not seen gone since.

    A block that the store evicted counts until somebody asks for it. When the store answers again after it
    did not, a few are looked up: if none of them is there, it was emptied, and nothing counts any more.
    """

    def __init__(self, inner: BlockStore, *, limit: int = BLOCKS_MAX) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self._stored = StoredHere(limit)
        self._in_doubt = False

    def __repr__(self) -> str:
        return f"CountingStore({self._inner!r}, {self._stored!r})"

    def lookup(self, keys: Sequence[BlockKey], deadline: Deadline) -> list[bool]:
        """Lookup; a hint, which changes no count."""
        return self._inner.lookup(keys, deadline)

    def get(self, keys: Sequence[BlockKey], buffers: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        """Get; what turns out not to be there no longer counts."""
        return self._note(keys, self._inner.get(keys, buffers, deadline))

    def put(self, keys: Sequence[BlockKey], frames: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        """Put; what was stored counts."""
        return self._note(keys, self._inner.put(keys, frames, deadline))

    def delete(self, keys: Sequence[BlockKey]) -> list[BlockResult]:
        """Delete; what is gone no longer counts."""
        return self._note(keys, self._inner.delete(keys))

    def stats(self) -> StoreStats:
        """The inner store's, with the sizes that are counted here."""
        inner = self._inner.stats()
        with self._lock:
            blocks, size = len(self._stored), self._stored.bytes
        return StoreStats(blocks, size, inner.capacity_bytes, inner.read_only, inner.notes, inner.state)

    def _note(self, keys: Sequence[BlockKey], results: list[BlockResult]) -> list[BlockResult]:
        if any(result.reason in _AWAY for result in results):
            self._in_doubt = True
        elif results and self._in_doubt:
            self._in_doubt = False
            self._look_again(keys)
        with self._lock:
            for key, result in zip(keys, results, strict=True):
                if result.status is Status.STORED:
                    self._stored.add(key, result.bytes)
                elif result.status in (Status.MISS, Status.DELETED, Status.CORRUPT):
                    self._stored.remove(key)
        return results

    def _look_again(self, just_answered: Sequence[BlockKey]) -> None:
        with self._lock:
            sample = self._stored.sample(SAMPLE_BLOCKS, set(just_answered))
        present = self._inner.lookup(sample, Deadline.after(LOOK_S)) if sample else []
        with self._lock:
            if sample and not any(present):
                self._stored.clear()
            for key, there in zip(sample, present, strict=True):
                if not there:
                    self._stored.remove(key)
