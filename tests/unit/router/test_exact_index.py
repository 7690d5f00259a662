"""The exact index answers as the engine's own prefix cache would, whatever order its events come in."""

import random
from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kveik.kv.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, KvEvent
from kveik.router.exact_index import SENT_S, CombinedIndex, ExactIndex
from kveik.router.facts import RequestFacts, TokenPrompt
from kveik.router.prefix_index import ApproximateIndex
from kveik.router.prefix_keys import PrefixHasher
from kveik.simulate.block_hashes import HashChain, short_hash

BLOCK = 16


def prompt(tokens: Sequence[int], salt: str = "", rendering: str = "") -> TokenPrompt:
    return TokenPrompt(array("I", tokens).tobytes(), salt, rendering)


class SpeakingCache:
    """An engine's cache: a set of blocks by vLLM's own hashes, and the events it would send."""

    def __init__(self, chain: HashChain | None = None, block: int = BLOCK, *, short: bool = True) -> None:
        self.chain = chain or HashChain()
        self.block = block
        self.short = short
        self.blocks: dict[bytes, int] = {}

    def hashes(self, tokens: Sequence[int], salt: str = "") -> list[bytes]:
        found, parent = [], self.chain.root
        for start in range(0, len(tokens) - self.block + 1, self.block):
            parent = self.chain.next(parent, tokens[start : start + self.block], "" if start else salt)
            found.append(parent)
        return found

    def name(self, block_hash: bytes) -> int | bytes:
        return short_hash(block_hash) if self.short else block_hash

    def store(self, tokens: Sequence[int], salt: str = "", start: int = 0) -> EventBatch:
        """Blocks ``start`` and later of a prompt have been computed."""
        hashes = self.hashes(tokens, salt)
        for one in hashes[start:]:
            self.blocks[one] = self.blocks.get(one, 0) + 1
        return batch(
            BlockStored(
                [self.name(one) for one in hashes[start:]],
                self.name(hashes[start - 1]) if start else None,
                list(tokens[start * self.block : len(hashes) * self.block]),
                self.block,
                medium="GPU",
                extra_keys=[[salt], *[None] * (len(hashes) - 1)] if salt and not start else None,
            )
        )

    def remove(self, *hashes: bytes) -> EventBatch:
        """One copy of each block is evicted."""
        for one in hashes:
            self.blocks[one] -= 1
        return batch(*(BlockRemoved([self.name(one)], "GPU") for one in hashes))

    def hit(self, tokens: Sequence[int], salt: str = "") -> int:
        """What vLLM would find: leading blocks without a hole, never the last token."""
        count = 0
        for one in self.hashes(tokens[: len(tokens) - 1], salt):
            if self.blocks.get(one, 0) <= 0:
                break
            count += self.block
        return count


def batch(*events: KvEvent, rank: int | None = 0) -> EventBatch:
    return EventBatch(0.0, list(events), rank)


def opened(*slots: int, block: int = BLOCK) -> ExactIndex:
    index = ExactIndex(100_000)
    for slot in slots:
        index.open(slot, block)
    return index


TOKENS = list(range(1000, 1100))


def test_a_prompt_is_held_as_far_as_its_full_blocks_are() -> None:
    index, cache = opened(3), SpeakingCache()
    assert index.apply(3, cache.store(TOKENS)) == ""
    assert index.match(prompt(TOKENS), 0) == {3: 96}
    assert index.match(prompt(TOKENS[:50]), 0) == {3: 48}
    assert index.match(prompt([*TOKENS[:40], *range(90)]), 0) == {3: 32}
    assert index.match(prompt(TOKENS[1:]), 0) == {}
    assert index.match(prompt([]), 0) == {} == index.match(prompt(TOKENS[:16]), 0)


def test_the_last_token_is_always_computed_as_in_the_engine() -> None:
    index, cache = opened(0), SpeakingCache()
    index.apply(0, cache.store(TOKENS[:96]))
    assert index.match(prompt(TOKENS[:96]), 0) == {0: 80} == {0: cache.hit(TOKENS[:96])}
    assert index.match(prompt(TOKENS[:97]), 0) == {0: 96}


@pytest.mark.parametrize("chain", [HashChain(), HashChain(seed="0"), HashChain("sha256_cbor")])
@pytest.mark.parametrize("short", [True, False])
def test_how_an_engine_hashes_does_not_matter(chain: HashChain, short: bool) -> None:
    index, cache = opened(0, 1), SpeakingCache(chain, short=short)
    index.apply(0, SpeakingCache().store(TOKENS))
    index.apply(1, cache.store(TOKENS[:64]))
    index.apply(1, cache.store(TOKENS, start=4))
    assert index.match(prompt(TOKENS), 0) == {0: 96, 1: 96}


