"""How fast each lower tier is: seconds of reads by their bytes, and of lookups by their keys, as they happen.

A read is timed as what the tier did while it was busy, from the first block that somebody waited for to the last: three
batches at once that share a disk for a second each are three batches in one second. What waits already delays who comes
next, so it is told along.
"""

import threading
from dataclasses import dataclass, field, replace

from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.learned_cost import Cost, LearnedCost

#: A tier that is never idle is timed in stretches of this.
STRETCH_S = 2.0
#: After so long what a tier did counts half of what it does: others use it too.
HALF_LIFE_S = 30.0


@dataclass(frozen=True, slots=True)
class Busy:
    """A tier's reads under way, and what it did since it last was idle. Pure."""

    waiting_bytes: int = 0
    since_s: float = 0.0
    moved_bytes: int = 0
    late_bytes: int = 0

    def begun(self, asked_bytes: int, now_s: float) -> "Busy":
        """Somebody waits for so many bytes more."""
        if self.waiting_bytes > 0:
            return replace(self, waiting_bytes=self.waiting_bytes + asked_bytes)
        return Busy(asked_bytes, now_s)

    def ended(self, asked_bytes: int, moved_bytes: int, late_bytes: int, now_s: float) -> "tuple[Busy, Busy | None]":
        """A read ended: some of its bytes came, some did not in time. The second value is a stretch to be timed."""
        busy = Busy(
            max(0, self.waiting_bytes - asked_bytes),
            self.since_s,
            self.moved_bytes + moved_bytes,
            self.late_bytes + late_bytes,
        )
        if busy.waiting_bytes > 0 and now_s - self.since_s < STRETCH_S:
            return busy, None
        return Busy(busy.waiting_bytes, now_s), busy


@dataclass(frozen=True, slots=True)
class TierRate:
    """What is known of one tier. ``age_s``: since it was last timed; ``waiting_bytes`` are asked for and not there."""

    get: Cost | None
    lookup: Cost | None
    age_s: float
    waiting_bytes: int

    @property
    def plain(self) -> dict[str, object]:
        """The rate as plain values, for ``kveik stats`` and ``kveik breakeven``."""
        return {"get": _plain(self.get), "lookup": _plain(self.lookup), "age_s": round(self.age_s, 1)}


def _plain(cost: Cost | None) -> dict[str, object] | None:
    if cost is None:
        return None
    fixed_s, each_s = cost.coefficients
    return {"fixed_s": fixed_s, "each_s": each_s, "sigma": round(cost.sigma, 4), "samples": cost.samples}


@dataclass(slots=True)
class _Tier:
    busy: Busy = Busy()
    get: LearnedCost = field(default_factory=lambda: LearnedCost(HALF_LIFE_S))
    get_cost: Cost | None = None
    lookup: LearnedCost = field(default_factory=lambda: LearnedCost(HALF_LIFE_S))
    timed_s: float = 0.0


class TierRates:
    """The rates of several tiers, by their number. For use from several threads."""

    def __init__(self, count: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tiers = [_Tier() for _ in range(count)]

    def __repr__(self) -> str:
        return f"TierRates({[tier.get for tier in self._tiers]})"

    def began(self, tier: int, asked_bytes: int) -> None:
        """A read of so many bytes begins."""
        with self._lock:
            known = self._tiers[tier]
            known.busy = known.busy.begun(asked_bytes, self._clock.monotonic())

    def ended(self, tier: int, asked_bytes: int, moved_bytes: int, late_bytes: int) -> None:
        """It ended: so many bytes are there, and so many were given up because they took too long."""
        now_s = self._clock.monotonic()
        with self._lock:
            known = self._tiers[tier]
            known.busy, stretch = known.busy.ended(asked_bytes, moved_bytes, late_bytes, now_s)
            if stretch is not None:
                self._learn(known, stretch, now_s)

    @staticmethod
    def _learn(known: _Tier, stretch: Busy, now_s: float) -> None:
        seconds = now_s - stretch.since_s
        size = stretch.moved_bytes or stretch.late_bytes
        if size == 0:
            return
        if not stretch.moved_bytes:  # nothing came: news only if that is longer than was expected anyway
            cost = known.get.cost(now_s)
            if cost is not None and cost.seconds(1, size) > seconds:
                return
        known.get = known.get.observed((1, size), seconds, now_s)
        known.get_cost, known.timed_s = None, now_s

    def looked_up(self, tier: int, keys: int, seconds: float) -> None:
        """A lookup of so many keys took so long."""
        now_s = self._clock.monotonic()
        with self._lock:
            known = self._tiers[tier]
            known.lookup = known.lookup.observed((1, keys), seconds, now_s)

    def rate(self, tier: int, *, with_lookup: bool = False) -> TierRate:
        """What is known of a tier now."""
        now_s = self._clock.monotonic()
        with self._lock:
            known = self._tiers[tier]
            if known.get_cost is None:
                known.get_cost = known.get.cost(now_s)
            lookup = known.lookup.cost(now_s) if with_lookup else None
            return TierRate(known.get_cost, lookup, now_s - known.timed_s, known.busy.waiting_bytes)
