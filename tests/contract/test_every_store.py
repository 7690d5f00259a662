"""How every store behaves, whatever it is made of. Differences are declared capabilities."""

import random
import threading
import time

import pytest

from kveik.clock import Deadline, FakeClock
from kveik.kv import frame
from kveik.kv.keys import BlockKey
from kveik.store.base import REASONS, BlockResult, BlockStore, ListedStore, Status
from tests.blocks import Block, make_block
from tests.contract.conftest import StoreMaker


def soon() -> Deadline:
    return Deadline.after(20.0)


def passed() -> Deadline:
    return Deadline(0.0, FakeClock())


def put(store: BlockStore, *blocks: Block) -> list[Status]:
    return [result.status for result in store.put([b.key for b in blocks], [b.frame for b in blocks], soon())]


def get(store: BlockStore, block: Block) -> tuple[BlockResult, bytes]:
    buffer = block.buffer()
    (result,) = store.get([block.key], [buffer], soon())
    return result, bytes(buffer)


def test_what_was_put_can_be_found_and_read_back_byte_for_byte(store: BlockStore) -> None:
    blocks = [make_block(number) for number in range(5)]

    assert put(store, *blocks) == [Status.STORED] * 5

    assert store.lookup([block.key for block in blocks], soon()) == [True] * 5
    for block in blocks:
        result, content = get(store, block)
        assert (result.status, result.bytes) == (Status.HIT, len(block.frame))
        assert not result.buffer_busy
        assert block.is_in(content)


def test_blocks_of_several_sizes_live_side_by_side(store: BlockStore) -> None:
    blocks = [make_block(number, payload_bytes=size) for number, size in enumerate([512, 4096, 5000, 262144])]

    assert put(store, *blocks) == [Status.STORED] * 4

    assert all(block.is_in(get(store, block)[1]) for block in blocks)


def test_a_key_that_was_never_put_is_a_miss_and_not_a_failure(store: BlockStore) -> None:
    block = make_block(1)

    assert store.lookup([block.key], soon()) == [False]
    assert get(store, block)[0] == BlockResult(Status.MISS)
    assert store.delete([block.key]) == [BlockResult(Status.MISS)]


def test_no_keys_give_no_results(store: BlockStore) -> None:
    assert store.lookup([], soon()) == []
    assert store.get([], [], soon()) == []
    assert store.put([], [], soon()) == []
    assert store.delete([]) == []


def test_the_first_writer_of_a_key_wins(store: BlockStore) -> None:
    first = make_block(1)
    second = bytearray(first.frame)
    frame.seal(memoryview(second), first.key, len(second) - frame.HEADER_BYTES, written_at_s=2_000_000_000.0)

    assert put(store, first) == [Status.STORED]
    (result,) = store.put([first.key], [memoryview(second)], soon())

    assert result == BlockResult(Status.EXISTS)
    kept = frame.read_header(memoryview(get(store, first)[1]))
    assert kept.written_at_s != 2_000_000_000.0


def test_a_key_twice_in_one_batch_is_stored_once(store: BlockStore) -> None:
    block = make_block(1)

    assert sorted(status.value for status in put(store, block, block)) == ["exists", "stored"]


