"""What was counted between two readings of an engine, whichever connector it has."""

import pytest

from kveik.diagnose.cache_counters import Amount, Connector, connector_of, counts_between, joined
from kveik.engine.metrics import MetricsSnapshot, parse_metrics
from kveik.errors import EngineError

VLLM = {
    "vllm:prompt_tokens_total": 100,
    'vllm:prompt_tokens_by_source_total{source="local_compute"}': 60,
    'vllm:prompt_tokens_by_source_total{source="local_cache_hit"}': 30,
    'vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}': 10,
    "vllm:external_prefix_cache_queries_total": 40,
}
OLD_VLLM = {
    "vllm:prompt_tokens_total": 100,
    "vllm:prefix_cache_hits_total": 30,
    "vllm:external_prefix_cache_hits_total": 10,
    "vllm:external_prefix_cache_queries_total": 40,
}
KVEIK = {
    'kveik_connector_lookups_total{outcome="hit"}': 1,
    'kveik_connector_lookups_total{outcome="deadline"}': 2,
    "kveik_connector_tokens_asked_total": 90,
    "kveik_connector_known_blocks_total": 7,
    "kveik_connector_tokens_found_total": 80,
    "kveik_connector_tokens_allowed_total": 70,
    "kveik_connector_tokens_used_total": 60,
    "kveik_connector_tokens_lost_total": 10,
    'kveik_connector_load_failures_total{reason="timeout"}': 3,
    "kveik_connector_saved_blocks_total": 5,
    "kveik_connector_save_skipped_blocks_total": 2,
    'kveik_connector_save_dropped_blocks_total{reason="no_room"}': 4,
    "kveik_connector_attached": 1,
    "kveik_connector_serving": 0,
}


def page(*rows: dict[str, int], times: int = 1) -> MetricsSnapshot:
    """A reading of ``/metrics``, with counters so many times as high."""
    names = {name: value for row in rows for name, value in row.items()}
    return parse_metrics("".join(f"{name} {value * times}\n" for name, value in names.items()))


def test_a_difference_says_where_tokens_came_from_and_for_how_many_the_connector_was_asked() -> None:
    counts = counts_between(page(VLLM), page(VLLM, times=3))
    assert (counts.prompt, counts.computed, counts.local, counts.external) == (200, 120, 60, 20)
    assert counts.queried == 80
    assert counts.used == 20
    assert counts.kveik is None
    assert counts.stored is None


def test_an_older_vllm_tells_it_by_its_hits() -> None:
    counts = counts_between(page(OLD_VLLM), page(OLD_VLLM, times=2))
    assert (counts.prompt, counts.computed, counts.local, counts.external) == (100, 60, 30, 10)


def test_kveiks_connector_tells_every_step() -> None:
    counts = counts_between(page(VLLM, KVEIK), page(VLLM, KVEIK, times=2))
    kveik = counts.kveik
    assert kveik is not None
    assert (kveik.asked, kveik.known_blocks, kveik.found, kveik.allowed, kveik.used) == (90, 7, 80, 70, 60)
    assert kveik.lookups == {"deadline": 2, "hit": 1}
    assert (kveik.failures, kveik.dropped) == ({"timeout": 3}, {"no_room": 4})
    assert kveik.there_blocks == 7
    assert (kveik.attached, kveik.serving) == (True, False)
    assert counts.used == 60, "what really arrived, not what vLLM counted when it admitted the request"


def test_a_connector_of_another_version_may_leave_something_out() -> None:
    least = {"kveik_connector_tokens_used_total": 8}
    kveik = counts_between(page(VLLM, least), page(VLLM, least, times=2)).kveik
    assert kveik is not None
    assert (kveik.used, kveik.known_blocks, kveik.attached, kveik.serving) == (8, None, None, None)


@pytest.mark.parametrize(
    ("name", "connector", "stored"),
    [
        ("vllm:kv_offload_store_bytes_total", Connector.OFFLOADING, "2 bytes"),
        (
            'vllm:simple_kv_offload_save_outcomes_total{outcome="stored"}',
            Connector.SIMPLE_OFFLOAD,
            "2 blocks",
        ),
        ("lmcache:num_stored_tokens_total", Connector.LMCACHE, "2 tokens"),
        ("lmcache_mp_l1_write_chunks_total", Connector.LMCACHE, "2 chunks"),
        ("memcache_batch_alloc_successes_total", Connector.SILENT, "2 keys"),
    ],
)
def test_other_connectors_and_stores_tell_what_they_stored(name: str, connector: Connector, stored: str) -> None:
    before, after = page(VLLM, {name: 1}), page(VLLM, {name: 3})
    assert connector_of(after) is connector
    assert str(counts_between(before, after).stored) == stored


def test_what_was_dropped_is_not_stored() -> None:
    dropped = {'vllm:simple_kv_offload_save_outcomes_total{outcome="dropped_cpu_full"}': 5}
    assert counts_between(page(VLLM, dropped), page(VLLM, dropped, times=2)).stored == Amount(0, "blocks")


def test_without_counters_of_its_own_a_connector_is_silent() -> None:
    assert connector_of(page(VLLM)) is Connector.SILENT


def test_pages_are_joined_and_the_engines_own_one_counts_first() -> None:
    both = joined([page({"a": 1}), page({"a": 5, "b": 2})])
    assert {name: sum(series.values()) for name, series in both.samples.items()} == {"a": 1, "b": 2}


def test_a_restart_between_two_readings_is_no_difference() -> None:
    with pytest.raises(EngineError, match="restarted meanwhile"):
        counts_between(page(VLLM, times=2), page(VLLM))


def test_a_kveik_page_says_nothing_of_what_others_stored() -> None:
    counts = counts_between(page(VLLM, KVEIK), page(VLLM, KVEIK, times=2))
    assert (counts.stored, counts.found) == (None, None)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("lmcache:num_lookup_hits_total", "4 tokens"),
        ("lmcache_mp_lookup_hit_tokens_total", "4 tokens"),
        ("memcache_batch_exist_key_successes_total", "4 queries"),
    ],
)
def test_other_connectors_and_stores_tell_what_they_found(name: str, found: str) -> None:
    assert str(counts_between(page(VLLM, {name: 1}), page(VLLM, {name: 5})).found) == found


def test_kveiks_counters_count_before_those_of_another_connector_beside_it() -> None:
    both = page(VLLM, KVEIK, {"vllm:kv_offload_store_bytes_total": 9})
    assert connector_of(both) is Connector.KVEIK
    assert counts_between(both, both).kveik is not None


def test_equal_readings_are_no_difference() -> None:
    same = page(VLLM, KVEIK)
    counts = counts_between(same, same)
    assert (counts.prompt, counts.used, counts.queried) == (0, 0, 0)
    assert counts.kveik is not None
    assert counts.kveik.lookups == counts.kveik.failures == counts.kveik.dropped == {}
