"""The engine without a network: schedule, prefix cache, counters and one timer."""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Protocol

from kveik.config import SimEngineSettings
from kveik.simulate.answers import Answer
from kveik.simulate.behaviour import Behaviour, SimulatedConnector
from kveik.simulate.block_hashes import HashChain
from kveik.simulate.metrics import EngineMetrics, Gauges
from kveik.simulate.prefix_cache import Admission, CacheChange, PrefixCache
from kveik.simulate.schedule import NEVER_S, Schedule, Sequence
from kveik.simulate.tokenizer import TOKEN_BYTES

#: Timers of the loop are whole milliseconds; rounding up keeps them from coming too early and turning.
_GRAIN_S = 0.001


class Sink(Protocol):
    """Who asked."""

    answer: Answer

    def grown(self, tokens: int, last: bool) -> None:
        """So many more tokens are there now; ``last``: they are the last ones."""


class EngineCore:
    """Takes answers to make, and tells their sinks when tokens are there. Runs in one event loop.

    ``listener`` is told what comes into the prefix cache and leaves it. With ``shared``, a set of
    block keys, the engine has a connector and shares that cache with others that have the same set.
    """

    def __init__(
        self,
        settings: SimEngineSettings,
        loop: asyncio.AbstractEventLoop,
        listener: Callable[[CacheChange], None] | None = None,
        *,
        behaviour: Behaviour | None = None,
        shared: set[bytes] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.behaviour = behaviour or Behaviour(has_connector=False)
        self._connector: SimulatedConnector | None = None
        if shared is not None:
            self._connector = SimulatedConnector(shared, settings.block_tokens, self.behaviour)
        self.metrics = EngineMetrics(settings.model, settings.block_tokens, settings.cache_blocks)
        chain = HashChain(settings.hash_algorithm, settings.hash_seed) if listener else None
        self.cache = PrefixCache(settings.block_tokens, settings.cache_blocks, chain, listener)
        self._schedule = Schedule(settings.capacity, settings.prefill_tokens_s, settings.decode_s, self._admit)
        self._loop = loop
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = NEVER_S
        self._admissions: dict[Sequence, Admission] = {}
        self._stalled: set[Sequence] = set()
        self._blocks_in_use = 0
        self._on_again: list[Callable[[], None]] = []
        self.hung = False

    def submit(self, sequence: Sequence) -> None:
        """Begin an answer for the sink that owns ``sequence``. Where rates are infinite it is done on return."""
        self._schedule.submit(sequence, self._clock())
        self._advance()

    def abort(self, sequence: Sequence) -> None:
        """Stop an answer at once: nobody waits for it any more."""
        self._stalled.discard(sequence)
        if sequence.ended:
            return
        self._schedule.abort(sequence, self._clock())
        self._forget(sequence)
        self.metrics.finished["abort"] += 1
        self._advance()

    def stall(self, sequence: Sequence) -> None:
        """Count an answer that has stopped in its midst as running until it is aborted."""
        if not sequence.ended:
            self._schedule.abort(sequence, self._clock())
            self._forget(sequence)
            self._advance()
        self._stalled.add(sequence)

    def hang(self, hung: bool) -> None:
        """Make no token any more, or go on: all that was due meanwhile comes at once."""
        self.hung = hung
        self._advance()
        if not hung:
            waiting, self._on_again = self._on_again, []
            for go_on in waiting:
                go_on()

    def when_on(self, go_on: Callable[[], None]) -> None:
        """Call back when the engine hangs no longer."""
        self._on_again.append(go_on)

    @property
    def has_connector(self) -> bool:
        """Whether the engine shares a cache with others."""
        return self._connector is not None and self.behaviour.has_connector

    def gauges(self) -> Gauges:
        """What is true now."""
        schedule, cache = self._schedule, self.cache
        usage = min(1.0, self._blocks_in_use / self.settings.cache_blocks)
        running = schedule.running + len(self._stalled) + self.behaviour.busy
        return Gauges(running, schedule.waiting, usage, cache.queried_tokens, cache.hit_tokens)

    def metrics_text(self) -> str:
        """``/metrics`` in Prometheus text."""
        text = self.metrics.text(self.gauges())
        if self._connector is None or not self.has_connector:
            return text
        return text + "".join([f"{name} {value}\n" for name, value in self._connector.lines().items()])

    def admit(self, packed: bytes, salt: str = "") -> Admission:
        """Look a prompt up, store its blocks and count, as one step."""
        admission = self._look_up(packed, salt)
        self._count(len(packed) // TOKEN_BYTES, admission)
        return admission

    def _look_up(self, packed: bytes, salt: str) -> Admission:
        admission = self.cache.admit(packed, salt)
        if self._connector is not None and self.has_connector:
            local_blocks = admission.hit_tokens // self.settings.block_tokens
            prompt = len(packed) // TOKEN_BYTES
            admission.shared_tokens = self._connector.admit(admission.keys, prompt, local_blocks)
        return admission

    def _count(self, prompt_tokens: int, admission: Admission) -> None:
        metrics = self.metrics
        metrics.prompt_tokens += prompt_tokens
        metrics.cached_tokens += admission.hit_tokens
        metrics.shared_tokens += admission.shared_tokens
        metrics.foreign_tokens += self.behaviour.foreign_tokens

    def _admit(self, sequence: Sequence) -> int:
        """Look a prompt up when its turn has come; how many tokens have to be computed."""
        answer: Answer = sequence.owner.answer
        ask, behaviour = answer.ask, self.behaviour
        admission = self._admissions[sequence] = self._look_up(ask.packed, ask.salt)
        self._blocks_in_use += len(admission.keys) + 1
        hit = admission.hit_tokens + admission.shared_tokens
        answer.cached_tokens = hit if behaviour.reports_cached_tokens else -1
        answer.noise = behaviour.rounding_after_hit if hit else 0.0
        self.metrics.time_in_queue_s.observe(sequence.started_s - sequence.arrived_s)
        wrong = behaviour.wrong_after_shared_hit and admission.shared_tokens > 0
        answer.begin(ask.context + b"wrong" if wrong else ask.context)
        if ask.stops:
            sequence.answer_tokens = max(draft.limit for draft in answer.drafts)
        return max(0, ask.prompt_tokens - hit)

    def _advance(self) -> None:
        if self.hung:
            return
        schedule = self._schedule
        # A sink may abort a request, or submit one, while it is told: then there may be more at once.
        while (next_s := schedule.next_s) <= (now_s := self._clock()):
            ready = schedule.advance(now_s)
            if ready:
                # Like vLLM's own counters, these move with tokens that are there: not during a long prefill.
                self.metrics.iteration_tokens.observe(sum([tokens for _, tokens in ready]))
            for sequence, tokens in ready:
                self._tell(sequence, tokens, now_s)
        if next_s < self._timer_s or self._timer is None:
            self._arm(next_s, now_s)

    def _tell(self, sequence: Sequence, tokens: int, now_s: float) -> None:
        first = sequence.emitted == tokens
        metrics = self.metrics
        sink: Sink = sequence.owner
        ask = sink.answer.ask
        admission = self._admissions.get(sequence)
        if first and admission is not None:
            metrics.time_to_first_token_s.observe(sequence.first_s - sequence.arrived_s)
            self._count(ask.prompt_tokens, admission)
        metrics.generation_tokens += tokens * ask.n
        last = sequence.emitted >= sequence.answer_tokens
        sink.grown(tokens, last)
        if last:
            self._finish(sequence, now_s)

    def _finish(self, sequence: Sequence, now_s: float) -> None:
        answer: Answer = sequence.owner.answer
        ask, drafts = answer.ask, answer.drafts
        self.metrics.finished[drafts[0].finish] += 1
        self.metrics.time_to_end_s.observe(now_s - sequence.arrived_s)
        admission = self._forget(sequence)
        filled = (ask.prompt_tokens + len(drafts[0].words) - 1) // self.settings.block_tokens
        if admission is not None and len(drafts) == 1 and filled > len(admission.keys):
            self.cache.extend(admission, ask.packed + drafts[0].packed(), ask.salt)

    def _forget(self, sequence: Sequence) -> Admission | None:
        admission = self._admissions.pop(sequence, None)
        if admission is not None:
            self._blocks_in_use -= len(admission.keys) + 1
        return admission

    def _arm(self, next_s: float, now_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_s = next_s
        if next_s != NEVER_S:
            delay_s = math.ceil((next_s - now_s) / _GRAIN_S) * _GRAIN_S
            self._timer = self._loop.call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._timer, self._timer_s = None, NEVER_S
        self._advance()