def test_of_two_writers_at_once_one_stores_and_the_other_finds_it_there(store: BlockStore) -> None:
    for number in range(20):
        block = make_block(number, payload_bytes=65536)
        barrier = threading.Barrier(2)
        statuses: list[Status] = []

        def write(block: Block, barrier: threading.Barrier, statuses: list[Status]) -> None:
            barrier.wait()
            statuses.extend(put(store, block))

        threads = [threading.Thread(target=write, args=(block, barrier, statuses)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        # A tier may also say that the other is still writing; nobody may be told a lie.
        assert statuses.count(Status.STORED) == 1
        result, content = get(store, block)
        assert result.status is Status.HIT
        assert block.is_in(content)


def test_each_key_of_a_batch_has_its_own_result(store: BlockStore) -> None:
    there, absent, short = (make_block(number) for number in range(3))
    put(store, there, short)
    buffers = [there.buffer(), absent.buffer(), short.buffer()[:-1]]

    results = store.get([there.key, absent.key, short.key], buffers, soon())

    assert [result.status for result in results] == [Status.HIT, Status.MISS, Status.FAILED]
    assert there.is_in(buffers[0])


@pytest.mark.parametrize("missing_bytes", [1, 8192, 8192 + 4000])
def test_a_buffer_that_is_too_short_fails_and_the_block_stays(store: BlockStore, missing_bytes: int) -> None:
    block = make_block(1)
    put(store, block)

    (result,) = store.get([block.key], [block.buffer()[:-missing_bytes]], soon())

    assert (result.status, result.reason) == (Status.FAILED, "too_large")
    assert get(store, block)[0].status is Status.HIT


def test_a_buffer_may_be_longer_than_its_frame(store: BlockStore) -> None:
    block = make_block(1)
    longer = memoryview(bytearray(bytes(block.frame) + b"x" * 100))

    assert store.put([block.key], [longer], soon())[0].status is Status.STORED
    buffer = memoryview(bytearray(len(longer)))
    (result,) = store.get([block.key], [buffer], soon())

    assert (result.status, result.bytes) == (Status.HIT, len(block.frame))
    assert block.is_in(buffer)
    assert bytes(buffer[-100:]) == bytes(100)


def test_a_frame_of_another_key_is_not_stored(store: BlockStore) -> None:
    block, other = make_block(1), make_block(2)

    (result,) = store.put([block.key], [other.frame], soon())

    assert (result.status, result.reason) == (Status.FAILED, "foreign")
    assert store.lookup([block.key], soon()) == [False]


def test_a_buffer_without_a_sealed_frame_is_not_stored(store: BlockStore) -> None:
    block = make_block(1)

    (result,) = store.put([block.key], [block.buffer()], soon())

    assert result.status is Status.FAILED
    assert store.lookup([block.key], soon()) == [False]


def test_wrong_bytes_are_corrupt_once_then_a_miss_and_never_a_hit(store: BlockStore) -> None:
    block = make_block(1)
    assert store.put([block.key], [block.damaged()], soon())[0].status is Status.STORED

    result, _ = get(store, block)

    assert (result.status, result.reason) == (Status.CORRUPT, "checksum")
    assert get(store, block)[0] == BlockResult(Status.MISS)
    assert store.lookup([block.key], soon()) == [False]


def test_a_block_that_was_corrupt_can_be_stored_again(store: BlockStore) -> None:
    block = make_block(1)
    store.put([block.key], [block.damaged()], soon())
    get(store, block)

    assert put(store, block) == [Status.STORED]
    assert block.is_in(get(store, block)[1])


def test_a_deleted_block_is_gone_and_can_be_put_again(store: BlockStore) -> None:
    block, other = make_block(1), make_block(2)
    put(store, block, other)

    assert [result.status for result in store.delete([block.key])] == [Status.DELETED]

    assert store.lookup([block.key, other.key], soon()) == [False, True]
    assert get(store, block)[0].status is Status.MISS
    assert put(store, block) == [Status.STORED]


def test_after_the_deadline_nothing_is_moved(store: BlockStore) -> None:
    there, new = make_block(1), make_block(2)
    put(store, there)
    buffer = there.buffer()

    (got,) = store.get([there.key], [buffer], passed())
    (stored,) = store.put([new.key], [new.frame], passed())

    assert (got.status, got.reason) == (Status.FAILED, "timeout")
    assert (stored.status, stored.reason) == (Status.FAILED, "timeout")
    assert bytes(buffer) == bytes(len(buffer))
    assert store.lookup([new.key], soon()) == [False]


def test_a_closed_store_finds_nothing_and_fails_every_call(store: BlockStore) -> None:
    block = make_block(1)
    put(store, block)

    store.close()
    store.close()

    assert store.lookup([block.key], soon()) == [False]
    for result in (get(store, block)[0], *store.put([block.key], [block.frame], soon()), *store.delete([block.key])):
        assert (result.status, result.reason) == (Status.FAILED, "closed")


def test_every_reason_that_a_store_gives_is_a_known_one(store: BlockStore) -> None:
    block = make_block(1)
    results = [*store.put([block.key], [block.damaged()], passed()), *store.put([block.key], [block.damaged()], soon())]
    results += [*store.get([block.key], [block.buffer()[:10]], soon()), get(store, block)[0]]

    assert all(result.reason in REASONS for result in results if not result.ok)


def test_stats_follow_what_is_stored(store: BlockStore) -> None:
    blocks = [make_block(number) for number in range(4)]
    empty = store.stats()
    put(store, *blocks)
    full = store.stats()
    store.delete([block.key for block in blocks])

    assert (empty.blocks, full.blocks, store.stats().blocks) == (0, 4, 0)
    assert full.bytes >= 4 * 8192
    assert store.stats().bytes == empty.bytes
    assert not full.read_only


def test_the_name_is_fit_for_a_metric_label(store: BlockStore) -> None:
    assert store.name.isidentifier()


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_calls_gives_what_a_dictionary_would_give(store: BlockStore, seed: int) -> None:
    source = random.Random(seed)
    blocks = [make_block(number, payload_bytes=700 + 4096 * (number % 3)) for number in range(8)]
    model: set[BlockKey] = set()

    for _ in range(250):
        chosen = source.sample(blocks, source.randint(1, 4))
        keys = [block.key for block in chosen]
        present = [key in model for key in keys]
        match source.choice(["lookup", "get", "put", "delete"]):
            case "lookup":
                assert store.lookup(keys, soon()) == present
            case "get":
                buffers = [block.buffer() for block in chosen]
                results = store.get(keys, buffers, soon())
                assert [result.status is Status.HIT for result in results] == present
                for block, buffer, there in zip(chosen, buffers, present, strict=True):
                    assert not there or block.is_in(buffer)
            case "put":
                results = store.put(keys, [block.frame for block in chosen], soon())
                assert [result.status is Status.EXISTS for result in results] == present
                assert all(result.ok for result in results)
                model.update(keys)
            case "delete":
                results = store.delete(keys)
                assert [result.status is Status.DELETED for result in results] == present
                model.difference_update(keys)
    assert store.stats().blocks == len(model)


def test_in_a_storm_of_threads_a_hit_is_always_the_right_block(store: BlockStore) -> None:
    blocks = [make_block(number, payload_bytes=16384) for number in range(6)]
    wrong: list[object] = []
    hits: list[int] = []

    def storm(seed: int) -> None:
        source = random.Random(seed)
        for _ in range(120):
            block = source.choice(blocks)
            action = source.random()
            if action < 0.5:
                result, content = get(store, block)
                if result.status is Status.HIT:
                    hits.append(seed)
                    if not block.is_in(content):
                        wrong.append((block.key, "bytes differ"))
                elif result.status is not Status.MISS:
                    wrong.append(result)
            elif action < 0.85:
                (result,) = store.put([block.key], [block.frame], soon())
                if not result.ok and result.reason != "busy":
                    wrong.append(result)
            else:
                (result,) = store.delete([block.key])
                if result.status not in (Status.DELETED, Status.MISS) and result.reason != "busy":
                    wrong.append(result)

    threads = [threading.Thread(target=storm, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not wrong
    assert hits


def test_a_durable_store_finds_its_blocks_when_opened_again(maker: StoreMaker) -> None:
    store = maker.open()
    if not store.capabilities.durable:
        pytest.skip("this tier does not promise it")
    block = make_block(1)
    put(store, block)
    store.close()

    again = maker.open()

    assert again.lookup([block.key], soon()) == [True]
    assert block.is_in(get(again, block)[1])


def test_a_shared_store_shows_blocks_to_another_one_that_is_open_at_the_same_time(maker: StoreMaker) -> None:
    store, other = maker.open(), None
    if not store.capabilities.shared:
        pytest.skip("this tier does not promise it")
    other = maker.open()
    block = make_block(1)

    assert put(store, block) == [Status.STORED]

    assert block.is_in(get(other, block)[1])
    assert put(other, block) == [Status.EXISTS]


def test_a_store_that_can_say_what_it_has_names_each_block_once(store: BlockStore) -> None:
    if not isinstance(store, ListedStore):
        pytest.skip("this store cannot say it")
    ours = [make_block(number, group=number % 2) for number in range(4)]
    other = make_block(9, namespace=b"O" * 16)
    put(store, *ours, other)
    assert sorted(names(store, b"N" * 16)) == sorted(block.key for block in ours)
    assert names(store, b"O" * 16) == [other.key]
    assert names(store, b"X" * 16) == []

    store.delete([ours[0].key])

    assert sorted(names(store, b"")) == sorted(block.key for block in [*ours[1:], other])


def names(store: ListedStore, namespace: bytes) -> list[BlockKey]:
    return [key for portion in store.keys(namespace) for key in portion]


def test_a_bounded_store_keeps_its_limit_and_the_newest_blocks(maker: StoreMaker) -> None:
    limit_bytes = 4 << 20
    store = maker.open(limit_bytes)
    if not store.capabilities.bounded:
        pytest.skip("this tier does not promise it: its server has limits of its own")
    blocks = [make_block(number, payload_bytes=256 << 10) for number in range(40)]

    for block in blocks:
        _put_in_the_end(store, block)
        assert store.stats().bytes <= limit_bytes

    assert blocks[-1].is_in(get(store, blocks[-1])[1])
    present = store.lookup([block.key for block in blocks], soon())
    assert 1 <= sum(present) < len(blocks)
    assert not present[0]


def _put_in_the_end(store: BlockStore, block: Block) -> None:
    """Eviction may run in the background: there is no room until it did its round."""
    give_up = Deadline.after(10.0)
    while not give_up.passed:
        (result,) = store.put([block.key], [block.frame], soon())
        if result.ok:
            return
        assert result.reason == "no_room"
        time.sleep(0.01)
    raise AssertionError("no room for 10 s")
