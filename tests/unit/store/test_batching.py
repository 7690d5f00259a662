"""Blocks are cut into calls: in order, none lost, none too large."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.store.batching import batches, take


def counts(found: list[range]) -> list[int]:
    return [len(part) for part in found]


def test_a_store_that_moves_single_blocks_gets_single_blocks() -> None:
    assert counts(batches([10] * 5, batch_keys=1, threads=2)) == [1] * 5


def test_every_thread_gets_a_batch_before_any_gets_a_large_one() -> None:
    assert counts(batches([10] * 8, batch_keys=16, threads=4)) == [2, 2, 2, 2]


def test_no_batch_has_more_keys_than_the_store_likes() -> None:
    assert counts(batches([10] * 40, batch_keys=16, threads=1)) == [16, 16, 8]


def test_all_threads_get_equally_much() -> None:
    assert counts(batches([10] * 40, batch_keys=16, threads=2)) == [10, 10, 10, 10]
    assert counts(batches([30] * 54, batch_keys=32, threads=2, batch_bytes=330)) == [9] * 6
    assert counts(batches([10] * 40, batch_keys=1, threads=3)) == [1] * 40


def test_no_batch_has_more_bytes_than_a_call_should_move() -> None:
    assert counts(batches([40] * 4, batch_keys=16, threads=1, batch_bytes=100)) == [2, 2]


def test_a_block_larger_than_a_batch_goes_alone() -> None:
    assert counts(batches([10, 500, 10], batch_keys=16, threads=1, batch_bytes=100)) == [1, 1, 1]


def test_no_blocks_give_no_batches() -> None:
    assert batches([], batch_keys=16, threads=4) == []
    assert take([], 16) == 0


@pytest.mark.parametrize(("sizes", "taken"), [([10] * 3, 3), ([5] * 20, 16), ([200], 1), ([60, 60, 60], 1)])
def test_what_is_taken_from_a_queue_is_one_batch(sizes: list[int], taken: int) -> None:
    assert take(sizes, 16, batch_bytes=100) == taken


@given(
    st.lists(st.integers(1, 200), max_size=60),
    st.integers(1, 20),
    st.integers(1, 8),
)
def test_batches_cover_all_blocks_once_and_in_order(sizes: list[int], batch_keys: int, threads: int) -> None:
    found = batches(sizes, batch_keys, threads, batch_bytes=300)

    assert [index for part in found for index in part] == list(range(len(sizes)))
    for part in found:
        assert 1 <= len(part) <= batch_keys
        assert len(part) == 1 or sum(sizes[part.start : part.stop]) <= 300
