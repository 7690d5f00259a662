"""What goes down, and how fast: pure."""

import os

import pytest

from kveik.kv.keys import BlockKey
from kveik.store.admission import ALL, SAVED_UP_S, SECOND_TOUCH, Bucket, Remembered, full_bucket, goes_down


def some_key() -> BlockKey:
    return BlockKey.of(b"n" * 16, os.urandom(32))


def test_a_bucket_gives_what_it_saved_up_and_then_its_rate() -> None:
    bucket = full_bucket(1000, 0.0)
    sent, now_s = 0, 0.0
    while now_s < 10.0:
        bucket = bucket.refilled(now_s)
        while bucket.open:
            bucket = bucket.after(100)
            sent += 100
        now_s += 0.1
    assert sent == pytest.approx(1000 * (10.0 + SAVED_UP_S), rel=0.02)


def test_no_block_is_too_large_for_a_bucket_but_it_is_paid_back() -> None:
    bucket = full_bucket(1000, 0.0).after(10_000)
    assert not bucket.refilled(9.0).open
    assert bucket.refilled(9.6).open


def test_no_rate_is_no_limit() -> None:
    assert Bucket().after(1 << 40).refilled(0.0).open


def test_time_that_runs_backwards_takes_nothing() -> None:
    assert full_bucket(1000, 5.0).refilled(1.0).level_bytes == 500


def test_keys_that_were_here_are_remembered() -> None:
    remembered, keys = Remembered(), [some_key() for _ in range(1000)]
    assert not any(map(remembered.seen, keys))
    for key in keys:
        remembered.note(key)
    assert all(map(remembered.seen, keys))


def test_hardly_any_other_key_is_taken_for_one_of_them() -> None:
    remembered = Remembered(keys=2000, bits=1 << 14)
    for _ in range(2000):
        remembered.note(some_key())
    assert sum(remembered.seen(some_key()) for _ in range(2000)) < 40


def test_the_oldest_are_forgotten() -> None:
    remembered, first = Remembered(keys=100, bits=1 << 12), some_key()
    remembered.note(first)
    for _ in range(49):
        remembered.note(some_key())
    assert remembered.seen(first)
    for _ in range(101):
        remembered.note(some_key())
    assert not remembered.seen(first)


def test_a_rank_of_a_block_is_another_block() -> None:
    remembered, block_hash = Remembered(), os.urandom(32)
    remembered.note(BlockKey.of(b"n" * 16, block_hash, 0, 0))
    assert not remembered.seen(BlockKey.of(b"n" * 16, block_hash, 0, 1))
    assert "1 keys" in repr(remembered)


@pytest.mark.parametrize(
    ("admission", "touches", "goes"),
    [(ALL, 0, True), (ALL, 3, True), (SECOND_TOUCH, 0, False), (SECOND_TOUCH, 1, True)],
)
def test_single_use_blocks_stay_where_that_is_set(admission: str, touches: int, goes: bool) -> None:
    assert goes_down(admission, touches=touches) is goes
