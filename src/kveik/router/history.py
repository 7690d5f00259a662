"""What the router sees of its traffic: counts an engine, figures of the last minute, and ten minutes of samples.

On a request's way this costs one append to a queue; counting is done in the router's ticks. Times to the first token
are counted in buckets that grow by a fifth, so a percentile is right within that. All of it is pure and bounded:
:data:`ROWS_MAX` rows, each written as JSON once, and as many engines as one router takes.
"""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate

import msgspec

from kveik.fleet.status import History, HistoryRow, Measured
from kveik.router.records import RequestListener, RequestRecord

#: A sample is taken so often, and its rates and percentiles are those of so many seconds before it.
SAMPLE_S, WINDOW_S = 3.0, 15.0
#: Figures of tables are those of so many seconds.
MEASURED_S = 60.0
ROWS_MAX = 200
ENGINES_MAX = 256
#: Requests that may end between two ticks, far more than a router manages; beyond that the oldest are not counted.
FINISHED_MAX = 1 << 17

#: Buckets of times to the first token: bounds from one millisecond to a quarter of an hour.
_PER_DOUBLING = 4
_BOUNDS_S = tuple(0.001 * 2 ** (n / _PER_DOUBLING) for n in range(20 * _PER_DOUBLING))
_FAULTS = frozenset({"engine", "network", "router", "overload"})


class Tally:
    """Counts of requests that ended; they only grow.

    ``cached`` and ``expected`` are tokens of prompts of which both are known, and which had ``compared`` tokens.
    ``in_flight``: sum of the requests that were in flight at so many ``looks``.
    """

    __slots__ = (
        "cached", "compared", "completion", "errors", "expected", "in_flight", "looks", "prompt", "requests", "retries",
        "ttft",
    )  # fmt: skip

    def __init__(self) -> None:
        self.requests = self.errors = self.retries = 0
        self.prompt = self.completion = self.compared = self.cached = self.expected = 0
        self.in_flight = self.looks = 0
        self.ttft = [0] * (len(_BOUNDS_S) + 1)

    def count(self, record: RequestRecord) -> None:
        """Count one request that is over."""
        self.requests += 1
        if record.outcome in _FAULTS:
            self.errors += 1
        if record.attempts > 1:
            self.retries += record.attempts - 1
        if record.prompt_tokens > 0:
            self.prompt += record.prompt_tokens
            if record.cached_tokens >= 0:
                self.compared += record.prompt_tokens
                self.cached += record.cached_tokens
                self.expected += record.expected_cached_tokens
        if record.completion_tokens > 0:
            self.completion += record.completion_tokens
        if record.stream and record.first_byte_s >= 0:
            self.ttft[bisect_right(_BOUNDS_S, record.first_byte_s)] += 1

    def copy(self) -> "Tally":
        """As it is now."""
        other = Tally()
        for name in Tally.__slots__:
            setattr(other, name, getattr(self, name))
        other.ttft = list(self.ttft)
        return other


_NOTHING = Tally()


def measured(before: Tally | None, after: Tally, window_s: float) -> Measured:
    """What happened between two looks at the same counts, ``window_s`` apart."""
    old = before or _NOTHING
    ttft = [new - was for new, was in zip(after.ttft, old.ttft, strict=True)]
    compared = after.compared - old.compared
    span_s = max(1e-3, window_s)
    return Measured(
        window_s=round(window_s, 1),
        requests=after.requests - old.requests,
        requests_s=_short((after.requests - old.requests) / span_s),
        errors=after.errors - old.errors,
        retries=after.retries - old.retries,
        ttft_p50_s=percentile_s(ttft, 0.5),
        ttft_p95_s=percentile_s(ttft, 0.95),
        prompt_tokens_s=_short((after.prompt - old.prompt) / span_s),
        output_tokens_s=_short((after.completion - old.completion) / span_s),
        cached_share=_share(after.cached - old.cached, compared),
        expected_cached_share=_share(after.expected - old.expected, compared),
    )


def percentile_s(counts: Sequence[int], share: float) -> float | None:
    """The time below which that share of what the buckets hold lies; None where they hold nothing."""
    total = sum(counts)
    if not total:
        return None
    wanted = share * total
    sums = list(accumulate(counts))
    bucket = next(n for n, up_to in enumerate(sums) if up_to >= wanted and counts[n])
    if bucket == 0:
        return _BOUNDS_S[0]
    if bucket == len(_BOUNDS_S):
        return _short(_BOUNDS_S[-1])
    within = (wanted - (sums[bucket] - counts[bucket])) / counts[bucket]
    low, high = _BOUNDS_S[bucket - 1], _BOUNDS_S[bucket]
    return _short(low * (high / low) ** max(0.0, within))


