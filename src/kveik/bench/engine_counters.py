"""The engines behind a measured address: their own counters before, during and after a run.

What they count beyond the requests of the run is somebody else's traffic, and a counter that falls is a restart.
"""

import itertools
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from kveik.engine.client import EngineClient
from kveik.engine.metrics import Metric, MetricsSnapshot, TokenEvidence, parse_metrics, token_evidence
from kveik.errors import ConfigError, EngineError, FleetError
from kveik.fleet.client import FleetClient
from kveik.verify.settle import QUIET_S

LOOK_S = 1.0
_POLL_S = 0.1
#: What a look reads; the rest of a page of metrics would only cost this client time.
_LOOKED_AT = re.compile(
    r"^(?:process_start_time_seconds|vllm:prompt_tokens_total|vllm:generation_tokens_total)[{ ].*$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Look:
    """One look at an engine: when its process began (0: it does not say), and its tokens since then."""

    began_s: float
    prompt_tokens: float
    answer_tokens: float


@dataclass(frozen=True, slots=True)
class Counted:
    """What all engines counted during a run. ``evidence`` has their prompt tokens by source.

    ``restarts`` says of engines how they are not the same as before. ``busy_before``: requests of others at the start.
    ``unanswered``: looks that got no answer, of ``looks``. ``sourced``: whether the engines say where tokens came from.
    """

    engines: Sequence[str] = ()
    evidence: TokenEvidence = field(default_factory=TokenEvidence)
    answer_tokens: int = 0
    restarts: Sequence[str] = ()
    busy_before: int = 0
    looks: int = 0
    unanswered: int = 0
    sourced: bool = False


def engines_behind(url: str, api_key: str = "") -> list[str]:
    """The addresses of the engines that answer for ``url``: those of a Kveik router, or itself where it is an engine.

    Empty where neither is so, or where one of them cannot be reached from here: then only what answers say about
    themselves is known.
    """
    try:
        shown = FleetClient(url, token=lambda: api_key).traffic()["engines"]
        engines = sorted(str(engine["url"]) for engine in shown)
    except (FleetError, ConfigError, LookupError, TypeError):
        engines = [url]
    return engines if all(map(_has_counters, engines)) else []


def _has_counters(url: str) -> bool:
    try:
        return EngineClient(url, read_timeout_s=10.0).metrics().has(Metric.PROMPT_TOKENS)
    except EngineError:
        return False


def restart_in(looks: Sequence[Look]) -> str:
    """How these looks at one engine show that it was restarted; empty if they do not."""
    for earlier, later in itertools.pairwise(looks):
        if earlier.began_s != later.began_s:
            return "its process began anew"
        if later.prompt_tokens < earlier.prompt_tokens or later.answer_tokens < earlier.answer_tokens:
            return "its counters began anew"
    return ""


class EngineWatch:
    """Looks at engines while the block lasts. A context manager."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._clients = {url: EngineClient(url, read_timeout_s=10.0) for url in urls}
        self._before: Mapping[str, MetricsSnapshot] = {}
        self._looks: dict[str, list[Look]] = {url: [] for url in urls}
        self._looked = self._unanswered = 0
        self._rested = True
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="looks", daemon=True)

    def rest(self, patience_s: float) -> bool:
        """Wait until no engine has requests, or blocks that it still saves; whether that was so in time."""
        self._rested = self._rests(patience_s)
        return self._rested

    def _rests(self, patience_s: float) -> bool:
        until_s = time.monotonic() + patience_s
        quiet_since_s = time.monotonic()
        while True:
            now_s = time.monotonic()
            if any(_is_busy(client) for client in self._clients.values()):
                quiet_since_s = now_s
            elif now_s - quiet_since_s >= QUIET_S or not self._clients:
                return True
            if now_s > until_s:
                return False
            time.sleep(_POLL_S)

    def __enter__(self) -> Self:
        """Raises :class:`EngineError` where an engine shows no counters."""
        self._before = {url: client.metrics() for url, client in self._clients.items()}
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def counted(self, prompt_tokens: int, patience_s: float) -> Counted:
        """What was counted, once it holds so many prompt tokens: engines count a moment after they answer."""
        until_s = time.monotonic() + patience_s
        while True:
            after, restarts = self._after()
            counted = self._sum(after, restarts)
            enough = counted.evidence.prompt >= prompt_tokens and not any(one.busy for one in after.values())
            if enough or restarts or not self._clients or time.monotonic() > until_s:
                return counted
            time.sleep(_POLL_S)

    def _after(self) -> tuple[dict[str, MetricsSnapshot], list[str]]:
        """What engines show now, and how some are not as before: their counters say nothing about the run."""
        after, restarts = {}, []
        for url, client in self._clients.items():
            try:
                snapshot = client.metrics()
                token_evidence(self._before[url], snapshot)
            except EngineError as error:
                restarts.append(f"{url}: {error}")
                continue
            why = restart_in([_look(self._before[url]), *self._looks[url], _look(snapshot)])
            if why:
                restarts.append(f"{url}: {why}")
            else:
                after[url] = snapshot
        return after, restarts

    def _sum(self, after: Mapping[str, MetricsSnapshot], restarts: Sequence[str]) -> Counted:
        evidence, answers = TokenEvidence(), 0.0
        for url, snapshot in after.items():
            before = self._before[url]
            evidence += token_evidence(before, snapshot)
            answers += snapshot.total(Metric.OUTPUT_TOKENS) - before.total(Metric.OUTPUT_TOKENS)
        return Counted(
            engines=tuple(self._clients),
            evidence=evidence,
            answer_tokens=round(answers),
            restarts=tuple(restarts),
            # After a rest it can only be a probe that comes just now.
            busy_before=0 if self._rested else sum(snapshot.busy for snapshot in self._before.values()),
            looks=self._looked,
            unanswered=self._unanswered,
            sourced=bool(after) and all(one.has(Metric.PROMPT_TOKENS_BY_SOURCE) for one in after.values()),
        )

    def _look_on(self) -> None:
        while not self._over.wait(LOOK_S):
            for url, client in self._clients.items():
                self._looked += 1
                try:
                    lines = _LOOKED_AT.findall(client.metrics_text())
                    self._looks[url].append(_look(parse_metrics("\n".join(lines) + "\n")))
                except EngineError:
                    self._unanswered += 1


def _look(snapshot: MetricsSnapshot) -> Look:
    return Look(
        snapshot.total(Metric.PROCESS_START_S),
        snapshot.total(Metric.PROMPT_TOKENS),
        snapshot.total(Metric.OUTPUT_TOKENS),
    )


def _is_busy(client: EngineClient) -> bool:
    """An engine that does not answer is none that rests: the run will say what is wrong with it."""
    try:
        snapshot = client.metrics()
    except EngineError:
        return True
    return bool(snapshot.busy or snapshot.total(Metric.KVEIK_PINNED_BLOCKS))
