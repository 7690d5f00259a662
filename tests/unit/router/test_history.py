"""Counts, percentiles and ten minutes of samples, with the time passed in."""

import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.fleet.status import HistoryRow, Measured
from kveik.router.history import (
    ENGINES_MAX,
    MEASURED_S,
    ROWS_MAX,
    SAMPLE_S,
    WINDOW_S,
    Tally,
    TrafficHistory,
    measured,
    percentile_s,
)
from kveik.router.records import RequestRecord


def ended(engine: str = "a", **fields: object) -> RequestRecord:
    record = RequestRecord("id", "POST", "/v1/completions", engine=engine, attempts=1)
    for name, value in fields.items():
        setattr(record, name, value)
    return record


def rows(history: TrafficHistory, since: int = 0) -> list[HistoryRow]:
    return [msgspec.json.decode(row, type=HistoryRow) for row in history.document(since).rows]


def sampled(history: TrafficHistory, now_s: float, **in_flight: int) -> None:
    history.look(in_flight)
    history.sample(now_s, 1000.0 + now_s, in_flight, (None, None))


def test_a_minute_of_an_engine_says_how_many_how_fast_and_how_much() -> None:
    history = TrafficHistory(0.0)
    for n in range(60):
        history.listener(
            ended(stream=True, first_byte_s=0.1 if n < 57 else 2.0, prompt_tokens=100, completion_tokens=10)
        )
    history.count()
    figures = history.of_engine("a", 60.0)
    assert (figures.requests, figures.requests_s, figures.errors, figures.retries) == (60, 1.0, 0, 0)
    assert (figures.prompt_tokens_s, figures.output_tokens_s) == (100.0, 10.0)
    assert figures.ttft_p50_s == pytest.approx(0.1, rel=0.2)
    assert figures.ttft_p95_s == pytest.approx(0.1, rel=0.2)
    assert history.of_engine("nobody", 60.0) == Measured(window_s=60.0)


def test_faults_of_engines_and_the_router_are_errors_and_those_of_clients_are_none() -> None:
    history = TrafficHistory(0.0)
    for outcome in ("ok", "client", "request", "left", "engine", "network", "router"):
        history.listener(ended(outcome=outcome))
    history.listener(ended("", outcome="overload"))
    history.count()
    assert history.of_engine("a", 10.0).errors == 3
    assert history.of_all(10.0).errors == 4
    assert history.of_all(10.0).requests == 8


def test_attempts_after_the_first_one_are_retries() -> None:
    history = TrafficHistory(0.0)
    history.listener(ended(attempts=3))
    history.listener(ended(attempts=1))
    history.count()
    assert history.of_engine("a", 10.0).retries == 2


def test_expected_and_real_cached_shares_are_of_the_same_requests() -> None:
    history = TrafficHistory(0.0)
    history.listener(ended(prompt_tokens=100, cached_tokens=60, expected_cached_tokens=80))
    history.listener(ended(prompt_tokens=900, cached_tokens=-1, expected_cached_tokens=900))  # that engine did not say
    history.count()
    figures = history.of_all(10.0)
    assert (figures.cached_share, figures.expected_cached_share) == (0.6, 0.8)


def test_what_is_not_known_is_none_and_not_zero() -> None:
    history = TrafficHistory(0.0)
    history.listener(ended(first_byte_s=-1.0, prompt_tokens=-1, completion_tokens=-1))
    history.count()
    figures = history.of_all(10.0)
    assert (figures.ttft_p50_s, figures.cached_share, figures.expected_cached_share) == (None, None, None)


def test_times_of_answers_that_are_no_streams_are_no_times_to_a_first_token() -> None:
    history = TrafficHistory(0.0)
    history.listener(ended(stream=False, first_byte_s=9.0))
    history.count()
    assert history.of_all(10.0).ttft_p50_s is None


def test_figures_are_of_the_last_minute_only() -> None:
    history = TrafficHistory(0.0)
    history.listener(ended())
    now_s = 0.0
    for _ in range(60):
        now_s += SAMPLE_S
        sampled(history, now_s)
    history.listener(ended())
    history.count()
    assert history.of_all(now_s).requests == 1
    assert history.of_all(now_s).window_s == pytest.approx(MEASURED_S, abs=SAMPLE_S)


def test_a_sample_is_due_every_three_seconds() -> None:
    history = TrafficHistory(100.0)
    assert not history.due(102.9)
    assert history.due(103.0)
    sampled(history, 103.1)
    assert not history.due(106.0)
    assert history.due(106.1)


