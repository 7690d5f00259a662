"""The tiers below the arena, in order: where a block is, bringing it up, writing it down."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from kveik.breaker import DEFAULT_POLICY, BreakerPolicy
from kveik.clock import SYSTEM_CLOCK, Clock, Deadline
from kveik.kv.keys import BlockKey
from kveik.kv.namespace import Namespace
from kveik.records import Listener, ignore
from kveik.store.base import MISS, BlockResult, BlockStore, DescribedStore, DroppingStore, ListedStore, Status, failed
from kveik.store.canary import PROBE_NAMESPACE
from kveik.store.guarded import GuardedStore
from kveik.store.instrumented import InstrumentedStore

ABSENT = -1
_CHECK_S = 0.25


@dataclass(slots=True)
class _Attempt:
    """One key of a fetch: the tiers still to be asked and the best answer so far."""

    index: int
    tiers: list[int]
    tier: int = ABSENT
    result: BlockResult = MISS

    def take(self, tier: int, result: BlockResult) -> None:
        final = result.ok or result.buffer_busy
        # Of several tiers that could not serve it, the first one with a reason is remembered.
        if final or (self.result is MISS and result.status is not Status.MISS):
            self.tier, self.result = tier, result
        if final:
            self.tiers = []

    def outcome(self) -> tuple[int, BlockResult]:
        """The tier and its answer; not a miss as long as a tier is left that nobody had time to ask."""
        if self.tiers and self.result is MISS:
            return ABSENT, failed("timeout", "no time left to ask all tiers")
        return self.tier, self.result


@dataclass(frozen=True, slots=True)
class TierDrop:
    """How many blocks of a namespace a tier dropped, and why some may be left; empty if none is."""

    tier: str
    blocks: int
    left: str = ""


class LowerTiers:
    """Several stores, each guarded and measured, on its own threads.

    Takes plain stores and does the wrapping itself. No block moves between tiers unless asked
    for. ``threads`` is how many read each tier, one number or one a tier; half as many write.
    ``hang_s`` is how long one store call may run before its tier counts as hung.
    """

    def __init__(
        self,
        stores: Sequence[BlockStore],
        *,
        threads: Sequence[int] | int,
        queue_bytes: int,
        listener: Listener = ignore,
        clock: Clock = SYSTEM_CLOCK,
        policy: BreakerPolicy = DEFAULT_POLICY,
        hang_s: float = 5.0,
    ) -> None:
        self._stores = list(stores)
        limits = [threads] * len(stores) if isinstance(threads, int) else threads
        self._tiers = [
            GuardedStore(
                InstrumentedStore(store, listener, clock),
                threads=limit,
                policy=policy,
                hang_s=hang_s,
                listener=listener,
                clock=clock,
            )
            for store, limit in zip(stores, limits, strict=True)
        ]
        self._queue_bytes = queue_bytes
        self._condition = threading.Condition()
        self._queued_blocks = 0
        self._queued_bytes = 0
        self._lingering: list[tuple[BlockResult, Callable[[], None]]] = []
        self._closed = False
        if self._tiers:
            threading.Thread(target=self._watch, name="kveik-tiers-watch", daemon=True).start()

    def __repr__(self) -> str:
        return f"LowerTiers({self._tiers!r}, {self._queued_blocks} blocks, {self._queued_bytes} bytes queued)"

    @property
    def names(self) -> list[str]:
        """The tiers' names, in order."""
        return [tier.name for tier in self._tiers]

    @property
    def guards(self) -> list[tuple[BlockStore, GuardedStore]]:
        """Each store as it was given, and behind its guard: what a probe needs."""
        return list(zip(self._stores, self._tiers, strict=True))

    def describe(self, namespace: Namespace) -> None:
        """Let the tiers that can keep what this namespace stands for, in the background."""
        for store, tier in zip(self._stores, self._tiers, strict=True):
            if isinstance(store, DescribedStore):
                tier.run_behind(partial(store.describe, namespace))

    def lookup(self, keys: Sequence[BlockKey], deadline: Deadline) -> list[int]:
        """For each key the index of the first tier that has it, or -1.

        Each tier but the last gets an equal share of the time that is left, so that a hung one
        leaves some for those after it. Keys are asked for in order: what is unanswered at the
        deadline, and thus -1, are the last ones.
        """
        places = [ABSENT] * len(keys)
        for index, tier in enumerate(self._tiers):
            missing = [position for position, place in enumerate(places) if place == ABSENT]
            if not missing or deadline.passed:
                break
            share_s = deadline.remaining_s / (len(self._tiers) - index)
            present = tier.lookup([keys[position] for position in missing], Deadline.after(share_s, deadline.clock))
            for position, found in zip(missing, present, strict=True):
                if found:
                    places[position] = index
        return places

    def fetch(
        self,
        keys: Sequence[BlockKey],
        tiers: Sequence[int] | None,
        buffers: Sequence[memoryview],
        deadline: Deadline,
    ) -> list[tuple[int, BlockResult]]:
        """Read each frame into its buffer, from the tier in ``tiers`` or else the first that can.

        Returns, for each key, the tier's index and its result; ``(-1, MISS)`` when no tier has
        it. Never waits past the deadline: a key that is not done by then is FAILED ``timeout``
        and its ``buffer_busy`` stays true as long as a store may still write to the buffer.
        """
        hints = tiers if tiers is not None else [ABSENT] * len(keys)
        attempts = [_Attempt(index, self._order(hint)) for index, hint in enumerate(hints)]
        while not deadline.passed and (waiting := [attempt for attempt in attempts if attempt.tiers]):
            by_tier: dict[int, list[_Attempt]] = {}
            for attempt in waiting:
                by_tier.setdefault(attempt.tiers.pop(0), []).append(attempt)
            answers = {
                tier: self._tiers[tier].begin_get(
                    [keys[attempt.index] for attempt in asked], [buffers[attempt.index] for attempt in asked], deadline
                )
                for tier, asked in by_tier.items()
            }
            for tier, asked in by_tier.items():
                for attempt, result in zip(asked, answers[tier](), strict=True):
                    attempt.take(tier, result)
        return [attempt.outcome() for attempt in attempts]

    def _order(self, hint: int) -> list[int]:
        rest = list(range(len(self._tiers)))
        return rest if hint == ABSENT else [hint, *(tier for tier in rest if tier != hint)]

    def cascade(self, key: BlockKey, frame: memoryview, tiers: Sequence[int] | None, done: Callable[[], None]) -> bool:
        """Write a sealed frame to the tiers (all, if None) in the background.

        False: the queue is full or closed; ``done`` is then never called. Otherwise ``done`` is
        called exactly once, from a thread of the tiers, when no store touches the frame any
        more, whether it was stored or not.
        """
        chosen = list(range(len(self._tiers))) if tiers is None else list(dict.fromkeys(tiers))
        with self._condition:
            if self._closed or not chosen or self._queued_bytes + len(frame) > self._queue_bytes:
                return False
            self._queued_blocks += 1
            self._queued_bytes += len(frame)
        countdown = _Countdown(len(chosen), lambda: self._release(len(frame), done))
        for index in chosen:
            self._tiers[index].write_behind(key, frame, lambda result: self._written(result, countdown))
        return True

    def _written(self, result: BlockResult, countdown: "_Countdown") -> None:
        if result.buffer_busy:
            with self._condition:
                self._lingering.append((result, countdown.one_less))
        else:
            countdown.one_less()

    def _release(self, frame_bytes: int, done: Callable[[], None]) -> None:
        try:
            done()
        finally:
            with self._condition:
                self._queued_blocks -= 1
                self._queued_bytes -= frame_bytes
                self._condition.notify_all()

    def drop_namespace(self, namespace: bytes, known: Sequence[BlockKey] = ()) -> list[TierDrop]:
        """Drop the blocks of one namespace, or all (empty digest), from each tier, as far as that can be done.

        ``known`` are blocks to drop from a tier that cannot say what it has. Blocks on their way down
        may arrive later. May take as long as walking over all files does.
        """
        return [
            _drop_from(store, tier, namespace, known) for store, tier in zip(self._stores, self._tiers, strict=True)
        ]

    def stats(self) -> list[dict[str, object]]:
        """One plain mapping a tier: sizes, promises, breaker and threads."""
        return [
            {
                "name": tier.name,
                **asdict(tier.stats()),
                **asdict(tier.capabilities),
                "breaker": tier.breaker_state,
                "fence": tier.standing.fence,
                "stuck_threads": tier.stuck_threads,
                "outages": tier.standing.outages.state(),
            }
            for tier in self._tiers
        ]

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is queued; false when something still is after ``timeout_s``."""
        with self._condition:
            return self._condition.wait_for(lambda: self._queued_blocks == 0, timeout_s)

    def close(self) -> None:
        """Give up what is queued and close the stores; never waits for a stuck call."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        for tier in self._tiers:
            tier.close()

    def _watch(self) -> None:
        """Open breakers over calls that nobody waits for, and end writes that lingered."""
        while True:
            with self._condition:
                if self._condition.wait_for(lambda: self._closed and not self._lingering, _CHECK_S):
                    return
                lingering, self._lingering = self._lingering, []
            for tier in self._tiers:
                tier.check()
            for result, one_less in lingering:
                if not result.buffer_busy:
                    one_less()
                else:
                    with self._condition:
                        self._lingering.append((result, one_less))


