"""What a Redis or Valkey server's answers mean: pure, and without its client library."""

from collections.abc import Mapping
from dataclasses import dataclass

#: Error classes of redis-py, most special first, and what they mean for one block. Found by name: the
#: library is no dependency, and its classes are what tells errors apart.
_BY_CLASS = (
    ("TimeoutError", "timeout"),
    ("MaxConnectionsError", "unavailable"),
    ("BusyLoadingError", "unavailable"),
    ("AuthenticationError", "unavailable"),
    ("AuthorizationError", "unavailable"),
    ("ConnectionError", "unavailable"),
    ("NoPermissionError", "unavailable"),
    ("OutOfMemoryError", "no_room"),
    ("ReadOnlyError", "read_only"),
    ("OSError", "unavailable"),
)
#: First words of the server's other errors.
_BY_WORD = (
    ("OOM", "no_room"),
    ("MISCONF", "read_only"),  # it cannot save to its disk and takes no writes
    ("NOREPLICAS", "read_only"),
    ("READONLY", "read_only"),
    ("WRONGTYPE", "foreign"),
    ("LOADING", "unavailable"),
    ("MASTERDOWN", "unavailable"),
    ("CLUSTERDOWN", "unavailable"),
    ("MOVED", "unavailable"),  # a cluster, which this tier does not speak
    ("NOAUTH", "unavailable"),
    ("WRONGPASS", "unavailable"),
    ("NOPERM", "unavailable"),
)


def reason_of(error: BaseException) -> str:
    """Which of the store's reasons an error of the client library stands for."""
    classes = {ancestor.__name__ for ancestor in type(error).__mro__}
    for name, reason in _BY_CLASS:
        if name in classes:
            return reason
    text = str(error)
    for word, reason in _BY_WORD:
        if text.startswith(word):
            return reason
    return "io_error"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says about its memory."""

    used_bytes: int = 0
    limit_bytes: int = 0  # 0: none
    policy: str = ""
    version: str = ""

    @classmethod
    def of(cls, info: Mapping[str, object]) -> "ServerFacts":
        """The facts in the answer to INFO; what is missing there is unknown."""
        return cls(
            _number(info.get("used_memory_dataset", info.get("used_memory", 0))),
            _number(info.get("maxmemory", 0)),
            str(info.get("maxmemory_policy", "")),
            str(info.get("valkey_version") or info.get("redis_version", "")),
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What somebody should change, in words."""
        if not self.policy:
            return ()
        if not self.limit_bytes:
            return ("the server has no maxmemory: it takes all memory there is; set maxmemory and allkeys-lru",)
        if self.policy == "noeviction":
            return ("the server does not evict (noeviction): when it is full nothing is stored; set allkeys-lru",)
        if self.policy.startswith("volatile-"):
            return (f"the server evicts only keys with a time to live ({self.policy}): set redis.ttl_hours",)
        return ()


def _number(value: object) -> int:
    return int(value) if isinstance(value, int | float) or (isinstance(value, str) and value.isdigit()) else 0
