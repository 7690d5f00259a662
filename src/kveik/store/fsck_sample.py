"""Read some blocks of a tier that has no folder to walk: whether it serves what it says it has."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from kveik.clock import Deadline
from kveik.kv.keys import BlockKey
from kveik.store.base import BlockResult, BlockStore, ListedStore, Status, failed

#: The first buffer, doubled as long as a frame does not fit.
_FIRST_BYTES = 1 << 20


@dataclass(slots=True)
class SampleReport:
    """What reading back gave. ``listed`` keys are there, ``read`` of them were asked for, by status or reason."""

    tier: str
    listed: int = 0
    read: int = 0
    bytes: int = 0
    results: Counter[str] = field(default_factory=Counter)
    by_namespace: Counter[str] = field(default_factory=Counter)  # keys listed
    wrong: list[str] = field(default_factory=list)

    @property
    def bad(self) -> int:
        """How many of those read are wrong, or could not be had. One that was evicted meanwhile is neither."""
        return self.read - self.results[Status.HIT.value] - self.results[Status.MISS.value]

    def document(self) -> dict[str, object]:
        """The report for programs."""
        return {
            "tier": self.tier,
            "listed": self.listed,
            "read": self.read,
            "bytes": self.bytes,
            "bad": self.bad,
            "results": dict(sorted(self.results.items())),
            "namespaces": dict(sorted(self.by_namespace.items())),
            "wrong": self.wrong,
        }


def sample(
    store: BlockStore,
    listing: ListedStore,
    memory: memoryview,
    *,
    most: int,
    get_s: float,
    progress: Callable[[SampleReport], None] = lambda _: None,
) -> SampleReport:
    """Read ``most`` blocks, chosen evenly from all that are listed, and verify each.

    ``memory`` takes one frame at a time; larger ones count as ``too_large``. A store that finds a wrong block may take
    it out of use, as in normal service. Raises :class:`~kveik.errors.StoreError` when the store cannot say what it has.
    """
    report = SampleReport(store.name)
    for key in _chosen(listing.keys(b""), most, report):
        result = _read(store, key, memory, get_s)
        report.read += 1
        report.bytes += result.bytes
        report.results[result.reason or result.status.value] += 1
        if result.status in (Status.CORRUPT, Status.FAILED):
            report.wrong.append(f"{key}: {result.reason} {result.detail}".strip())
        progress(report)
    return report


def _chosen(portions: Iterator[Sequence[BlockKey]], most: int, report: SampleReport) -> list[BlockKey]:
    """A sample of ``most`` keys, each equally likely (Vitter's algorithm R)."""
    chosen: list[BlockKey] = []
    source = random.Random()
    for portion in portions:
        for key in portion:
            report.listed += 1
            report.by_namespace[key.namespace.hex()] += 1
            if len(chosen) < most:
                chosen.append(key)
            elif (place := source.randrange(report.listed)) < most:
                chosen[place] = key
    return chosen


def _read(store: BlockStore, key: BlockKey, memory: memoryview, get_s: float) -> BlockResult:
    size = min(_FIRST_BYTES, len(memory))
    while True:
        (result,) = store.get([key], [memory[:size]], Deadline.after(get_s))
        if result.buffer_busy:
            return failed("timeout", "the store may still write into the buffer")
        if result.reason != "too_large" or size == len(memory):
            return result
        size = min(2 * size, len(memory))
