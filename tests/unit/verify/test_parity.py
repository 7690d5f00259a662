"""When an answer is the cold answer, and when it is not."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.engine.client import Completion
from kveik.errors import VerifyError
from kveik.verify.parity import CEILING, FLOOR, Distance, distance, exact, float32_rule, rounded_rule


def answer(*positions: tuple[int, dict[int, float]]) -> Completion:
    """An answer with these (token, candidates) positions."""
    return Completion(
        token_ids=tuple(token for token, _ in positions),
        text="",
        logprobs=tuple(candidates[token] for token, candidates in positions),
        top_logprobs=tuple(candidates for _, candidates in positions),
        ttft_s=0.1,
        total_s=0.2,
        prompt_tokens=10,
        cached_tokens=0,
        finish_reason="length",
    )


COLD = answer((5, {5: -0.5, 6: -1.0}), (7, {7: -0.2, 8: -2.0}), (9, {9: -0.9}))


def test_an_answer_has_no_distance_from_itself() -> None:
    assert distance(COLD, COLD) == Distance(0.0, None)


def test_the_largest_difference_counts() -> None:
    other = answer((5, {5: -0.5001}), (7, {7: -0.2005}), (9, {9: -0.9002}))
    found = distance(COLD, other)
    assert found.same_ids
    assert found.logprob == pytest.approx(0.0005)


def test_at_the_first_other_token_the_colds_token_is_looked_up_and_later_positions_say_nothing() -> None:
    other = answer((5, {5: -0.5}), (8, {8: -0.1, 7: -0.7}), (1, {1: -99.0}))
    found = distance(COLD, other)
    assert found.diverged_at == 1
    assert found.logprob == pytest.approx(0.5)


def test_a_token_that_is_no_candidate_any_more_is_infinitely_far() -> None:
    other = answer((3, {3: -0.1}), (7, {7: -0.2}), (9, {9: -0.9}))
    assert distance(COLD, other) == Distance(math.inf, 0)


def test_a_shorter_answer_is_another_answer() -> None:
    other = answer((5, {5: -0.5}), (7, {7: -0.2}))
    assert distance(COLD, other) == Distance(math.inf, 2)


def test_not_a_number_never_passes() -> None:
    other = answer((5, {5: math.nan}), (7, {7: -0.2}), (9, {9: -0.9}))
    for rule in (float32_rule(), rounded_rule([])):
        assert rule.complaint(distance(COLD, other))


def test_answers_without_logprobs_cannot_be_compared() -> None:
    bare = Completion((5,), "", (), (), 0.1, 0.2, 10, 0, "length")
    with pytest.raises(VerifyError, match="log probability"):
        distance(COLD, bare)


def test_float32_wants_the_same_tokens_and_close_log_probabilities() -> None:
    rule = float32_rule()
    assert rule.reference == "cold"
    assert rule.complaint(Distance(9e-4)) == ""
    assert "over the bound" in rule.complaint(Distance(2e-3))
    assert "other token at position 3" in rule.complaint(Distance(1e-6, diverged_at=3))


def test_bfloat16_never_judges_text_but_log_probabilities_against_the_local_hit() -> None:
    rule = rounded_rule([Distance(0.2), Distance(0.3, diverged_at=4)])
    assert rule.reference == "local"
    assert rule.bound == pytest.approx(0.6)
    assert rule.complaint(Distance(0.5, diverged_at=1)) == ""
    assert rule.complaint(Distance(0.7))
    assert rule.complaint(Distance(math.inf, diverged_at=1))


@given(st.lists(st.floats(0, allow_nan=False)))
def test_the_measured_bound_stays_between_floor_and_ceiling(noise: list[float]) -> None:
    assert FLOOR <= rounded_rule([Distance(value) for value in noise]).bound <= CEILING


def test_only_float32_is_exact() -> None:
    assert [dtype for dtype in ("float32", "float", "bfloat16", "float16", "half", "") if exact(dtype)] == [
        "float32",
        "float",
    ]