def _drop_from(store: BlockStore, tier: GuardedStore, namespace: bytes, known: Sequence[BlockKey]) -> TierDrop:
    """At once where the store can do it by itself, else what it can list, else what is known."""
    if isinstance(store, DroppingStore):
        dropped = tier.run(partial(store.drop, namespace))
        if isinstance(dropped, BlockResult):
            return TierDrop(tier.name, 0, dropped.detail or dropped.reason)
        if dropped is not None:
            return TierDrop(tier.name, dropped)
    if isinstance(store, ListedStore):
        return _drop_all(tier, store.keys(namespace))
    return _drop_known(tier, known, "the tier cannot say which blocks it has")


def _drop_all(tier: GuardedStore, portions: Iterator[Sequence[BlockKey]]) -> TierDrop:
    """Portion by portion, so that no call takes long; where one can't be found, the rest is left."""
    blocks, left = 0, ""
    while True:
        keys = tier.run(partial(next, portions, None))
        if isinstance(keys, BlockResult):
            return TierDrop(tier.name, blocks, keys.detail or keys.reason)
        if keys is None:
            return TierDrop(tier.name, blocks, left)
        portion = _drop_known(tier, [key for key in keys if key.namespace != PROBE_NAMESPACE], left)
        blocks, left = blocks + portion.blocks, portion.left


def _drop_known(tier: GuardedStore, keys: Sequence[BlockKey], left: str) -> TierDrop:
    results = tier.delete(keys) if keys else []
    reasons = [result.detail or result.reason for result in results if result.status is Status.FAILED]
    return TierDrop(
        tier.name, sum(result.status is Status.DELETED for result in results), left or next(iter(reasons), "")
    )


class _Countdown:
    """Calls ``zero`` when :meth:`one_less` was called ``count`` times."""

    def __init__(self, count: int, zero: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._count = count
        self._zero = zero

    def one_less(self) -> None:
        with self._lock:
            self._count -= 1
            last = self._count == 0
        if last:
            self._zero()
