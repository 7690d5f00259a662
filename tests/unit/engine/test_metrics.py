"""Reading an engine's counters and what changed between two readings."""

import contextlib
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kveik.engine.metrics import (
    Metric,
    MetricsSnapshot,
    TokenEvidence,
    grown,
    grown_by,
    parse_metrics,
    token_evidence,
)
from kveik.errors import EngineError

TEXT = """\
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 1000.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 500.0
# TYPE vllm:prompt_tokens_by_source_total counter
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 300.0
vllm:prompt_tokens_by_source_total{engine="1",model_name="m",source="local_compute"} 200.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="external_kv_transfer"} 1000.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="128",cache_dtype="auto",engine="0"} 1.0
# TYPE kveik_connector_load_failures_total counter
kveik_connector_load_failures_total{engine="0",reason="timeout"} 2.0
kveik_connector_load_failures_total{engine="0",reason="checksum"} 3.0
# TYPE kveik_connector_attached gauge
kveik_connector_attached{engine="0"} 1.0
"""


def test_counters_are_summed_over_labels_that_are_not_asked_for() -> None:
    snapshot = parse_metrics(TEXT)
    assert snapshot.total(Metric.PROMPT_TOKENS) == 1500
    assert snapshot.total(Metric.PROMPT_TOKENS, engine="1") == 500
    assert snapshot.total(Metric.PROMPT_TOKENS_BY_SOURCE, source="local_compute") == 500
    assert snapshot.total(Metric.KVEIK_LOAD_FAILURES) == 5


def test_counters_can_be_split_by_one_label() -> None:
    snapshot = parse_metrics(TEXT)
    assert snapshot.by_label(Metric.KVEIK_LOAD_FAILURES, "reason") == {"checksum": 3, "timeout": 2}
    assert snapshot.by_label(Metric.KVEIK_LOAD_FAILURES, "tier") == {}


def test_what_is_not_exported_counts_as_zero_and_is_known_to_be_absent() -> None:
    snapshot = parse_metrics(TEXT)
    assert snapshot.total(Metric.EXTERNAL_HITS) == 0
    assert not snapshot.has(Metric.EXTERNAL_HITS)
    assert snapshot.has(Metric.PROMPT_TOKENS)


def test_block_size_and_connector_are_recognised() -> None:
    snapshot = parse_metrics(TEXT)
    assert snapshot.block_tokens == 128
    assert snapshot.has_connector
    empty = parse_metrics("")
    assert empty.block_tokens == 0
    assert not empty.has_connector


def test_text_that_is_no_metrics_is_an_engine_error() -> None:
    with pytest.raises(EngineError, match="Prometheus"):
        parse_metrics("<html>not found</html>")


def test_a_counter_that_ran_backwards_means_a_restart() -> None:
    after = parse_metrics(TEXT)
    before = parse_metrics(TEXT.replace("1000.0", "9000.0"))
    with pytest.raises(EngineError, match="restarted"):
        token_evidence(before, after)


_counts = st.integers(0, 10**9)


@given(_counts, _counts, _counts, _counts)
def test_the_difference_of_two_readings_is_what_happened_between(
    old: int, computed: int, local: int, external: int
) -> None:
    def text(base: int, *added: int) -> str:
        sources = ("local_compute", "local_cache_hit", "external_kv_transfer")
        lines = [
            f'vllm:prompt_tokens_by_source_total{{source="{s}"}} {base + a}'
            for s, a in zip(sources, added, strict=True)
        ]
        return "\n".join([*lines, f"vllm:prompt_tokens_total {base + sum(added)}"]) + "\n"

    found = token_evidence(parse_metrics(text(old, 0, 0, 0)), parse_metrics(text(old, computed, local, external)))
    assert (found.computed, found.local, found.external) == (computed, local, external)
    assert found.prompt == computed + local + external


def test_evidence_adds_up_field_by_field() -> None:
    total = TokenEvidence(prompt=1, external=2, dropped_blocks=3) + TokenEvidence(prompt=10, local=5, dropped_blocks=1)
    assert total == TokenEvidence(prompt=11, local=5, external=2, dropped_blocks=4)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
