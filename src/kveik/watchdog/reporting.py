"""A node in figures, from what the watchdog has read anyway: pure functions of two readings and the time between them.

Means and rates are since the report before. A counter that ran backwards belongs to an engine that was started anew:
then nothing is known of that time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kveik.engine.metrics import Metric, MetricsSnapshot
from kveik.errors import EngineError
from kveik.fleet.report import LIST_MAX, EngineReport, PartReport, SightReport, TierReport
from kveik.fleet.sharing import HERE
from kveik.supervise.messages import ProcessView
from kveik.watchdog.verdict import Verdict

_ARENA = "arena"


@dataclass(frozen=True, slots=True)
class Reading:
    """An engine's metrics at one time (monotonic seconds)."""

    at_s: float
    metrics: MetricsSnapshot


def engine_report(
    name: str,
    verdict: Verdict,
    *,
    before: Reading | None = None,
    now: Reading | None = None,
    view: ProcessView | None = None,
    resident_bytes: int | None = None,
    warnings: Sequence[str] = (),
    told: str = "",
) -> EngineReport:
    """One engine. ``told``: what is being done to it, put before why it is as it is."""
    gauges = _gauges(now.metrics) if now is not None else {}
    rates = _rates(before, now) if before is not None and now is not None else {}
    return EngineReport(
        engine_id=name,
        condition=verdict.condition.value,
        why="; ".join(filter(None, (told, verdict.why))),
        restarts=view.restarts if view is not None else 0,
        degraded=view.degraded if view is not None else "",
        resident_bytes=resident_bytes,
        warnings=tuple(warnings),
        **gauges,
        **rates,
    )


def part_reports(processes: Sequence[ProcessView]) -> tuple[PartReport, ...]:
    """All processes that a supervisor keeps."""
    return tuple(PartReport(name=p.name, kind=p.kind, state=p.state, restarts=p.restarts, why=p.why) for p in processes)


def tier_reports(
    state: Mapping[str, Any], before: Mapping[str, Any] | None = None, seconds: float = 0.0
) -> tuple[TierReport, ...]:
    """The tiers in an agent's state; rates if the state before and the seconds since then are given."""
    counters = state.get("counters", {})
    old = before.get("counters", {}) if before is not None else {}

    def rate(tier: str, direction: str) -> float | None:
        name = f"{tier}.{direction}_bytes"
        grown = counters.get(name, 0) - old.get(name, 0)
        same_agent = before is not None and before.get("agent_id") == state.get("agent_id")
        return grown / seconds if same_agent and seconds > 0 and grown >= 0 else None

    arena = state.get(_ARENA, {})
    first = TierReport(
        name=_ARENA,
        state="on",
        blocks=arena.get("blocks"),
        bytes=arena.get("payload_bytes"),
        bytes_max=arena.get("bytes"),
        read_bytes_s=rate(_ARENA, "get"),
        write_bytes_s=rate(_ARENA, "put"),
    )
    lower = (
        TierReport(
            name=tier["name"],
            state=_tier_state(tier),
            blocks=tier.get("blocks"),
            bytes=tier.get("bytes"),
            bytes_max=tier.get("capacity_bytes") or None,
            read_bytes_s=rate(tier["name"], "get"),
            write_bytes_s=rate(tier["name"], "put"),
            sights=_sights(tier.get("roll_call") or {}),
        )
        for tier in state.get("tiers", ())
    )
    return (first, *lower)


def _sights(roll_call: Mapping[str, Any]) -> tuple[SightReport, ...]:
    """Whom the agent sees in a shared tier; only of those that it does not see it is told why.

    Of very many nodes this one, and then those that are not seen.
    """
    entries = sorted(
        roll_call.get("nodes", ()),
        key=lambda entry: (entry["node"] != roll_call["node"], entry["presence"] == HERE),
    )
    return tuple(
        SightReport(
            node=entry["node"], presence=entry["presence"], told="" if entry["presence"] == HERE else entry["told"]
        )
        for entry in entries[: LIST_MAX["sights"]]
    )


def _tier_state(tier: Mapping[str, Any]) -> str:
    if tier.get("state", "ready") != "ready":
        return str(tier["state"])
    if tier.get("fence"):
        return f"fenced by its probe: {tier['fence']}"
    if tier.get("breaker", "closed") != "closed":
        return f"left out after failures (breaker {tier['breaker']})"
    return "read-only" if tier.get("read_only") else "on"


def _gauges(metrics: MetricsSnapshot) -> dict[str, Any]:
    gauges: dict[str, Any] = {}
    for field, metric, kind in (
        ("running", Metric.RUNNING, int),
        ("waiting", Metric.WAITING, int),
        ("kv_use", Metric.CACHE_USAGE, float),
    ):
        if not metrics.has(metric):
            continue
        try:
            gauges[field] = kind(metrics.total(metric))
        except EngineError:  # not a finite number
            continue
    ranks = len(metrics.samples.get(Metric.CACHE_USAGE.value, ()))
    if ranks > 1 and "kv_use" in gauges:
        gauges["kv_use"] /= ranks
    return gauges


def _rates(before: Reading, now: Reading) -> dict[str, Any]:
    seconds = now.at_s - before.at_s
    try:
        grown = {metric: now.metrics.total(metric) - before.metrics.total(metric) for metric in _COUNTERS}
        sources = {
            source: now.metrics.total(Metric.PROMPT_TOKENS_BY_SOURCE, source=source)
            - before.metrics.total(Metric.PROMPT_TOKENS_BY_SOURCE, source=source)
            for source in ("local_cache_hit", "external_kv_transfer")
        }
    except EngineError:
        return {}
    if seconds <= 0 or min(grown.values()) < 0 or min(sources.values()) < 0:
        return {}
    prompt = grown[Metric.PROMPT_TOKENS]
    return {
        "prompt_tokens_s": prompt / seconds,
        "output_tokens_s": grown[Metric.OUTPUT_TOKENS] / seconds,
        "local_hit_share": _share(sources["local_cache_hit"], prompt),
        "external_hit_share": _share(sources["external_kv_transfer"], prompt),
        "ttft_s": _share(grown[Metric.TTFT_SUM_S], grown[Metric.TTFT_COUNT]),
        "acceptance": _share(grown[Metric.ACCEPTED_TOKENS], grown[Metric.DRAFT_TOKENS]),
    }


_COUNTERS = (
    Metric.PROMPT_TOKENS,
    Metric.OUTPUT_TOKENS,
    Metric.TTFT_SUM_S,
    Metric.TTFT_COUNT,
    Metric.DRAFT_TOKENS,
    Metric.ACCEPTED_TOKENS,
)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
