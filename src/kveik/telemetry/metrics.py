"""The agent's Prometheus metrics: one table of names, and the listener that fills it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from kveik.records import (
    AdmissionRecord,
    EvictionRecord,
    FailureRecord,
    LookupRecord,
    OutageRecord,
    Record,
    StateRecord,
    TransferRecord,
)

PREFIX = "kveik_agent_"
LOOKUP_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25)


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric: its name without prefix (and without ``_total``), help and labels."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


COUNTERS = (
    MetricRow("lookups", "Lookups", ("tier",)),
    MetricRow("lookup_keys", "Keys of lookups, by outcome (found, absent)", ("tier", "outcome")),
    MetricRow("blocks", "Blocks moved, by direction (get, put)", ("tier", "direction")),
    MetricRow("bytes", "Bytes of blocks moved", ("tier", "direction")),
    MetricRow("transfer_seconds", "Time spent on moving blocks", ("tier", "direction")),
    MetricRow("failures", "Blocks that could not be moved, by reason", ("tier", "direction", "reason")),
    MetricRow("corrupt", "Blocks found corrupt and given up, by reason", ("tier", "reason")),
    MetricRow(
        "cascade_blocks", "Blocks to be written down: wanted, new; single_use and queue_full were not", ("outcome",)
    ),
    MetricRow("evicted_blocks", "Blocks dropped to make room", ("tier",)),
    MetricRow("evicted_bytes", "Payload bytes dropped to make room", ("tier",)),
    MetricRow("state_changes", "Changes of a part's state", ("part", "after")),
    MetricRow("tier_outages", "Times in which a lower tier could not be used, counted when they end", ("tier",)),
    MetricRow("tier_outage_seconds", "How long they lasted in all", ("tier",)),
    MetricRow(
        "tier_outage_blocks", "What they cost: blocks not_stored, not_read, or lost in the tier", ("tier", "outcome")
    ),
)
LOOKUP_SECONDS = MetricRow("lookup_seconds", "Duration of lookups", ("tier",))

#: Gauges read from the agent's state when Prometheus asks: metric, then entry of ``arena`` in the state.
ARENA_GAUGES = (
    (MetricRow("arena_bytes", "Size of the arena"), "bytes"),
    (MetricRow("arena_payload_bytes", "Payload bytes of all blocks in the arena"), "payload_bytes"),
    (MetricRow("arena_blocks", "Blocks in the arena"), "blocks"),
    (MetricRow("arena_pinned", "Slots that are being read"), "pinned"),
    (MetricRow("arena_reserved", "Slots that are being written"), "reserved"),
    (MetricRow("arena_quarantined", "Slots kept from reuse: somebody may still write"), "quarantined"),
    (MetricRow("arena_unverified", "Blocks of an earlier agent not yet checked"), "unverified"),
    (MetricRow("arena_free_slabs", "Slabs that no block size uses"), "free_slabs"),
)
#: The same for each entry of ``tiers``.
TIER_GAUGES = (
    (MetricRow("tier_blocks", "Blocks in a lower tier, as far as it knows", ("tier",)), "blocks"),
    (MetricRow("tier_bytes", "Bytes in a lower tier, as far as it knows", ("tier",)), "bytes"),
    (MetricRow("tier_read_only", "1 while a lower tier cannot be written", ("tier",)), "read_only"),
    (MetricRow("tier_stuck_threads", "Threads that hang in a lower tier", ("tier",)), "stuck_threads"),
)
BREAKER_OPEN = MetricRow("tier_breaker_open", "1 while a lower tier is left out after failures", ("tier",))
OUT = MetricRow("tier_out", "1 while a lower tier is not open: its medium does not answer", ("tier",))
#: Of the roll call, for each tier and node: see :mod:`kveik.store.roll_calling`.
NODE_SEEN = MetricRow(
    "tier_node_seen", "1 while a node's own block is found in a shared tier, right and renewed", ("tier", "node")
)
NODE_AGE = MetricRow(
    "tier_node_age_seconds", "How long ago the newest such block was first read; not there: never", ("tier", "node")
)
CONNECTIONS = MetricRow("connections", "Connected clients")

State = Callable[[], Mapping[str, Any]]


def all_rows() -> Iterable[MetricRow]:
    """Every metric of the agent."""
    yield from COUNTERS
    yield LOOKUP_SECONDS
    yield from (row for row, _ in (*ARENA_GAUGES, *TIER_GAUGES))
    yield from (BREAKER_OPEN, OUT, NODE_SEEN, NODE_AGE, CONNECTIONS)


class AgentMetrics:
    """A listener that counts records into a Prometheus registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counters = {
            row.name: Counter(PREFIX + row.name, row.help, row.labels, registry=registry) for row in COUNTERS
        }
        self._lookup_seconds = Histogram(
            PREFIX + LOOKUP_SECONDS.name,
            LOOKUP_SECONDS.help,
            LOOKUP_SECONDS.labels,
            buckets=LOOKUP_BUCKETS_S,
            registry=registry,
        )

    def __call__(self, record: Record) -> None:
        """Count one record."""
        match record:
            case LookupRecord(tier, asked, found, seconds):
                self._add("lookups", 1, tier)
                self._add("lookup_keys", found, tier, "found")
                self._add("lookup_keys", asked - found, tier, "absent")
                self._lookup_seconds.labels(tier).observe(seconds)
            case TransferRecord(tier, direction, blocks, size, seconds):
                self._add("blocks", blocks, tier, direction)
                self._add("bytes", size, tier, direction)
                self._add("transfer_seconds", seconds, tier, direction)
            case FailureRecord(tier, direction, "corrupt", reason, blocks):
                self._add("corrupt", blocks, tier, reason)
            case FailureRecord(tier, direction, _, reason, blocks):
                self._add("failures", blocks, tier, direction, reason)
            case AdmissionRecord(outcome, blocks):
                self._add("cascade_blocks", blocks, outcome)
            case EvictionRecord(tier, blocks, size):
                self._add("evicted_blocks", blocks, tier)
                self._add("evicted_bytes", size, tier)
            case StateRecord(part, _, after):
                self._add("state_changes", 1, part, after)
            case OutageRecord():
                self._add("tier_outages", 1, record.tier)
                self._add("tier_outage_seconds", record.seconds, record.tier)
                self._add("tier_outage_blocks", record.not_stored_blocks, record.tier, "not_stored")
                self._add("tier_outage_blocks", record.not_read_blocks, record.tier, "not_read")
                self._add("tier_outage_blocks", record.lost_keys, record.tier, "lost")

    def _add(self, name: str, amount: float, *labels: str) -> None:
        self._counters[name].labels(*labels).inc(amount)


