"""Blocks that looked wrong, and when that is certain enough to take the file away.

On a local disk what was read is what is there. A client of a network file system may show a file that another node has
just published with its old size or half of its bytes, so there a file counts as wrong only when it is older than
:data:`SETTLED_S` and two looks at least :data:`APART_S` apart gave the same.
"""

import threading
from dataclasses import dataclass

from kveik.kv.keys import BlockKey
from kveik.store.filesystem_files import FileIdentity

#: Clients keep sizes and names for at most so long by default (acregmax, acdirmax of nfs(5)).
SETTLED_S = 60.0
APART_S = 1.0
_KEPT_MAX = 1024


@dataclass(frozen=True, slots=True)
class _Look:
    identity: FileIdentity
    reason: str
    at_s: float


class Suspects:
    """What looked wrong once. Any thread."""

    def __init__(self, *, network: bool) -> None:
        self._network = network
        self._lock = threading.Lock()
        self._first: dict[BlockKey, _Look] = {}

    def __repr__(self) -> str:
        return f"Suspects({len(self._first)} watched)"

    def certain(self, key: BlockKey, identity: FileIdentity, reason: str, *, now_s: float, wall_s: float) -> bool:
        """Whether this file is wrong for certain; otherwise the look is remembered. ``now_s`` is monotonic."""
        if not self._network:
            return True
        with self._lock:
            first = self._first.get(key)
            same = first is not None and first.identity == identity and first.reason == reason
            if first is None or not same:
                self._first.pop(key, None)
                self._first[key] = _Look(identity, reason, now_s)
                while len(self._first) > _KEPT_MAX:
                    del self._first[next(iter(self._first))]
                return False
            if now_s - first.at_s < APART_S or wall_s - identity.mtime_s < SETTLED_S:
                return False
            del self._first[key]
            return True
