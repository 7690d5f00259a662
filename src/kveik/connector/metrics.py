"""The connector's numbers on the engine's own ``/metrics``, through vLLM's connector stats.

One table (:data:`COUNTERS`, :data:`GAUGES`) names them all. Stats travel as plain dictionaries with
keys such as ``loaded_bytes|tier=arena``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
    PromMetric,
    PromMetricT,
)


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric: its name without prefix, help text and own labels."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


PREFIX = "kveik_connector_"
COUNTERS = (
    MetricRow(
        "lookups", "Lookups by outcome: hit, miss, deadline, failed, detached, breaker_open, pending.", ("outcome",)
    ),
    MetricRow("lookup_seconds", "Time from asking the agent to its answer."),
    MetricRow("tokens_asked", "Tokens looked up beyond the engine's own hits."),
    MetricRow("known_blocks", "Blocks that lookups found, usable or not."),
    MetricRow("tokens_found", "Tokens of usable hits that were found."),
    MetricRow("tokens_allowed", "Tokens of those that were worth loading, as far as that was known."),
    MetricRow(
        "load_choices", "Hits by what was chosen: all, part or none of it; unknown or always (then all).", ("choice",)
    ),
    MetricRow("seconds_saved", "Computing that loads made unnecessary, less the time they took, by tier.", ("tier",)),
    MetricRow("seconds_lost", "Time of loads beyond what computing would have taken, by tier.", ("tier",)),
    MetricRow("sounded_blocks", "Blocks read to see how fast a tier is from which nothing was loaded.", ("tier",)),
    MetricRow("tokens_used", "Tokens that were loaded and used instead of computed."),
    MetricRow("tokens_lost", "Tokens of offered hits whose load failed and that were computed instead."),
    MetricRow("loaded_blocks", "Blocks loaded, by the tier that had them.", ("tier",)),
    MetricRow("loaded_bytes", "Bytes loaded, by the tier that had them.", ("tier",)),
    MetricRow("load_seconds", "Time of loads, from the job's arrival to its last block."),
    MetricRow("load_failures", "Blocks that could not be loaded, by reason.", ("reason",)),
    MetricRow("corrupt_blocks", "Blocks that arrived with wrong bytes and were refused."),
    MetricRow("saved_blocks", "Blocks saved."),
    MetricRow("saved_bytes", "Bytes saved."),
    MetricRow("save_seconds", "Time of saves on their own thread."),
    MetricRow("save_skipped_blocks", "Blocks that the cache had already."),
    MetricRow("save_dropped_blocks", "Blocks not saved, by reason.", ("reason",)),
    MetricRow("read_back_blocks", "Loaded blocks compared with what lies in the engine's memory."),
    MetricRow("read_back_mismatches", "Such blocks that differed."),
)
GAUGES = (
    MetricRow("attached", "1 while the scheduler is attached to the node's agent."),
    MetricRow("breaker_open", "1 while the agent is left out after failures."),
    MetricRow("pinned_blocks", "Blocks of the engine held until they are saved."),
    MetricRow("serving", "1 when the cache can be used; 0 when the layout was refused or is not known yet."),
    MetricRow("namespace", "1 for the engine's KV namespace: engines of one can use each other's blocks.", ("digest",)),
)
_COUNTERS: Mapping[str, MetricRow] = {row.name: row for row in COUNTERS}
_GAUGES: Mapping[str, MetricRow] = {row.name: row for row in GAUGES}


def _key(name: str, labels: Mapping[str, str]) -> str:
    return "|".join([name, *(f"{label}={value}" for label, value in labels.items())])


def _split(key: str) -> tuple[str, list[str]]:
    name, *labels = key.split("|")
    return name, [label.partition("=")[2] for label in labels]


class KveikStats(KVConnectorStats):
    """Counts since the last report, and the latest gauges: ``{"add": {...}, "set": {...}}``."""

    data: dict[str, Any]

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        super().__init__(data or {"add": {}, "set": {}})

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """Count; unknown names are programming errors."""
        if set(labels) != set(_COUNTERS[name].labels):
            raise KeyError(f"metric {name} takes labels {_COUNTERS[name].labels}, got {tuple(labels)}")
        key = _key(name, labels)
        self.data["add"][key] = self.data["add"].get(key, 0) + amount

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge; unknown names are programming errors."""
        if set(labels) != set(_GAUGES[name].labels):
            raise KeyError(f"metric {name} takes labels {_GAUGES[name].labels}, got {tuple(labels)}")
        self.data["set"][_key(name, labels)] = value

    def reset(self) -> None:
        """Forget everything."""
        self.data = {"add": {}, "set": {}}

    def aggregate(self, other: KVConnectorStats) -> "KveikStats":
        """Add another report; its gauges are the newer ones."""
        for key, amount in other.data["add"].items():
            self.data["add"][key] = self.data["add"].get(key, 0) + amount
        self.data["set"].update(other.data["set"])
        return self

    def reduce(self) -> dict[str, int | float]:
        """The numbers for vLLM's log line."""
        merged = {key: round(value, 4) for key, value in self.data["add"].items() if value}
        return {**merged, **self.data["set"]}

    def is_empty(self) -> bool:
        """Whether there is nothing to report."""
        return not self.data["add"] and not self.data["set"]


class StatsBox:
    """A :class:`KveikStats` that several threads fill and one takes."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._stats = KveikStats()
        self._gauges: dict[str, float] = {}

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """See :meth:`KveikStats.add`."""
        with self._lock:
            self._stats.add(name, amount, **labels)

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge; only changes travel."""
        with self._lock:
            key = _key(name, labels)
            if self._gauges.get(key) != value:
                self._gauges[key] = value
                self._stats.set(name, value, **labels)

    def take(self) -> KveikStats | None:
        """What came together since the last call, or None."""
        with self._lock:
            if self._stats.is_empty():
                return None
            taken, self._stats = self._stats, KveikStats()
            return taken


class KveikPromMetrics(KVConnectorPromMetrics):
    """The Prometheus side of the table, one child for each engine of the process."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[type[PromMetric], type[PromMetricT]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._metrics: dict[str, Any] = {}
        for metric_class, rows in ((self._counter_cls, COUNTERS), (self._gauge_cls, GAUGES)):
            for row in rows:
                self._metrics[row.name] = metric_class(
                    name=PREFIX + row.name, documentation=row.help, labelnames=[*labelnames, *row.labels]
                )
                if not row.labels:  # shown as 0 from the start
                    for values in per_engine_labelvalues.values():
                        self._metrics[row.name].labels(*values)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add one report."""
        engine = self.per_engine_labelvalues[engine_idx]
        for key, amount in transfer_stats_data["add"].items():
            name, labels = _split(key)
            self._metrics[name].labels(*engine, *labels).inc(max(0, amount))
        for key, value in transfer_stats_data["set"].items():
            name, labels = _split(key)
            self._metrics[name].labels(*engine, *labels).set(value)


__all__ = ["COUNTERS", "GAUGES", "PREFIX", "KveikPromMetrics", "KveikStats", "StatsBox"]
