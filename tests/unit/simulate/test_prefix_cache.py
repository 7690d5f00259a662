"""The prefix cache: what hits, what leaves first, and what is told about it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.simulate.block_hashes import HashChain
from kveik.simulate.prefix_cache import CacheChange, ClearedBlocks, PrefixCache, RemovedBlocks, StoredBlocks
from kveik.simulate.tokenizer import pack_ids

BLOCK = 4


def prompt(*ids: int) -> bytes:
    return pack_ids(ids)


def span(start: int, tokens: int) -> bytes:
    return pack_ids(range(start, start + tokens))


@pytest.fixture
def cache() -> PrefixCache:
    return PrefixCache(BLOCK, 100)


@pytest.mark.parametrize(("tokens", "hit"), [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (11, 8)])
def test_a_repeated_prompt_hits_its_full_blocks_but_never_its_last_token(
    cache: PrefixCache, tokens: int, hit: int
) -> None:
    assert cache.admit(span(0, tokens)).hit_tokens == 0
    assert cache.admit(span(0, tokens)).hit_tokens == hit
    assert (cache.queried_tokens, cache.hit_tokens) == (2 * tokens, hit)


def test_a_hit_ends_at_the_first_block_that_differs(cache: PrefixCache) -> None:
    cache.admit(span(0, 16))
    assert cache.admit(span(0, 8) + prompt(77) + span(9, 7)).hit_tokens == 8


def test_equal_blocks_after_a_difference_are_no_hit(cache: PrefixCache) -> None:
    cache.admit(span(0, 16))
    assert cache.admit(prompt(77) + span(1, 15)).hit_tokens == 0


def test_one_salt_does_not_see_the_blocks_of_another(cache: PrefixCache) -> None:
    cache.admit(span(0, 16), "a")
    assert cache.admit(span(0, 16), "b").hit_tokens == 0
    assert cache.admit(span(0, 16)).hit_tokens == 0
    assert cache.admit(span(0, 16), "a").hit_tokens == 12


def test_salt_and_tokens_cannot_be_mixed_up(cache: PrefixCache) -> None:
    cache.admit(span(0, 16), "a")
    assert cache.admit(b"a\0\0\0" + span(0, 16)).hit_tokens == 0


def test_the_block_that_was_used_longest_ago_leaves_and_of_a_prompt_the_last_one() -> None:
    cache = PrefixCache(BLOCK, 4)
    cache.admit(span(0, 8))
    cache.admit(span(100, 8))
    cache.admit(span(0, 8))  # used again
    cache.admit(span(200, 4))  # one block too many
    assert len(cache) == 4
    assert cache.admit(span(0, 9)).hit_tokens == 8
    assert cache.admit(span(100, 9)).hit_tokens == 4


def test_of_a_prompt_that_is_larger_than_the_cache_the_start_stays() -> None:
    cache = PrefixCache(BLOCK, 3)
    cache.admit(span(0, 40))
    assert cache.admit(span(0, 40)).hit_tokens == 12


def test_an_answer_fills_blocks_too_but_its_last_token_has_none(cache: PrefixCache) -> None:
    admission = cache.admit(span(0, 6))
    cache.extend(admission, span(0, 12))  # 6 of the prompt, 6 of the answer
    assert cache.admit(span(0, 13)).hit_tokens == 8
    assert len(cache) == 3


def test_blocks_that_left_while_the_answer_grew_come_back_with_it() -> None:
    cache = PrefixCache(BLOCK, 4)
    admission = cache.admit(span(0, 8))
    cache.admit(span(100, 16))
    cache.extend(admission, span(0, 13))
    assert cache.admit(span(0, 13)).hit_tokens == 12


def test_clearing_forgets_everything(cache: PrefixCache) -> None:
    cache.admit(span(0, 16))
    cache.clear()
    assert len(cache) == 0
    assert cache.admit(span(0, 16)).hit_tokens == 0


class Follower:
    """What somebody who only hears of changes takes the cache to hold."""

    def __init__(self) -> None:
        self.hashes: set[bytes] = set()
        self.changes: list[CacheChange] = []

    def __call__(self, change: CacheChange) -> None:
        self.changes.append(change)
        if isinstance(change, StoredBlocks):
            assert len(change.tokens) == BLOCK * len(change.hashes)
            assert change.parent is None or change.parent in self.hashes
            self.hashes |= set(change.hashes)
        elif isinstance(change, RemovedBlocks):
            assert set(change.hashes) <= self.hashes
            self.hashes -= set(change.hashes)
        else:
            assert isinstance(change, ClearedBlocks)
            self.hashes.clear()


def test_what_is_told_is_what_vllm_would_hash() -> None:
    chain, follower = HashChain(), Follower()
    cache = PrefixCache(BLOCK, 100, chain, follower)
    cache.admit(span(0, 9), "pepper")
    first = chain.next(chain.root, range(4), "pepper")
    second = chain.next(first, range(4, 8))
    assert follower.changes == [StoredBlocks([first, second], None, list(range(8)), "pepper")]
    cache.admit(span(0, 13), "pepper")
    third = chain.next(second, range(8, 12))
    assert follower.changes[1:] == [StoredBlocks([third], second, list(range(8, 12)))]
    cache.clear()
    assert follower.changes[2:] == [ClearedBlocks()]


def test_without_a_chain_only_clearing_is_told() -> None:
    follower = Follower()
    cache = PrefixCache(BLOCK, 2, None, follower)
    cache.admit(span(0, 40))
    assert follower.changes == []


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30), st.integers(0, 9)), max_size=40),
)
def test_who_follows_the_changes_knows_what_is_there(capacity: int, asked: list[tuple[int, int, int]]) -> None:
    follower = Follower()
    cache = PrefixCache(BLOCK, capacity, HashChain(), follower)
    plain = PrefixCache(BLOCK, capacity)
    for group, tokens, answer in asked:
        packed = span(group * 1000, tokens)
        for one in (cache, plain):
            admission = one.admit(packed)
            one.extend(admission, packed + span(5000, answer))
        assert len(follower.hashes) == len(cache) <= capacity
        assert (cache.queried_tokens, cache.hit_tokens) == (plain.queried_tokens, plain.hit_tokens)
    assert {*cache._blocks.values()} == follower.hashes
