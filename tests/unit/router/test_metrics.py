import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from kveik.router import metrics
from kveik.router.metrics import PREFIX, EngineNow, Histogram, RouterMetrics, RouterNow, all_rows
from kveik.router.records import RequestRecord


def record(model: str = "m", engine: str = "e", **fields: object) -> RequestRecord:
    given_fields = {"status": 200, "reason": "prefix", "attempts": 1, **fields}
    return RequestRecord("id", "POST", "/v1/completions", model=model, engine=engine, **given_fields)


def exposed(collector: Collector) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(collector)
    lines = generate_latest(registry).decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name.removeprefix(PREFIX): float(value) for name, value in pairs}


def test_requests_are_counted_by_model_engine_outcome_and_status_class() -> None:
    counted = RouterMetrics()
    for one in (record(), record(), record(outcome="engine", status=502), record(outcome="left", status=0)):
        counted(one)
    values = exposed(counted)
    assert values['requests_total{engine="e",model="m",outcome="ok",status="2xx"}'] == 2
    assert values['requests_total{engine="e",model="m",outcome="engine",status="5xx"}'] == 1
    assert values['requests_total{engine="e",model="m",outcome="left",status="none"}'] == 1
    assert values['choices_total{reason="prefix"}'] == 4


def test_expected_and_real_cached_tokens_are_of_the_same_requests() -> None:
    counted = RouterMetrics()
    counted(record(expected_cached_tokens=100, cached_tokens=80, prompt_tokens=200, completion_tokens=7))
    counted(record(expected_cached_tokens=10, cached_tokens=30, prompt_tokens=50, completion_tokens=3))
    counted(record(expected_cached_tokens=1000, cached_tokens=-1, prompt_tokens=50))
    counted(record(expected_cached_tokens=1000))
    values = exposed(counted)
    assert values['expected_cached_tokens_total{model="m"}'] == 110
    assert values['cached_tokens_total{model="m"}'] == 110
    assert values['expected_tokens_missed_total{model="m"}'] == 20
    assert values['prompt_tokens_total{model="m"}'] == 300
    assert values['completion_tokens_total{model="m"}'] == 10


def test_times_become_histograms_by_model_and_the_first_token_s_only_of_streams() -> None:
    counted = RouterMetrics()
    counted(record(stream=True, first_byte_s=0.02, added_s=0.0002, total_s=1.5))
    counted(record(stream=False, first_byte_s=4.0, added_s=0.2, total_s=4.0))
    counted(record(total_s=0.01))
    values = exposed(counted)
    assert values['time_to_first_token_seconds_bucket{le="0.01",model="m"}'] == 0
    assert values['time_to_first_token_seconds_bucket{le="0.025",model="m"}'] == 1
    assert values['time_to_first_token_seconds_count{model="m"}'] == 1
    assert values['request_duration_seconds_bucket{le="0.01",model="m"}'] == 1
    assert values['request_duration_seconds_sum{model="m"}'] == pytest.approx(5.51)
    assert values['added_seconds_bucket{le="0.00025"}'] == 1
    assert values['added_seconds_bucket{le="+Inf"}'] == 2


def test_retries_and_cut_answers_are_counted_with_their_fault() -> None:
    counted = RouterMetrics()
    counted(record(attempts=3))
    counted(record(cut=True, outcome="engine"))
    counted(record(cut=True, outcome="network"))
    values = exposed(counted)
    assert values['retries_total{model="m"}'] == 2
    assert values['cut_answers_total{model="m",outcome="engine"}'] == 1
    assert values['cut_answers_total{model="m",outcome="network"}'] == 1


def test_a_name_that_a_client_made_up_becomes_no_label() -> None:
    counted = RouterMetrics()
    for number in range(1000):
        counted(record(model=f'x{number}"\n', engine="", outcome="client", status=404))
    counted(record(model="served"))
    counted(record(model="served", engine="", outcome="overload", status=503))
    requests = {name: value for name, value in exposed(counted).items() if name.startswith("requests_total")}
    assert requests == {
        'requests_total{engine="",model="other",outcome="client",status="4xx"}': 1000,
        'requests_total{engine="e",model="served",outcome="ok",status="2xx"}': 1,
        'requests_total{engine="",model="served",outcome="overload",status="5xx"}': 1,
    }
    assert 'choices_total{reason="prefix"}' in exposed(counted)


