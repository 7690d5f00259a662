"""How much a process may write before the folder is counted again, so that all together keep the limit.

Nobody sees in time what others write into a shared folder. So each round of counting gives the room that is left
away in shares, one a process that is known to write, and what a process wrote since the round *began* counts against
its new share, whether the round saw it or not. Shares are such that their sum never passes the room:

=========================================  ==========================================
who                                        share of the room
=========================================  ==========================================
the only one that writes                   3/4 (all, if it counts by hand and alone)
one of ``n`` that write                    1/(2 n): another may still use its last share
one that the round did not know of yet     1/(4 n), at least four counted
nobody has counted yet                     nothing
=========================================  ==========================================
"""

import threading
from collections import deque
from dataclasses import dataclass

from kveik.clock import Clock

_NEWCOMERS = 4
#: Writes of one span of this length are remembered as one.
_SPAN_S = 0.25


@dataclass(frozen=True, slots=True)
class Round:
    """What a round says about room: bytes it counted, who writes, and when it began.

    ``began_s`` is on this process's monotonic clock, rather too early than too late; None for a round of its own, which
    it announced with :meth:`Allowance.begin`.
    """

    bytes: int
    writers: int
    listed: bool  # whether this process is one of them
    began_s: float | None = None


def share(room_bytes: int, writers: int, *, listed: bool) -> int:
    """How much of the room one process may use."""
    if room_bytes <= 0:
        return 0
    if not listed:
        return room_bytes // (4 * max(_NEWCOMERS, writers))
    return room_bytes * 3 // 4 if writers <= 1 else room_bytes // (2 * writers)


def room_for(size: int, writers: int) -> int:
    """How much room there must be so that the share of one of ``writers`` takes a block of ``size``."""
    return size * 4 // 3 + 1 if writers <= 1 else size * 2 * writers


class Allowance:
    """What this process may still write. Bytes; any thread.

    ``alone``: no other process writes there, and rounds are made by hand; then the whole limit may be used, from an
    empty folder on. Otherwise a share ends when nothing was heard of the folder for ``stale_s``: it may have been
    counted anew.
    """

    def __init__(self, limit_bytes: int, clock: Clock, *, alone: bool, stale_s: float = float("inf")) -> None:
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._alone = alone
        self._stale_s = stale_s
        self._lock = threading.Lock()
        self._share = limit_bytes if alone else 0
        self._writers = 1
        self._heard_at_s = float("-inf")
        self._written = 0  # in all
        self._under_way = 0
        self._counted = 0  # of what was written, how much the last round may have seen
        self._begun = 0
        self._history: deque[tuple[float, int]] = deque()  # (when a span of writes began, written before it)

    def __repr__(self) -> str:
        return f"Allowance({self._used()} of {self._share} bytes used)"

    @property
    def low(self) -> bool:
        """Whether less than a quarter of the share is left, so that a round is due."""
        with self._lock:
            return self._limit_bytes > 0 and not self._alone and self._used() * 4 > self._share * 3

    def room_for(self, size: int) -> int:
        """How much room a round has to leave so that this process may write a block of ``size``."""
        with self._lock:
            return size if self._alone else room_for(size, self._writers)

    def take(self, size: int) -> bool:
        """Ask for room for one block; then either :meth:`wrote` or :meth:`give_back` has to follow."""
        with self._lock:
            if self._limit_bytes and (self._used() + size > self._share or self._is_stale()):
                return False
            self._under_way += size
            return True

    def wrote(self, size: int) -> None:
        """What was taken has been written."""
        now_s = self._clock.monotonic()
        with self._lock:
            if not self._history or now_s >= self._history[-1][0] + _SPAN_S:
                self._history.append((now_s, self._written))
            self._under_way -= size
            self._written += size

    def give_back(self, size: int) -> None:
        """What was taken was not written after all."""
        with self._lock:
            self._under_way -= size

    def removed(self, size: int) -> None:
        """This process removed so much: room for it, if nobody else can have taken it."""
        if self._alone:
            with self._lock:
                self._share += size

    def heard(self) -> None:
        """Who sweeps the folder was asked just now, or is this process."""
        self._heard_at_s = self._clock.monotonic()

    def begin(self) -> None:
        """A round of this process begins: what was written until now will be in its count."""
        with self._lock:
            self._begun = self._written

    def renew(self, found: Round) -> None:
        """A round ended: its share replaces the last one; what was written since it began counts against it."""
        with self._lock:
            room = self._limit_bytes - found.bytes
            self._share = room if self._alone else share(room, found.writers, listed=found.listed)
            self._writers = max(1, found.writers)
            before = self._begun if found.began_s is None else self._written_before(found.began_s)
            self._counted = max(self._counted, before)  # no round begins before the one before it has ended

    def _used(self) -> int:
        return self._written - self._counted + self._under_way

    def _is_stale(self) -> bool:
        return not self._alone and self._clock.monotonic() - self._heard_at_s > self._stale_s

    def _written_before(self, time_s: float) -> int:
        """At least so much was written before that time; earlier history is no longer needed."""
        while len(self._history) > 1 and self._history[1][0] <= time_s:
            self._history.popleft()
        if not self._history or self._history[0][0] > time_s:
            return 0
        began_s, before = self._history[0]
        if began_s + _SPAN_S > time_s:
            return before
        return self._history[1][1] if len(self._history) > 1 else self._written
