"""Keys stand for text: the same from the start, the same keys; anything else, other keys."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kveik.router.prefix_keys import BLOCKS_MAX, PREFIX_BLOCK_BYTES, PrefixHasher

hasher = PrefixHasher(secret=7)
SEED = hasher.seed(b"chat\0model")


def keys(text: bytes, of: PrefixHasher = hasher) -> list[int]:
    found: list[int] = of.keys(of.seed(b"chat\0model") + text).tolist()
    return found


@pytest.mark.parametrize(("size", "count"), [(0, 0), (247, 0), (248, 1), (503, 1), (504, 2), (760, 3), (4096, 16)])
def test_a_key_stands_for_a_full_block_the_seed_being_its_first_eight_bytes(size: int, count: int) -> None:
    assert len(keys(bytes(size))) == count


@given(st.binary(max_size=3000), st.integers(0, 3000))
def test_the_keys_of_a_prefix_are_a_prefix_of_the_keys(text: bytes, end: int) -> None:
    whole, part = keys(text), keys(text[:end])
    assert whole[: len(part)] == part


@settings(max_examples=100)
@given(st.binary(min_size=248, max_size=2500), st.data())
def test_one_other_byte_changes_the_key_of_its_block_and_all_after_it_but_none_before(
    text: bytes, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(text) - 1))
    other = bytearray(text)
    other[at] ^= data.draw(st.integers(1, 255))
    block = (at + 8) // PREFIX_BLOCK_BYTES
    before, after = keys(text), keys(bytes(other))
    assert before[:block] == after[:block]
    assert all(mine != yours for mine, yours in zip(before[block:], after[block:], strict=True))


@settings(max_examples=100)
@given(st.binary(min_size=1016, max_size=1016), st.integers(600, 990), st.integers(600, 990), st.integers(0, 7))
def test_two_changes_do_not_cancel_each_other_out_even_in_the_highest_bits(
    text: bytes, one: int, two: int, bit: int
) -> None:
    """Without the folding of words, flipping the top bits of two words would leave the sum as it was."""
    one, two = one | 7, two | 7  # the highest bytes of their words
    other = bytearray(text)
    other[one] ^= 1 << bit
    other[two] ^= 1 << bit
    if other != text:
        assert keys(text)[3] != keys(bytes(other))[3]


def test_blocks_in_another_order_have_other_keys() -> None:
    blocks = [bytes([letter]) * PREFIX_BLOCK_BYTES for letter in b"abcdef"]
    straight = keys(b"".join(blocks))
    turned = keys(b"".join(blocks[:3] + blocks[:2:-1]))
    assert straight[:2] == turned[:2]
    assert straight[-1] != turned[-1]


def test_a_block_in_the_middle_of_a_text_is_not_the_same_block_at_its_start() -> None:
    block = b"z" * PREFIX_BLOCK_BYTES
    assert len(set(keys(block * 20))) == 20


def test_another_seed_or_another_secret_gives_other_keys() -> None:
    text = b"x" * 2000
    assert not set(keys(text)) & set(hasher.keys(hasher.seed(b"chat\0other") + text).tolist())
    assert not set(keys(text)) & set(keys(text, PrefixHasher(secret=8)))
    assert keys(text) == keys(text, PrefixHasher(secret=7))


def test_secrets_are_random_unless_given() -> None:
    assert keys(b"x" * 500, PrefixHasher()) != keys(b"x" * 500, PrefixHasher())


def test_many_texts_that_differ_little_have_no_key_in_common_and_fill_all_buckets_alike() -> None:
    prefix = b"p" * 1000
    found = np.array([keys(prefix + b"question %07d" % n + b" " * 256)[-1] for n in range(20_000)], np.uint64)
    assert len(np.unique(found)) == 20_000
    top_bits = np.bincount((found >> np.uint64(56)).astype(np.int64), minlength=256)
    assert top_bits.min() > 20_000 / 256 * 0.4
    assert top_bits.max() < 20_000 / 256 * 1.8


def test_a_huge_prompt_has_a_bounded_number_of_keys() -> None:
    assert len(hasher.keys(SEED + bytes(3 << 20))) == BLOCKS_MAX