def test_models_are_bounded_even_if_engines_serve_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MODELS_MAX", 2)
    counted = RouterMetrics()
    for number in range(5):
        counted(record(model=f"m{number}", prompt_tokens=1))
    values = exposed(counted)
    models = {name for name in values if name.startswith("prompt_tokens_total")}
    assert models == {f'prompt_tokens_total{{model="{model}"}}' for model in ("m0", "m1", "other")}
    assert values['prompt_tokens_total{model="other"}'] == 3


def test_engines_that_left_are_forgotten_once_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "ENGINES_MAX", 3)
    counted = RouterMetrics(lambda: RouterNow(engines=(EngineNow("e4", "ready", "closed", 0, 0, 1.0),)))
    for number in range(3):
        counted(record(engine=f"e{number}"))
    assert sum(name.startswith("requests_total") for name in exposed(counted)) == 3
    counted(record(engine="e3"))
    counted(record(engine="e4"))
    counted(record(engine="", status=503))
    shown = {name for name in exposed(counted) if name.startswith("requests_total")}
    assert {name.split('"')[1] for name in shown} == {"e4", ""}


def test_the_state_of_router_and_engines_is_shown_as_it_is_at_the_scrape() -> None:
    engine = EngineNow("e", "ready", "half-open", 3, 900, 0.25, True)
    now = RouterNow(
        engines=(engine,), in_flight=5, waiting=2, prefix_index_blocks=7, prefix_index_bytes=700, quarantined=1,
        refused={"wrong_key": 4}, retries_refused=6, access_lines_dropped=8,
    )  # fmt: skip
    values = exposed(RouterMetrics(lambda: now))
    expected = {
        "in_flight": 5, "waiting": 2, "prefix_index_blocks": 7, "prefix_index_bytes": 700, "quarantined_requests": 1,
        'refused_total{reason="wrong_key"}': 4, "retries_refused_total": 6, "access_lines_dropped_total": 8,
        'engine_state{engine="e",state="ready"}': 1, 'engine_breaker{engine="e",state="half-open"}': 1,
        'engine_breaker{engine="e",state="closed"}': 0, 'engine_in_flight{engine="e"}': 3,
        'engine_waiting_tokens{engine="e"}': 900, 'engine_share{engine="e"}': 0.25, 'engine_exact{engine="e"}': 1,
    }  # fmt: skip
    assert {name: values[name] for name in expected} == expected


def test_a_scrape_shares_nothing_with_what_is_counted_on() -> None:
    counted = RouterMetrics()
    first = record(stream=True, first_byte_s=0.02, added_s=0.0002, total_s=1.5, cut=True, outcome="engine")
    counted(first)
    scrape = counted.scraped()
    then = exposed(scrape)
    assert then == exposed(counted)
    for one in (first, record(model="new", reason="load"), record(status=500)):
        counted(one)
    assert exposed(scrape) == then
    assert exposed(counted) != then


@given(st.lists(st.floats(0, 1000), max_size=50))
def test_histograms_count_each_value_once_at_or_below_its_bound(values: list[float]) -> None:
    histogram = Histogram((0.1, 1.0, 10.0))
    for value in values:
        histogram.add(value)
    assert [count for _, count in histogram.cumulative()] == [
        sum(value <= bound for value in values) for bound in (0.1, 1.0, 10.0, float("inf"))
    ]
    assert histogram.total == pytest.approx(sum(values))


def test_every_metric_has_one_row_with_help_and_only_those_are_exposed() -> None:
    rows = list(all_rows())
    assert len({row.name for row in rows}) == len(rows)
    assert all(row.help for row in rows)
    now = RouterNow(engines=(EngineNow("e", "ready", "closed", 0, 0, 1.0),))
    registry = CollectorRegistry()
    registry.register(RouterMetrics(lambda: now))
    assert {family.name for family in registry.collect()} == {PREFIX + row.name for row in rows}
