"""What became of blocks that are not in the arena any more, or never came in: a bounded memory.

It keeps a digest and two small values for each block, the latest loss only, and forgets the oldest first.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

import xxhash

from kveik.agent.funnel import EVICTED
from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.records import EvictionRecord, Record

#: Blocks whose fate is remembered: about 130 bytes each.
FATES_KEPT = 65_536


class Fate(NamedTuple):
    """How a block was lost (see :mod:`kveik.agent.funnel`), why, and when by the monotonic clock."""

    kind: str
    reason: str
    at_s: float


class BlockFates:
    """The latest losses, by key. A listener: evictions come as records, the rest is noted by the agent's service."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, kept: int = FATES_KEPT) -> None:
        self._clock = clock
        self._kept = kept
        self._lock = threading.Lock()
        self._fates: OrderedDict[int, Fate] = OrderedDict()

    def __repr__(self) -> str:
        return f"BlockFates({len(self._fates)} of {self._kept})"

    def __call__(self, record: Record) -> None:
        """Note what a tier gave up to make room."""
        if isinstance(record, EvictionRecord) and record.keys:
            self.note(record.keys, EVICTED, record.tier)

    def note(self, keys: Iterable[bytes], kind: str, reason: str) -> None:
        """These blocks (packed keys) were lost, or not taken."""
        fate = Fate(kind, reason, self._clock.monotonic())
        with self._lock:
            for key in keys:
                name = xxhash.xxh3_64_intdigest(key)
                self._fates[name] = fate
                self._fates.move_to_end(name)
            while len(self._fates) > self._kept:
                self._fates.popitem(last=False)

    def of(self, key: bytes, before_s: float) -> Fate | None:
        """What had become of a block by then; None if nothing is known, or something happened only later."""
        with self._lock:
            fate = self._fates.get(xxhash.xxh3_64_intdigest(key))
        return fate if fate is not None and fate.at_s <= before_s else None