class TrafficHistory:
    """Counts of one router, and samples of them. ``now_s`` is monotonic time."""

    def __init__(self, now_s: float) -> None:
        self._finished: deque[RequestRecord] = deque(maxlen=FINISHED_MAX)
        self._total = Tally()
        self._engines: dict[str, Tally] = {}
        looks = int(MEASURED_S / SAMPLE_S) + 1
        self._looks: deque[tuple[float, Tally, dict[str, Tally]]] = deque([(now_s, Tally(), {})], maxlen=looks)
        self._rows: deque[tuple[int, msgspec.Raw]] = deque(maxlen=ROWS_MAX)
        self._numbered = 0

    def __repr__(self) -> str:
        return (
            f"TrafficHistory({self._total.requests} requests at {len(self._engines)} engines, {len(self._rows)} rows)"
        )

    @property
    def listener(self) -> RequestListener:
        """What gets every finished request."""
        return self._finished.append

    def count(self) -> None:
        """Count what has ended since the last time."""
        finished = list(self._finished)
        self._finished.clear()  # the queue itself stays: its append is the listener
        for record in finished:
            self._total.count(record)
            if record.engine:
                self._tally(record.engine).count(record)

    def look(self, in_flight: Mapping[str, int]) -> None:
        """See how many requests are in flight at each engine; sampling shows the mean of all looks."""
        for name, requests in in_flight.items():
            tally = self._tally(name)
            tally.in_flight += requests
            tally.looks += 1

    def due(self, now_s: float) -> bool:
        """Whether it is time for a sample."""
        return now_s >= self._looks[-1][0] + SAMPLE_S

    def sample(
        self, now_s: float, at_s: float, engines: Collection[str], hit_shares: tuple[float | None, float | None]
    ) -> None:
        """Take a sample. ``at_s`` is wall time, ``engines`` are those there, ``hit_shares`` local and external ones."""
        self.count()
        self._forget(engines)
        self._looks.append((now_s, self._total.copy(), {name: tally.copy() for name, tally in self._engines.items()}))
        before_s, before, before_of = self._look_at(now_s - WINDOW_S)
        figures = measured(before, self._total, now_s - before_s)
        self._numbered += 1
        row = HistoryRow(
            number=self._numbered,
            at_s=round(at_s, 1),
            requests_s=figures.requests_s,
            errors_s=_short(figures.errors / max(1e-3, now_s - before_s)),
            ttft_p50_s=figures.ttft_p50_s,
            ttft_p95_s=figures.ttft_p95_s,
            prompt_tokens_s=figures.prompt_tokens_s,
            output_tokens_s=figures.output_tokens_s,
            cached_share=figures.cached_share,
            expected_cached_share=figures.expected_cached_share,
            local_hit_share=hit_shares[0],
            external_hit_share=hit_shares[1],
            in_flight={name: _mean_in_flight(before_of.get(name), self._tally(name)) for name in engines},
        )
        self._rows.append((self._numbered, msgspec.Raw(msgspec.json.encode(row))))

    def of_engine(self, name: str, now_s: float) -> Measured:
        """What an engine did in the last minute."""
        at_s, _, engines = self._look_at(now_s - MEASURED_S)
        return measured(engines.get(name), self._engines.get(name, _NOTHING), now_s - at_s)

    def of_all(self, now_s: float) -> Measured:
        """What all of them did in the last minute."""
        at_s, total, _ = self._look_at(now_s - MEASURED_S)
        return measured(total, self._total, now_s - at_s)

    def document(self, since: int | None = 0) -> History:
        """The rows after number ``since``; all of them if that number has not been reached, after a restart.

        No rows if it is None.
        """
        rows: tuple[msgspec.Raw, ...] = ()
        if since is not None:
            first = since if since <= self._numbered else 0
            rows = tuple(row for number, row in self._rows if number > first)
        return History(sample_s=SAMPLE_S, window_s=WINDOW_S, rows=rows)

    def _look_at(self, at_s: float) -> tuple[float, Tally, dict[str, Tally]]:
        """The last look that was not after a time, or the first one."""
        found = self._looks[0]
        for look in self._looks:
            if look[0] <= at_s + SAMPLE_S / 2:
                found = look
        return found

    def _tally(self, name: str) -> Tally:
        tally = self._engines.get(name)
        if tally is None:
            tally = self._engines[name] = Tally()
        return tally

    def _forget(self, present: Collection[str]) -> None:
        """Names may change at each start of an engine."""
        if len(self._engines) > ENGINES_MAX:
            self._engines = {name: tally for name, tally in self._engines.items() if name in present}


def _mean_in_flight(before: Tally | None, after: Tally) -> float:
    old = before or _NOTHING
    return round((after.in_flight - old.in_flight) / max(1, after.looks - old.looks), 2)


def _share(part: int, whole: int) -> float | None:
    return round(min(1.0, max(0.0, part / whole)), 4) if whole > 0 else None


def _short(value: float) -> float:
    """Three digits that count: more would be noise, and bytes."""
    if not value:
        return 0.0
    return round(value, max(0, 3 - math.ceil(math.log10(abs(value)))))
