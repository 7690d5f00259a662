"""Measure a store: every call becomes records for a listener."""

from collections import Counter
from collections.abc import Sequence

from kveik.clock import SYSTEM_CLOCK, Clock, Deadline
from kveik.kv.keys import BlockKey
from kveik.records import FailureRecord, Listener, LookupRecord, TransferRecord
from kveik.store.base import BlockResult, BlockStore, Status
from kveik.store.wrapper import StoreWrapper


class InstrumentedStore(StoreWrapper):
    """Passes every call to ``inner`` and tells ``listener`` what came of it.

    A transfer record counts only blocks that moved: hits, and frames that were really written.
    """

    def __init__(self, inner: BlockStore, listener: Listener, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(inner)
        self._listener = listener
        self._clock = clock

    def __repr__(self) -> str:
        return f"InstrumentedStore({self._inner!r})"

    def lookup(self, keys: Sequence[BlockKey], deadline: Deadline) -> list[bool]:
        """Lookup, as one :class:`LookupRecord`."""
        start_s = self._clock.monotonic()
        present = self._inner.lookup(keys, deadline)
        seconds = self._clock.monotonic() - start_s
        self._listener(LookupRecord(self.name, len(keys), sum(present), seconds))
        return present

    def get(self, keys: Sequence[BlockKey], buffers: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        """Get, as a :class:`TransferRecord` of the hits and a :class:`FailureRecord` a reason."""
        start_s = self._clock.monotonic()
        results = self._inner.get(keys, buffers, deadline)
        self._report("get", Status.HIT, results, self._clock.monotonic() - start_s)
        return results

    def put(self, keys: Sequence[BlockKey], frames: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        """Put, as a :class:`TransferRecord` of what was written and a :class:`FailureRecord` a reason."""
        start_s = self._clock.monotonic()
        results = self._inner.put(keys, frames, deadline)
        self._report("put", Status.STORED, results, self._clock.monotonic() - start_s)
        return results

    def delete(self, keys: Sequence[BlockKey]) -> list[BlockResult]:
        """Delete; only failures are reported."""
        results = self._inner.delete(keys)
        self._report_failures("delete", results)
        return results

    def _report(self, direction: str, moved: Status, results: Sequence[BlockResult], seconds: float) -> None:
        sizes = [result.bytes for result in results if result.status is moved]
        if sizes:
            self._listener(TransferRecord(self.name, direction, len(sizes), sum(sizes), seconds))
        self._report_failures(direction, results)

    def _report_failures(self, direction: str, results: Sequence[BlockResult]) -> None:
        bad = (result for result in results if result.status in (Status.FAILED, Status.CORRUPT))
        for (status, reason), blocks in Counter((result.status, result.reason) for result in bad).items():
            self._listener(FailureRecord(self.name, direction, status.value, reason, blocks))
