"""What the server's errors and facts mean, without a server and without its library."""

import pytest

from kveik.store.base import REASONS
from kveik.store.redis_answers import ServerFacts, reason_of


class RedisError(Exception):
    """As in redis-py: the root of its errors."""


class ConnectionError(RedisError):  # noqa: A001
    """As in redis-py."""


class TimeoutError(RedisError):  # noqa: A001
    """As in redis-py."""


class BusyLoadingError(ConnectionError):
    """As in redis-py."""


class ResponseError(RedisError):
    """As in redis-py."""


class OutOfMemoryError(ResponseError):
    """As in redis-py."""


class ReadOnlyError(ResponseError):
    """As in redis-py."""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionError("Error 111 connecting to 127.0.0.1:1. Connection refused."), "unavailable"),
        (TimeoutError("Timeout reading from socket"), "timeout"),
        (BusyLoadingError("Redis is loading the dataset in memory"), "unavailable"),
        (OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), "no_room"),
        (ResponseError("OOM command not allowed when used memory > 'maxmemory'."), "no_room"),
        (ReadOnlyError("You can't write against a read only replica."), "read_only"),
        (ResponseError("MISCONF Redis is configured to save RDB snapshots"), "read_only"),
        (ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"), "foreign"),
        (ResponseError("MOVED 3999 127.0.0.1:6381"), "unavailable"),
        (ResponseError("NOAUTH Authentication required."), "unavailable"),
        (ResponseError("ERR unknown command"), "io_error"),
        (BrokenPipeError("Broken pipe"), "unavailable"),
    ],
)
def test_every_error_is_one_of_the_contracts_reasons(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason
    assert reason in REASONS


def test_the_facts_are_read_from_what_the_server_tells() -> None:
    info = {"used_memory_dataset": 5000, "maxmemory": 10_000, "maxmemory_policy": "allkeys-lru", "redis_version": "7"}
    assert ServerFacts.of(info) == ServerFacts(5000, 10_000, "allkeys-lru", "7")
    assert ServerFacts.of({}) == ServerFacts()
    assert ServerFacts.of({"valkey_version": "8.1", "redis_version": "7.2"}).version == "8.1"


@pytest.mark.parametrize(
    ("limit_bytes", "policy", "said"),
    [
        (0, "noeviction", "no maxmemory"),
        (1000, "noeviction", "does not evict"),
        (1000, "volatile-lru", "time to live"),
        (1000, "allkeys-lru", ""),
        (0, "", ""),
    ],
)
def test_a_server_that_is_not_set_up_for_a_cache_is_told_of(limit_bytes: int, policy: str, said: str) -> None:
    notes = ServerFacts(limit_bytes=limit_bytes, policy=policy).notes
    assert said in " ".join(notes)
    assert bool(notes) == bool(said)
