"""One run: what its figures are made of."""

import pytest

from kveik.bench.engine_counters import Counted
from kveik.bench.reuse import Reusable
from kveik.bench.side_run import Sharing
from tests.bench_runs import counted_for, run_of

HITS = [0, 64, 64, 64]


def test_only_whole_answers_count() -> None:
    run = run_of([0.3, 0.1, 0.1, 0.2], cached=HITS, changed=[{}, {}, {"failure": "gone", "first_s": -1.0}, {}])
    assert len(run.answered) == 3
    assert run.ttfts_s == pytest.approx([0.3, 0.1, 0.2])
    assert (run.prompt_tokens, run.answer_tokens) == (3 * 128, 12)
    assert run.cached_tokens == 128


def test_a_run_lasts_from_the_first_due_moment_to_the_end_of_the_last_answer() -> None:
    # Requests are sent a second apart; each answer ends 0.03 s after its first token.
    assert run_of([0.1, 0.1, 0.5]).seconds == pytest.approx(2 + 0.5 + 0.03)
    late = run_of([0.1, 0.1], changed=[{"intended_s": 90.0}, {}])
    assert late.seconds == pytest.approx(101.13 - 90.0)


def test_a_run_that_took_no_time_divides_by_nothing() -> None:
    same = {"intended_s": 5.0, "sent_s": 5.0, "first_s": 5.0, "over_s": 5.0}
    assert run_of([0.0], changed=[same]).seconds > 0


def test_what_answers_say_counts_before_what_engines_count() -> None:
    run = run_of([0.1] * 4, cached=HITS)
    assert run_of([0.1] * 4, cached=HITS, counted=counted_for(run.outcomes, prompt=500)).cached_tokens == 192


def test_engines_are_asked_where_a_single_answer_does_not_say() -> None:
    run = run_of([0.1] * 4, cached=HITS)
    partly = [0, 64, -1, 64]
    assert run_of([0.1] * 4, cached=partly, counted=run.counted).cached_tokens == 192
    assert run_of([0.1] * 4, cached=partly, counted=Counted()).cached_tokens == -1
    unsourced = counted_for(run.outcomes, sourced=False)
    assert run_of([0.1] * 4, cached=partly, counted=unsourced).cached_tokens == -1


def test_where_each_request_has_its_own_salt_nothing_can_be_reused() -> None:
    assert run_of([0.1] * 4, sharing=Sharing.NONE).reusable == [Reusable()] * 4
    assert run_of([0.1] * 4).reusable == [Reusable(0, 0), *[Reusable(64, 64)] * 3]


def test_a_run_has_a_name_for_people() -> None:
    assert run_of([0.1], side="off", number=3).name == "off, round 3"
