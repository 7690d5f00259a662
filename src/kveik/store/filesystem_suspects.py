"""Blocks that looked wrong, and when that is certain enough to take the file away.

On a local disk what was read is what is there. A client of a network file system may show a file that another node has
just published with its old size or half of its bytes, so there a file counts as wrong for certain only when it is older
than :data:`SETTLED_S` and two looks at least :data:`APART_S` apart gave the same. Until then this process does without
it, and may write the block anew in its place.
"""

import threading
from dataclasses import dataclass
from enum import Enum

from kveik.kv.keys import BlockKey
from kveik.store.filesystem_files import FileIdentity

#: Clients keep sizes and names for at most so long by default (acregmax, acdirmax of nfs(5)).
SETTLED_S = 60.0
APART_S = 1.0
_KEPT_MAX = 1024


class Suspicion(Enum):
    """What a look at a wrong file means."""

    NEW = "new"  # nobody here knew
    KNOWN = "known"  # it was told before, and is not certain yet
    CERTAIN = "certain"


@dataclass(frozen=True, slots=True)
class _Look:
    identity: FileIdentity
    reason: str
    at_s: float


class Suspects:
    """What looked wrong and has not been looked at again, or not yet for certain. Any thread."""

    def __init__(self, *, network: bool) -> None:
        self._network = network
        self._lock = threading.Lock()
        self._first: dict[BlockKey, _Look] = {}

    def __repr__(self) -> str:
        return f"Suspects({len(self._first)} watched)"

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return bool(self._first)

    def look(self, key: BlockKey, identity: FileIdentity, reason: str, *, now_s: float, wall_s: float) -> Suspicion:
        """A file looked wrong, in this way. ``now_s`` is monotonic, ``wall_s`` Unix time."""
        if not self._network:
            return Suspicion.CERTAIN
        with self._lock:
            first = self._first.get(key)
            if first is None or first.identity != identity or first.reason != reason:
                self._first.pop(key, None)
                self._first[key] = _Look(identity, reason, now_s)
                while len(self._first) > _KEPT_MAX:
                    del self._first[next(iter(self._first))]
                return Suspicion.NEW
            if now_s - first.at_s < APART_S or wall_s - identity.mtime_s < SETTLED_S:
                return Suspicion.KNOWN
            del self._first[key]
            return Suspicion.CERTAIN

    def has(self, key: BlockKey, identity: FileIdentity) -> bool:
        """Whether this very file, unchanged since, looked wrong."""
        with self._lock:
            first = self._first.get(key)
            return first is not None and first.identity == identity

    def clear(self, key: BlockKey) -> None:
        """The block is sound, or was written anew."""
        if self._first:
            with self._lock:
                self._first.pop(key, None)
