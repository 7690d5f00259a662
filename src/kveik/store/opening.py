"""A tier whose medium may hang: it is opened on a thread of its own, and is left out until that worked.

A mount whose server is gone holds whoever asks it anything, for minutes or for ever. The agent
must not wait for it: the arena is useful without. So opening has a deadline; what is not open by
then joins later, when the medium answers.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait

from kveik.clock import SYSTEM_CLOCK, Clock, Deadline
from kveik.errors import StoreError
from kveik.kv.keys import BlockKey
from kveik.kv.namespace import Namespace
from kveik.records import Listener, StateRecord, ignore
from kveik.store.base import (
    OPENING,
    OUT,
    READY,
    BlockResult,
    BlockStore,
    Capabilities,
    DescribedStore,
    DroppingStore,
    ListedStore,
    StoreStats,
    failed,
)
from kveik.store.tier_threads import TierThreads

#: A medium that could not be opened is tried again after this long, at the next call.
RETRY_S = 30.0

_log = logging.getLogger(__name__)


class OpeningStore:
    """The store that ``open_store`` gives, as soon as it gives one; until then nothing is found or kept.

    Waits at most ``wait_s`` for it. With ``must_open``, raises :class:`~kveik.errors.StoreError`, as
    ``open_store`` does, for what fails within that time: a wrong folder should stop the start. Without,
    as after that time, a failure makes the tier ``out``, and it is tried again: a store on other
    machines may be down when an agent starts. ``capabilities`` are those of the store to come.
    """

    def __init__(
        self,
        name: str,
        capabilities: Capabilities,
        open_store: Callable[[], BlockStore],
        *,
        wait_s: float,
        must_open: bool = True,
        listener: Listener = ignore,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._name = name
        self._capabilities = capabilities
        self._open_store = open_store
        self._listener = listener
        self._clock = clock
        self._lock = threading.Lock()
        self._threads = TierThreads(f"{name}-open", 1, clock)
        self._store: BlockStore | None = None
        self._state, self._why = OPENING, f"it did not open within {wait_s:g} s"
        self._retry_at_s = float("inf")
        self._undescribed: list[Namespace] = []
        self._closed = False
        first = self._threads.submit(open_store)
        wait([first], timeout=wait_s)
        if first.done() and not must_open and isinstance(first.exception(), StoreError):
            self._opened(first)
        elif first.done():
            self._threads.close()
            self._store, self._state = first.result(), READY
        else:
            listener(StateRecord(name, "closed", OPENING, f"{self._why}; the agent serves without it meanwhile"))
            first.add_done_callback(self._opened)

    def __repr__(self) -> str:
        return f"OpeningStore({self._name!r}, {self._state}, {self._store!r})"

    @property
    def name(self) -> str:
        """The name of the store to come."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """The promises of the store to come."""
        return self._capabilities

    def lookup(self, keys: Sequence[BlockKey], deadline: Deadline) -> list[bool]:
        """Lookup; nothing is there until the store is open."""
        store = self._current()
        return [False] * len(keys) if store is None else store.lookup(keys, deadline)

    def get(self, keys: Sequence[BlockKey], buffers: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        """Get, or FAILED ``not_open``."""
        store = self._current()
        return self._refusals(keys) if store is None else store.get(keys, buffers, deadline)

    def put(self, keys: Sequence[BlockKey], frames: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        """Put, or FAILED ``not_open``."""
        store = self._current()
        return self._refusals(keys) if store is None else store.put(keys, frames, deadline)

    def delete(self, keys: Sequence[BlockKey]) -> list[BlockResult]:
        """Delete, or FAILED ``not_open``."""
        store = self._current()
        return self._refusals(keys) if store is None else store.delete(keys)

    def keys(self, namespace: bytes) -> Iterator[Sequence[BlockKey]]:
        """The blocks that the store has. Raises ``StoreError`` while it is not open, or if it cannot say."""
        store = self._current()
        if store is None:
            raise StoreError(f"{self._name} tier is not open: {self._why}")
        if not isinstance(store, ListedStore):
            raise StoreError(f"{self._name} tier cannot say which blocks it has")
        yield from store.keys(namespace)

    def drop(self, namespace: bytes) -> int | None:
        """Drop a namespace, if the store can do that by itself. Raises ``StoreError`` while it is not open."""
        store = self._current()
        if store is None:
            raise StoreError(f"{self._name} tier is not open: {self._why}")
        return store.drop(namespace) if isinstance(store, DroppingStore) else None

    def describe(self, namespace: Namespace) -> None:
        """Let the store keep the namespace's facts, now or once it is open. Raises ``OSError``."""
        with self._lock:
            store = self._store
            if store is None:
                self._undescribed.append(namespace)
        if store is not None and isinstance(store, DescribedStore):
            store.describe(namespace)

    def stats(self) -> StoreStats:
        """The store's sizes; zero, with the reason, while it is not open."""
        with self._lock:
            store, state, why = self._store, self._state, self._why
        return store.stats() if store is not None else StoreStats(0, 0, 0, notes=(why,), state=state)

    def close(self) -> None:
        """Close the store; one that is still being opened is closed when it is there."""
        with self._lock:
            self._closed = True
            store = self._store
        self._threads.close()
        if store is not None:
            store.close()

    def _current(self) -> BlockStore | None:
        """The store, if it is open. Tries again when that is due."""
        with self._lock:
            due = self._store is None and not self._closed and self._clock.monotonic() >= self._retry_at_s
            if due:
                self._retry_at_s = float("inf")
        if due:
            self._threads.submit(self._open_store).add_done_callback(self._opened)
        return self._store

    def _refusals(self, keys: Sequence[BlockKey]) -> list[BlockResult]:
        return [failed("closed") if self._closed else failed("not_open", self._why)] * len(keys)

    def _opened(self, job: "Future[BlockStore]") -> None:
        """Take the store in, or remember why there is none. Runs on the thread that opened it."""
        if job.cancelled():
            return
        error = job.exception()
        if error is not None:
            self._failed(error)
            return
        store = job.result()
        with self._lock:
            before, self._state, self._store = self._state, READY, store
            undescribed, self._undescribed = self._undescribed, []
            closed = self._closed
        self._threads.close()
        if closed:
            store.close()
            return
        self._listener(StateRecord(self._name, before, READY, "it is open now"))
        for namespace in undescribed:
            with contextlib.suppress(OSError):  # what it writes is for people; blocks do without
                self.describe(namespace)

    def _failed(self, error: BaseException) -> None:
        if not isinstance(error, StoreError):
            _log.error("unexpected error while opening the %s tier", self._name, exc_info=error)
        why = str(error) or repr(error)
        with self._lock:
            before, known, self._state, self._why = self._state, self._why, OUT, why
            self._retry_at_s = self._clock.monotonic() + RETRY_S
        if (before, known) != (OUT, why):
            self._listener(StateRecord(self._name, before, OUT, f"{why}; trying again every {RETRY_S:g} s"))
