"""Figures of both sides, gains by round, and the verdict on the whole."""

from typing import Any

import pytest

from kveik.bench.answers import Recheck
from kveik.bench.comparison import compare
from kveik.bench.run_findings import Finding, Grade
from kveik.bench.side_run import Sharing, SideRun
from tests.bench_runs import run_of

HITS = [0, 64, 64, 64]


def on(number: int, ttft_s: float = 0.1, **changed: Any) -> SideRun:
    return run_of([2 * ttft_s, ttft_s, ttft_s, ttft_s], number=number, cached=HITS, **changed)


def off(number: int, ttft_s: float = 0.2, **changed: Any) -> SideRun:
    return run_of([ttft_s] * 4, side="off", number=number, sharing=Sharing.NONE, **changed)


def kinds(*runs: SideRun, rechecks: tuple[Recheck, ...] = ()) -> dict[str, Grade]:
    return {finding.kind: finding.grade for finding in compare(runs, rechecks).findings}


def test_gains_are_taken_round_by_round() -> None:
    found = compare([on(1), off(1, 0.2), off(2, 0.4), on(2, 0.1), on(3, 0.1), off(3, 0.3)])
    gain = found.gains["ttft"]
    assert gain.value == pytest.approx((2 * 4 * 3) ** (1 / 3))
    assert gain.low is not None
    assert gain.low < 2 < gain.value < 4
    assert found.gains["requests_per_s"].value == pytest.approx(1.0, rel=0.2)
    assert found.verdict == "measured"


def test_figures_are_of_all_requests_of_a_side() -> None:
    mine, other = compare([on(1), off(1), on(2), off(2)]).sides
    assert (mine.side, mine.rounds, mine.requests) == ("on", 2, 8)
    assert mine.ttft_s.value == pytest.approx(0.1)
    assert mine.ttft_p99_s.high is None
    assert mine.first_ttft_s is not None
    assert mine.repeat_ttft_s is not None
    assert (mine.first_ttft_s.value, mine.repeat_ttft_s.value) == pytest.approx((0.2, 0.1))
    assert (mine.prompt_tokens, mine.cached_tokens, mine.reusable_tokens) == (1024, 384, 384)
    assert (mine.computed_tokens, mine.local_tokens, mine.external_tokens) == (640, 384, 0)
    assert other.repeat_ttft_s is None
    assert (other.cached_tokens, other.reusable_tokens) == (0, 0)
    assert mine.recomputed_tokens == 0
    assert mine.token_s.value == pytest.approx(0.01)


def test_only_rounds_that_both_sides_have_are_compared() -> None:
    found = compare([on(1), off(1), on(2, 0.001), off(3, 9.0)])
    assert found.gains["ttft"].value == pytest.approx(2.0)


def test_one_side_alone_has_figures_and_no_gains() -> None:
    found = compare([on(1)])
    assert [side.side for side in found.sides] == ["on"]
    assert found.gains == {}
    assert found.verdict == "measured"


def test_a_side_that_answered_nothing_has_no_figures_and_makes_all_void() -> None:
    failed = on(1, changed=[{"failure": "gone"}] * 4)
    found = compare([failed, off(1)])
    assert [side.side for side in found.sides] == ["off"]
    assert found.gains == {}
    assert found.verdict == "void"


def test_the_worst_finding_is_the_verdict() -> None:
    warm = run_of([0.1] * 4, number=1, cached=[112] * 4)
    assert compare([warm]).verdict == "warm"
    assert compare([warm, on(2, changed=[{"token_ids": ()}] + [{}] * 3)]).verdict == "void"


def test_rounds_that_differ_and_figures_of_few_requests_are_told() -> None:
    assert kinds(on(1, 0.1), on(2, 0.4)) == {"unsteady": Grade.NOTE, "few": Grade.NOTE}
    assert "one_round" in kinds(on(1), off(1))
    assert "one_round" not in kinds(on(1), off(1), on(2), off(2))


def test_answers_that_a_hit_changed_make_the_comparison_void_unless_rounding_explains_them() -> None:
    other = on(1, changed=[{}, {}, {"token_ids": (1, 2, 3, 9)}, {}])
    assert kinds(other, off(1))["answers_differ"] is Grade.NOTE
    assert kinds(other, off(1), rechecks=(Recheck(2, 3, 0.1),))["answers_differ"] is Grade.NOTE
    rechecks = (Recheck(2, 3, 0.1), Recheck(2, 3, 5.0))
    assert kinds(other, off(1), rechecks=rechecks)["answers_wrong"] is Grade.VOID
    (wrong,) = (one for one in compare([other, off(1)], rechecks).findings if one.kind == "answers_wrong")
    assert "1 of 4 answers of the on side differ" in wrong.text
    assert "token 3 of the answer is 5 less likely" in wrong.text


def test_what_was_found_beside_the_runs_counts_as_well() -> None:
    found = compare([on(1)], beside=[Finding("ended_early", Grade.VOID, "it went away")])
    assert found.verdict == "void"
    assert found.sides[0].requests == 4
    assert found.findings[0].text == "it went away"


def test_equal_answers_are_not_spoken_of() -> None:
    assert not {"answers_differ", "answers_wrong"} & kinds(on(1), off(1)).keys()


def test_what_nobody_counted_stays_unknown_in_the_sum() -> None:
    unknown = run_of([0.1] * 4, number=2, cached=[-1] * 4, counted=on(1).counted.__class__())
    (side,) = compare([on(1), unknown]).sides
    assert side.cached_tokens == side.recomputed_tokens == -1


def test_what_was_seen_before_and_came_from_no_cache_was_computed_again() -> None:
    assert compare([run_of([0.1] * 4, cached=[0, 64, 0, 32])]).sides[0].recomputed_tokens == 96
