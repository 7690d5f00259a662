"""What the arena behind the store contract adds to the contract's own suite."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kveik.clock import Deadline
from kveik.kv import frame
from kveik.kv.keys import BlockKey
from kveik.store.arena import Arena
from kveik.store.arena_file import ArenaRequest, open_arena_file
from kveik.store.arena_store import ArenaStore
from kveik.store.base import Status
from kveik.store.writer import Writer
from tests.agents import payload_of, some_keys

SIZE = 10_000


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Arena]:
    arena = Arena(open_arena_file(ArenaRequest(str(tmp_path / "arena"), 1 << 20, 256 << 10)))
    yield arena
    arena.close()


def sealed(key: BlockKey) -> memoryview:
    buffer = memoryview(bytearray(frame.frame_bytes(SIZE)))
    buffer[frame.HEADER_BYTES :] = payload_of(key, SIZE)
    frame.seal(buffer, key, SIZE, 1.0)
    return buffer


def soon() -> Deadline:
    return Deadline.after(5)


def test_a_wrong_block_is_corrupt_once_and_then_a_miss(arena: Arena) -> None:
    store, (key,) = ArenaStore(arena), some_keys(1)
    assert store.put([key], [sealed(key)], soon())[0].status is Status.STORED
    arena.view(arena.locate([key])[0])[-1] ^= 1
    buffer = memoryview(bytearray(20_000))
    assert store.get([key], [buffer], soon())[0].status is Status.CORRUPT
    assert store.get([key], [buffer], soon())[0].status is Status.MISS
    assert arena.stats().pinned == 0


def test_a_block_that_is_being_written_elsewhere_is_busy(arena: Arena) -> None:
    store, (key,) = ArenaStore(arena), some_keys(1)
    arena.reserve([key], SIZE, Writer.of(os.getpid()))
    assert store.put([key], [sealed(key)], soon())[0].reason == "busy"


def test_a_block_that_is_being_read_is_not_deleted(arena: Arena) -> None:
    store, (key,) = ArenaStore(arena), some_keys(1)
    store.put([key], [sealed(key)], soon())
    arena.pin([key])
    assert store.delete([key])[0].reason == "busy"
