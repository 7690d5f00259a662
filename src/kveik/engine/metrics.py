"""An engine's ``/metrics``: one table of names, snapshots, and the difference of two snapshots.

The difference is evidence: it says where the prompt tokens of a test came from. Counters are
summed over all label values that are not asked for (data-parallel ranks, tiers, reasons).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum

from prometheus_client.parser import text_string_to_metric_families

from kveik.errors import EngineError

#: All names of the connector begin with it; its table is in kveik.connector.metrics.
CONNECTOR_PREFIX = "kveik_connector_"


class Metric(Enum):
    """Samples that Kveik reads from engines, by their names on the wire."""

    PROCESS_START_S = "process_start_time_seconds"  # since 1970; not of every server
    PROMPT_TOKENS = "vllm:prompt_tokens_total"
    PROMPT_TOKENS_BY_SOURCE = "vllm:prompt_tokens_by_source_total"  # label source
    LOCAL_QUERIES = "vllm:prefix_cache_queries_total"
    LOCAL_HITS = "vllm:prefix_cache_hits_total"
    EXTERNAL_QUERIES = "vllm:external_prefix_cache_queries_total"
    EXTERNAL_HITS = "vllm:external_prefix_cache_hits_total"
    RUNNING = "vllm:num_requests_running"
    WAITING = "vllm:num_requests_waiting"
    OUTPUT_TOKENS = "vllm:generation_tokens_total"
    ITERATIONS = "vllm:iteration_tokens_total_count"  # of a histogram: one a step
    CACHE_USAGE = "vllm:kv_cache_usage_perc"  # a share, 0 to 1
    TTFT_SUM_S = "vllm:time_to_first_token_seconds_sum"
    TTFT_COUNT = "vllm:time_to_first_token_seconds_count"
    QUEUE_SUM_S = "vllm:request_queue_time_seconds_sum"
    DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
    ACCEPTED_TOKENS = "vllm:spec_decode_num_accepted_tokens_total"
    SLEEP_STATE = "vllm:engine_sleep_state"  # label sleep_state: "awake" is 0 while it sleeps
    CACHE_CONFIG = "vllm:cache_config_info"
    KVEIK_LOOKUPS = "kveik_connector_lookups_total"  # label outcome
    KVEIK_TOKENS_ASKED = "kveik_connector_tokens_asked_total"
    KVEIK_KNOWN_BLOCKS = "kveik_connector_known_blocks_total"
    KVEIK_TOKENS_FOUND = "kveik_connector_tokens_found_total"
    KVEIK_TOKENS_ALLOWED = "kveik_connector_tokens_allowed_total"
    KVEIK_TOKENS_USED = "kveik_connector_tokens_used_total"
    KVEIK_TOKENS_LOST = "kveik_connector_tokens_lost_total"
    KVEIK_LOAD_CHOICES = "kveik_connector_load_choices_total"  # label choice
    KVEIK_LOADED_BLOCKS = "kveik_connector_loaded_blocks_total"  # label tier
    KVEIK_LOAD_FAILURES = "kveik_connector_load_failures_total"  # label reason
    KVEIK_CORRUPT_BLOCKS = "kveik_connector_corrupt_blocks_total"
    KVEIK_SAVED_BLOCKS = "kveik_connector_saved_blocks_total"
    KVEIK_SAVE_SKIPPED = "kveik_connector_save_skipped_blocks_total"
    KVEIK_SAVE_DROPPED = "kveik_connector_save_dropped_blocks_total"  # label reason
    KVEIK_READ_BACK_BLOCKS = "kveik_connector_read_back_blocks_total"
    KVEIK_READ_BACK_MISMATCHES = "kveik_connector_read_back_mismatches_total"
    KVEIK_ATTACHED = "kveik_connector_attached"
    KVEIK_PINNED_BLOCKS = "kveik_connector_pinned_blocks"
    KVEIK_SERVING = "kveik_connector_serving"
    KVEIK_NAMESPACE = "kveik_connector_namespace"  # label digest
    # Of other connectors (vLLM 0.32, LMCache 0.5.6), and on pages of their servers and stores (MemCache 1.3.0).
    OFFLOAD_STORED_BYTES = "vllm:kv_offload_store_bytes_total"
    SIMPLE_OFFLOAD_SAVES = "vllm:simple_kv_offload_save_outcomes_total"  # label outcome
    SIMPLE_OFFLOAD_PENDING = "vllm:simple_kv_offload_pending_store_blocks"
    LMCACHE_STORED_TOKENS = "lmcache:num_stored_tokens_total"
    LMCACHE_FOUND_TOKENS = "lmcache:num_lookup_hits_total"
    LMCACHE_SERVER_WRITTEN = "lmcache_mp_l1_write_chunks_total"
    LMCACHE_SERVER_FOUND_TOKENS = "lmcache_mp_lookup_hit_tokens_total"
    MEMCACHE_ALLOCATED = "memcache_batch_alloc_successes_total"
    MEMCACHE_EXISTING = "memcache_batch_exist_key_successes_total"


#: What can become of a block that the connector wanted to save.
SETTLED = (
    Metric.KVEIK_SAVED_BLOCKS,
    Metric.KVEIK_SAVE_SKIPPED,
    Metric.KVEIK_SAVE_DROPPED,
)

#: Lookup outcomes that say nothing about the cache: the agent was not asked or too slow.
UNANSWERED = ("deadline", "detached", "breaker_open", "failed")

#: More digits are no block size, and thousands of them are no number to Python.
_BLOCK_DIGITS = 10

_Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class MetricsSnapshot:
    """All samples of one reading of ``/metrics``."""

    samples: Mapping[str, Mapping[_Labels, float]]

    def has(self, metric: Metric) -> bool:
        """Whether the engine exports this metric at all."""
        return metric.value in self.samples

    def total(self, metric: Metric, **labels: str) -> float:
        """The sum over all series of ``metric`` that carry these label values; 0 for none.

        Raises :class:`EngineError` for a sum that is no finite number: it would pass every comparison.
        """
        wanted = set(labels.items())
        total = sum(value for series, value in self.samples.get(metric.value, {}).items() if wanted <= series)
        if not math.isfinite(total):
            raise EngineError(f"{metric.value} is {total}, expected a finite number")
        return total

    def by_label(self, metric: Metric, name: str) -> dict[str, float]:
        """The sums of ``metric`` for each value of one label that is above 0."""
        return {value: total for value, total in self.series(metric, name).items() if total}

    def series(self, metric: Metric, name: str) -> dict[str, float]:
        """The sums of ``metric`` for each value of one label, those of 0 too. Raises as :meth:`total`."""
        values = {value for series in self.samples.get(metric.value, {}) for label, value in series if label == name}
        return {value: self.total(metric, **{name: value}) for value in sorted(values)}

    def label(self, metric: Metric, name: str) -> str:
        """The value of one label of an info metric; empty when it is not there."""
        for series in self.samples.get(metric.value, {}):
            for label, value in series:
                if label == name:
                    return value
        return ""

    @property
    def block_tokens(self) -> int:
        """The engine block size as vLLM exports it, 0 when it does not."""
        return self._cache_config("block_size")

    @property
    def cache_tokens(self) -> int:
        """How many tokens the engine's own KV cache holds, as vLLM exports it; 0 when it does not."""
        return self._cache_config("kv_cache_size_tokens") or self._cache_config("num_gpu_blocks") * self.block_tokens

    def _cache_config(self, name: str) -> int:
        text = self.label(Metric.CACHE_CONFIG, name)
        return int(text) if text.isascii() and text.isdigit() and len(text) < _BLOCK_DIGITS else 0

    @property
    def namespace(self) -> str:
        """The engine's KV namespace in hex; empty where it has none, or does not know it yet."""
        return self.label(Metric.KVEIK_NAMESPACE, "digest")

    @property
    def busy(self) -> int:
        """Requests that run or wait."""
        return int(self.total(Metric.RUNNING) + self.total(Metric.WAITING))

    @property
    def has_connector(self) -> bool:
        """Whether Kveik's connector exports its counters here."""
        return any(name.startswith(CONNECTOR_PREFIX) for name in self.samples)


