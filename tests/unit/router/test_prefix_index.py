"""The approximate index against a plain model, its memory, and what it forgets first."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from numpy.typing import NDArray

from kveik.router.facts import RequestFacts
from kveik.router.prefix_index import ENTRIES_MIN, ENTRY_BYTES, ApproximateIndex, PrefixIndex

Keys = NDArray[np.uint64]


def random_keys(count: int, seed: int = 0) -> Keys:
    return np.random.default_rng(seed).integers(1, 1 << 64, size=count, dtype=np.uint64)


def key_of(path: Sequence[int]) -> int:
    """A key that stands for a path in a tree of prompts, as chained hashes do."""
    return hash(("path", *path)) & 0xFFFF_FFFF_FFFF_FFFF or 1


def chain(path: Sequence[int]) -> Keys:
    return np.array([key_of(path[: n + 1]) for n in range(len(path))], np.uint64)


@pytest.fixture
def index() -> ApproximateIndex:
    return ApproximateIndex(1 << 16, expire_s=100.0)


def test_an_empty_index_knows_nothing_and_takes_empty_prompts(index: ApproximateIndex) -> None:
    none = np.empty(0, np.uint64)
    assert index.depths(none, 1.0) == {}
    index.add(none, 3, 1.0)
    assert index.depths(random_keys(5), 1.0) == {}
    assert index.size == 0


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7, 16, 64, 4096])
def test_what_was_sent_to_an_engine_is_found_to_its_end(index: ApproximateIndex, count: int) -> None:
    keys = random_keys(count)
    index.add(keys, 5, 1.0)
    assert index.depths(keys, 2.0) == {5: count}
    assert index.depths(keys.copy(), 2.0) == {5: count}
    assert index.size >= 0.99 * count  # rarely, more than eight keys want one bucket


@pytest.mark.parametrize("slot", [0, 1, 31, 32, 62, 63])
def test_each_of_64_slots_has_its_own_bit(index: ApproximateIndex, slot: int) -> None:
    keys = random_keys(20)
    index.add(keys, slot, 1.0)
    assert index.depths(keys, 1.0) == {slot: 20}
    index.forget_engine(slot)
    assert index.depths(keys, 1.0) == {}
    assert index.size == 0


def test_each_engine_has_its_own_depth(index: ApproximateIndex) -> None:
    keys = random_keys(64)
    depths = {slot: 1 + 9 * slot for slot in range(8)}
    for slot, depth in depths.items():
        index.add(keys[:depth], slot, 1.0)
    assert index.depths(keys, 1.0) == depths


def test_a_prompt_shares_with_another_what_both_begin_with(index: ApproximateIndex) -> None:
    index.add(chain([1, 2, 3, 4, 5]), 0, 1.0)
    index.add(chain([1, 2, 9, 9]), 1, 1.0)
    assert index.depths(chain([1, 2, 3, 7]), 1.0) == {0: 3, 1: 2}
    assert index.depths(chain([7, 2, 3]), 1.0) == {}


def test_forgetting_an_engine_leaves_the_others(index: ApproximateIndex) -> None:
    keys = random_keys(30)
    index.add(keys, 1, 1.0)
    index.add(keys[:10], 2, 1.0)
    index.forget_engine(1)
    assert index.depths(keys, 1.0) == {2: 10}
    assert index.size == 10


def test_entries_expire_and_using_them_keeps_them(index: ApproximateIndex) -> None:
    used, unused = random_keys(10, 1), random_keys(10, 2)
    index.add(used, 0, 0.0)
    index.add(unused, 0, 0.0)
    index.add(used, 0, 60.0)
    assert index.depths(unused, 99.0) == {0: 10}
    assert index.depths(unused, 101.0) == {}
    assert index.depths(used, 159.0) == {0: 10}
    assert index.depths(used, 161.0) == {}
    assert index.size == 0


def test_what_expired_does_not_come_back_for_another_engine(index: ApproximateIndex) -> None:
    by_the_loop, by_numpy = random_keys(3, 1), random_keys(30, 2)
    for keys in (by_the_loop, by_numpy):
        index.add(keys, 0, 0.0)
    for keys in (by_the_loop, by_numpy):
        index.add(keys, 1, 200.0)
        assert index.depths(keys, 200.0) == {1: len(keys)}


def test_a_clock_that_goes_back_does_no_harm(index: ApproximateIndex) -> None:
    keys = random_keys(8)
    index.add(keys, 0, 50.0)
    assert index.depths(keys, 10.0) == {0: 8}


def test_matches_are_told_in_tokens_and_never_exceed_the_prompt(index: ApproximateIndex) -> None:
    facts = RequestFacts(prompt_bytes=1000, prompt_tokens=100, keys=random_keys(3))
    index.learn(facts, 0, 1.0)
    assert index.match(facts, 1.0) == {0: 76}
    assert index.match(RequestFacts(prompt_tokens=9), 1.0) == {}


def prompts(count: int, blocks: int = 16) -> Iterator[Keys]:
    """Distinct prompts of 4 KB each."""
    for start in range(0, count, 1000):
        yield from random_keys(1000 * blocks, seed=start + 1).reshape(1000, blocks)


def test_memory_is_small_when_idle_and_within_2_kb_for_each_prompt_of_4_kb() -> None:
    index = ApproximateIndex(1 << 20, expire_s=1800.0)
    assert index.memory_bytes <= 32 << 10
    for number, keys in enumerate(prompts(20_000), start=1):
        index.add(keys, number % 8, number / 1000)
        if number >= 100 and number % 100 == 0:
            assert index.memory_bytes <= 2048 * number
    assert index.size >= 0.98 * 20_000 * 16, "hardly anything is lost while there is room"


def test_the_bound_is_kept_with_200_000_prompts_and_the_oldest_go_first() -> None:
    index = ApproximateIndex(1 << 20, expire_s=1e6)
    recent: list[Keys] = []
    for number, keys in enumerate(prompts(200_000)):
        index.add(keys, number % 8, number / 10)
        if number >= 150_000 and number % 100 == 0:
            recent.append(keys)
    assert index.capacity == 1 << 20
    assert index.memory_bytes == ENTRY_BYTES << 20
    assert index.size <= 1 << 20
    held = [max(index.depths(keys, 20_000.0).values(), default=0) for keys in recent]
    newest, older = held[-200:], held[:200]
    assert np.mean(newest) > 15.5
    assert np.mean(older) < np.mean(newest)
    oldest = next(prompts(1000))
    assert index.depths(oldest, 20_000.0) == {}


def test_growing_moves_every_entry_to_where_it_is_looked_for(index: ApproximateIndex) -> None:
    kept = [random_keys(20, seed) for seed in range(10)]
    for slot, keys in enumerate(kept):
        index.add(keys, slot, 50.0)
    before = index.capacity
    index.add(random_keys(4096, 99), 63, 0.0)
    assert index.capacity >= 8 * before
    assert [index.depths(keys, 50.0) for keys in kept] == [{slot: 20} for slot in range(10)]


def test_the_bound_is_a_power_of_two_not_above_the_setting() -> None:
    index = ApproximateIndex(5000, expire_s=100.0)
    for number, keys in enumerate(prompts(3000)):
        index.add(keys, 0, number)
    assert index.capacity == 4096
    assert ApproximateIndex(10, expire_s=1.0).capacity == ENTRIES_MIN


def test_expired_entries_make_room_before_the_table_grows() -> None:
    index = ApproximateIndex(1 << 20, expire_s=10.0)
    for number, keys in enumerate(prompts(20_000)):
        index.add(keys, 0, number * 0.5)  # 20 prompts live at a time: 320 entries
    assert index.memory_bytes < 100 << 10


def test_it_fits_the_interface_of_all_indexes(index: ApproximateIndex) -> None:
    as_any: PrefixIndex = index
    assert as_any.size == 0
    assert "0 of at most 65536 entries" in repr(index)


paths = st.lists(st.integers(0, 2), min_size=1, max_size=12)
slots = st.integers(0, 63) | st.integers(0, 2)


class AgainstAModel(RuleBasedStateMachine):
    """While there is room, the index says exactly what a dict of key -> engines, time would say."""

    def __init__(self) -> None:
        super().__init__()
        self.index = ApproximateIndex(1 << 16, expire_s=64.0)
        self.index.add(random_keys(4000), 63, 0.0)
        self.index.forget_engine(63)  # leaves a table in which no bucket overflows
        self.model: dict[int, dict[int, float]] = {}
        self.used: dict[int, float] = {}
        self.now_s = 0.0

    def expected(self, keys: Keys) -> dict[int, int]:
        depths: dict[int, int] = {}
        engines = set(range(64))
        for depth, key in enumerate(keys.tolist(), start=1):
            alive = self.used.get(key, -1e9) + 64.0 >= self.now_s
            engines &= set(self.model.get(key, {})) if alive else set()
            depths.update(dict.fromkeys(engines, depth))
        return depths

    @rule(path=paths, slot=slots)
    def learn(self, path: list[int], slot: int) -> None:
        keys = chain(path)
        self.index.add(keys, slot, self.now_s)
        for key in keys.tolist():
            if self.used.get(key, -1e9) + 64.0 < self.now_s:
                self.model[key] = {}
            self.model[key][slot] = self.now_s
            self.used[key] = self.now_s

    @rule(path=paths, slot=slots)
    def match_and_learn(self, path: list[int], slot: int) -> None:
        keys = chain(path)
        assert self.index.depths(keys, self.now_s) == self.expected(keys)
        self.index.add(keys, slot, self.now_s)
        for key in keys.tolist():
            if self.used.get(key, -1e9) + 64.0 < self.now_s:
                self.model[key] = {}
            self.model[key][slot] = self.now_s
            self.used[key] = self.now_s

    @rule(slot=slots)
    def forget(self, slot: int) -> None:
        self.index.forget_engine(slot)
        for engines in self.model.values():
            engines.pop(slot, None)

    @rule(seconds=st.sampled_from([1.0, 7.0, 33.0, 70.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(seed=st.integers(0, 1 << 30), count=st.integers(1, 300), slot=slots)
    def crowd(self, seed: int, count: int, slot: int) -> None:
        """Other prompts, so that the table grows."""
        self.index.add(random_keys(count, seed), slot, self.now_s)

    @rule(path=paths)
    def match(self, path: list[int]) -> None:
        keys = chain(path)
        assert self.index.depths(keys, self.now_s) == self.expected(keys)

    @invariant()
    def memory_fits_entries(self) -> None:
        assert self.index.size <= self.index.capacity


AgainstAModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAgainstAModel = AgainstAModel.TestCase


class WhenFull(RuleBasedStateMachine):
    """Whatever was pushed out: an engine is never said to hold what it was not sent."""

    def __init__(self) -> None:
        super().__init__()
        self.index = ApproximateIndex(ENTRIES_MIN, expire_s=1e6)
        self.sent: dict[int, set[int]] = {}
        self.now_s = 0.0

    @rule(path=paths, slot=st.integers(0, 3))
    def learn(self, path: list[int], slot: int) -> None:
        self.now_s += 1.0
        keys = chain(path)
        self.index.add(keys, slot, self.now_s)
        self.sent.setdefault(slot, set()).update(keys.tolist())

    @rule(seed=st.integers(0, 1 << 30), slot=st.integers(0, 3))
    def crowd(self, seed: int, slot: int) -> None:
        self.now_s += 1.0
        self.index.add(random_keys(700, seed), slot, self.now_s)

    @rule(slot=st.integers(0, 3))
    def forget(self, slot: int) -> None:
        self.index.forget_engine(slot)
        self.sent.pop(slot, None)

    @rule(path=paths)
    def match(self, path: list[int]) -> None:
        keys = chain(path)
        for slot, depth in self.index.depths(keys, self.now_s).items():
            assert keys[depth - 1] in self.sent.get(slot, set())

    @rule(path=paths, slot=st.integers(0, 3))
    def what_was_just_learned_is_known(self, path: list[int], slot: int) -> None:
        self.learn(path, slot)
        keys = chain(path)
        assert self.index.depths(keys, self.now_s).get(slot, 0) == len(keys)


WhenFull.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestWhenFull = WhenFull.TestCase
