"""The store that misbehaves does so exactly as told."""

import threading
import time

import pytest

from kveik.clock import Deadline
from kveik.kv import frame
from kveik.store.base import BlockResult, Status
from kveik.store.faulty import STRANGER, Faults, FaultyStore
from kveik.store.memory import MemoryStore
from tests.agents import wait_until
from tests.blocks import Block, make_block


def soon() -> Deadline:
    return Deadline.after(10.0)


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


def put(store: FaultyStore, block: Block) -> BlockResult:
    return store.put([block.key], [block.frame], soon())[0]


def get(store: FaultyStore, block: Block) -> BlockResult:
    return store.get([block.key], [block.buffer()], soon())[0]


def test_a_failing_store_gives_the_reason_for_every_call(store: FaultyStore) -> None:
    block = make_block(1)
    put(store, block)

    store.faults = Faults(fail="unavailable")

    assert {get(store, block).reason, put(store, block).reason} == {"unavailable"}
    assert store.delete([block.key])[0].reason == "unavailable"
    assert store.lookup([block.key], soon()) == [False]


def test_faults_may_be_kept_to_some_operations(store: FaultyStore) -> None:
    block = make_block(1)
    store.faults = Faults(fail="io_error", operations=frozenset({"get"}))

    assert put(store, block).status is Status.STORED
    assert get(store, block).status is Status.FAILED
    assert store.lookup([block.key], soon()) == [True]


def test_every_third_key_fails(store: FaultyStore) -> None:
    blocks = [make_block(number) for number in range(6)]
    store.faults = Faults(fail="io_error", every=3)

    results = store.put([block.key for block in blocks], [block.frame for block in blocks], soon())

    assert [result.ok for result in results] == [True, True, False] * 2


def test_a_losing_store_lies_about_what_it_has(store: FaultyStore) -> None:
    block = make_block(1)
    store.faults = Faults(lose=True)

    assert put(store, block).status is Status.STORED
    assert store.lookup([block.key], soon()) == [True]
    assert get(store, block).status is Status.MISS


def test_a_corrupting_store_never_gives_a_hit_and_leaves_the_callers_frame_alone(store: FaultyStore) -> None:
    block = make_block(1)
    store.faults = Faults(corrupt=True)

    assert put(store, block).status is Status.STORED
    assert get(store, block).status is Status.CORRUPT
    assert block.is_in(block.frame)


def test_a_hung_operation_waits_for_its_gate_and_others_do_not(store: FaultyStore) -> None:
    block = make_block(1)
    results: list[BlockResult] = []
    with store.hung("get") as gate:
        assert put(store, block).status is Status.STORED
        thread = threading.Thread(target=lambda: results.append(get(store, block)))
        thread.start()
        assert gate.wait_held()
        assert results == []
        gate.open()
        thread.join(10.0)

    assert [result.status for result in results] == [Status.HIT]


def test_leaving_the_context_frees_what_hung(store: FaultyStore) -> None:
    block = make_block(1)
    with store.hung("put") as gate:
        thread = threading.Thread(target=put, args=(store, block))
        thread.start()
        assert gate.wait_held()
    thread.join(10.0)

    assert not thread.is_alive()
    assert get(store, block).status is Status.HIT


def test_a_delayed_call_takes_at_least_its_delay(store: FaultyStore) -> None:
    store.faults = Faults(delay_s=0.02, operations=frozenset({"lookup"}))
    start_s = time.monotonic()

    store.lookup([make_block(1).key], soon())

    assert time.monotonic() - start_s >= 0.02


def test_a_store_that_finds_another_blocks_bytes_sees_it_and_gives_the_block_up(store: FaultyStore) -> None:
    block = make_block(1)
    put(store, block)
    store.faults = Faults(foreign=True)

    result = get(store, block)

    assert (result.status, result.reason) == (Status.CORRUPT, "foreign")
    assert get(store, block).status is Status.MISS


def test_one_that_does_not_look_calls_them_a_hit(store: FaultyStore) -> None:
    block, buffer = make_block(1), make_block(1).buffer()
    put(store, block)
    store.faults = Faults(foreign=True, unverified=True)

    (result,) = store.get([block.key], [buffer], soon())

    assert result.status is Status.HIT
    assert frame.verify(buffer, STRANGER)
    assert not block.is_in(buffer)
    store.faults = Faults()
    assert get(store, block).status is Status.HIT


def test_a_throttled_store_moves_no_more_than_its_rate_whoever_asks(store: FaultyStore) -> None:
    blocks = [make_block(number) for number in range(4)]
    store.faults = Faults(bytes_per_s=400_000)
    start_s = time.monotonic()
    threads = [threading.Thread(target=put, args=(store, block)) for block in blocks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)

    assert time.monotonic() - start_s >= sum(len(block.frame) for block in blocks) / 400_000
    start_s = time.monotonic()
    assert get(store, blocks[0]).status is Status.HIT
    assert time.monotonic() - start_s >= len(blocks[0].frame) / 400_000


def test_a_store_that_forgets_everything_has_nothing_and_takes_blocks_again(store: FaultyStore) -> None:
    blocks = [make_block(number) for number in range(3)]
    for block in blocks:
        put(store, block)

    store.forget_everything()

    assert store.lookup([block.key for block in blocks], soon()) == [False] * 3
    assert put(store, blocks[0]).status is Status.STORED


def test_a_late_get_writes_its_buffer_after_its_answer(store: FaultyStore) -> None:
    block, buffer = make_block(1), make_block(1).buffer()
    put(store, block)
    with store.late() as gate:
        (result,) = store.get([block.key], [buffer], soon())
        assert (result.status, result.buffer_busy) == (Status.FAILED, True)
        assert gate.wait_held()
        assert not block.is_in(buffer)
    wait_until(lambda: not result.buffer_busy, "the late write has ended")
    assert block.is_in(buffer)
    assert get(store, block).status is Status.HIT