class StateCollector(Collector):
    """Gauges taken from the agent's state at the moment Prometheus asks."""

    def __init__(self, state: State) -> None:
        self._state = state

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The gauges now."""
        state = self._state()
        for row, entry in ARENA_GAUGES:
            yield GaugeMetricFamily(PREFIX + row.name, row.help, value=float(state["arena"][entry]))
        yield GaugeMetricFamily(PREFIX + CONNECTIONS.name, CONNECTIONS.help, value=len(state["connections"]))
        for row, entry in TIER_GAUGES:
            family = GaugeMetricFamily(PREFIX + row.name, row.help, labels=row.labels)
            for tier in state["tiers"]:
                family.add_metric([tier["name"]], float(tier[entry]))
            yield family
        for row, entry, fine in ((BREAKER_OPEN, "breaker", "closed"), (OUT, "state", "ready")):
            family = GaugeMetricFamily(PREFIX + row.name, row.help, labels=row.labels)
            for tier in state["tiers"]:
                family.add_metric([tier["name"]], float(tier[entry] != fine))
            yield family
        yield from _node_gauges(state["tiers"])


def _node_gauges(tiers: Iterable[Mapping[str, Any]]) -> Iterable[GaugeMetricFamily]:
    """Which nodes were seen in which tier."""
    seen = GaugeMetricFamily(PREFIX + NODE_SEEN.name, NODE_SEEN.help, labels=NODE_SEEN.labels)
    age = GaugeMetricFamily(PREFIX + NODE_AGE.name, NODE_AGE.help, labels=NODE_AGE.labels)
    for tier in tiers:
        for entry in (tier.get("roll_call") or {}).get("nodes", ()):
            seen.add_metric([tier["name"], entry["node"]], float(entry["presence"] == "here"))
            if entry["age_s"] is not None:
                age.add_metric([tier["name"], entry["node"]], entry["age_s"])
    return seen, age
