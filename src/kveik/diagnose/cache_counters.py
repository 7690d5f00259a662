"""What an engine counted while one request ran, whichever connector it has. Pure.

vLLM itself counts where a prompt's tokens came from, and for how many of them it asked its connector. Only some
connectors count what lies between: what was stored, found, worth loading, and really loaded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from kveik.engine.metrics import Metric, MetricsSnapshot, grown, grown_by


class Connector(Enum):
    """Whose counters an engine exports beside vLLM's own."""

    KVEIK = "Kveik"
    OFFLOADING = "vLLM's OffloadingConnector"
    SIMPLE_OFFLOAD = "vLLM's SimpleCPUOffloadConnector"
    LMCACHE = "LMCache"
    SILENT = "none that counts for itself"


_PREFIXES: Mapping[Connector, str] = {
    Connector.KVEIK: "kveik_connector_",
    Connector.OFFLOADING: "vllm:kv_offload_",
    Connector.SIMPLE_OFFLOAD: "vllm:simple_kv_offload_",
    Connector.LMCACHE: "lmcache",
}
#: What else than Kveik counts what it stored, and in which unit. LMCache's server, MemCache and others count on
#: pages of their own.
_Row = tuple[Metric, Mapping[str, str], str]
_STORED: Sequence[_Row] = (
    (Metric.OFFLOAD_STORED_BYTES, {}, "bytes"),
    (Metric.SIMPLE_OFFLOAD_SAVES, {"outcome": "stored"}, "blocks"),
    (Metric.LMCACHE_STORED_TOKENS, {}, "tokens"),
    (Metric.LMCACHE_SERVER_WRITTEN, {}, "chunks"),
    (Metric.MEMCACHE_ALLOCATED, {}, "keys"),
)
_FOUND: Sequence[_Row] = (
    (Metric.LMCACHE_FOUND_TOKENS, {}, "tokens"),
    (Metric.LMCACHE_SERVER_FOUND_TOKENS, {}, "tokens"),
    (Metric.MEMCACHE_EXISTING, {}, "queries"),
)


@dataclass(frozen=True, slots=True)
class Amount:
    """So much of something; ``unit`` in the plural."""

    count: int
    unit: str

    def __str__(self) -> str:
        return f"{self.count:,} {self.unit}"


@dataclass(frozen=True, slots=True)
class KveikCounts:
    """What Kveik's connector counted. Tokens beyond the engine's own hits; blocks of all groups and ranks.

    ``lookups`` by outcome, ``choices`` by what was chosen, ``failures`` and ``dropped`` by reason. ``known_blocks``:
    found by lookups, usable or not; None for a connector that does not count it. ``serving`` and ``attached`` are
    None where it does not say.
    """

    asked: int = 0
    known_blocks: int | None = None
    found: int = 0
    allowed: int = 0
    used: int = 0
    lost: int = 0
    saved_blocks: int = 0
    skipped_blocks: int = 0
    lookups: Mapping[str, int] = field(default_factory=dict)
    choices: Mapping[str, int] = field(default_factory=dict)
    failures: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    serving: bool | None = None
    attached: bool | None = None

    @property
    def there_blocks(self) -> int:
        """Blocks that are in the shared cache after this: saved, or there before."""
        return self.saved_blocks + self.skipped_blocks


@dataclass(frozen=True, slots=True)
class Counts:
    """The difference of two readings. Tokens are prompt tokens.

    ``computed``, ``local`` (the engine's own cache) and ``external`` add up to ``prompt`` where vLLM tells them.
    ``queried``: for how many tokens vLLM asked its connector. ``stored`` and ``found`` are told by connectors other
    than Kveik's; None where nobody counts it.
    """

    prompt: int = 0
    computed: int = 0
    local: int = 0
    external: int = 0
    queried: int = 0
    kveik: KveikCounts | None = None
    stored: Amount | None = None
    found: Amount | None = None

    @property
    def used(self) -> int:
        """Tokens that were really taken from the shared cache, as far as anybody counts it."""
        return self.kveik.used if self.kveik is not None else self.external