def test_rows_hold_rates_and_means_over_their_window() -> None:
    history = TrafficHistory(0.0)
    for n in range(1, 7):
        for _ in range(30):
            history.listener(ended(completion_tokens=5, prompt_tokens=50, stream=True, first_byte_s=0.25))
        history.look({"a": n, "b": 0})
        history.sample(n * SAMPLE_S, 1000.0, ["a", "b"], (0.25, 0.5))
    last = rows(history)[-1]
    assert last.number == 6
    assert (last.requests_s, last.output_tokens_s, last.prompt_tokens_s) == (10.0, 50.0, 500.0)
    assert last.ttft_p50_s == pytest.approx(0.25, rel=0.2)
    assert (last.local_hit_share, last.external_hit_share) == (0.25, 0.5)
    assert last.in_flight == {"a": 4.0, "b": 0.0}, "the mean of 2 to 6, since the first is out of the window"
    assert history.document().window_s == WINDOW_S


def test_traffic_that_stopped_leaves_the_window() -> None:
    history = TrafficHistory(0.0)
    history.listener(ended())
    for n in range(1, 8):
        sampled(history, n * SAMPLE_S)
    assert rows(history)[0].requests_s > 0
    assert rows(history)[-1].requests_s == 0


def test_only_the_rows_after_the_one_that_is_known_are_sent() -> None:
    history = TrafficHistory(0.0)
    for n in range(1, 6):
        sampled(history, n * SAMPLE_S)
    assert [row.number for row in rows(history, since=3)] == [4, 5]
    assert rows(history, since=5) == []
    assert len(rows(history, since=99)) == 5, "a number of a router before this one"


def test_rows_are_bounded_and_the_newest_stay() -> None:
    history = TrafficHistory(0.0)
    for n in range(1, ROWS_MAX + 51):
        sampled(history, n * SAMPLE_S)
    kept = rows(history)
    assert len(kept) == ROWS_MAX
    assert kept[-1].number == ROWS_MAX + 50
    assert SAMPLE_S * ROWS_MAX == 600


def test_engines_that_left_are_forgotten_once_there_are_many() -> None:
    history = TrafficHistory(0.0)
    for n in range(ENGINES_MAX + 10):
        history.listener(ended(f"e{n}"))
    sampled(history, 3.0, e5=1)
    assert repr(history) == f"TrafficHistory({ENGINES_MAX + 10} requests at 1 engines, 1 rows)"
    assert history.of_all(4.0).requests == ENGINES_MAX + 10


def test_percentiles_are_right_within_a_bucket() -> None:
    chance = random.Random(3)
    times_s = [chance.lognormvariate(-1, 1) for _ in range(4000)]
    tally = Tally()
    for time_s in times_s:
        tally.count(ended(stream=True, first_byte_s=time_s))
    for share in (0.05, 0.5, 0.95):
        exact_s = sorted(times_s)[int(share * len(times_s))]
        assert percentile_s(tally.ttft, share) == pytest.approx(exact_s, rel=0.1)


@given(st.floats(0, 1e6), st.floats(0.01, 0.99))
def test_the_percentiles_of_one_value_are_that_value(time_s: float, share: float) -> None:
    tally = Tally()
    tally.count(ended(stream=True, first_byte_s=time_s))
    found = percentile_s(tally.ttft, share)
    assert found is not None
    assert found == pytest.approx(min(max(time_s, 0.001), 893.0), rel=0.2)


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(-1, 500), st.integers(0, 600)), max_size=30))
def test_shares_lie_within_0_and_1_whatever_engines_say(prompts: list[tuple[int, int, int]]) -> None:
    after = Tally()
    for prompt, cached, expected in prompts:
        after.count(ended(prompt_tokens=prompt, cached_tokens=cached, expected_cached_tokens=expected))
    figures = measured(None, after, 1.0)
    for share in (figures.cached_share, figures.expected_cached_share):
        assert share is None or 0 <= share <= 1


@given(st.lists(st.sampled_from(["a", "b", "c"]), max_size=50), st.integers(1, 7))
def test_engines_add_up_to_all(engines: list[str], cut: int) -> None:
    history = TrafficHistory(0.0)
    for n, engine in enumerate(engines):
        history.listener(ended(engine))
        if n % cut == 0:
            history.count()
    history.count()
    assert sum(history.of_engine(name, 5.0).requests for name in "abc") == history.of_all(5.0).requests == len(engines)


def test_rates_of_no_time_at_all_are_finite() -> None:
    figures = measured(None, Tally(), 0.0)
    assert math.isfinite(figures.requests_s)