def test_engines_may_have_blocks_of_different_sizes() -> None:
    index = ExactIndex(1000)
    index.open(0, 16)
    index.open(1, 0)  # not announced
    index.apply(0, SpeakingCache().store(TOKENS))
    index.apply(1, SpeakingCache(block=32).store(TOKENS))
    asked = prompt(TOKENS)
    assert index.match(asked, 0) == {0: 96, 1: 96}
    assert index.match(prompt(TOKENS[:60]), 0) == {0: 48, 1: 32}
    assert index.document(1)["block_tokens"] == 32


def test_a_salt_keeps_prompts_apart() -> None:
    index, cache = opened(0), SpeakingCache()
    index.apply(0, cache.store(TOKENS, salt="tenant"))
    assert index.match(prompt(TOKENS), 0) == {}
    assert index.match(prompt(TOKENS, "other"), 0) == {}
    assert index.match(prompt(TOKENS, "tenant"), 0) == {0: 96}


@pytest.mark.parametrize(
    "changes",
    [
        {"lora_name": "adapter", "extra_keys": [["adapter"]] * 6},
        {"extra_keys": [None, [["image", 0]], None, None, None, None]},
    ],
)
def test_blocks_whose_hash_covers_more_than_a_request_tells_are_not_taken_for_a_prompts(
    changes: dict[str, Any],
) -> None:
    index, cache = opened(0), SpeakingCache()
    event = cache.store(TOKENS).events[0]
    assert isinstance(event, BlockStored)
    for name, value in changes.items():
        setattr(event, name, value)
    assert index.apply(0, batch(event)) == ""
    assert index.match(prompt(TOKENS), 0) == {}
    index.apply(0, cache.store([*TOKENS, *range(16)], start=6))
    assert index.document(0)["unknown_blocks"] == 7, "what follows such a block is unknown as well"


def test_a_hole_ends_a_hit_and_the_rest_counts_again_when_it_is_filled() -> None:
    index, cache = opened(0), SpeakingCache()
    index.apply(0, cache.store(TOKENS))
    index.apply(0, cache.remove(cache.hashes(TOKENS)[2]))
    assert index.match(prompt(TOKENS), 0) == {0: 32}
    index.apply(0, cache.store(TOKENS[:48], start=2))
    assert index.match(prompt(TOKENS), 0) == {0: 96}


def test_a_block_of_which_there_are_two_is_held_until_both_are_gone() -> None:
    index, cache = opened(0), SpeakingCache()
    index.apply(0, cache.store(TOKENS))
    index.apply(0, cache.store(TOKENS))
    first = cache.hashes(TOKENS)[0]
    index.apply(0, cache.remove(first))
    assert index.match(prompt(TOKENS), 0) == {0: 96}
    index.apply(0, cache.remove(first))
    assert index.match(prompt(TOKENS), 0) == {}


def test_an_emptied_cache_holds_nothing_and_other_engines_keep_theirs() -> None:
    index, cache = opened(0, 63), SpeakingCache()
    index.apply(0, cache.store(TOKENS))
    index.apply(63, cache.store(TOKENS))
    index.apply(0, batch(AllBlocksCleared(), *cache.store(TOKENS[:32]).events))
    assert index.match(prompt(TOKENS), 0) == {0: 32, 63: 96}
    index.close(63)
    assert index.match(prompt(TOKENS), 0) == {0: 32}
    index.close(63)


def test_events_of_other_media_change_nothing() -> None:
    index, cache = opened(0), SpeakingCache()
    index.apply(0, cache.store(TOKENS))
    removed = BlockRemoved([cache.name(one) for one in cache.hashes(TOKENS)], "CPU")
    stored = cache.store([*TOKENS, *range(28)], start=6).events[0]
    assert isinstance(stored, BlockStored)
    stored.medium = "CPU"
    index.apply(0, batch(removed, stored))
    assert index.match(prompt([*TOKENS, *range(28)]), 0) == {0: 96}


