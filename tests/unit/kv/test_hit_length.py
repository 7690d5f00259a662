"""Hit length against brute force: the longest aligned length at which no needed block is missing."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.kv.groups import GroupKind, GroupSpec
from kveik.kv.hit_length import HitLength, alignment_tokens, usable_hit

LIMIT_TOKENS = 48
Case = tuple[list[GroupSpec], set[tuple[int, int]], int]


@st.composite
def group_lists(draw: st.DrawFn) -> list[GroupSpec]:
    groups = []
    for index in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(GroupKind))
        window = draw(st.integers(1, 30)) if kind is GroupKind.SLIDING_WINDOW else 0
        groups.append(GroupSpec(index, kind, draw(st.sampled_from([1, 2, 3, 4, 8])), window))
    return groups


def all_blocks(groups: list[GroupSpec]) -> list[tuple[int, int]]:
    return [(group.index, block) for group in groups for block in range(LIMIT_TOKENS // group.block_tokens + 1)]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    groups = draw(group_lists())
    # Mostly present: otherwise nearly every answer is zero.
    missing = draw(st.sets(st.sampled_from(all_blocks(groups)), max_size=4))
    return groups, set(all_blocks(groups)) - missing, draw(st.integers(0, LIMIT_TOKENS))


def brute_force(groups: list[GroupSpec], there: set[tuple[int, int]], limit_tokens: int) -> int:
    def usable(tokens: int) -> bool:
        return all((group.index, block) in there for group in groups for block in group.needed_blocks(tokens))

    unit = math.lcm(*(group.block_tokens for group in groups))
    return max(tokens for tokens in range(0, limit_tokens + 1, unit) if usable(tokens))


@given(cases())
def test_the_answer_is_that_of_trying_every_length(case: Case) -> None:
    groups, there, limit_tokens = case

    hit = usable_hit(groups, lambda group, block: (group, block) in there, limit_tokens)

    assert hit.tokens == brute_force(groups, there, limit_tokens)


@given(cases())
def test_a_shorter_hit_always_has_a_reason_and_a_full_one_never(case: Case) -> None:
    groups, there, limit_tokens = case
    unit = alignment_tokens(groups)

    hit = usable_hit(groups, lambda group, block: (group, block) in there, limit_tokens)

    assert bool(hit.reason) == (hit.tokens < limit_tokens // unit * unit or limit_tokens < unit)


@given(cases(), st.data())
def test_more_blocks_never_make_a_hit_shorter(case: Case, data: st.DataObject) -> None:
    groups, there, limit_tokens = case
    more = there | data.draw(st.sets(st.sampled_from(all_blocks(groups))))

    before = usable_hit(groups, lambda group, block: (group, block) in there, limit_tokens)
    after = usable_hit(groups, lambda group, block: (group, block) in more, limit_tokens)

    assert after.tokens >= before.tokens


@given(cases(), st.integers(0, LIMIT_TOKENS))
def test_a_lower_limit_never_gives_a_longer_hit(case: Case, lower: int) -> None:
    groups, there, limit_tokens = case

    def hit(limit: int) -> int:
        return usable_hit(groups, lambda group, block: (group, block) in there, limit).tokens

    assert hit(min(lower, limit_tokens)) <= hit(limit_tokens)


FULL = GroupSpec(0, GroupKind.FULL, 16)
SLIDING = GroupSpec(1, GroupKind.SLIDING_WINDOW, 16, 33)
STATE = GroupSpec(2, GroupKind.STATE, 64)


def test_a_prefix_counts_up_to_its_first_gap() -> None:
    hit = usable_hit([FULL], lambda _, block: block != 2, 64)

    assert hit == HitLength(32, "group 0 (full, block 16) lacks block 2")


def test_a_sliding_window_needs_only_its_last_blocks() -> None:
    there = {(0, block) for block in range(8)} | {(1, 6), (1, 7)}

    assert usable_hit([FULL, SLIDING], lambda *block: block in there, 128) == HitLength(128)


def test_a_state_is_usable_only_where_one_was_kept() -> None:
    there = {(0, block) for block in range(12)} | {(2, 1)}

    hit = usable_hit([FULL, STATE], lambda *block: block in there, 192)

    assert hit == HitLength(128, "group 2 (state, block 64) lacks block 2 for 192 tokens")


def test_both_reasons_are_told_when_two_groups_shorten_the_hit() -> None:
    there = {(0, block) for block in range(9)} | {(2, 0)}

    hit = usable_hit([FULL, STATE], lambda *block: block in there, 192)

    assert hit.tokens == 64
    assert (
        hit.reason
        == "group 0 (full, block 16) lacks block 9; then group 2 (state, block 64) lacks block 1 for 128 tokens"
    )


def test_a_prompt_shorter_than_the_unit_says_so() -> None:
    assert usable_hit([FULL, STATE], lambda *_: True, 63) == HitLength(0, "63 tokens are less than the hit unit of 64")


def test_without_groups_there_is_no_hit() -> None:
    assert usable_hit([], lambda *_: True, 64) == HitLength(0, "no KV cache groups")


@pytest.mark.parametrize(("sizes", "unit"), [([16], 16), ([16, 64], 64), ([16, 24], 48), ([3, 5, 7], 105)])
def test_the_hit_unit_is_the_least_common_multiple(sizes: list[int], unit: int) -> None:
    assert alignment_tokens([GroupSpec(i, GroupKind.FULL, size) for i, size in enumerate(sizes)]) == unit


def test_the_block_that_stopped_a_hit_first_is_named() -> None:
    there = {(0, block) for block in range(9)} | {(2, 0)}
    assert usable_hit([FULL, STATE], lambda *block: block in there, 192).missing == (0, 9)
    assert usable_hit([FULL, STATE], lambda group, _: group == 0, 192).missing == (2, 2)
    assert usable_hit([FULL, STATE], lambda *_: True, 192).missing is None
