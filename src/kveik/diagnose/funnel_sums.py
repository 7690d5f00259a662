"""Whether the funnel agrees with what vLLM counts, and what a difference comes from. Pure."""

from collections.abc import Iterable, Mapping

from kveik.agent.funnel import RequestFunnel
from kveik.diagnose.funnel import used_tokens

LOCAL_QUERIES, LOCAL_HITS = "vllm:prefix_cache_queries", "vllm:prefix_cache_hits"
EXTERNAL_QUERIES, EXTERNAL_HITS = "vllm:external_prefix_cache_queries", "vllm:external_prefix_cache_hits"


def expected_counters(records: Iterable[RequestFunnel]) -> Mapping[str, int]:
    """What these requests add to vLLM's counters, in tokens.

    vLLM 0.32 counts a request when its memory is allocated (``v1/core/sched/scheduler.py``): the whole prompt as asked
    in its own cache, what that lacks as asked of the connector, and as hit what the connector promised, whether the
    load then succeeds or not. A request that was looked up again after a failed load counts again.
    """
    counters = dict.fromkeys((LOCAL_QUERIES, LOCAL_HITS, EXTERNAL_QUERIES, EXTERNAL_HITS), 0)
    for record in records:
        asked_tokens = record.prompt_tokens * record.admissions
        counters[LOCAL_QUERIES] += asked_tokens
        counters[LOCAL_HITS] += record.admitted_local_tokens
        counters[EXTERNAL_QUERIES] += asked_tokens - record.admitted_local_tokens
        counters[EXTERNAL_HITS] += record.admitted_load_tokens
    return counters


def difference(record: RequestFunnel, reported_cached_tokens: int) -> str:
    """Why the engine's answer reported another number of cached tokens than were used; empty if it did not.

    -1: the answer reported none.
    """
    used = used_tokens(record)
    if reported_cached_tokens < 0:
        return "the engine's answer reported no cached tokens (vLLM does with --enable-prompt-tokens-details)"
    if reported_cached_tokens == used:
        return ""
    promised = record.local_tokens + max(0, record.load_tokens)
    said = f"the engine's answer reported {reported_cached_tokens} cached tokens, and {used} were used"
    if record.admissions > 1:
        return f"{said}: it was looked up {record.admissions} times, and vLLM counts what it was promised at last"
    if reported_cached_tokens == promised and record.failed_blocks:
        return f"{said}: vLLM counts what was promised when the load began, {promised}, also where the load failed"
    return f"{said}: that is not explained by what the connector saw"
