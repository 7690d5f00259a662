"""How much a process may write into a folder with a limit, so that all who share it keep the limit together.

Nobody sees in time what others write. So the one that sweeps gives the room that is left away in shares. Each process
reports how many bytes it wrote; what it wrote beyond the report that the round knew of counts against its new share.
Shares are such that their sum never passes the room:

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
from collections.abc import Mapping, Set
from dataclasses import dataclass

from kveik.clock import Clock

_NEWCOMERS = 4


@dataclass(frozen=True, slots=True)
class Round:
    """What a process learns when shares are given: the room, how many share it, and whether it is one of them.

    ``reported_bytes`` is its own report, of bytes written in all, that the room takes account of.
    """

    room_bytes: int
    writers: int
    listed: bool
    reported_bytes: int


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
    empty folder on. Otherwise a share ends when nothing was heard of the folder for ``stale_s``: it may have been given
    away anew.
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
        self._written = 0
        self._under_way = 0
        self._reported = 0  # of what was written, what the share takes account of

    def __repr__(self) -> str:
        return f"Allowance({self._used()} of {self._share} bytes used)"

    @property
    def written_bytes(self) -> int:
        """What this process has written in all."""
        return self._written

    @property
    def low(self) -> bool:
        """Whether less than a quarter of the share is left, so that a new one is due."""
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
        with self._lock:
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

    def renew(self, found: Round) -> None:
        """A round ended: its share replaces the last one."""
        with self._lock:
            self._share = (
                found.room_bytes if self._alone else share(found.room_bytes, found.writers, listed=found.listed)
            )
            self._writers = max(1, found.writers)
            self._reported = max(self._reported, found.reported_bytes)

    def _used(self) -> int:
        return self._written - self._reported + self._under_way

    def _is_stale(self) -> bool:
        return not self._alone and self._clock.monotonic() - self._heard_at_s > self._stale_s


class ShareBook:
    """What the one that sweeps knows between two counts: bytes counted, and reports since that count began."""

    def __init__(self) -> None:
        self._counted = 0
        self._before: dict[str, int] = {}
        self._latest: dict[str, int] = {}
        self._given: Set[str] = frozenset()

    def __repr__(self) -> str:
        return f"ShareBook({self.used({})} bytes, {len(self._given)} shares)"

    def counted(self, size: int, before: Mapping[str, int]) -> None:
        """The folder held so much, by a count that began when processes had reported ``before``."""
        self._counted = size
        self._before = self._latest = dict(before)

    def used(self, reported: Mapping[str, int]) -> int:
        """What lies there at most, but for what is not reported yet. The gone count by their last report."""
        self._latest = {**self._latest, **reported}
        return self._counted + sum(max(0, size - self._before.get(name, 0)) for name, size in self._latest.items())

    def given(self, names: Set[str]) -> None:
        """These got shares."""
        self._given = frozenset(names)

    def grew(self, names: Set[str]) -> bool:
        """Whether one of these has no share yet."""
        return not self._given >= names

    def lost_one(self, names: Set[str]) -> bool:
        """Whether one that has a share is gone: what it wrote last is not reported, only counting tells."""
        return not names >= self._given

    @property
    def shares(self) -> int:
        """How many have one."""
        return len(self._given)
