"""What the filesystem tier knows about room: how much is stored, and whether writing works."""

import errno
import os
import threading
from dataclasses import dataclass

from kveik.breaker import CLOSED, Breaker, BreakerPolicy
from kveik.clock import Clock
from kveik.records import Listener, StateRecord

_STATVFS_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Count:
    """What a round of sweeping counted; ``round`` 0 is no count yet."""

    round: int = 0
    blocks: int = 0
    bytes: int = 0


NO_COUNT = Count()


class Usage:
    """Blocks and bytes in the folder: the last count, plus what this process did since."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = NO_COUNT
        self._blocks = 0
        self._bytes = 0
        self._since_blocks = 0
        self._since_bytes = 0

    def __repr__(self) -> str:
        blocks, size = self.read()
        return f"Usage({blocks} blocks, {size} bytes)"

    def read(self) -> tuple[int, int]:
        """Blocks and bytes now."""
        with self._lock:
            return max(0, self._blocks), max(0, self._bytes)

    def change(self, blocks: int, size: int) -> None:
        """This process added (or, negative, removed) that much."""
        with self._lock:
            self._blocks += blocks
            self._bytes += size
            self._since_blocks += blocks
            self._since_bytes += size

    def begin_count(self) -> None:
        """A count of the folder begins; changes from now on may or may not be in it."""
        with self._lock:
            self._since_blocks = self._since_bytes = 0

    def counted(self, blocks: int, size: int) -> None:
        """The count ended with these figures.

        Half of what changed meanwhile is taken to have been seen by it; the next count tells.
        """
        with self._lock:
            self._last = Count(self._last.round + 1, blocks, size)
            self._blocks = blocks + self._since_blocks // 2
            self._bytes = size + self._since_bytes // 2
            self._since_blocks = self._since_bytes = 0

    def last_count(self) -> Count:
        """The last count, without what happened since."""
        with self._lock:
            return self._last


class FreeSpace:
    """Free bytes of the disk below ``path``, asked for at most once a second."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._asked_at_s = float("-inf")
        self._free = 0

    def read(self, *, fresh: bool = False) -> int:
        """Bytes that an unprivileged writer may still use. Raises ``OSError``."""
        now_s = self._clock.monotonic()
        if fresh or now_s - self._asked_at_s >= _STATVFS_EVERY_S:
            answer = os.statvfs(self._path)
            self._free = answer.f_bavail * answer.f_frsize
            self._asked_at_s = now_s
        return self._free

    def spent(self, size: int) -> None:
        """This process wrote that much since the last question."""
        self._free -= size


class WriteGate:
    """Turns a tier read-only when its disk is full, and tries again by itself after a pause.

    It is a breaker that opens at the first failure: one put is let through after each pause.
    """

    def __init__(self, part: str, pause_s: float, listener: Listener, clock: Clock) -> None:
        self._part = part
        self._listener = listener
        self._clock = clock
        self._lock = threading.Lock()
        self._breaker = Breaker(BreakerPolicy(failures=1, open_s=pause_s, open_max_s=8 * pause_s))

    def __repr__(self) -> str:
        return f"WriteGate({self._part!r}, {'read-only' if self.read_only else 'writable'})"

    @property
    def read_only(self) -> bool:
        """Whether the last write met a full disk."""
        return self._breaker.state != CLOSED

    def permit(self) -> bool:
        """Whether a put may try to write now."""
        with self._lock:
            self._breaker, permitted = self._breaker.permit(self._clock.monotonic())
            return permitted

    def worked(self) -> None:
        """A block was written."""
        with self._lock:
            before, self._breaker = self._breaker, self._breaker.succeeded()
        if before.state != CLOSED:
            self._listener(StateRecord(self._part, "read-only", "writable", "a block could be written again"))

    def refused(self, error: OSError) -> None:
        """A write met a full disk, a quota, a file size limit or a read-only mount."""
        with self._lock:
            before, self._breaker = self._breaker, self._breaker.failed(self._clock.monotonic())
            pause_s = self._breaker.pause_s
        if before.state == CLOSED:
            name = errno.errorcode.get(error.errno or 0, "unknown")
            why = f"{error.strerror} ({name}); stored blocks are still read, writing is tried again in {pause_s:g} s"
            self._listener(StateRecord(self._part, "writable", "read-only", why))
