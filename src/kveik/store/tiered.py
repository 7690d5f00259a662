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
from kveik.store.tier_rates import TierRate, TierRates
from kveik.store.write_back import WriteBack

ABSENT = -1
_CHECK_S = 0.25
#: Writes that a tier is given at once, for each of its threads: what it works on, and what comes right after that.
UNDER_WAY_PER_THREAD = 2


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
    ``hang_s`` is how long one store call may run before its tier counts as hung. Each tier is written no
    faster than ``write_bytes_per_s``, 0: as fast as it goes.
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
        write_bytes_per_s: int = 0,
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
        self._write_back = [
            WriteBack(
                tier,
                under_way_max=UNDER_WAY_PER_THREAD * limit * tier.capabilities.batch_keys,
                bytes_per_s=write_bytes_per_s,
                clock=clock,
            )
            for tier, limit in zip(self._tiers, limits, strict=True)
        ]
        self._rates = TierRates(len(self._tiers), clock)
        self._more: dict[str, Callable[[str], object]] = {}
        self._clock = clock
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
            start_s = self._clock.monotonic()
            present = tier.lookup([keys[position] for position in missing], Deadline.after(share_s, deadline.clock))
            if any(present):  # a tier that is left out answers at once, and nothing
                self._rates.looked_up(index, len(missing), self._clock.monotonic() - start_s)
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
                tier: self._begin_get(
                    tier,
                    [keys[attempt.index] for attempt in asked],
                    [buffers[attempt.index] for attempt in asked],
                    deadline,
                )
                for tier, asked in by_tier.items()
            }
            for tier, asked in by_tier.items():
                for attempt, result in zip(asked, answers[tier](), strict=True):
                    attempt.take(tier, result)
        return [attempt.outcome() for attempt in attempts]

    def _begin_get(
        self, tier: int, keys: Sequence[BlockKey], buffers: Sequence[memoryview], deadline: Deadline
    ) -> Callable[[], list[BlockResult]]:
        """Start reading from one tier; the answer, when called, waits for the results. Both are timed."""
        asked_bytes = sum(map(len, buffers))
        self._rates.began(tier, asked_bytes)
        answer = self._tiers[tier].begin_get(keys, buffers, deadline)

        def results() -> list[BlockResult]:
            got: list[BlockResult] = []
            try:
                got = answer()
            finally:
                late = sum(len(b) for b, r in zip(buffers, got, strict=False) if r.reason == "timeout")
                moved = sum(result.bytes for result in got if result.status is Status.HIT)
                self._rates.ended(tier, asked_bytes, moved, late)
            return got

        return results

    def rate(self, tier: int, *, with_lookup: bool = False) -> TierRate:
        """How fast a tier is, as far as that is known."""
        return self._rates.rate(tier, with_lookup=with_lookup)

    def _order(self, hint: int) -> list[int]:
        rest = list(range(len(self._tiers)))
        return rest if hint == ABSENT else [hint, *(tier for tier in rest if tier != hint)]

    def cascade(
        self,
        key: BlockKey,
        frame: memoryview,
        tiers: Sequence[int] | None,
        done: Callable[[], None],
        *,
        first: bool = False,
        stored: Callable[[], None] | None = None,
    ) -> bool:
        """Write a sealed frame to the tiers (all, if None) in the background; with ``first`` before those without.

        False: the queue is full or closed; ``done`` is then never called. Otherwise ``done`` is
        called exactly once, from a thread of the tiers, when no store touches the frame any
        more, whether it was stored or not. Before that ``stored`` is called for each tier that has it then.
        """
        chosen = list(range(len(self._tiers))) if tiers is None else list(dict.fromkeys(tiers))
        with self._condition:
            if self._closed or not chosen or self._queued_bytes + len(frame) > self._queue_bytes:
                return False
            self._queued_blocks += 1
            self._queued_bytes += len(frame)
        countdown = _Countdown(len(chosen), lambda: self._release(len(frame), done))
        for index in chosen:
            ended = partial(self._written, countdown=countdown, stored=stored)
            if not self._write_back[index].add(key, frame, ended, first=first):
                countdown.one_less()  # it waits there already
            self._write_back[index].pump()
        return True

    @property
    def waiting(self) -> int:
        """How many blocks wait to be written, by tier, before a tier has begun with them."""
        return sum(write_back.waiting for write_back in self._write_back)

    def prefer(self, keys: Sequence[BlockKey]) -> None:
        """Blocks that wait to be written, if they do, are written before those that nobody asked for."""
        for write_back in self._write_back:
            write_back.prefer(keys)

    def _written(self, result: BlockResult, countdown: "_Countdown", stored: Callable[[], None] | None) -> None:
        if stored is not None and result.ok:
            stored()
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

    def tell_more(self, entry: str, of_tier: Callable[[str], object]) -> None:
        """Have an entry in :meth:`stats` that somebody else knows, by the tier's name."""
        self._more[entry] = of_tier

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
                "waiting_to_be_written": write_back.waiting,
                "rate": self._rates.rate(index, with_lookup=True).plain,
                **{entry: of_tier(tier.name) for entry, of_tier in self._more.items()},
            }
            for index, (tier, write_back) in enumerate(zip(self._tiers, self._write_back, strict=True))
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
        for write_back in self._write_back:
            for ended in write_back.give_up():
                ended(failed("closed"))
        for tier in self._tiers:
            tier.close()

    def _watch(self) -> None:
        """Open breakers over calls that nobody waits for, and end writes that lingered."""
        while True:
            with self._condition:
                if self._condition.wait_for(lambda: self._closed and not self._lingering, _CHECK_S):
                    return
                lingering, self._lingering = self._lingering, []
            for tier, write_back in zip(self._tiers, self._write_back, strict=True):
                tier.check()
                write_back.pump()
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
    if not isinstance(store, ListedStore):
        return _drop_known(tier, known, "the tier cannot say which blocks it has")
    listed = _drop_all(tier, store.keys(namespace), spared=PROBE_NAMESPACE if not namespace else b"")
    # One that turns out not to list anything, as a store that was opened late may, loses at least what is known.
    return _drop_known(tier, known, listed.left) if listed.left and not listed.blocks else listed


def _drop_all(tier: GuardedStore, portions: Iterator[Sequence[BlockKey]], *, spared: bytes) -> TierDrop:
    """Portion by portion, so that no call takes long; where one can't be found, the rest is left."""
    blocks, left = 0, ""
    while True:
        keys = tier.run(partial(next, portions, None))
        if isinstance(keys, BlockResult):
            return TierDrop(tier.name, blocks, keys.detail or keys.reason)
        if keys is None:
            return TierDrop(tier.name, blocks, left)
        portion = _drop_known(tier, [key for key in keys if key.namespace != spared], left)
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