def parse_metrics(text: str) -> MetricsSnapshot:
    """The snapshot in Prometheus text. Raises :class:`EngineError` for anything else."""
    samples: dict[str, dict[_Labels, float]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # what the parser trips over
        raise EngineError(f"metrics are not in Prometheus text: {error}") from error
    return MetricsSnapshot(samples)


@dataclass(frozen=True, slots=True)
class TokenEvidence:
    """What happened in an engine between two snapshots. Tokens are prompt tokens.

    ``computed``, ``local`` and ``external`` are vLLM's own counts and add up to ``prompt``;
    vLLM counts at admission, so tokens of a load that failed later are still in ``external``.
    The rest are the connector's counts: ``used`` tokens really arrived, ``settled_blocks`` were
    saved, found to be there already or dropped, ``unanswered_lookups`` ended by deadline or breaker.
    """

    prompt: int = 0
    computed: int = 0
    local: int = 0
    external: int = 0
    used: int = 0
    loaded_blocks: int = 0
    failed_blocks: int = 0
    compared_blocks: int = 0
    mismatched_blocks: int = 0
    settled_blocks: int = 0
    dropped_blocks: int = 0
    unanswered_lookups: int = 0

    def __add__(self, other: "TokenEvidence") -> "TokenEvidence":
        return TokenEvidence(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


def grown(before: MetricsSnapshot, after: MetricsSnapshot, metric: Metric, **labels: str) -> int:
    """By how much a counter grew between two snapshots of one engine.

    Raises :class:`EngineError` when it ran backwards (the engine was restarted between them) or is no finite number.
    """
    delta = after.total(metric, **labels) - before.total(metric, **labels)
    if not math.isfinite(delta):
        raise EngineError(f"{metric.value} grew by {delta}, expected a finite number")
    if delta < 0:
        raise EngineError(f"{metric.value} ran backwards by {-delta:g}: the engine was restarted meanwhile")
    return round(delta)


def grown_by(before: MetricsSnapshot, after: MetricsSnapshot, metric: Metric, label: str) -> dict[str, int]:
    """The same for each value of one label for which it grew. Raises as :func:`grown`."""
    each = {value: grown(before, after, metric, **{label: value}) for value in after.series(metric, label)}
    return {value: delta for value, delta in each.items() if delta}


def token_evidence(before: MetricsSnapshot, after: MetricsSnapshot) -> TokenEvidence:
    """The difference of two snapshots of one engine. Raises as :func:`grown`."""

    def more(metric: Metric, **labels: str) -> int:
        return grown(before, after, metric, **labels)

    return TokenEvidence(
        prompt=more(Metric.PROMPT_TOKENS),
        computed=more(Metric.PROMPT_TOKENS_BY_SOURCE, source="local_compute"),
        local=more(Metric.PROMPT_TOKENS_BY_SOURCE, source="local_cache_hit"),
        external=more(Metric.PROMPT_TOKENS_BY_SOURCE, source="external_kv_transfer"),
        used=more(Metric.KVEIK_TOKENS_USED),
        loaded_blocks=more(Metric.KVEIK_LOADED_BLOCKS),
        failed_blocks=more(Metric.KVEIK_LOAD_FAILURES),
        compared_blocks=more(Metric.KVEIK_READ_BACK_BLOCKS),
        mismatched_blocks=more(Metric.KVEIK_READ_BACK_MISMATCHES),
        settled_blocks=sum(more(metric) for metric in SETTLED),
        dropped_blocks=more(Metric.KVEIK_SAVE_DROPPED),
        unanswered_lookups=sum(more(Metric.KVEIK_LOOKUPS, outcome=outcome) for outcome in UNANSWERED),
    )
