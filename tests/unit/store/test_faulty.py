"""The store that misbehaves does so exactly as told."""

import threading
import time

import pytest

from kveik.clock import Deadline
from kveik.store.base import BlockResult, Status
from kveik.store.faulty import Faults, FaultyStore
from kveik.store.memory import MemoryStore
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
