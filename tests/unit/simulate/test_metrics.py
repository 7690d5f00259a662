"""Metrics under vLLM's names, readable by what reads vLLM's."""

from kveik.engine.metrics import Metric, parse_metrics
from kveik.simulate.metrics import EngineMetrics, Gauges, Histogram


def test_kveik_s_own_reader_of_vllm_s_metrics_reads_them() -> None:
    metrics = EngineMetrics("simulated", 16, 100)
    metrics.prompt_tokens, metrics.cached_tokens, metrics.shared_tokens = 100, 48, 32
    snapshot = parse_metrics(
        metrics.text(Gauges(running=2, waiting=3, cache_usage=0.5, queried_tokens=100, hit_tokens=48))
    )
    assert snapshot.busy == 5
    assert snapshot.block_tokens == 16
    assert snapshot.total(Metric.PROMPT_TOKENS) == 100
    assert snapshot.by_label(Metric.PROMPT_TOKENS_BY_SOURCE, "source") == {
        "local_compute": 20,
        "local_cache_hit": 48,
        "external_kv_transfer": 32,
    }
    assert (snapshot.total(Metric.LOCAL_QUERIES), snapshot.total(Metric.LOCAL_HITS)) == (100, 48)
    assert snapshot.samples["vllm:kv_cache_usage_perc"].values().__iter__().__next__() == 0.5


def test_a_histogram_counts_what_is_at_most_each_bound() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value)
    assert histogram.lines("h", 'a="b"') == [
        "# TYPE h histogram",
        'h_bucket{a="b",le="0.1"} 2',
        'h_bucket{a="b",le="1.0"} 3',
        'h_bucket{a="b",le="+Inf"} 4',
        'h_count{a="b"} 4',
        'h_sum{a="b"} 7.65',
    ]


def test_the_text_says_that_it_is_simulated() -> None:
    assert "SIMULATED" in EngineMetrics("m", 16, 100).text(Gauges())
