import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kveik.store.eviction import SlabUse, batch_size, oldest, slab_to_reclaim

uses_and_flags = st.lists(st.tuples(st.integers(0, 1000), st.booleans()), max_size=200)


@given(uses_and_flags, st.integers(1, 50))
def test_victims_are_the_oldest_evictable_slots_in_order(slots: list[tuple[int, bool]], count: int) -> None:
    use = np.array([use for use, _ in slots], np.int64)
    evictable = np.array([flag for _, flag in slots], np.bool_)
    chosen = oldest(use, evictable, count)
    expected = sorted(use for use, flag in slots if flag)[:count]
    assert [int(use[position]) for position in chosen] == expected
    assert all(evictable[position] for position in chosen)
    assert len(set(chosen.tolist())) == len(chosen)


@given(st.integers(1, 100), st.integers(0, 1 << 20))
def test_a_batch_is_at_least_what_is_needed_and_a_small_share_of_the_rest(needed: int, slots: int) -> None:
    size = batch_size(needed, slots)
    assert size >= needed
    assert size <= max(needed, 8, slots // 256)


def test_nothing_is_reclaimed_when_every_other_slab_is_in_use() -> None:
    assert slab_to_reclaim([SlabUse(1, 5.0, False), SlabUse(2, 1.0, False)], None) is None


def test_a_class_without_blocks_takes_the_oldest_slab_of_another() -> None:
    assert slab_to_reclaim([SlabUse(1, 5.0, True), SlabUse(2, 3.0, True), SlabUse(3, 1.0, False)], None) == 2


def test_a_class_with_older_blocks_of_its_own_evicts_those() -> None:
    assert slab_to_reclaim([SlabUse(1, 5.0, True)], 4.0) is None


def test_a_class_with_younger_blocks_takes_the_older_slab() -> None:
    assert slab_to_reclaim([SlabUse(1, 5.0, True)], 6.0) == 1


def test_there_may_be_no_other_slab_at_all() -> None:
    assert slab_to_reclaim([], None) is None
