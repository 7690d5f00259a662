"""What a simulated engine has seen: counters that tests and benchmarks read."""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: So many aborted requests and prefix groups are kept.
KEPT = 10_000
#: So many recorded requests are kept, with their bodies.
RECORDED = 1_000


@dataclass(frozen=True, slots=True)
class Aborted:
    """A request whose client left. ``noticed_s``: when, on the machine's monotonic clock.

    An engine cannot know when the other end closed; who closed it on the same machine can compare
    its own ``time.monotonic()`` with ``noticed_s``. ``after_s``: how long the request had been here;
    ``chunks``: events sent until then.
    """

    path: str
    noticed_s: float
    after_s: float
    chunks: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request as it came, kept if recording is on. Header names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Seen:
    """Counts since the start, or since the last reset; ``requests`` by path, ``groups`` by prefix group."""

    requests: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    groups: Counter[str] = field(default_factory=Counter)
    aborted: deque[Aborted] = field(default_factory=lambda: deque(maxlen=KEPT))
    aborted_count: int = 0
    active: int = 0
    active_max: int = 0
    connections: int = 0
    connections_total: int = 0
    recorded: deque[Recorded] = field(default_factory=lambda: deque(maxlen=RECORDED))

    def begin(self, group: str) -> None:
        """A request for tokens begins."""
        self.active += 1
        self.active_max = max(self.active_max, self.active)
        if group in self.groups or len(self.groups) < KEPT:
            self.groups[group] += 1

    def end(self) -> None:
        """A request for tokens has ended, however it did."""
        self.active -= 1

    def left(self, aborted: Aborted) -> None:
        """The client of a request has left."""
        self.aborted.append(aborted)
        self.aborted_count += 1

    def reset(self) -> None:
        """Start counting anew; what is under way stays counted as such."""
        active, connections = self.active, self.connections
        self.__init__()  # type: ignore[misc]
        self.active = self.active_max = active
        self.connections = connections

    def document(self) -> dict[str, Any]:
        """All of it as JSON; of what was recorded only the number."""
        return {
            "requests": dict(self.requests),
            "statuses": {str(status): count for status, count in self.statuses.items()},
            "active": self.active,
            "active_max": self.active_max,
            "aborted": self.aborted_count,
            "aborted_requests": [
                {"path": one.path, "noticed_s": one.noticed_s, "after_s": one.after_s, "chunks": one.chunks}
                for one in self.aborted
            ],
            "prefix_groups": dict(self.groups),
            "connections": self.connections,
            "connections_total": self.connections_total,
            "recorded": len(self.recorded),
        }
