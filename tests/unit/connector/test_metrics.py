"""The connector's numbers: one table, sums over ranks and steps, Prometheus at the end."""

import pickle

import prometheus_client
import pytest

pytest.importorskip("vllm", reason="the classes are vLLM's")

from kveik.connector.metrics import COUNTERS, GAUGES, PREFIX, KveikPromMetrics, KveikStats, StatsBox
from kveik.engine.metrics import CONNECTOR_PREFIX, SETTLED, UNANSWERED, Metric, parse_metrics


def test_counts_add_up_over_reports() -> None:
    one, two = KveikStats(), KveikStats()
    one.add("loaded_blocks", 2, tier="arena")
    two.add("loaded_blocks", 3, tier="arena")
    two.add("tokens_used", 5)
    merged = one.aggregate(pickle.loads(pickle.dumps(two)))
    assert merged.reduce() == {"loaded_blocks|tier=arena": 5, "tokens_used": 5}


def test_the_newest_gauge_wins() -> None:
    one, two = KveikStats(), KveikStats()
    one.set("attached", 1)
    two.set("attached", 0)
    assert one.aggregate(two).reduce() == {"attached": 0}


@pytest.mark.parametrize("labels", [{}, {"tier": "arena", "reason": "x"}])
def test_wrong_labels_are_errors(labels: dict[str, str]) -> None:
    with pytest.raises(KeyError):
        KveikStats().add("loaded_blocks", 1, **labels)


def test_a_gauge_without_its_label_is_an_error() -> None:
    with pytest.raises(KeyError):
        KveikStats().set("namespace", 1)


def test_unknown_names_are_errors() -> None:
    with pytest.raises(KeyError):
        KveikStats().add("surprises")


def test_a_box_is_empty_after_it_was_taken() -> None:
    box = StatsBox()
    box.add("tokens_used", 7)
    taken = box.take()
    assert taken is not None
    assert taken.reduce() == {"tokens_used": 7}
    assert box.take() is None


def test_a_gauge_travels_only_when_it_changes() -> None:
    box = StatsBox()
    box.set("attached", 1)
    assert box.take() is not None
    box.set("attached", 1)
    assert box.take() is None


def test_a_gauge_with_a_label_travels_once_too() -> None:
    box = StatsBox()
    box.set("namespace", 1, digest="abcd")
    box.set("namespace", 1, digest="abcd")
    taken = box.take()
    assert taken is not None
    assert taken.reduce() == {"namespace|digest=abcd": 1}


def test_names_are_unique() -> None:
    names = [row.name for row in (*COUNTERS, *GAUGES)]
    assert len(names) == len(set(names))


def on_the_wire() -> dict[str, tuple[str, ...]]:
    """What an engine exports, as Prometheus names it: sample name and own labels."""
    counters = {f"{PREFIX}{row.name}_total": row.labels for row in COUNTERS}
    return counters | {f"{PREFIX}{row.name}": row.labels for row in GAUGES}


def test_what_is_read_from_engines_is_what_the_connector_exports() -> None:
    assert CONNECTOR_PREFIX == PREFIX
    read = {metric.value for metric in Metric if metric.value.startswith(CONNECTOR_PREFIX)}
    assert len(read) == sum(metric.name.startswith("KVEIK_") for metric in Metric)
    assert read <= on_the_wire().keys()


def test_no_number_that_evidence_is_made_of_has_labels_that_its_reader_does_not_know() -> None:
    labels = on_the_wire()
    assert labels[Metric.KVEIK_LOOKUPS.value] == ("outcome",)
    assert labels[Metric.KVEIK_LOADED_BLOCKS.value] == ("tier",)
    reasons = (Metric.KVEIK_LOAD_FAILURES, Metric.KVEIK_SAVE_DROPPED)
    assert {labels[metric.value] for metric in reasons} == {("reason",)}
    assert {labels[metric.value] for metric in SETTLED if metric not in reasons} == {()}


def test_every_outcome_that_counts_as_unanswered_is_explained_to_who_reads_the_metric() -> None:
    (lookups,) = (row for row in COUNTERS if row.name == "lookups")
    assert set(UNANSWERED) <= set(lookups.help.rpartition(":")[2].strip(" .").split(", "))


def test_prometheus_shows_what_was_reported() -> None:
    class NoConfig:
        kv_transfer_config = None

    kinds = {
        prometheus_client.Counter: prometheus_client.Counter,
        prometheus_client.Gauge: prometheus_client.Gauge,
        prometheus_client.Histogram: prometheus_client.Histogram,
    }
    metrics = KveikPromMetrics(NoConfig(), kinds, ["engine"], {0: ["0"]})  # type: ignore[arg-type]
    stats = KveikStats()
    stats.add("loaded_bytes", 100, tier="arena")
    stats.set("attached", 1)
    stats.set("namespace", 1, digest="abcd")
    metrics.observe(stats.to_dict())
    metrics.observe(stats.to_dict())
    value = prometheus_client.REGISTRY.get_sample_value
    assert value(f"{PREFIX}loaded_bytes_total", {"engine": "0", "tier": "arena"}) == 200
    assert value(f"{PREFIX}attached", {"engine": "0"}) == 1
    assert value(f"{PREFIX}tokens_used_total", {"engine": "0"}) == 0
    shown = parse_metrics(prometheus_client.generate_latest().decode())
    assert shown.has_connector
    assert shown.total(Metric.KVEIK_ATTACHED) == 1
    assert shown.namespace == "abcd"
    # Samples with labels appear with their first value; all others from the start.
    unlabelled = {name for name, labels in on_the_wire().items() if not labels}
    assert unlabelled <= shown.samples.keys()
