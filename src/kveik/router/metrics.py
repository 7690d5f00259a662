"""The router's Prometheus metrics: one table of names, plain counts on the way, text when asked.

A finished request costs a few additions to numbers in dicts and lists; Prometheus' own objects are
made when somebody scrapes, of a copy of the counts, so that any thread can make them while counting
goes on. Labels are bounded: a model's name becomes one only after an engine served it (a client may
ask for any name), and engines that left are forgotten when there are many.
"""

import copy
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from kveik.breaker import CLOSED, HALF_OPEN, OPEN
from kveik.router.records import RequestRecord
from kveik.telemetry.metrics import MetricRow

PREFIX = "kveik_router_"
OTHER = "other"
MODELS_MAX = 512
ENGINES_MAX = 256

ADDED_BUCKETS_S = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1)
TTFT_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
DURATION_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)

REQUESTS = MetricRow("requests", "Finished requests", ("model", "engine", "outcome", "status"))
CHOICES = MetricRow("choices", "Requests sent to an engine, by why it was chosen", ("reason",))
RETRIES = MetricRow("retries", "Attempts after the first one", ("model",))
RESUMED = MetricRow("resumed_streams", "Times that another engine went on with a stream", ("model",))
EXPECTED = MetricRow("expected_cached_tokens", "Prompt tokens expected to be cached where sent", ("model",))
CACHED = MetricRow("cached_tokens", "Prompt tokens that were cached, of the same requests", ("model",))
MISSED = MetricRow("expected_tokens_missed", "Tokens expected to be cached that were not", ("model",))
PROMPT = MetricRow("prompt_tokens", "Prompt tokens of answered requests, as engines counted them", ("model",))
COMPLETION = MetricRow("completion_tokens", "Generated tokens, as engines counted them", ("model",))
CUTS = MetricRow("cut_answers", "Answers that began and were not ended, by whose fault it was", ("model", "outcome"))
REFUSED = MetricRow("refused", "Requests that the gate refused: keys, rates, places", ("reason",))
RETRIES_REFUSED = MetricRow("retries_refused", "Retries that were not made because the retry budget was used up")
LINES_DROPPED = MetricRow("access_lines_dropped", "Access lines lost because they could not be written in time")
LOOKED_AT = MetricRow("prefix_requests_looked_at", "Answered requests whose prompts were compared with earlier ones")
PREFIX_LOST = MetricRow(
    "prefix_tokens_lost", "Prompt tokens that stood behind something that changed, of those", ("model", "kind")
)
COUNTERS = (
    REQUESTS, CHOICES, RETRIES, RESUMED, EXPECTED, CACHED, MISSED, PROMPT, COMPLETION, CUTS, REFUSED, RETRIES_REFUSED,
    LINES_DROPPED, LOOKED_AT, PREFIX_LOST,
)  # fmt: skip

TTFT = MetricRow("time_to_first_token_seconds", "From the request to the first byte of a stream", ("model",))
DURATION = MetricRow("request_duration_seconds", "From the request to the end of its answer", ("model",))
ADDED = MetricRow("added_seconds", "The router's own part of the time to the first byte")
HISTOGRAMS = (TTFT, DURATION, ADDED)

IN_FLIGHT = MetricRow("in_flight", "Requests that are being answered")
WAITING = MetricRow("waiting", "Requests that wait for a place")
INDEX_BLOCKS = MetricRow("prefix_index_blocks", "Prefix blocks in the index")
INDEX_BYTES = MetricRow("prefix_index_bytes", "Memory of the prefix index")
QUARANTINED = MetricRow("quarantined_requests", "Requests that are refused because engines died with them")
ENGINE_STATE = MetricRow("engine_state", "1 for the state that an engine is in", ("engine", "state"))
ENGINE_BREAKER = MetricRow("engine_breaker", "1 for the state of an engine's breaker", ("engine", "state"))
ENGINE_IN_FLIGHT = MetricRow("engine_in_flight", "Requests at an engine", ("engine",))
ENGINE_WAITING = MetricRow("engine_waiting_tokens", "Prompt tokens that an engine still has to compute", ("engine",))
ENGINE_SHARE = MetricRow("engine_share", "Part of a full engine's load that an engine may get now", ("engine",))
ENGINE_EXACT = MetricRow("engine_exact", "1 if it is known exactly what an engine holds", ("engine",))
GAUGES = (
    IN_FLIGHT, WAITING, INDEX_BLOCKS, INDEX_BYTES, QUARANTINED, ENGINE_STATE, ENGINE_BREAKER, ENGINE_IN_FLIGHT,
    ENGINE_WAITING, ENGINE_SHARE, ENGINE_EXACT,
)  # fmt: skip

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
BREAKER_STATES = (CLOSED, OPEN, HALF_OPEN)


