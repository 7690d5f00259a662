"""Answers that differ between hits and cold runs: by rounding, or because a hit was wrong."""

import math
from typing import Any

import pytest

from kveik.bench.answers import Difference, differences, recheck
from kveik.engine.client import Completion
from tests.bench_runs import run_of

TTFTS_S = [0.1, 0.1]


def cold(ids: tuple[int, ...], top: list[dict[int, float]], logprobs: tuple[float, ...] = ()) -> Completion:
    return Completion(ids, "", logprobs or (-0.5,) * len(ids), tuple(top), 0.1, 0.2, 10, 0, "length")


def difference(*ids: int) -> Difference:
    return Difference(3, (1, 2), len(ids), ids)


def answers(*ids: tuple[int, ...]) -> list[dict[str, Any]]:
    return [{"token_ids": one} for one in ids]


def test_answers_that_no_cold_round_gave_are_found_once_a_request() -> None:
    off = [
        run_of(TTFTS_S, side="off", changed=answers((1, 1, 1, 1), (2, 2, 2, 2))),
        run_of(TTFTS_S, side="off", number=2, changed=answers((1, 1, 1, 9), (2, 2, 2, 2))),
    ]
    on = [
        run_of(TTFTS_S, changed=answers((1, 1, 1, 9), (2, 2, 2, 7))),
        run_of(TTFTS_S, number=2, changed=answers((1, 1, 1, 1), (2, 2, 2, 8))),
    ]
    found, compared = differences(on, off)
    assert compared == 4
    assert [(one.request, one.got) for one in found] == [(1, (2, 2, 2, 7))]


def test_failed_requests_are_not_compared() -> None:
    off = [run_of(TTFTS_S, side="off", changed=[{"failure": "gone"}, {}])]
    assert differences([run_of(TTFTS_S, changed=[{}, {"failure": "gone"}])], off) == ([], 0)


def test_a_token_that_was_about_as_likely_is_rounding() -> None:
    found = recheck(difference(5, 8), cold((5, 6), [{5: -0.1}, {6: -0.9, 8: -1.1}], (-0.1, -0.9)))
    assert (found.request, found.position) == (3, 1)
    assert found.gap == pytest.approx(0.2)
    assert not found.is_wrong
    assert "0.2 less likely in a cold run" in found.told


def test_a_token_that_was_far_less_likely_is_wrong() -> None:
    found = recheck(difference(5, 8), cold((5, 6), [{5: -0.1}, {6: -0.1, 8: -6.0}], (-0.1, -0.1)))
    assert found.is_wrong


def test_a_token_that_is_no_candidate_is_wrong() -> None:
    found = recheck(difference(5, 8), cold((5, 6), [{5: -0.1}, {6: -0.1}]))
    assert math.isinf(found.gap)
    assert found.is_wrong
    assert "is not among the candidates" in found.told


def test_an_answer_that_the_cold_run_now_gives_as_well_is_rounding() -> None:
    assert not recheck(difference(5, 8), cold((5, 8), [{5: -0.1}, {8: -0.1}])).is_wrong


def test_what_is_no_number_never_passes() -> None:
    found = recheck(
        difference(
            8,
        ),
        cold((6,), [{6: math.nan, 8: -0.1}], (math.nan,)),
    )
    assert found.is_wrong