def test_events_that_cannot_be_followed_are_told_with_the_reason() -> None:
    index = opened(0)
    assert "blocks of 32 tokens, expected 16" in index.apply(0, SpeakingCache(block=32).store(TOKENS))
    assert "data-parallel" in index.apply(0, batch(rank=1))
    small = ExactIndex(5)
    small.open(0, BLOCK)
    assert "more than 5 blocks" in small.apply(0, SpeakingCache().store(TOKENS))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_history_gives_the_same_hits_as_the_engines_own_cache(data: st.DataObject) -> None:
    index = ExactIndex(100_000)
    caches = {slot: SpeakingCache(HashChain(seed=str(slot)), block=4) for slot in (0, 5)}
    for slot in caches:
        index.open(slot, 4)
    lines, chance = st.lists(st.integers(0, 1), min_size=0, max_size=30), st.booleans()
    for _ in range(data.draw(st.integers(1, 12))):
        slot = data.draw(st.sampled_from(sorted(caches)))
        cache = caches[slot]
        there = sorted(one for one, count in cache.blocks.items() if count > 0)
        if data.draw(chance) and there:
            gone: bytes = data.draw(st.sampled_from(there))
            assert index.apply(slot, cache.remove(gone)) == ""
            continue
        tokens, salt = data.draw(lines), data.draw(st.sampled_from(["", "s"]))
        start = cache.hit([*tokens, 0], salt) // 4  # it computes what it does not have
        if len(tokens) // 4 > start:
            assert index.apply(slot, cache.store(tokens, salt, start)) == ""
    for _ in range(5):
        tokens, salt = data.draw(lines), data.draw(st.sampled_from(["", "s"]))
        expected = {slot: cache.hit(tokens, salt) for slot, cache in caches.items()}
        assert index.match(prompt(tokens, salt), 0) == {slot: hit for slot, hit in expected.items() if hit}


def test_a_block_takes_little_memory() -> None:
    index, draw = opened(0), random.Random(5)
    for _ in range(500):
        index.apply(0, SpeakingCache().store([draw.randrange(50_000) for _ in range(1600)]))
    assert index.size == 50_000
    assert index.memory_bytes / index.size < 110


def test_what_was_just_sent_counts_until_the_engines_events_tell() -> None:
    index = opened(0, 1)
    first = prompt(TOKENS)
    index.match(first, 10.0)
    index.sent(first, 1, 10.0)
    second = prompt([*TOKENS[:64], *range(40)])
    assert index.match(second, 10.5) == {1: 64}
    assert second.guessed == 1 << 1
    assert index.match(second, 10.0 + SENT_S + 0.1) == {}
    assert second.guessed == 0


def test_what_was_just_sent_no_longer_counts_once_it_came_and_went() -> None:
    index, cache = opened(0), SpeakingCache()
    index.sent(prompt(TOKENS), 0, 0.0)
    index.apply(0, cache.store(TOKENS))
    index.apply(0, cache.remove(*cache.hashes(TOKENS)))
    assert index.match(prompt(TOKENS), 1.0) == {}
    index.apply(0, cache.store(TOKENS))
    index.sent(prompt(TOKENS), 0, 1.0)  # all of it is there: no event will come
    index.apply(0, cache.remove(*cache.hashes(TOKENS)))
    assert index.match(prompt(TOKENS), 1.0) == {}


def test_what_was_just_sent_is_forgotten_with_the_engine_or_when_it_proves_wrong() -> None:
    index = opened(0, 1)
    for slot in (0, 1):
        index.sent(prompt(TOKENS), slot, 0.0)
    index.unsent(prompt(TOKENS), 0)
    assert index.match(prompt(TOKENS), 1.0) == {1: 96}
    index.clear(1)
    assert index.match(prompt(TOKENS), 1.0) == {}


def facts(asked: TokenPrompt | None) -> RequestFacts:
    hasher = PrefixHasher(1)
    text = hasher.seed(b"m") + bytes(1000)
    return RequestFacts(prompt_bytes=1000, prompt_tokens=250, keys=hasher.keys(text), prompt=asked)


def test_exact_where_it_can_be_trusted_and_approximate_elsewhere() -> None:
    combined = CombinedIndex(ApproximateIndex(4096, 60.0), opened(0, 1))
    both = facts(prompt(TOKENS, rendering="template"))
    for slot in (0, 1, 2):
        combined.learn(both, slot, 0.0)
    guesses = dict(combined.match(both, 0.0))
    assert set(guesses) == {0, 1, 2}
    combined.exact.apply(1, SpeakingCache().store(TOKENS[:40]))
    combined.trust(0, frozenset({"", "template"}))
    combined.trust(1, frozenset({"", "template"}))
    asked = facts(prompt(TOKENS, rendering="template"))
    assert combined.match(asked, 0.0) == {1: 32, 2: guesses[2]}
    assert combined.is_exact(0, asked.prompt)
    assert not combined.is_exact(2, asked.prompt)
    assert combined.match(facts(None), 0.0) == guesses, "a prompt without tokens can only be guessed"
    other = facts(prompt(TOKENS, rendering="another template"))
    assert combined.match(other, 0.0) == guesses
    combined.trust(1, frozenset())
    assert combined.match(asked, 0.0) == {1: guesses[1], 2: guesses[2]}
    combined.forget_engine(1)
    assert set(combined.match(asked, 0.0)) == {2}
