"""What waits to be written to one lower tier: the wanted first, no faster than allowed, and a few at a time.

The tier's own threads get only as many writes as keep them busy, so that the order can still change for the others.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kveik.breaker import CLOSED, HALF_OPEN
from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.kv.keys import BlockKey
from kveik.store.admission import full_bucket
from kveik.store.base import BlockResult
from kveik.store.guarded import GuardedStore

Ended = Callable[[BlockResult], None]


@dataclass(frozen=True, slots=True)
class _Waiting:
    key: BlockKey
    frame: memoryview
    ended: Ended


class WriteBack:
    """The queue before one tier. ``under_way_max`` writes are with the tier at most; 0 bytes a second: no limit."""

    def __init__(
        self, tier: GuardedStore, *, under_way_max: int, bytes_per_s: int = 0, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._tier = tier
        self._under_way_max = under_way_max
        self._clock = clock
        self._lock = threading.Lock()
        self._first: OrderedDict[BlockKey, _Waiting] = OrderedDict()
        self._then: OrderedDict[BlockKey, _Waiting] = OrderedDict()
        self._under_way = 0
        self._pumping = False
        self._bucket = full_bucket(bytes_per_s, clock.monotonic())

    def __repr__(self) -> str:
        return f"WriteBack({self._tier.name!r}, {self.waiting} waiting, {self._under_way} under way)"

    @property
    def waiting(self) -> int:
        """How many blocks the tier was not given yet."""
        return len(self._first) + len(self._then)

    def add(self, key: BlockKey, frame: memoryview, ended: Ended, *, first: bool) -> bool:
        """Queue one frame; false if that block waits already. Call :meth:`pump` after that."""
        with self._lock:
            if key in self._first or key in self._then:
                return False
            (self._first if first else self._then)[key] = _Waiting(key, frame, ended)
            return True

    def prefer(self, keys: Iterable[BlockKey]) -> None:
        """Blocks that may be waiting are wanted more than was known."""
        with self._lock:
            for key in keys:
                waiting = self._then.pop(key, None)
                if waiting is not None:
                    self._first[key] = waiting

    def pump(self) -> None:
        """Give the tier what it may have now. Called when something was added or ended, and a few times a second."""
        with self._lock:
            if self._pumping:  # by another thread, or further up in this one: writes that end at once come back here
                return
            self._pumping = True
        while (waiting := self._next()) is not None:
            self._tier.write_behind(waiting.key, waiting.frame, _then(waiting.ended, self._one_ended))

    def _next(self) -> _Waiting | None:
        """The next write, counted as under way; None, and nobody pumps any more, if none may go."""
        with self._lock:
            if self._may_go() and (queue := self._first or self._then):
                _, waiting = queue.popitem(last=False)
                self._under_way += 1
                self._bucket = self._bucket.after(len(waiting.frame))
                return waiting
            self._pumping = False
            return None

    def _may_go(self) -> bool:
        """A tier that is left out gets everything: it refuses at once, and the frames are free again."""
        if self._tier.breaker_state not in (CLOSED, HALF_OPEN):
            return True
        self._bucket = self._bucket.refilled(self._clock.monotonic())
        return self._under_way < self._under_way_max and self._bucket.open

    def _one_ended(self) -> None:
        with self._lock:
            self._under_way -= 1
        self.pump()

    def give_up(self) -> list[Ended]:
        """Forget what waits; who is to be told so."""
        with self._lock:
            waiting = [*self._first.values(), *self._then.values()]
            self._first.clear()
            self._then.clear()
        return [each.ended for each in waiting]


def _then(ended: Ended, after: Callable[[], None]) -> Ended:
    def both(result: BlockResult) -> None:
        try:
            ended(result)
        finally:
            after()

    return both
