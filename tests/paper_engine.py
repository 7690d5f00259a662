"""Histories of looks at engines that only exist on paper: what they do is told second by second."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from kveik.config_fleet import WatchdogSettings
from kveik.watchdog.decide import history_s, judge
from kveik.watchdog.verdict import Condition, Counters, Probed, ProcessFacts, RankCounters, Sample, Verdict

SETTINGS = WatchdogSettings()
LOOK_S = SETTINGS.probe_period_s / 5
KEPT_LOOKS = round(history_s(SETTINGS) / LOOK_S)


@dataclass
class PaperEngine:
    """An engine that makes ``tokens_s`` and uses ``processors`` while it lives, and answers probes at once or never.

    ``unseen``: its processes are on another machine; ``mute``: it has no metrics. Change the fields between looks.
    """

    now_s: float = 1000.0
    tokens_s: float = 0.0
    steps_s: float = 0.0
    processors: float = 0.0
    starved: float = 0.0
    answer: Probed | None = Probed.RIGHT
    detail: str = ""
    unseen: bool = False
    mute: bool = False
    asleep: bool = False
    stopped: int = 0
    missing: str = ""
    requests: int = 0
    ranks: dict[str, RankCounters] = field(default_factory=dict)
    rank_processors: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.history: list[Sample] = []
        self.verdict = Verdict(Condition.STARTING, self.now_s, "just started")
        self._tokens = self._steps = self._used_s = self._starved_s = 0.0
        self._number = 0
        self._sent_s: float | None = None
        self._due_s = self.now_s
        self._ended: Probed | None = None
        self._per_rank_s: dict[str, float] = {}

    def look(self, settings: WatchdogSettings = SETTINGS, start_s: float = 1800.0) -> Verdict:
        """One look after ``LOOK_S``, judged."""
        self._pass(LOOK_S)
        if self._sent_s is not None and self.answer is not None:
            self._sent_s, self._ended = None, self.answer
            if self.answer in (Probed.RIGHT, Probed.WRONG):
                self._tokens += 4
                self._steps += 4
        self.history.append(self._sample())
        self.history = self.history[-KEPT_LOOKS:]
        self.verdict = judge(self.history, self.verdict, settings, start_s=start_s)
        if self._sent_s is None and self.now_s >= self._due_s:
            self._sent_s, self._due_s = self.now_s, self.now_s + settings.probe_period_s
            self._number += 1
        return self.verdict

    def looks(self, seconds: float, start_s: float = 1800.0) -> list[Condition]:
        """What it was judged to be during so many seconds, without repetitions in a row."""
        found: list[Condition] = []
        for _ in range(round(seconds / LOOK_S)):
            condition = self.look(start_s=start_s).condition
            if not found or found[-1] is not condition:
                found.append(condition)
        return found

    def until(self, condition: Condition, seconds: float) -> float:
        """Look until it is judged to be that; the seconds that took."""
        began_s = self.now_s
        while self.look().condition is not condition:
            assert self.now_s - began_s < seconds, f"still {self.verdict} after {seconds} s"
        return self.now_s - began_s

    def freeze(self) -> None:
        """As ``kill -STOP`` of its core, or a deadlock: nothing moves any more."""
        self.tokens_s = self.steps_s = self.processors = self.starved = 0.0
        self.answer = None

    def _pass(self, seconds: float) -> None:
        self.now_s += seconds
        self._tokens += self.tokens_s * seconds
        self._steps += self.steps_s * seconds
        self._used_s += self.processors * seconds
        self._starved_s += self.starved * seconds
        for rank, share in self.rank_processors.items():
            self._per_rank_s[rank] = self._per_rank_s.get(rank, 0.0) + share * seconds

    def _sample(self) -> Sample:
        age_s = 0.0 if self._sent_s is None else self.now_s - self._sent_s
        counters = Counters(0.0, self._tokens, self._steps, self.requests, 0, self.asleep, dict(self.ranks))
        processes = ProcessFacts(
            self._used_s, self._starved_s, dict(self._per_rank_s), self.stopped, self.missing, resident_bytes=1 << 30
        )
        return Sample(
            at_s=self.now_s,
            probe=None if self._sent_s is not None else self._ended,
            number=self._number,
            probe_age_s=age_s,
            detail=self.detail,
            counters=None if self.mute else counters,
            processes=None if self.unseen else processes,
        )


def ready_engine(**given: object) -> PaperEngine:
    """One that has answered for half a minute."""
    engine = PaperEngine(**given)  # type: ignore[arg-type]
    engine.looks(30)
    assert engine.verdict.condition is Condition.READY, engine.verdict
    return engine


def steps_of_ranks(engine: PaperEngine, moving: Callable[[str], bool], seconds: float) -> Iterator[Verdict]:
    """Looks during which the ranks that move make a step each time."""
    for _ in range(round(seconds / LOOK_S)):
        for rank, counters in engine.ranks.items():
            if moving(rank):
                engine.ranks[rank] = RankCounters(counters.iterations + 1, counters.requests)
        yield engine.look()
