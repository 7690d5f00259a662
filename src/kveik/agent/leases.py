"""The leases of one connection. Plain bookkeeping: what the slots mean is the service's affair."""

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass

#: One number line for all connections, so that a lease id never means two things.
_ids = itertools.count(1)


@dataclass(frozen=True, slots=True)
class WriteLease:
    """Reserved slots, in the order of the request; -1 where a key got none."""

    slots: tuple[int, ...]
    payload_bytes: int
    opened_s: float

    @property
    def held(self) -> list[int]:
        """The slots that were reserved."""
        return [slot for slot in self.slots if slot >= 0]


@dataclass(frozen=True, slots=True)
class ReadLease:
    """Pinned slots, and how many bytes lie in them."""

    slots: tuple[int, ...]
    bytes: int
    opened_s: float


class Leases:
    """Open leases by id. Safe from several threads: slow requests end on other threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, WriteLease | ReadLease] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"Leases({len(self._open)} open{', closed' if self._closed else ''})"

    def __len__(self) -> int:
        return len(self._open)

    def add(self, lease: WriteLease | ReadLease) -> int:
        """Open a lease; 0 if the connection has ended, and the caller must undo what it holds."""
        with self._lock:
            if self._closed:
                return 0
            lease_id = next(_ids)
            self._open[lease_id] = lease
            return lease_id

    def peek(self, lease_id: int) -> WriteLease | ReadLease | None:
        """An open lease, which stays open."""
        with self._lock:
            return self._open.get(lease_id)

    def take(self, lease_id: int) -> WriteLease | ReadLease | None:
        """End a lease; None if it is not open (any more)."""
        with self._lock:
            return self._open.pop(lease_id, None)

    def take_old_reads(self, opened_before_s: float) -> Sequence[ReadLease]:
        """End the read leases that were opened before that time."""
        with self._lock:
            old = {
                lease_id: lease
                for lease_id, lease in self._open.items()
                if isinstance(lease, ReadLease) and lease.opened_s < opened_before_s
            }
            for lease_id in old:
                del self._open[lease_id]
            return list(old.values())

    def close(self) -> list[WriteLease | ReadLease]:
        """End all leases, and refuse new ones."""
        with self._lock:
            self._closed = True
            leases = list(self._open.values())
            self._open.clear()
            return leases