@pytest.mark.parametrize("metric", [Metric.PROMPT_TOKENS, Metric.KVEIK_SAVED_BLOCKS, Metric.KVEIK_LOAD_FAILURES])
def test_a_counter_that_is_no_number_is_an_error_and_no_evidence(metric: Metric, value: str) -> None:
    sound, odd = parse_metrics(f"{metric.value} 1\n"), parse_metrics(f"{metric.value} {value}\n")
    for before, after in [(sound, odd), (odd, sound), (odd, odd)]:
        with pytest.raises(EngineError, match=f"{metric.value} is (nan|-?inf), expected a finite number"):
            token_evidence(before, after)


def test_a_load_gauge_that_is_no_number_does_not_pass_for_an_idle_engine() -> None:
    with pytest.raises(EngineError, match="num_requests_waiting is nan"):
        _ = parse_metrics("vllm:num_requests_running 0\nvllm:num_requests_waiting NaN\n").busy


def test_one_series_without_a_value_spoils_the_sum_only_where_it_is_asked_for() -> None:
    snapshot = parse_metrics('vllm:prompt_tokens_total{engine="0"} 5\nvllm:prompt_tokens_total{engine="1"} NaN\n')
    assert snapshot.total(Metric.PROMPT_TOKENS, engine="0") == 5
    with pytest.raises(EngineError, match="expected a finite number"):
        snapshot.total(Metric.PROMPT_TOKENS)


@given(st.floats(), st.floats())
def test_any_two_values_of_a_counter_give_whole_evidence_or_an_engine_error(old: float, new: float) -> None:
    before, after = (MetricsSnapshot({Metric.PROMPT_TOKENS.value: {frozenset(): value}}) for value in (old, new))
    with contextlib.suppress(EngineError):
        found = token_evidence(before, after).prompt
        assert found == round(new - old)
        assert math.isfinite(old)
        assert math.isfinite(new)


_PIECES = st.sampled_from([*'ab:_{}=",\\\n\t #019.eE+-²', "NaN", "Inf", "# TYPE ", "# HELP ", " counter\n", "x_total"])


@given(st.lists(_PIECES, max_size=40).map("".join))
@example("{,\t=4 =\n")  # an IndexError inside the parser
def test_text_of_any_kind_is_a_snapshot_or_an_engine_error(text: str) -> None:
    with contextlib.suppress(EngineError):
        assert parse_metrics(text).block_tokens == 0


@pytest.mark.parametrize("size", ["auto", "", "²", "-16", "9" * 5000])
def test_a_block_size_that_is_none_counts_as_not_told(size: str) -> None:
    snapshot = MetricsSnapshot({Metric.CACHE_CONFIG.value: {frozenset({("block_size", size)}): 1.0}})
    assert snapshot.block_tokens == 0


def test_what_grew_is_told_by_the_values_of_a_label() -> None:
    before = parse_metrics(
        'kveik_connector_lookups_total{outcome="hit"} 2\nkveik_connector_lookups_total{outcome="miss"} 1\n'
    )
    after = parse_metrics(
        'kveik_connector_lookups_total{outcome="hit"} 5\nkveik_connector_lookups_total{outcome="miss"} 1\n'
    )
    assert grown(before, after, Metric.KVEIK_LOOKUPS) == 3
    assert grown_by(before, after, Metric.KVEIK_LOOKUPS, "outcome") == {"hit": 3}
    with pytest.raises(EngineError, match="ran backwards"):
        grown_by(after, before, Metric.KVEIK_LOOKUPS, "outcome")


@pytest.mark.parametrize(
    ("labels", "tokens"),
    [
        ('block_size="128",num_gpu_blocks="50",kv_cache_size_tokens="6000"', 6000),
        ('block_size="128",num_gpu_blocks="50",kv_cache_size_tokens="None"', 6400),
        ('block_size="128",num_gpu_blocks="None"', 0),
    ],
)
def test_the_size_of_an_engines_own_cache_is_told_in_tokens(labels: str, tokens: int) -> None:
    assert parse_metrics(f"vllm:cache_config_info{{{labels}}} 1\n").cache_tokens == tokens
