"""Counts of what happened, from the records: for ``kveik stats`` and tests."""

import threading
from collections import Counter

from kveik.records import AdmissionRecord, EvictionRecord, FailureRecord, LookupRecord, Record, TransferRecord


class Tally:
    """A listener that adds up. Names are ``tier.what``, for example ``arena.get_bytes``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def __call__(self, record: Record) -> None:
        """Count one record."""
        with self._lock:
            self._counts.update(_increments(record))

    def counts(self) -> dict[str, int]:
        """All counts so far."""
        with self._lock:
            return dict(sorted(self._counts.items()))


def _increments(record: Record) -> dict[str, int]:
    match record:
        case LookupRecord():
            return {
                f"{record.tier}.lookups": 1,
                f"{record.tier}.asked": record.asked,
                f"{record.tier}.found": record.found,
            }
        case TransferRecord():
            return {
                f"{record.tier}.{record.direction}_blocks": record.blocks,
                f"{record.tier}.{record.direction}_bytes": record.bytes,
            }
        case FailureRecord():
            return {f"{record.tier}.{record.direction}_{record.kind}.{record.reason}": record.blocks}
        case AdmissionRecord():
            return {f"cascade.{record.outcome}": record.blocks}
        case EvictionRecord():
            return {f"{record.tier}.evicted_blocks": record.blocks, f"{record.tier}.evicted_bytes": record.bytes}
        case _:
            return {}