@dataclass(frozen=True, slots=True)
class EngineNow:
    """One engine when somebody scrapes."""

    name: str
    state: str
    breaker: str
    in_flight: int
    waiting_tokens: int
    share: float
    exact: bool = False


@dataclass(frozen=True, slots=True)
class RouterNow:
    """The router when somebody scrapes: what is not counted request by request."""

    engines: tuple[EngineNow, ...] = ()
    in_flight: int = 0
    waiting: int = 0
    prefix_index_blocks: int = 0
    prefix_index_bytes: int = 0
    quarantined: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    retries_refused: int = 0
    access_lines_dropped: int = 0
    prefix_looked_at: int = 0
    prefix_lost: Mapping[tuple[str, str], int] = field(default_factory=dict)


class Histogram:
    """Counts by bucket, the last one for what is beyond all bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def copy(self) -> "Histogram":
        """The same counts, counted on by nobody."""
        copied = Histogram(self.bounds)
        copied.counts, copied.total = self.counts.copy(), self.total
        return copied

    def cumulative(self) -> list[tuple[str, float]]:
        """Counts up to each bound, as Prometheus wants them."""
        running, rows = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            running += count
            rows.append((bound, float(running)))
        return rows


class ModelCounts:
    """What is counted of one model."""

    __slots__ = (
        "cached", "completion", "cuts", "duration", "expected", "missed", "prompt", "requests", "resumed", "retries",
        "ttft",
    )  # fmt: skip

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str, int], int] = {}  # engine, outcome, status class
        self.cuts: dict[str, int] = {}
        self.retries = self.resumed = self.expected = self.cached = self.missed = self.prompt = self.completion = 0
        self.ttft = Histogram(TTFT_BUCKETS_S)
        self.duration = Histogram(DURATION_BUCKETS_S)

    def copy(self) -> "ModelCounts":
        """The same counts, counted on by nobody."""
        copied = copy.copy(self)
        copied.requests, copied.cuts = self.requests.copy(), self.cuts.copy()
        copied.ttft, copied.duration = self.ttft.copy(), self.duration.copy()
        return copied


class RouterMetrics(Collector):
    """A listener that counts finished requests, and a collector that shows the counts."""

    def __init__(self, now: Callable[[], RouterNow] = RouterNow) -> None:
        """``now`` gives what is true at the moment of a scrape."""
        self._now = now
        self._models: dict[str, ModelCounts] = {}
        self._choices: dict[str, int] = {}
        self._added = Histogram(ADDED_BUCKETS_S)

    def __call__(self, record: RequestRecord) -> None:
        """Count one finished request."""
        engine = record.engine
        counts = self._models.get(record.model)
        if counts is None:
            counts = self._counts_of(record)
        key = (engine, record.outcome, record.status // 100)
        counts.requests[key] = counts.requests.get(key, 0) + 1
        if not engine:
            return
        self._choices[record.reason] = self._choices.get(record.reason, 0) + 1
        if record.attempts > 1:
            counts.retries += record.attempts - 1
            counts.resumed += record.resumed
        if record.prompt_tokens >= 0:
            self._count_tokens(counts, record)
        counts.duration.add(record.total_s)
        if record.first_byte_s >= 0:
            if record.stream:
                counts.ttft.add(record.first_byte_s)
            if record.added_s >= 0:
                self._added.add(record.added_s)
        if record.cut:
            counts.cuts[record.outcome] = counts.cuts.get(record.outcome, 0) + 1

    def _count_tokens(self, counts: ModelCounts, record: RequestRecord) -> None:
        counts.prompt += record.prompt_tokens
        if record.completion_tokens > 0:
            counts.completion += record.completion_tokens
        real = record.cached_tokens
        if real >= 0:  # only where both are known, so that the sums can be compared
            expected = record.expected_cached_tokens
            counts.cached += real
            counts.expected += expected
            if expected > real:
                counts.missed += expected - real

    def _counts_of(self, record: RequestRecord) -> ModelCounts:
        served = record.engine and len(self._models) < MODELS_MAX
        name = record.model if served else OTHER
        counts = self._models.get(name)
        if counts is None:
            counts = self._models[name] = ModelCounts()
        return counts

    def scraped(self) -> "Scrape":
        """The counts now, copied: a fraction of a millisecond even for many engines and models."""
        now = self._now()
        self._forget({engine.name for engine in now.engines})
        models = {name: counts.copy() for name, counts in self._models.items()}
        return Scrape(now, models, self._choices.copy(), self._added.copy())

    def collect(self) -> Iterator[Family]:
        """All metrics now; call it where the counting is done."""
        yield from self.scraped().collect()

    def _forget(self, present: set[str]) -> None:
        """Drop the series of engines that left, once there are many: names may change at each of their starts."""
        seen = {key[0] for counts in self._models.values() for key in counts.requests}
        if len(seen) <= ENGINES_MAX:
            return
        for counts in self._models.values():
            counts.requests = {key: count for key, count in counts.requests.items() if not key[0] or key[0] in present}


class Scrape(Collector):
    """What was counted until somebody scraped. It shares nothing with what is counted on: any thread may read it."""

    def __init__(
        self, now: RouterNow, models: Mapping[str, ModelCounts], choices: Mapping[str, int], added: Histogram
    ) -> None:
        """``models`` by their names, ``choices`` by their reasons."""
        self._now = now
        self._models = models
        self._choices = choices
        self._added = added

    def collect(self) -> Iterator[Family]:
        """All metrics as they were then."""
        now = self._now
        yield from self._request_counters()
        yield _counter(CHOICES, (((reason,), count) for reason, count in self._choices.items()))
        yield _counter(REFUSED, (((reason,), count) for reason, count in now.refused.items()))
        yield _counter(RETRIES_REFUSED, [((), now.retries_refused)])
        yield _counter(LINES_DROPPED, [((), now.access_lines_dropped)])
        yield _counter(LOOKED_AT, [((), now.prefix_looked_at)])
        yield _counter(PREFIX_LOST, now.prefix_lost.items())
        models = self._models.items()
        yield _histogram(TTFT, (((model,), counts.ttft) for model, counts in models))
        yield _histogram(DURATION, (((model,), counts.duration) for model, counts in models))
        yield _histogram(ADDED, [((), self._added)])
        yield from _gauges(now)

    def _request_counters(self) -> Iterator[CounterMetricFamily]:
        models = self._models.items()
        yield _counter(
            REQUESTS,
            (
                ((model, engine, outcome, f"{status}xx" if status else "none"), count)
                for model, counts in models
                for (engine, outcome, status), count in counts.requests.items()
            ),
        )
        yield _counter(RETRIES, (((model,), counts.retries) for model, counts in models))
        yield _counter(RESUMED, (((model,), counts.resumed) for model, counts in models))
        yield _counter(EXPECTED, (((model,), counts.expected) for model, counts in models))
        yield _counter(CACHED, (((model,), counts.cached) for model, counts in models))
        yield _counter(MISSED, (((model,), counts.missed) for model, counts in models))
        yield _counter(PROMPT, (((model,), counts.prompt) for model, counts in models))
        yield _counter(COMPLETION, (((model,), counts.completion) for model, counts in models))
        yield _counter(CUTS, (((model, who), count) for model, counts in models for who, count in counts.cuts.items()))


def all_rows() -> Iterable[MetricRow]:
    """Every metric of the router; the process's own (``process_...``) come on top."""
    return (*COUNTERS, *HISTOGRAMS, *GAUGES)


