"""The compact table behaves as a dict does, at any size."""

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kveik.router.block_table import BlockTable

WORDS = st.integers(1, 2**64 - 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(range(1, 60)), st.integers(0, 3)), max_size=200), st.booleans())
def test_any_order_of_puts_leaves_what_a_dict_would_have(steps: list[tuple[int, int]], crowded: bool) -> None:
    table, expected = BlockTable(), dict[int, int]()
    for number, value in steps:
        # crowded: all keys in one bucket, so that most stand beside the table
        key = number if crowded else number * 0x9E3779B97F4A7C15 % 2**64
        table.put(key, value)
        expected.pop(key, None) if value == 0 else expected.__setitem__(key, value)
    assert len(table) == len(expected)
    assert {key: table.get(key) for key in expected} == expected
    if expected:
        keys = np.array([*expected, 12345], np.uint64)
        assert table.get_many(keys).tolist() == [*expected.values(), 0]


def test_a_hundred_thousand_entries_take_less_than_54_bytes_each() -> None:
    draw = random.Random(1)
    entries = {draw.getrandbits(64): draw.getrandbits(63) + 1 for _ in range(100_000)}
    table = BlockTable()
    for key, value in entries.items():
        table.put(key, value)
    assert len(table) == len(entries)
    assert table.get_many(np.fromiter(entries, np.uint64)).tolist() == list(entries.values())
    assert table.memory_bytes / len(table) < 54
    for key in list(entries)[::2]:
        table.put(key, 0)
    left = list(entries)[1::2]
    assert len(table) == len(left)
    assert table.get_many(np.array(left, np.uint64)).tolist() == [entries[key] for key in left]
    assert not table.get_many(np.fromiter(list(entries)[::2], np.uint64)).any()


def test_keys_that_have_the_bytes_of_others_across_a_border_are_not_taken_for_them() -> None:
    table = BlockTable()
    table.put(0x0102030405060708, 1)
    table.put(0x0112131415161718, 2)
    packed = (0x0102030405060708).to_bytes(8, "little") + (0x0112131415161718).to_bytes(8, "little")
    for at in range(1, 8):
        assert table.get(int.from_bytes(packed[at : at + 8], "little")) == 0


def test_a_table_with_room_reserved_does_not_grow_and_keeps_what_it_had() -> None:
    draw = random.Random(2)
    table = BlockTable()
    entries = {draw.getrandbits(64): number + 1 for number in range(50)}
    for key, value in entries.items():
        table.put(key, value)
    table.reserve(10_000)
    size = table.memory_bytes
    while len(entries) < 10_000:
        entries[key := draw.getrandbits(64)] = 7
        table.put(key, 7)
    assert table.memory_bytes < size * 1.1
    assert table.get_many(np.fromiter(entries, np.uint64)).tolist() == list(entries.values())
    table.reserve(10)
    assert len(table) == 10_000


def test_bits_can_be_taken_out_of_all_values() -> None:
    table = BlockTable()
    for key in range(1, 500):
        table.put(key << 40, 1 + key % 3)
    table.clear_bits(1)
    assert [table.get(key << 40) for key in range(1, 500)] == [1 + key % 3 & ~1 for key in range(1, 500)]
    assert len(table) == sum(key % 3 != 0 for key in range(1, 500))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(range(1, 40)), st.integers(1, 7), st.booleans()), max_size=100), st.booleans()
)
def test_adding_keys_and_setting_bits_do_what_a_dict_would(steps: list[tuple[int, int, bool]], crowded: bool) -> None:
    table, expected = BlockTable(), dict[int, int]()
    for number, value, whole in steps:
        key = number if crowded else number * 0x9E3779B97F4A7C15 % 2**64
        if whole:
            assert table.add(key, value) == (key not in expected)
            expected.setdefault(key, value)
        else:
            table.set_bits(key, value)
            expected[key] = expected.get(key, 0) | value
    assert {key: table.get(key) for key in expected} == expected
    assert len(table) == len(expected)


def test_a_key_of_zero_and_an_emptied_table() -> None:
    table = BlockTable()
    table.put(0, 5)
    assert table.get(0) == 5
    table.clear()
    assert (table.get(0), len(table)) == (0, 0)
