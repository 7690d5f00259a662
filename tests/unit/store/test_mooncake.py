"""What the Mooncake tier answers, whatever a scripted library does. The real one is in tests/contract."""

import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kveik.clock import Deadline
from kveik.config import MooncakeSettings
from kveik.errors import ConfigError, StoreError
from kveik.kv.frame import HEADER_BYTES
from kveik.store import mooncake_client
from kveik.store.apart import SharedMemory
from kveik.store.base import OPENING, READY, BlockResult, Status
from kveik.store.mooncake import MooncakeStore
from kveik.store.mooncake_client import Call
from kveik.store.mooncake_link import MooncakeLink, Spot, check_settings
from tests.agents import wait_until
from tests.blocks import Block, make_block
from tests.mooncake_double import Double

PATIENCE_S = 60.0
MIB = 1 << 20
SETTINGS = MooncakeSettings(master="127.0.0.1:9", host="127.0.0.1", staging_bytes=MIB, threads=2)


@pytest.fixture
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Double:
    double = Double(tmp_path)
    for name, value in double.environment.items():
        monkeypatch.setenv(name, value)
    return double


class Arena:
    """Shared memory in an arena's place."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("arena")
        os.ftruncate(self._fd, MIB)
        self.view = memoryview(mmap.mmap(self._fd, MIB))
        self.shared = SharedMemory(self.view, lambda: os.dup(self._fd))


@pytest.fixture
def arena() -> Arena:
    return Arena()


@pytest.fixture
def link(double: Double, arena: Arena) -> Iterator[MooncakeLink]:
    link = MooncakeLink(SETTINGS, arena.shared, wait_s=PATIENCE_S, hang_s=PATIENCE_S)
    yield link
    link.close()


@pytest.fixture
def store(link: MooncakeLink) -> MooncakeStore:
    return MooncakeStore(link)


def soon() -> Deadline:
    return Deadline.after(PATIENCE_S)


def put(store: MooncakeStore, *blocks: Block) -> list[BlockResult]:
    return store.put([block.key for block in blocks], [block.frame for block in blocks], soon())


def get(store: MooncakeStore, block: Block, seconds: float = PATIENCE_S) -> BlockResult:
    buffer = block.buffer()
    (result,) = store.get([block.key], [buffer], Deadline.after(seconds))
    assert result.status is not Status.HIT or block.is_in(buffer)
    return result


def test_frames_in_the_arena_are_moved_in_place_and_others_by_a_detour(store: MooncakeStore, arena: Arena) -> None:
    inside, outside = make_block(1), make_block(2)
    slot = arena.view[HEADER_BYTES : HEADER_BYTES + len(inside.frame)]
    slot[:] = inside.frame

    results = store.put([inside.key, outside.key], [slot, outside.frame], soon())

    assert [result.status for result in results] == [Status.STORED] * 2
    slot[:] = bytes(len(slot))
    buffer = outside.buffer()
    results = store.get([inside.key, outside.key], [slot, buffer], soon())
    assert [result.status for result in results] == [Status.HIT] * 2
    assert inside.is_in(slot)
    assert outside.is_in(buffer)


@pytest.mark.parametrize(("code", "reason"), [(-200, "no_room"), (-800, "unavailable"), (-901, "timeout")])
def test_a_put_that_the_library_refuses_fails_with_its_reason_and_number(
    store: MooncakeStore, double: Double, code: int, reason: str
) -> None:
    double.tell(put=code)

    (result,) = put(store, make_block(1))

    assert (result.status, result.reason) == (Status.FAILED, reason)
    assert str(code) in result.detail


def test_after_a_failed_read_the_buffer_is_busy_until_nothing_can_write_it(
    store: MooncakeStore, link: MooncakeLink, double: Double, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mooncake_client, "LEAST_AGE_S", 0.5)
    block = make_block(1)
    put(store, block)
    double.tell(get=-800)
    first = link.host_pid

    (result,) = store.get([block.key], [arena.view[: len(block.frame)]], soon())

    assert (result.status, result.reason) == (Status.FAILED, "unavailable")
    double.tell()
    wait_until(lambda: not result.buffer_busy, "nothing can write any more", PATIENCE_S)
    assert not Path(f"/proc/{first}").exists()


def test_at_the_deadline_the_caller_has_its_answer_and_the_library_still_has_the_buffer(
    store: MooncakeStore, double: Double
) -> None:
    block = make_block(1)
    put(store, block)
    double.tell(get="hang")

    result = get(store, block, seconds=0.2)

    assert (result.status, result.reason) == (Status.FAILED, "timeout")
    assert result.buffer_busy
    store.close()
    assert not result.buffer_busy


def test_a_detour_that_may_still_be_written_is_given_to_nobody_else(
    store: MooncakeStore, link: MooncakeLink, double: Double
) -> None:
    block = make_block(1, payload_bytes=MIB - HEADER_BYTES)
    put(store, block)
    double.tell(get="hang")
    get(store, block, seconds=0.2)

    (result,) = put(store, make_block(2))

    assert (result.status, result.reason) == (Status.FAILED, "busy")
    assert "mooncake.staging_bytes" in result.detail


def test_what_a_dead_process_was_asked_for_fails_and_is_touched_by_nobody(store: MooncakeStore, double: Double) -> None:
    block = make_block(1)
    put(store, block)
    double.tell(get="crash")

    result = get(store, block)

    assert (result.status, result.reason) == (Status.FAILED, "unavailable")
    assert not result.buffer_busy
    assert store.stats().state in (OPENING, READY)


def test_while_the_store_is_joined_anew_everything_fails_at_once_and_then_works(
    store: MooncakeStore, link: MooncakeLink, double: Double
) -> None:
    double.tell(setup=-1, exist="crash")
    assert store.lookup([make_block(1).key], soon()) == [False]
    wait_until(lambda: "setup answered -1" in link.why_not, "it cannot join", PATIENCE_S)

    (result,) = put(store, make_block(1))
    assert (result.status, result.reason) == (Status.FAILED, "unavailable")
    assert store.stats().state == OPENING
    assert "setup answered -1" in store.stats().notes[0]

    double.tell()
    wait_until(lambda: put(store, make_block(2))[0].ok, "it has joined", PATIENCE_S)
    assert store.stats().state == READY


def test_a_lookup_asks_once_for_what_is_there_and_always_for_what_is_not(store: MooncakeStore, double: Double) -> None:
    there, absent = make_block(1), make_block(2)
    put(store, there)
    assert store.lookup([there.key, absent.key, there.key], soon()) == [True, False, True]

    double.tell(exist=-900)

    assert store.lookup([there.key], soon()) == [True], "it was heard of a moment ago"
    assert store.lookup([absent.key], soon()) == [False]
    double.tell(exist=1)
    assert store.lookup([absent.key], soon()) == [True]


def test_what_was_found_and_is_not_there_to_read_is_asked_for_again(store: MooncakeStore, double: Double) -> None:
    block = make_block(1)
    double.tell(exist=1)
    assert store.lookup([block.key], soon()) == [True]

    assert get(store, block).status is Status.MISS

    double.tell()
    assert store.lookup([block.key], soon()) == [False]


def test_a_block_that_was_read_wrong_is_removed(store: MooncakeStore) -> None:
    block = make_block(1)
    put(store, replace(block, frame=block.damaged()))

    assert get(store, block).status is Status.CORRUPT
    assert store.lookup([block.key], soon()) == [False]


class Reused(MooncakeLink):
    """Memory of what is read holds another block during the first look, as if it had just been removed."""

    instead = ""

    def move(self, op: str, names: Sequence[str], spots: Sequence[Spot]) -> Call | None:
        """As the store does it, but once with the other name."""
        if op == "get" and self.instead:
            names, self.instead = [self.instead], ""
        return super().move(op, names, spots)


@pytest.mark.parametrize("stays", [True, False])
def test_a_block_that_was_removed_while_it_was_read_is_no_wrong_one(arena: Arena, double: Double, stays: bool) -> None:
    link = Reused(SETTINGS, arena.shared, wait_s=PATIENCE_S, hang_s=PATIENCE_S)
    try:
        store = MooncakeStore(link)
        block, other = make_block(1), make_block(2)
        put(store, other, *([block] if stays else []))
        link.instead = f"kveik-{other.key.text}"

        result = get(store, block)

        assert not link.instead, "the first look met the other block"
        assert result.status is (Status.HIT if stays else Status.MISS)
        assert store.lookup([other.key, block.key], soon()) == [True, stays]
    finally:
        link.close()


def test_a_frame_of_another_length_than_its_header_says_is_corrupt(store: MooncakeStore, link: MooncakeLink) -> None:
    block = make_block(1)
    spot = link.spot(memoryview(bytes(block.frame) + bytes(10)))
    assert isinstance(spot, Spot)
    spot.view[: len(block.frame)] = block.frame
    call = link.move("put", [f"kveik-{block.key.text}"], [spot])
    assert call is not None
    assert call.wait(PATIENCE_S)
    buffer = memoryview(bytearray(len(block.frame) + 10))

    (result,) = store.get([block.key], [buffer], soon())

    assert (result.status, result.reason) == (Status.CORRUPT, "checksum")
    assert "the header says" in result.detail


def test_a_namespace_is_dropped_and_what_was_known_of_it_forgotten(store: MooncakeStore) -> None:
    ours, other = make_block(1), make_block(2, namespace=b"O" * 16)
    put(store, ours, other)

    assert store.drop(b"N" * 16) == 1
    assert store.lookup([ours.key, other.key], soon()) == [False, True]


def test_a_drop_that_is_not_answered_says_so(store: MooncakeStore) -> None:
    store.close()

    with pytest.raises(StoreError, match="did not drop"):
        store.drop(b"N" * 16)


def test_without_the_masters_page_sizes_are_what_this_node_saw_and_no_list_is_to_be_had(store: MooncakeStore) -> None:
    block = make_block(1)
    put(store, block)

    stats = store.stats()

    assert (stats.blocks, stats.bytes, stats.capacity_bytes) == (1, len(block.frame), 0)
    assert "mooncake.master_http is not set" in stats.notes[0]
    with pytest.raises(StoreError, match=r"mooncake\.master_http is not set"):
        list(store.keys(b""))


def test_a_link_that_others_use_is_left_alone(link: MooncakeLink) -> None:
    first, second = MooncakeStore(link, "first", keep_link=True), MooncakeStore(link, "second", keep_link=True)
    first.close()

    assert put(second, make_block(1))[0].ok
    assert put(first, make_block(1))[0].reason == "closed"


def test_lent_memory_has_a_process_of_its_own_and_is_put_into_first(double: Double) -> None:
    settings = replace(SETTINGS, segment_bytes=MIB, replicas=2, soft_pin=True)
    link = MooncakeLink(settings, wait_s=PATIENCE_S, hang_s=PATIENCE_S)
    try:
        assert put(MooncakeStore(link, keep_link=True), make_block(1))[0].ok
        assert double.config == [2, True, ["double:1"]]
    finally:
        link.close()
    assert double.closed


def test_a_link_whose_store_cannot_be_joined_leaves_nothing_behind(double: Double) -> None:
    double.tell(setup=-1)

    with pytest.raises(StoreError):
        MooncakeLink(SETTINGS, wait_s=0.2, hang_s=PATIENCE_S)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"master": "somewhere"}, "mooncake.master is 'somewhere'"),
        ({"master_http": "somewhere"}, "mooncake.master_http is 'somewhere'"),
        ({"prefix": "a/b"}, "prefix 'a/b'"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused_before_anything_starts(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_settings(replace(SETTINGS, **wrong))