def _gauges(now: RouterNow) -> Iterator[GaugeMetricFamily]:
    for row, value in (
        (IN_FLIGHT, now.in_flight),
        (WAITING, now.waiting),
        (INDEX_BLOCKS, now.prefix_index_blocks),
        (INDEX_BYTES, now.prefix_index_bytes),
        (QUARANTINED, now.quarantined),
    ):
        yield _gauge(row, [((), value)])
    engines = now.engines
    yield _gauge(ENGINE_STATE, (((engine.name, engine.state), 1) for engine in engines))
    yield _gauge(
        ENGINE_BREAKER,
        (((engine.name, state), engine.breaker == state) for engine in engines for state in BREAKER_STATES),
    )
    yield _gauge(ENGINE_IN_FLIGHT, (((engine.name,), engine.in_flight) for engine in engines))
    yield _gauge(ENGINE_WAITING, (((engine.name,), engine.waiting_tokens) for engine in engines))
    yield _gauge(ENGINE_SHARE, (((engine.name,), engine.share) for engine in engines))
    yield _gauge(ENGINE_EXACT, (((engine.name,), engine.exact) for engine in engines))


_Samples = Iterable[tuple[tuple[str, ...], float]]


def _counter(row: MetricRow, samples: _Samples) -> CounterMetricFamily:
    family = CounterMetricFamily(PREFIX + row.name, row.help, labels=row.labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _gauge(row: MetricRow, samples: _Samples) -> GaugeMetricFamily:
    family = GaugeMetricFamily(PREFIX + row.name, row.help, labels=row.labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _histogram(row: MetricRow, samples: Iterable[tuple[tuple[str, ...], Histogram]]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(PREFIX + row.name, row.help, labels=row.labels)
    for labels, histogram in samples:
        family.add_metric(labels, buckets=histogram.cumulative(), sum_value=histogram.total)
    return family
