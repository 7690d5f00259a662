"""The watchdog's eyes on one engine: one look, one :class:`~kveik.watchdog.verdict.Sample`. A look never waits.

Probe and metrics are asked for on threads; a look takes what has come in since the last one and sends the next.
Look about five times in a probe period; probes are sent once in a period all the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.config_fleet import WatchdogSettings
from kveik.engine.client import EngineClient
from kveik.engine.device_tools import DeviceUse
from kveik.engine.metrics import Metric, MetricsSnapshot
from kveik.errors import EngineError
from kveik.watchdog.errand import Errand
from kveik.watchdog.leaks import Vitals
from kveik.watchdog.neighbour import Neighbour
from kveik.watchdog.probe import PROMPT, Prober, ProbeResult
from kveik.watchdog.processes import ProcessReader
from kveik.watchdog.reference import References
from kveik.watchdog.verdict import Counters, Probed, ProcessFacts, RankCounters, Sample

#: Looks in a probe period that :func:`look_period_s` proposes.
LOOKS = 5
#: Metrics are read that seldom while no probe waits: writing and reading them costs an engine and us 30 ms.
READ_LOOKS = 2
#: A probe that waited for so many deadlines is given up, so that another one can be sent: an engine that hangs
#: gathers one in a minute.
GIVE_UP_DEADLINES = 12
#: What a probe that took longer spent otherwise than by itself: in the queue, or in a step with others' prompts.
PROBE_ALONE_MAX_S = 1.0


def look_period_s(settings: WatchdogSettings) -> float:
    """How often to look."""
    return settings.probe_period_s / LOOKS


class Eyes:
    """Looks at one engine. For one thread; ``references`` may be shared with the eyes of other engines."""

    def __init__(
        self,
        name: str,
        url: str,
        settings: WatchdogSettings,
        references: References,
        *,
        api_key: str = "",
        devices: Callable[[], DeviceUse] = DeviceUse,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.name = name
        self.metrics: MetricsSnapshot | None = None  # the last that was read
        self._settings = settings
        self._references = references
        self._clock = clock
        self._url, self._api_key = url, api_key
        self._client = EngineClient(url, read_timeout_s=settings.probe_deadline_s, api_key=api_key)
        self._processes = ProcessReader()
        self._neighbour = Neighbour(url)
        self._devices = devices
        self._pids: frozenset[int] = frozenset()
        self._number = 0
        self.restarted()

    def restarted(self) -> None:
        """The engine was started anew: forget what was asked of the old one, and what it said."""
        self._probe: Errand[ProbeResult] = Errand(f"probe-{self.name}")
        self._reading: Errand[MetricsSnapshot | None] = Errand(f"metrics-{self.name}")
        self._last: ProbeResult | None = None
        self._rank = ""
        self._ranks: list[str] = []
        self._resident_bytes: float | None = None
        self._answered, self._took_s = 0, 0.0  # of probes
        self._plain = False
        self._due_s = self._read_due_s = self._clock.monotonic()
        patience_s = GIVE_UP_DEADLINES * self._settings.probe_deadline_s
        self._prober = Prober(self._url, patience_s=patience_s, api_key=self._api_key)
        self._references.forget(self.name)

    def hurry(self) -> None:
        """Send the next probe with the next look: an engine that starts is asked oftener."""
        self._due_s = min(self._due_s, self._clock.monotonic())

    def begin_plainly(self) -> None:
        """Ask for no log probabilities for now: the first ones take an engine seconds, since it compiles."""
        self._plain = True

    def look_closely(self) -> None:
        """Ask for log probabilities from now on."""
        self._plain = False

    def look(self, pids: Sequence[int] | None) -> Sample:
        """What there is to see now.

        ``pids``: the engine's processes on this machine, leader first; empty: none is left; None: its keeper does not
        tell them. Then they are looked for.
        """
        now_s = self._clock.monotonic()
        if pids is None:
            pids = self._neighbour.pids(now_s)
        self._pids = frozenset(pids or ())
        counters = self._counters()
        self._take_probe()
        processes = None if pids is None else self._processes.read(pids)
        self._resident_bytes = None if processes is None else float(processes.resident_bytes)
        sample = self._sample(now_s, counters, processes)
        waits = self._probe.age_s(now_s) >= look_period_s(self._settings)
        if not self._reading.away and (waits or now_s >= self._read_due_s):
            self._read_due_s = now_s + READ_LOOKS * look_period_s(self._settings)
            self._reading.begin(self._read_metrics, now_s)
        if not self._probe.away and now_s >= self._due_s:
            self._send_probe(now_s)
        return sample

    def vitals(self) -> Vitals:
        """What the engine uses and how it has served, by the last readings; take it once in a VITALS_PERIOD_S."""
        now_s, snapshot, device_bytes = self._clock.monotonic(), self.metrics, self._devices().of(self._pids)
        used = Vitals(now_s, self._resident_bytes, None if device_bytes is None else float(device_bytes))
        if snapshot is None:
            return used
        try:
            return vitals_of(snapshot, used, self._answered, self._took_s)
        except EngineError:
            return used

    def device_limit_bytes(self) -> float | None:
        """What the engine could have at most of the devices that it uses; None if that is not known."""
        return self._devices().most_for(self._pids)

    def _sample(self, now_s: float, counters: Counters | None, processes: ProcessFacts | None) -> Sample:
        away, last = self._probe.away, self._last
        return Sample(
            at_s=now_s,
            probe=None if away or last is None else last.probed,
            number=self._number,
            probe_age_s=self._probe.age_s(now_s),
            probe_rank=self._rank if away else "",
            detail="" if away or last is None else last.detail,
            counters=counters,
            processes=processes,
        )

    def _counters(self) -> Counters | None:
        """What metrics said since the last look."""
        snapshot = self._reading.take()
        if snapshot is None:
            return None
        self.metrics = snapshot
        counters = counters_of(snapshot)
        self._ranks = sorted(counters.per_rank) if counters is not None and len(counters.per_rank) > 1 else []
        return counters

    def _read_metrics(self) -> MetricsSnapshot | None:
        try:
            return self._client.metrics()
        except EngineError:
            return None

    def _send_probe(self, now_s: float) -> None:
        self._due_s = now_s + self._settings.probe_period_s
        self._number += 1
        rank = self._rank = self._ranks[self._number % len(self._ranks)] if self._ranks else ""
        prober, plain = self._prober, self._plain
        self._probe.begin(lambda: prober.ask(rank, plain=plain), now_s)

    def _take_probe(self) -> None:
        """Take what became of a probe. A wrong answer is asked for again at once."""
        result = self._probe.take()
        if result is None:
            return
        self._last = self._judged(result)
        if self._last.probed is Probed.WRONG:
            self._due_s = self._clock.monotonic()
        elif self._last.probed is Probed.REFUSED:
            self._references.forget(self.name)

    def _judged(self, result: ProbeResult) -> ProbeResult:
        """The result, WRONG if its answer is not the known one."""
        if result.reply is None:
            return result
        self._answered += 1
        self._took_s += min(result.took_s, PROBE_ALONE_MAX_S)
        namespace = self.metrics.namespace if self.metrics is not None else ""
        question = f"{result.model} ({result.way})"
        judgement = self._references.judge(self.name, result.reply, question=question, namespace=namespace)
        if not judgement.right:
            return ProbeResult(Probed.WRONG, judgement.why, result.reply, result.took_s, result.model, result.way)
        detail = f"{judgement.why}, {result.detail}"
        return ProbeResult(Probed.RIGHT, detail, result.reply, result.took_s, result.model, result.way)


def counters_of(snapshot: MetricsSnapshot) -> Counters | None:
    """The counters in a reading of vLLM's metrics; None where there are none, or none that are numbers."""
    if not snapshot.has(Metric.OUTPUT_TOKENS):
        return None
    try:
        steps, running, waiting = (
            snapshot.series(metric, "engine") for metric in (Metric.ITERATIONS, Metric.RUNNING, Metric.WAITING)
        )
        return Counters(
            prompt_tokens=snapshot.total(Metric.PROMPT_TOKENS),
            output_tokens=snapshot.total(Metric.OUTPUT_TOKENS),
            iterations=sum(steps.values()),
            running=int(sum(running.values())),
            waiting=int(sum(waiting.values())),
            asleep=snapshot.series(Metric.SLEEP_STATE, "sleep_state").get("awake", 1.0) == 0,
            per_rank={
                rank: RankCounters(count, int(running.get(rank, 0) + waiting.get(rank, 0)))
                for rank, count in steps.items()
            },
        )
    except EngineError:
        return None


def vitals_of(snapshot: MetricsSnapshot, used: Vitals, probes: int, probes_s: float) -> Vitals:
    """``used`` and what a reading of vLLM's metrics says, without the ``probes`` that took ``probes_s`` in all.

    Raises :class:`EngineError` for metrics that are no finite numbers.
    """
    idle = not snapshot.busy and snapshot.has(Metric.CACHE_USAGE)
    served_s = snapshot.total(Metric.TTFT_SUM_S) - snapshot.total(Metric.QUEUE_SUM_S) - probes_s
    return replace(
        used,
        kv_share=max(snapshot.series(Metric.CACHE_USAGE, "engine").values(), default=None) if idle else None,
        prompt_tokens=max(0.0, snapshot.total(Metric.PROMPT_TOKENS) - probes * len(PROMPT)),
        ttft_sum_s=max(0.0, served_s),
        ttft_count=max(0.0, snapshot.total(Metric.TTFT_COUNT) - probes),
        draft_tokens=snapshot.total(Metric.DRAFT_TOKENS),
        accepted_tokens=snapshot.total(Metric.ACCEPTED_TOKENS),
    )
