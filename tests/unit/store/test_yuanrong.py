"""How the client's answers and errors become results of keys. With the real worker: the contract and tests/services."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from kveik.clock import Deadline, FakeClock
from kveik.config import YuanrongSettings
from kveik.errors import ConfigError
from kveik.kv.keys import BlockKey
from kveik.store.base import MISS, BlockResult, Status
from kveik.store.yuanrong import CALL_BYTES, CALL_BYTES_MAX, YuanrongStore, next_call_bytes
from kveik.store.yuanrong_client import YuanrongOptions
from tests.blocks import Block, make_block

OPTIONS = YuanrongOptions(host="127.0.0.1", port=1, prefix="t")
NOT_FOUND = "code: [Key not found], msg: [none]"


class Value:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def immutable_data(self) -> memoryview:
        return memoryview(self._content)


@dataclass
class ScriptedClient:
    """Values in a dictionary; calls that include one of ``dead`` fail with its text."""

    values: dict[str, bytes] = field(default_factory=dict)
    dead: dict[str, str] = field(default_factory=dict)
    asked: list[list[str]] = field(default_factory=list)
    trouble: str = ""
    clock: FakeClock = field(default_factory=FakeClock)

    def _hear(self, keys: list[str]) -> None:
        self.asked.append(keys)
        self.clock.advance(1.0)
        for text in [self.trouble, *(self.dead[key] for key in keys if key in self.dead)]:
            if text:
                raise RuntimeError(text)

    def exist(self, keys: list[str]) -> list[bool]:
        if self.trouble:
            raise RuntimeError(self.trouble)
        return [key in self.values or key in self.dead for key in keys]

    def get_read_only_buffers(self, keys: list[str]) -> list[Any]:
        self._hear(keys)
        if not any(key in self.values for key in keys):
            raise RuntimeError(NOT_FOUND)
        return [Value(self.values[key]) if key in self.values else None for key in keys]

    def set_new(self, key: str, value: memoryview) -> None:
        self._hear([key])
        if key in self.values:
            raise RuntimeError("code: [Object already exist error], msg: [it is]")
        self.values[key] = bytes(value)

    def delete(self, keys: list[str]) -> list[str]:
        self._hear(keys)
        for key in keys:
            self.values.pop(key, None)
        return []

    def close(self) -> None:
        raise AssertionError("the client belongs to who made it")


@pytest.fixture
def client() -> ScriptedClient:
    return ScriptedClient()


@pytest.fixture
def store(client: ScriptedClient) -> YuanrongStore:
    return YuanrongStore(client, OPTIONS)


def within(client: ScriptedClient, seconds: float = 1000.0) -> Deadline:
    return Deadline.after(seconds, client.clock)


def name(block: Block) -> str:
    return f"t-{block.key.text}"


def put(store: YuanrongStore, client: ScriptedClient, *blocks: Block) -> list[Status]:
    results = store.put([block.key for block in blocks], [block.frame for block in blocks], within(client))
    return [result.status for result in results]


def get(store: YuanrongStore, client: ScriptedClient, *blocks: Block, seconds: float = 1000.0) -> list[BlockResult]:
    keys, buffers = [block.key for block in blocks], [block.buffer() for block in blocks]
    results = store.get(keys, buffers, within(client, seconds))
    for block, buffer, result in zip(blocks, buffers, results, strict=True):
        assert result.status is not Status.HIT or block.is_in(buffer)
    return results


def reasons(results: list[BlockResult]) -> list[str]:
    return [result.reason or result.status.value for result in results]


def test_that_none_of_the_keys_is_there_means_misses(store: YuanrongStore, client: ScriptedClient) -> None:
    assert get(store, client, make_block(1), make_block(2)) == [MISS, MISS]


def test_a_missing_one_among_others_is_a_miss(store: YuanrongStore, client: ScriptedClient) -> None:
    put(store, client, make_block(1))
    assert reasons(get(store, client, make_block(2), make_block(1))) == ["miss", "hit"]


def test_keys_are_asked_for_in_one_call(store: YuanrongStore, client: ScriptedClient) -> None:
    blocks = [make_block(number) for number in range(8)]
    put(store, client, *blocks)
    client.asked.clear()
    assert reasons(get(store, client, *blocks)) == ["hit"] * 8
    assert client.asked == [[name(block) for block in blocks]]


@pytest.mark.parametrize(
    ("now", "asked", "took_s", "failed", "then"),
    [
        (CALL_BYTES, CALL_BYTES - 5, 0.01, False, 2 * CALL_BYTES),
        (CALL_BYTES, CALL_BYTES // 8, 0.001, False, CALL_BYTES),  # says nothing about a full one
        (CALL_BYTES_MAX, CALL_BYTES_MAX, 0.05, False, CALL_BYTES_MAX),
        (4 * CALL_BYTES, 3 * CALL_BYTES, 0.5, False, 2 * CALL_BYTES),
        (CALL_BYTES, CALL_BYTES, 1.9, False, CALL_BYTES),
        (4 * CALL_BYTES, CALL_BYTES, 0.01, True, CALL_BYTES),
    ],
)
def test_calls_grow_while_they_are_quick(now: int, asked: int, took_s: float, failed: bool, then: int) -> None:
    assert next_call_bytes(now, asked, took_s, failed=failed) == then


def test_large_blocks_are_asked_for_in_several_calls(store: YuanrongStore, client: ScriptedClient) -> None:
    blocks = [make_block(number) for number in range(3)]
    put(store, client, *blocks)
    client.asked.clear()
    longer = memoryview(bytearray(CALL_BYTES // 2))
    results = store.get([block.key for block in blocks], [longer] * 3, within(client))
    assert reasons(results) == ["hit"] * 3
    assert [len(keys) for keys in client.asked] == [2, 1]


def test_a_dead_holder_does_not_cost_the_blocks_of_those_that_live(
    store: YuanrongStore, client: ScriptedClient
) -> None:
    alive, lost = [make_block(1), make_block(2)], make_block(3)
    put(store, client, *alive)
    client.dead[name(lost)] = "code: [RPC unavailable], msg: [Remote host is gone]"
    assert reasons(get(store, client, *alive, lost)) == ["hit", "unavailable", "unavailable"]
    client.dead[name(lost)] = "code: [Runtime error], msg: [no holder]"
    assert reasons(get(store, client, *alive, lost, make_block(4))) == ["hit", "hit", "miss", "miss"]


def test_halves_are_not_halved_again(store: YuanrongStore, client: ScriptedClient) -> None:
    blocks = [make_block(number) for number in range(4)]
    client.dead = {name(block): "code: [RPC unavailable]" for block in blocks}
    assert reasons(get(store, client, *blocks)) == ["unavailable"] * 4
    assert [len(keys) for keys in client.asked] == [4, 2, 2]


def test_nobody_is_asked_again_after_the_deadline(store: YuanrongStore, client: ScriptedClient) -> None:
    blocks = [make_block(number) for number in range(4)]
    client.dead = {name(block): "code: [RPC unavailable]" for block in blocks}
    assert reasons(get(store, client, *blocks, seconds=0.5)) == ["unavailable"] * 4
    assert reasons(get(store, client, *blocks, seconds=1.5)) == ["unavailable"] * 2 + ["timeout"] * 2
    assert [len(keys) for keys in client.asked] == [4, 4, 2]


def test_what_arrives_after_the_deadline_is_not_copied(store: YuanrongStore, client: ScriptedClient) -> None:
    block = make_block(1)
    put(store, client, block)
    buffer = block.buffer()
    (result,) = store.get([block.key], [buffer], within(client, 0.5))
    assert result.reason == "timeout"
    assert bytes(buffer) == bytes(len(buffer))


def test_a_writer_that_comes_second_is_told_so(store: YuanrongStore, client: ScriptedClient) -> None:
    block = make_block(1)
    client.exist = lambda keys: [False] * len(keys)  # type: ignore[method-assign]  # the other one writes meanwhile
    assert put(store, client, block, block) == [Status.STORED, Status.EXISTS]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("Out of memory", "no_room"),
        ("RPC unavailable", "unavailable"),
        ("Runtime error", "io_error"),
        ("Key not found", "io_error"),
    ],
)
def test_a_put_that_fails_has_a_reason(store: YuanrongStore, client: ScriptedClient, code: str, reason: str) -> None:
    client.trouble = f"code: [{code}], msg: [so]"
    results = store.put([make_block(1).key], [make_block(1).frame], within(client))
    assert reasons(results) == [reason]
    assert results[0].status is Status.FAILED


def test_while_the_worker_is_away_nothing_is_found_and_nothing_deleted(
    store: YuanrongStore, client: ScriptedClient
) -> None:
    block = make_block(1)
    put(store, client, block)
    client.trouble = "code: [Client worker disconnect], msg: [gone]"
    assert store.lookup([block.key], within(client)) == [False]
    assert reasons(store.delete([block.key])) == ["unavailable"]


@pytest.mark.parametrize("cut", [10, 4096, 8000])
def test_a_value_that_is_shorter_than_its_frame_is_corrupt_and_removed(
    store: YuanrongStore, client: ScriptedClient, cut: int
) -> None:
    block = make_block(1)
    client.values[name(block)] = bytes(block.frame[:cut])
    assert get(store, client, block)[0].status is Status.CORRUPT
    assert client.values == {}


def test_a_value_of_another_key_is_foreign_and_removed(store: YuanrongStore, client: ScriptedClient) -> None:
    block, other = make_block(1), make_block(2)
    client.values[name(block)] = bytes(other.frame)
    assert reasons(get(store, client, block)) == ["foreign"]
    assert client.values == {}


def test_lookups_of_many_keys_are_split_as_the_library_wants(store: YuanrongStore, client: ScriptedClient) -> None:
    counts: list[int] = []

    def exist(keys: list[str]) -> list[bool]:
        counts.append(len(keys))
        return [True] * len(keys)

    client.exist = exist  # type: ignore[method-assign]
    keys = [BlockKey.of(b"N" * 16, number.to_bytes(32, "big")) for number in range(25_000)]
    assert store.lookup(keys, within(client)) == [True] * 25_000
    assert counts == [10_000, 10_000, 5_000]


def test_options_follow_the_settings_in_the_library_s_units() -> None:
    settings = YuanrongSettings(worker="10.0.0.5:31501", connect_s=1.5, request_s=0.25, evictable=False, ttl_hours=2)
    options = YuanrongOptions.from_settings(settings)
    assert (options.host, options.port) == ("10.0.0.5", 31501)
    assert (options.connect_ms, options.request_ms, options.ttl_s) == (1500, 250, 7200)
    assert not options.evictable
    assert options.capabilities.shared


@pytest.mark.parametrize("worker", ["10.0.0.5", ":31501", "10.0.0.5:", "10.0.0.5:port"])
def test_an_address_without_host_or_port_is_refused(worker: str) -> None:
    with pytest.raises(ConfigError, match=r"yuanrong\.worker is .* expected HOST:PORT"):
        YuanrongOptions.from_settings(YuanrongSettings(worker=worker))
