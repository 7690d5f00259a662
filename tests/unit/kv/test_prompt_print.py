"""Digests of a prompt by position: where two prompts differ, whatever stands before or behind."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from kveik.kv.prompt_print import (
    COARSE_END_TOKENS,
    COARSE_TOKENS,
    DIGEST_BYTES,
    FINE_END_TOKENS,
    FINE_TOKENS,
    chunk_span,
    equal_chunks,
    leading_tokens,
    prompt_print,
)


def leading(one: list[int], other: list[int]) -> int:
    return leading_tokens(prompt_print(one), len(one), prompt_print(other), len(other))


def test_a_prompt_has_one_digest_for_each_chunk_and_one_for_the_rest() -> None:
    assert len(prompt_print(list(range(33)))) == 3 * DIGEST_BYTES
    assert prompt_print([]) == b""


def test_long_prompts_have_fewer_digests_for_what_stands_far_behind() -> None:
    tokens = [7] * (FINE_END_TOKENS + 3 * COARSE_TOKENS)
    assert len(prompt_print(tokens)) == (FINE_END_TOKENS // FINE_TOKENS + 3) * DIGEST_BYTES
    assert len(prompt_print([7] * (COARSE_END_TOKENS + 1))) == len(prompt_print([7] * COARSE_END_TOKENS))


def test_chunks_follow_one_another_without_a_gap() -> None:
    spans = [chunk_span(chunk) for chunk in range(300)]
    assert spans[0] == (0, FINE_TOKENS)
    assert all(before[1] == after[0] for before, after in itertools.pairwise(spans))
    assert spans[-1][1] - spans[-1][0] == COARSE_TOKENS


def test_a_difference_is_found_within_its_chunk() -> None:
    one = list(range(600))
    assert leading(one, [*one[:300], 9, *one[301:]]) == 288


def test_behind_a_difference_prompts_are_found_equal_again() -> None:
    one = list(range(640))
    equal = equal_chunks(prompt_print(one), prompt_print([9, *one[1:]]))
    assert not equal[0]
    assert equal[1:].all()


def test_a_prompt_that_goes_on_where_another_ends_shares_all_of_its_whole_chunks() -> None:
    one = list(range(300))
    assert leading(one, one) == 300
    assert leading(one[:288], one) == 288
    assert leading(one, [*one, 5, 6]) == 288


@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=400), st.data())
def test_never_more_is_called_equal_than_is(tokens: list[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(tokens) - 1))
    changed = [*tokens[:at], tokens[at] + 1, *tokens[at + 1 :]]
    shared = leading(tokens, changed)
    assert at - FINE_TOKENS < shared <= at
