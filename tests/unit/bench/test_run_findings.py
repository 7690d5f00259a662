"""What makes a run void or warm, and what is only told."""

from typing import Any

import pytest

from kveik.bench.client_strain import Strain
from kveik.bench.engine_counters import Counted
from kveik.bench.run_findings import Grade, findings
from kveik.bench.side_run import Sharing, SideRun
from tests.bench_runs import counted_for, run_of

TTFTS_S = [0.2, 0.1, 0.1, 0.1]
#: What the prompts of these runs can have from each other: all but the first one 64 tokens.
HITS = [0, 64, 64, 64]


def graded(run: SideRun) -> dict[str, Grade]:
    return {finding.kind: finding.grade for finding in findings(run)}


def with_counted(run: SideRun, **changed: Any) -> SideRun:
    return run_of(TTFTS_S, cached=HITS, counted=counted_for(run.outcomes, **changed))


def test_a_run_that_took_from_the_cache_what_it_had_put_there_is_fine() -> None:
    run = run_of(TTFTS_S, cached=HITS)
    assert findings(run) == []
    assert (run.cached_tokens, run.reusable_tokens, run.prompt_tokens) == (192, 192, 512)


def test_more_than_that_was_there_before_and_the_run_is_warm() -> None:
    (finding,) = findings(run_of(TTFTS_S, cached=[112, 112, 112, 112]))
    assert (finding.kind, finding.grade) == ("warm", Grade.WARM)
    assert "256 of 512 prompt tokens came from a cache that knew them before" in finding.text


def test_requests_that_overlap_cannot_all_have_had_their_start_from_each_other() -> None:
    overlapping = [{"intended_s": 100.0, "sent_s": 100.0, "first_s": 109.0, "over_s": 110.0}] * 4
    assert graded(run_of([9.0] * 4, cached=[64, 0, 64, 64], changed=overlapping)) == {}
    (finding,) = findings(run_of([9.0] * 4, cached=[64] * 4, changed=overlapping))
    assert (finding.kind, finding.grade) == ("warm", Grade.WARM)
    assert "64 of 512 prompt tokens" in finding.text


def test_a_first_request_that_hits_is_enough() -> None:
    assert graded(run_of(TTFTS_S, cached=[64, 0, 0, 0])) == {"warm": Grade.WARM}


def test_without_usage_the_engines_counters_show_a_warm_run() -> None:
    unknown = [-1, -1, -1, -1]
    cold = run_of(TTFTS_S, cached=HITS)
    assert graded(run_of(TTFTS_S, cached=unknown, counted=cold.counted)) == {}
    warm = run_of(TTFTS_S, cached=[112, 112, 112, 112])
    assert graded(run_of(TTFTS_S, cached=unknown, counted=warm.counted)) == {"warm": Grade.WARM}


def test_where_nobody_says_what_was_cached_that_is_told() -> None:
    run = run_of(TTFTS_S, cached=[-1] * 4, counted=Counted())
    assert graded(run) == {"cache_unseen": Grade.NOTE, "engines_unwatched": Grade.NOTE}
    assert run.cached_tokens == -1


def test_a_hit_on_the_side_without_cache_makes_it_void() -> None:
    run = run_of(TTFTS_S, side="off", cached=[0, 64, 0, 0], sharing=Sharing.NONE)
    assert graded(run) == {"salt_ignored": Grade.VOID}
    assert run.reusable_tokens == 0


@pytest.mark.parametrize(
    ("change", "kind", "told"),
    [
        ({"failure": "HTTP 500", "first_s": -1.0, "token_ids": ()}, "failed", "1 of 4 requests failed"),
        ({"token_ids": (1, 2)}, "other_length", "for example 2 tokens instead of 4"),
        ({"prompt_tokens": 140}, "other_prompt", "140 tokens instead of 128"),
    ],
    ids=["failed", "short", "other prompt"],
)
def test_answers_that_are_none_make_a_run_void(change: dict[str, Any], kind: str, told: str) -> None:
    found = findings(run_of(TTFTS_S, cached=HITS, changed=[{}, {}, change, {}]))
    assert found[0].kind == kind
    assert found[0].grade is Grade.VOID
    assert told in found[0].text


def test_traffic_of_others_makes_a_run_void_and_a_few_probes_do_not() -> None:
    run = run_of(TTFTS_S, cached=HITS)
    assert graded(with_counted(run, prompt=60, answer=60)) == {}
    assert graded(with_counted(run, prompt=300)) == {"foreign_traffic": Grade.VOID}
    assert graded(with_counted(run, answer=300)) == {"foreign_traffic": Grade.VOID}
    assert graded(with_counted(run, busy_before=2)) == {"busy_before": Grade.VOID}


def test_tokens_that_no_watched_engine_counted_were_computed_by_one_that_nobody_watches() -> None:
    run = run_of(TTFTS_S, cached=HITS)
    assert "engines_unseen" in graded(with_counted(run, prompt=-300))


def test_an_engine_that_was_restarted_makes_a_run_void() -> None:
    run = run_of(TTFTS_S, cached=HITS)
    found = findings(with_counted(run, restarts=("http://engine: its process began anew",)))
    assert [(one.kind, one.grade) for one in found] == [("restarted", Grade.VOID)]
    assert "its process began anew" in found[0].text


def test_looks_without_answers_and_counts_that_differ_are_told() -> None:
    run = run_of(TTFTS_S, cached=HITS)
    assert graded(with_counted(run, unanswered=1)) == {"silent": Grade.NOTE}
    other = run_of(TTFTS_S, cached=[0, 0, 0, 0])
    assert graded(run_of(TTFTS_S, cached=HITS, counted=other.counted)) == {"counts_differ": Grade.NOTE}


@pytest.mark.parametrize(
    ("late_s", "grade"), [(0.005, None), (0.03, Grade.NOTE), (0.3, Grade.VOID)], ids=["little", "some", "all of it"]
)
def test_a_client_that_is_late_measures_itself(late_s: float, grade: Grade | None) -> None:
    run = run_of(TTFTS_S, cached=HITS, strain=Strain(late_s=late_s))
    assert graded(run).get("client_late") is grade


def test_requests_that_are_sent_late_without_a_limit_are_the_client_s_fault() -> None:
    late = [{"intended_s": 99.0 + n} for n in range(4)]
    assert graded(run_of(TTFTS_S, cached=HITS, changed=late, timed=True))["client_late"] is Grade.NOTE
    queued = graded(run_of(TTFTS_S, cached=HITS, changed=late, timed=True, places=2))
    assert queued == {"queued_here": Grade.NOTE}


def test_a_clock_that_was_moved_is_told() -> None:
    assert graded(run_of(TTFTS_S, cached=HITS, strain=Strain(clock_moved_s=-30.0))) == {"clock_moved": Grade.NOTE}


def test_the_worst_finding_comes_first() -> None:
    run = run_of(TTFTS_S, cached=[112] * 4, changed=[{}, {}, {"token_ids": ()}, {}], strain=Strain(clock_moved_s=9.0))
    assert [finding.grade for finding in findings(run)] == [Grade.VOID, Grade.WARM, Grade.NOTE]
