"""What the connector looks up, loads and saves, for every kind of group."""

from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.connector import plan
from kveik.connector.plan import BlockRef, Found, LookupPart, Shape
from kveik.kv.groups import GroupKind, GroupSpec

FULL = GroupSpec(0, GroupKind.FULL, 16)
WINDOW = GroupSpec(1, GroupKind.SLIDING_WINDOW, 16, window_tokens=33)
STATE = GroupSpec(1, GroupKind.STATE, 32)
ONE = Shape((FULL,), 16)
HYBRID = Shape((FULL, WINDOW), 16)
STATEFUL = Shape((FULL, STATE), 16)
NOTHING_FAILED: frozenset[tuple[int, bytes]] = frozenset()


def hashes(count: int) -> list[bytes]:
    return [bytes([index]) * 32 for index in range(count)]


def found(shape: Shape, local: int, limit: int, places: dict[int, str]) -> Found:
    """An answer from texts such as ``{"0": "11.2"}``: a digit is a place, a dot is absent."""
    parts = plan.lookup_parts(shape, hashes(limit // shape.hash_tokens), local, limit)
    answers = [bytes(0 if sign == "." else int(sign) for sign in places[part.group]) for part in parts]
    assert [len(answer) for answer in answers] == [len(part.hashes) for part in parts]
    return Found(local, tuple(parts), tuple(answers))


class TestLimit:
    def test_the_last_token_is_never_part_of_a_hit(self) -> None:
        assert plan.hit_limit_tokens(ONE, 32, 2) == 16
        assert plan.hit_limit_tokens(ONE, 33, 2) == 32

    def test_a_prompt_that_ends_with_a_block_is_loaded_whole_where_that_is_wanted(self) -> None:
        assert plan.hit_limit_tokens(ONE, 32, 2, whole_prompt=True) == 32
        assert plan.hit_limit_tokens(ONE, 33, 2, whole_prompt=True) == 32

    @pytest.mark.parametrize(("local", "limit"), [(0, 64), (32, 64), (48, 48), (64, 48)])
    def test_one_block_beyond_the_engines_own_full_hit_is_not_worth_a_load(self, local: int, limit: int) -> None:
        assert plan.hit_limit_tokens(ONE, 64, 4, local_tokens=local, whole_prompt=True) == limit

    @pytest.mark.parametrize("shape", [STATEFUL, Shape((FULL,), 16, drop_last_unit=True)], ids=["state", "drafter"])
    def test_states_and_drafters_never_see_the_last_token_twice(self, shape: Shape) -> None:
        assert plan.hit_limit_tokens(shape, 64, 4, whole_prompt=True) == plan.hit_limit_tokens(shape, 64, 4)

    def test_a_hit_ends_where_hashes_end(self) -> None:
        assert plan.hit_limit_tokens(ONE, 100, 3) == 48

    def test_the_unit_is_common_to_all_groups(self) -> None:
        assert plan.hit_limit_tokens(STATEFUL, 63, 3) == 32

    @pytest.mark.parametrize(("window", "limit"), [(32, 64), (33, 48), (34, 64)])
    def test_a_window_that_would_need_one_block_more_keeps_the_last_token_out(self, window: int, limit: int) -> None:
        shape = Shape((FULL, GroupSpec(1, GroupKind.SLIDING_WINDOW, 16, window)), 16)
        needs_more = shape.groups[1].needed_blocks(64).start * 16 > 64 - window
        assert needs_more == (limit == 48)
        assert plan.hit_limit_tokens(shape, 64, 4, whole_prompt=True) == limit

    @pytest.mark.parametrize("tokens", [0, 1, 16])
    def test_short_prompts_have_none(self, tokens: int) -> None:
        assert plan.hit_limit_tokens(ONE, tokens, tokens // 16) == 0


class TestLookup:
    def test_only_blocks_after_the_engines_own_hit_are_asked_for(self) -> None:
        assert plan.lookup_parts(ONE, hashes(4), 32, 64) == [LookupPart(0, 2, hashes(4)[2:])]

    def test_a_larger_block_is_named_by_the_hash_at_its_end(self) -> None:
        parts = plan.lookup_parts(STATEFUL, hashes(4), 0, 64)
        assert parts[1] == LookupPart(1, 0, [hashes(4)[1], hashes(4)[3]])


class TestUsable:
    def test_the_prefix_counts_up_to_the_first_gap(self) -> None:
        hit = plan.usable(ONE, found(ONE, 0, 64, {0: "11.1"}), 64, NOTHING_FAILED)
        assert (hit.tokens, hit.reason) == (32, "group 0 (full, block 16) lacks block 2")

    def test_the_engines_own_blocks_count_as_present(self) -> None:
        assert plan.usable(ONE, found(ONE, 32, 64, {0: "1."}), 64, NOTHING_FAILED).tokens == 48

    def test_a_window_needs_only_its_tail(self) -> None:
        hit = plan.usable(HYBRID, found(HYBRID, 0, 80, {0: "11111", 1: "...11"}), 80, NOTHING_FAILED)
        assert hit.tokens == 80

    def test_a_missing_window_shortens_the_hit_for_all_groups(self) -> None:
        hit = plan.usable(HYBRID, found(HYBRID, 0, 80, {0: "11111", 1: "1111."}), 80, NOTHING_FAILED)
        assert hit.tokens == 64
        assert "lacks block 4" in hit.reason

    def test_a_state_counts_only_at_its_exact_end(self) -> None:
        hit = plan.usable(STATEFUL, found(STATEFUL, 0, 96, {0: "111111", 1: "1.."}), 96, NOTHING_FAILED)
        assert hit.tokens == 32

    def test_blocks_that_failed_lately_count_as_absent(self) -> None:
        failed = frozenset({(0, hashes(4)[1])})
        assert plan.usable(ONE, found(ONE, 0, 64, {0: "1111"}), 64, failed).tokens == 16

    def test_drafters_recompute_the_last_unit(self) -> None:
        drafted = Shape((FULL,), 16, drop_last_unit=True)
        assert plan.usable(drafted, found(drafted, 0, 64, {0: "1111"}), 64, NOTHING_FAILED).tokens == 48


class TestLoad:
    def test_loads_what_the_engine_lacks_in_token_order(self) -> None:
        refs, complete = plan.load_blocks(HYBRID, hashes(5), ([7, 8, 9, 10, 11], [0, 0, 0, 20, 21]), 16, 80)
        assert complete
        assert refs == [
            BlockRef(0, 8, hashes(5)[1]),
            BlockRef(0, 9, hashes(5)[2]),
            BlockRef(0, 10, hashes(5)[3]),
            BlockRef(1, 20, hashes(5)[3]),
            BlockRef(0, 11, hashes(5)[4]),
            BlockRef(1, 21, hashes(5)[4]),
        ]

    def test_a_needed_block_that_the_engine_does_not_hold_makes_the_load_incomplete(self) -> None:
        _, complete = plan.load_blocks(HYBRID, hashes(5), ([7, 8, 9, 10, 11], [0, 0, 0, 0, 21]), 0, 80)
        assert not complete

    def test_a_state_is_one_block(self) -> None:
        refs, complete = plan.load_blocks(STATEFUL, hashes(4), ([1, 2, 3, 4], [0, 9]), 0, 64)
        assert complete
        assert [ref for ref in refs if ref.group == 1] == [BlockRef(1, 9, hashes(4)[3])]


class TestSave:
    def test_saves_blocks_that_became_whole(self) -> None:
        refs = plan.save_blocks(ONE, hashes(4), ([5, 6, 7, 8],), 20, 50)
        assert refs == [BlockRef(0, 6, hashes(4)[1]), BlockRef(0, 7, hashes(4)[2])]

    def test_blocks_that_left_the_window_are_skipped(self) -> None:
        refs = plan.save_blocks(HYBRID, hashes(3), ([5, 6, 7], [0, 8, 9]), 0, 48)
        assert [ref.block_id for ref in refs if ref.group == 1] == [8, 9]

    def test_states_are_left_to_their_own_way(self) -> None:
        refs = plan.save_blocks(STATEFUL, hashes(2), ([5, 6], [7]), 0, 32, frozenset({1}))
        assert {ref.group for ref in refs} == {0}

    @given(st.lists(st.integers(0, 200), min_size=1, max_size=8))
    def test_saving_in_steps_saves_each_block_once(self, cuts: list[int]) -> None:
        ends = sorted(cuts)
        table = list(range(1, 14))
        saved: list[BlockRef] = []
        start = 0
        for end in ends:
            saved += plan.save_blocks(ONE, hashes(13), (table,), start, end)
            start = end
        assert saved == plan.save_blocks(ONE, hashes(13), (table,), 0, ends[-1])


class TestRoom:
    @pytest.mark.parametrize(("start", "room", "end"), [(0, 3, 48), (20, 2, 48), (0, 0, 0), (16, -5, 16)])
    def test_a_save_goes_as_far_as_its_blocks_may_be_held(self, start: int, room: int, end: int) -> None:
        assert plan.room_end_tokens(ONE, start, room) == end

    def test_all_groups_count(self) -> None:
        assert plan.room_end_tokens(STATEFUL, 0, 7) == 64

    @given(st.integers(0, 300), st.integers(-3, 40))
    def test_what_fits_is_never_more_than_the_room(self, start: int, room: int) -> None:
        end = plan.room_end_tokens(HYBRID, start, room)
        table = list(range(1, 100))
        assert len(plan.save_blocks(HYBRID, hashes(99), (table, table), start, end)) <= max(0, room)


class TestSurvivors:
    REFS: ClassVar = [BlockRef(0, 10 + index, hashes(4)[index]) for index in range(4)]

    def test_one_group_keeps_the_prefix_before_the_first_failure(self) -> None:
        failed = frozenset({(0, hashes(4)[2]), (0, hashes(4)[3])})
        assert plan.surviving_tokens(ONE, self.REFS[1:], failed, 16, 64) == 32

    def test_several_groups_keep_nothing(self) -> None:
        assert plan.surviving_tokens(HYBRID, self.REFS, frozenset({(0, hashes(4)[3])}), 16, 64) == 16

    def test_without_failures_all_is_used(self) -> None:
        assert plan.surviving_tokens(HYBRID, self.REFS, NOTHING_FAILED, 16, 64) == 64


def test_a_hits_tokens_are_split_by_the_slowest_place_of_each_unit() -> None:
    answer = found(HYBRID, 16, 80, {0: "1221", 1: "...3"})
    # Blocks 1 to 4; the window of a hit of 80 tokens needs blocks 3 and 4, and block 3 has no place there.
    assert plan.tokens_by_place(HYBRID, answer, 80) == {1: 16, 2: 32, 3: 16}
