from prometheus_client import CollectorRegistry, generate_latest

from kveik.records import EvictionRecord, FailureRecord, LookupRecord, OutageRecord, StateRecord, TransferRecord
from kveik.telemetry.metrics import PREFIX, AgentMetrics, StateCollector, all_rows

STATE = {
    "arena": {
        "bytes": 1000, "payload_bytes": 300, "blocks": 3, "pinned": 1, "reserved": 0, "quarantined": 2,
        "unverified": 0, "free_slabs": 4,
    },
    "connections": [{}, {}],
    "tiers": [{
        "name": "filesystem", "blocks": 7, "bytes": 700, "read_only": True, "stuck_threads": 1, "breaker": "open",
        "state": "opening",
    }, {
        "name": "redis", "blocks": 1, "bytes": 1, "read_only": False, "stuck_threads": 0, "breaker": "closed",
        "state": "ready", "roll_call": {"node": "n0", "nodes": [
            {"node": "n0", "presence": "here", "age_s": 3.0}, {"node": "n1", "presence": "never", "age_s": None},
        ]},
    }],
}  # fmt: skip


def exposed(registry: CollectorRegistry) -> dict[str, float]:
    lines = generate_latest(registry).decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


def test_records_become_counters_by_tier_and_reason() -> None:
    registry = CollectorRegistry()
    metrics = AgentMetrics(registry)
    metrics(LookupRecord("arena", 10, 4, 0.0002))
    metrics(TransferRecord("arena", "get", 2, 200, 0.5))
    metrics(FailureRecord("filesystem", "get", "failed", "timeout", 3))
    metrics(FailureRecord("filesystem", "get", "corrupt", "checksum", 1))
    metrics(EvictionRecord("arena", 5, 500))
    metrics(StateRecord("filesystem.breaker", "closed", "open", "3 failures"))
    metrics(OutageRecord("filesystem", 12.5, 3, 4, 5, "filesystem tier out from ..."))
    values = exposed(registry)
    expected = {
        'lookups_total{tier="arena"}': 1,
        'lookup_keys_total{outcome="found",tier="arena"}': 4,
        'lookup_keys_total{outcome="absent",tier="arena"}': 6,
        'lookup_seconds_bucket{le="0.00025",tier="arena"}': 1,
        'lookup_seconds_bucket{le="0.0001",tier="arena"}': 0,
        'blocks_total{direction="get",tier="arena"}': 2,
        'bytes_total{direction="get",tier="arena"}': 200,
        'transfer_seconds_total{direction="get",tier="arena"}': 0.5,
        'failures_total{direction="get",reason="timeout",tier="filesystem"}': 3,
        'corrupt_total{reason="checksum",tier="filesystem"}': 1,
        'evicted_blocks_total{tier="arena"}': 5,
        'evicted_bytes_total{tier="arena"}': 500,
        'state_changes_total{after="open",part="filesystem.breaker"}': 1,
        'tier_outages_total{tier="filesystem"}': 1,
        'tier_outage_seconds_total{tier="filesystem"}': 12.5,
        'tier_outage_blocks_total{outcome="not_stored",tier="filesystem"}': 3,
        'tier_outage_blocks_total{outcome="not_read",tier="filesystem"}': 4,
        'tier_outage_blocks_total{outcome="lost",tier="filesystem"}': 5,
    }
    assert {name: values[PREFIX + name] for name in expected} == expected


def test_the_state_becomes_gauges_when_asked() -> None:
    registry = CollectorRegistry()
    registry.register(StateCollector(lambda: STATE))
    values = exposed(registry)
    assert values[PREFIX + "arena_bytes"] == 1000
    assert values[PREFIX + "arena_quarantined"] == 2
    assert values[PREFIX + "connections"] == 2
    assert values[PREFIX + 'tier_blocks{tier="filesystem"}'] == 7
    assert values[PREFIX + 'tier_read_only{tier="filesystem"}'] == 1
    assert values[PREFIX + 'tier_breaker_open{tier="filesystem"}'] == 1
    assert values[PREFIX + 'tier_out{tier="filesystem"}'] == 1
    assert values[PREFIX + 'tier_node_seen{node="n0",tier="redis"}'] == 1
    assert values[PREFIX + 'tier_node_seen{node="n1",tier="redis"}'] == 0
    assert values[PREFIX + 'tier_node_age_seconds{node="n0",tier="redis"}'] == 3
    assert PREFIX + 'tier_node_age_seconds{node="n1",tier="redis"}' not in values


def test_every_metric_has_one_row_with_help() -> None:
    rows = list(all_rows())
    assert len({row.name for row in rows}) == len(rows)
    assert all(row.help for row in rows)


def test_only_metrics_of_the_table_are_exposed() -> None:
    registry = CollectorRegistry()
    AgentMetrics(registry)
    registry.register(StateCollector(lambda: STATE))
    known = {PREFIX + row.name for row in all_rows()}
    assert {family.name for family in registry.collect()} == known
