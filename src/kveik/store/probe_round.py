"""One round of a probe: what is asked of a tier, one call after the other. Decides nothing beyond the round.

It runs on a thread that may hang, and works on what it was given a copy of; so a round that was given up
can go on without harm, and its successor knows which canaries it may have left.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kveik.clock import Clock, Deadline
from kveik.errors import FrameError, StoreError
from kveik.kv import frame
from kveik.kv.keys import BlockKey
from kveik.store.base import BlockResult, BlockStore, failed
from kveik.store.canary import SMALL_BYTES, Canary
from kveik.store.probe_verdict import Finding, Verdict, of_get, of_put, together

#: A block that was read may be leased that long (Mooncake: 10 s), and cannot be deleted before.
LEASE_S = 12.0
#: Canaries that could not be deleted yet; of more, the oldest are left to the tier's eviction.
LEFT_MAX = 16
#: A tier that takes no puts is judged by a block of a user's, if it is no larger than this.
READ_MAX_BYTES = 32 << 20


@dataclass(slots=True)
class Kept:
    """What one round leaves to the next.

    The number of the last canary, the one to be read again, those to be deleted with the time of their last
    read, and memory that the store may still touch.
    """

    number: int = 0
    earlier: Canary | None = None
    left: list[tuple[Canary, float]] = field(default_factory=list)
    busy: list[tuple[BlockResult, memoryview]] = field(default_factory=list)

    def copy(self) -> "Kept":
        """The same, to be changed by a round."""
        return replace(self, left=list(self.left), busy=list(self.busy))

    def given_up(self, owner: str, sizes: Sequence[int], now_s: float) -> "Kept":
        """What the next round has to know when one with canaries of these sizes never ended."""
        lost = [(Canary.of(owner, self.number + place, size), now_s) for place, size in enumerate(sizes, 1)]
        return replace(self.copy(), number=self.number + len(sizes), left=[*self.left, *lost][-LEFT_MAX:])

    @property
    def canaries(self) -> int:
        """How many may be in the tier."""
        return len(self.left) + (self.earlier is not None)


class ProbeRound:
    """One round on ``store``; ``last_hit`` is a block of a user's that the tier served, and its bytes."""

    def __init__(
        self,
        store: BlockStore,
        owner: str,
        kept: Kept,
        deadline: Deadline,
        clock: Clock,
        last_hit: tuple[BlockKey, int] | None = None,
    ) -> None:
        self._store = store
        self._owner = owner
        self._deadline = deadline
        self._clock = clock
        self._last_hit = last_hit
        self.kept = kept.copy()
        self.blocks_before = 0

    def run(self, sizes: Sequence[int]) -> Finding:
        """Put canaries of these sizes and read them back, and that of the round before once more."""
        kept = self.kept
        kept.busy = [held for held in kept.busy if held[0].buffer_busy]
        self._delete_old()
        self.blocks_before = blocks_of_others(self._store, kept)
        earlier, found = kept.earlier, Finding(Verdict.UNKNOWN)
        if earlier is not None:
            found = self._read(earlier, Verdict.EMPTIED)
            if found.verdict in (Verdict.SLOW, Verdict.FAILING, Verdict.UNKNOWN):
                return found  # it says nothing of the canary, which is asked for again
        new = self._put_all(sizes)
        found = together(found, new)
        if earlier is not None and (new.verdict is Verdict.SOUND or found.verdict is Verdict.EMPTIED):
            kept.left.append((earlier, self._clock.monotonic()))
            kept.earlier = kept.earlier if kept.earlier is not earlier else None
        if found.verdict is Verdict.UNKNOWN:
            found = self._read_a_users() or found
        return found

    def clear(self) -> None:
        """Take away all canaries that can be."""
        kept = self.kept
        last = [] if kept.earlier is None else [kept.earlier]
        self._delete([*last, *(canary for canary, _ in kept.left)])
        kept.left, kept.earlier = [], None

    def _put_all(self, sizes: Sequence[int]) -> Finding:
        found = Finding(Verdict.UNKNOWN)
        for size in sizes:
            self.kept.number += 1
            one = self._put_and_read(Canary.of(self._owner, self.kept.number, size))
            if one.verdict is Verdict.UNKNOWN and found.verdict is Verdict.SOUND:
                break  # a small one fits, a large one does not
            found = one
            if found.verdict is not Verdict.SOUND:
                break
        return found

    def _put_and_read(self, canary: Canary) -> Finding:
        sealed = canary.sealed(self._clock.wall())
        (result,) = self._store.put([canary.key], [sealed], self._deadline)
        self._hold(result, sealed)
        refused = of_put(result)
        if refused is not None:
            if result.buffer_busy or result.reason == "timeout":
                self.kept.left.append((canary, self._clock.monotonic()))
            return refused
        found = self._read(canary, Verdict.NOT_SERVED)
        if found.verdict is Verdict.SOUND and canary.payload_bytes == SMALL_BYTES:
            self.kept.earlier = canary
        else:
            self.kept.left.append((canary, self._clock.monotonic()))
        return found

    def _read(self, canary: Canary, missing: Verdict) -> Finding:
        buffer = canary.buffer()
        (result,) = self._store.get([canary.key], [buffer], self._deadline)
        self._hold(result, buffer)
        return of_get(result, result.ok and canary.is_in(buffer), missing)

    def _read_a_users(self) -> Finding | None:
        """Where nothing can be put: read a block that the tier served before; a missing one was evicted."""
        if self._last_hit is None or self._last_hit[1] > READ_MAX_BYTES:
            return None
        key, size = self._last_hit
        buffer = memoryview(bytearray(size))
        (result,) = self._store.get([key], [buffer], self._deadline)
        self._hold(result, buffer)
        return of_get(result, result.ok and _is_frame_of(buffer, key), Verdict.UNKNOWN)

    def _hold(self, result: BlockResult, buffer: memoryview) -> None:
        """Keep memory that the store may still touch."""
        if result.buffer_busy:
            self.kept.busy.append((result, buffer))

    def _delete_old(self) -> None:
        now_s = self._clock.monotonic()
        old = [canary for canary, read_s in self.kept.left if now_s - read_s >= LEASE_S]
        left = [entry for entry in self.kept.left if entry[0] not in old]
        for canary, result in zip(old, self._delete(old), strict=True):
            if result.reason == "busy":
                left.append((canary, now_s))
        self.kept.left = left[-LEFT_MAX:]

    def _delete(self, canaries: Sequence[Canary]) -> list[BlockResult]:
        if not canaries:
            return []
        try:
            return self._store.delete([canary.key for canary in canaries])
        except StoreError as error:
            return [failed("unavailable", str(error))] * len(canaries)


def blocks_of_others(store: BlockStore, kept: Kept) -> int:
    """Blocks in the tier without canaries, as far as it knows."""
    return max(0, store.stats().blocks - kept.canaries)


def _is_frame_of(buffer: memoryview, key: BlockKey) -> bool:
    try:
        frame.verify(buffer, key)
    except FrameError:
        return False
    return True