def connector_of(snapshot: MetricsSnapshot) -> Connector:
    """The connector whose counters are there."""
    for connector, prefix in _PREFIXES.items():
        if any(name.startswith(prefix) for name in snapshot.samples):
            return connector
    return Connector.SILENT


def joined(snapshots: Sequence[MetricsSnapshot]) -> MetricsSnapshot:
    """Readings of several pages as one; where two have the same name, the first counts."""
    samples: dict[str, Mapping[frozenset[tuple[str, str]], float]] = {}
    for snapshot in snapshots:
        for name, series in snapshot.samples.items():
            samples.setdefault(name, series)
    return MetricsSnapshot(samples)


def counts_between(before: MetricsSnapshot, after: MetricsSnapshot) -> Counts:
    """What was counted between two readings of one engine.

    Raises :class:`~kveik.errors.EngineError` when a counter ran backwards: the engine was restarted meanwhile.
    """
    local = grown(before, after, Metric.PROMPT_TOKENS_BY_SOURCE, source="local_cache_hit")
    external = grown(before, after, Metric.PROMPT_TOKENS_BY_SOURCE, source="external_kv_transfer")
    prompt = grown(before, after, Metric.PROMPT_TOKENS)
    if not after.has(Metric.PROMPT_TOKENS_BY_SOURCE):  # older vLLM
        local = grown(before, after, Metric.LOCAL_HITS)
        external = grown(before, after, Metric.EXTERNAL_HITS)
    return Counts(
        prompt=prompt,
        computed=max(0, prompt - local - external),
        local=local,
        external=external,
        queried=grown(before, after, Metric.EXTERNAL_QUERIES),
        kveik=_kveik_between(before, after) if connector_of(after) is Connector.KVEIK else None,
        stored=_first_told(before, after, _STORED),
        found=_first_told(before, after, _FOUND),
    )


def _kveik_between(before: MetricsSnapshot, after: MetricsSnapshot) -> KveikCounts:
    known = Metric.KVEIK_KNOWN_BLOCKS
    return KveikCounts(
        asked=grown(before, after, Metric.KVEIK_TOKENS_ASKED),
        known_blocks=grown(before, after, known) if after.has(known) else None,
        found=grown(before, after, Metric.KVEIK_TOKENS_FOUND),
        allowed=grown(before, after, Metric.KVEIK_TOKENS_ALLOWED),
        used=grown(before, after, Metric.KVEIK_TOKENS_USED),
        lost=grown(before, after, Metric.KVEIK_TOKENS_LOST),
        saved_blocks=grown(before, after, Metric.KVEIK_SAVED_BLOCKS),
        skipped_blocks=grown(before, after, Metric.KVEIK_SAVE_SKIPPED),
        lookups=grown_by(before, after, Metric.KVEIK_LOOKUPS, "outcome"),
        choices=grown_by(before, after, Metric.KVEIK_LOAD_CHOICES, "choice"),
        failures=grown_by(before, after, Metric.KVEIK_LOAD_FAILURES, "reason"),
        dropped=grown_by(before, after, Metric.KVEIK_SAVE_DROPPED, "reason"),
        serving=_flag(after, Metric.KVEIK_SERVING),
        attached=_flag(after, Metric.KVEIK_ATTACHED),
    )


def _flag(snapshot: MetricsSnapshot, metric: Metric) -> bool | None:
    return snapshot.total(metric) > 0 if snapshot.has(metric) else None


def _first_told(before: MetricsSnapshot, after: MetricsSnapshot, rows: Sequence[_Row]) -> Amount | None:
    for metric, labels, unit in rows:
        if after.has(metric):
            return Amount(grown(before, after, metric, **labels), unit)
    return None
