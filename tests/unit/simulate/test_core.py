"""The engine without a network, on a clock that moves only when told to: its one timer, its counters."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from kveik.clock import FakeClock
from kveik.config import SimEngineSettings
from kveik.simulate import asks
from kveik.simulate.answers import CompletionAnswer
from kveik.simulate.asks import ModelLimits
from kveik.simulate.core import EngineCore
from kveik.simulate.schedule import Sequence

LIMITS = ModelLimits("simulated", 1000, 100)


class Timers:
    """The part of an event loop that the engine uses."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.armed: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay_s: float, ring: Callable[[], None]) -> "Timer":
        timer = (self._clock.monotonic() + delay_s, ring)
        self.armed.append(timer)
        return Timer(self.armed, timer)

    def run_until(self, until_s: float) -> None:
        while self.armed and self.armed[0][0] <= until_s:
            assert len(self.armed) == 1, "there is one timer"
            at_s, ring = self.armed.pop()
            self._clock.advance(max(0.0, at_s - self._clock.monotonic()))
            ring()
        self._clock.advance(until_s - self._clock.monotonic())


class Timer:
    def __init__(self, armed: list[Any], timer: Any) -> None:
        self._armed, self._timer = armed, timer

    def cancel(self) -> None:
        if self._timer in self._armed:
            self._armed.remove(self._timer)


class Engine:
    """A core, its clock, and what its sinks were told."""

    def __init__(self, **settings: Any) -> None:
        self.clock = FakeClock(0.0)
        self.timers = Timers(self.clock)
        loop = cast("asyncio.AbstractEventLoop", self.timers)
        given = {"prefill_tokens_s": 100.0, "decode_s": 0.5, **settings}
        self.core = EngineCore(SimEngineSettings(**given), loop, clock=self.clock.monotonic)
        self.told: list[tuple[str, float, int, bool]] = []

    def submit(self, name: str, tokens: int, prompt_tokens: int = 100) -> Sequence:
        sink = Sink(self, name, tokens, prompt_tokens)
        sequence = Sequence(tokens, sink)
        self.core.submit(sequence)
        return sequence


class Sink:
    def __init__(self, engine: Engine, name: str, tokens: int, prompt_tokens: int) -> None:
        body = b'{"prompt": "%b", "max_tokens": %d, "stream": true}' % (name.encode() * 4 * prompt_tokens, tokens)
        self.answer = CompletionAnswer(asks.completion(body, LIMITS), "simulated")
        self._engine = engine
        self._name = name

    def grown(self, tokens: int, last: bool) -> None:
        now_s = round(self._engine.clock.monotonic(), 6)
        self.answer.step(tokens)
        self._engine.told.append((self._name, now_s, tokens, last))


def test_tokens_are_told_when_they_are_due_by_one_timer() -> None:
    engine = Engine()
    engine.submit("a", 3)
    engine.submit("b", 1)
    engine.timers.run_until(10.0)
    assert engine.told == [("a", 1.0, 1, False), ("a", 1.5, 1, False), ("b", 2.0, 1, True), ("a", 2.0, 1, True)]
    assert engine.timers.armed == []


def test_timers_are_whole_milliseconds_and_never_too_early() -> None:
    engine = Engine(prefill_tokens_s=30_000.0)
    engine.submit("a", 1)
    ((at_s, _),) = engine.timers.armed
    assert at_s == pytest.approx(0.004)  # 3.33 ms, rounded up


def test_without_rates_there_is_no_timer_at_all() -> None:
    engine = Engine(prefill_tokens_s=0.0, decode_s=0.0)
    engine.submit("a", 7)
    assert engine.told == [("a", 0.0, 7, True)]
    assert engine.timers.armed == []


def test_what_is_due_earlier_moves_the_timer() -> None:
    engine = Engine(decode_s=100.0)
    engine.submit("a", 2)
    engine.timers.run_until(1.0)
    engine.submit("b", 1)
    engine.timers.run_until(2.0)
    assert engine.told[-1] == ("b", 2.0, 1, True)


def test_an_aborted_answer_is_told_nothing_more_and_the_timer_goes() -> None:
    engine = Engine()
    sequence = engine.submit("a", 100)
    engine.timers.run_until(1.0)
    engine.core.abort(sequence)
    engine.core.abort(sequence)
    engine.timers.run_until(100.0)
    assert len(engine.told) == 1
    assert engine.core.metrics.finished == {"abort": 1}
    assert engine.core.gauges().cache_usage == 0.0


def test_a_hung_engine_makes_no_token_and_then_all_that_were_due() -> None:
    engine = Engine()
    engine.submit("a", 10)
    engine.timers.run_until(1.0)
    engine.core.hang(True)
    engine.timers.run_until(3.1)
    assert len(engine.told) == 1
    engine.core.hang(False)
    assert engine.told[1:] == [("a", 3.1, 4, False)]


def test_a_stalled_answer_counts_as_running_until_it_is_aborted() -> None:
    engine = Engine()
    sequence = engine.submit("a", 10)
    engine.core.stall(sequence)
    assert engine.core.gauges().running == 1
    engine.core.abort(sequence)
    assert engine.core.gauges().running == 0


def test_blocks_in_use_are_those_of_what_runs() -> None:
    engine = Engine(cache_blocks=100)
    engine.submit("a", 1, prompt_tokens=160)
    engine.submit("b", 1, prompt_tokens=160)  # its prompt's turn has not come
    assert engine.core.gauges().cache_usage == pytest.approx(0.11)
    engine.timers.run_until(10.0)
    assert engine.core.gauges().cache_usage == 0.0


def test_times_are_counted_as_the_schedule_says() -> None:
    engine = Engine(capacity=1)
    engine.submit("a", 3)
    engine.submit("b", 1)
    engine.timers.run_until(10.0)
    metrics = engine.core.metrics
    assert metrics.time_to_first_token_s.total == pytest.approx(1.0 + 3.0)
    assert metrics.time_in_queue_s.total == pytest.approx(0.0 + 2.0)
    assert metrics.time_to_end_s.total == pytest.approx(2.0 + 3.0)
    assert metrics.generation_tokens == 4


def test_counters_stand_still_during_a_prefill_and_move_with_every_step() -> None:
    engine = Engine()
    engine.submit("a", 3, prompt_tokens=100)
    metrics = engine.core.metrics

    def counters() -> tuple[int, int, int]:
        return metrics.prompt_tokens, metrics.generation_tokens, sum(metrics.iteration_tokens.counts)

    engine.timers.run_until(0.9)
    assert counters() == (0, 0, 0)
    engine.timers.run_until(1.0)
    assert counters() == (100, 1, 1)
    engine.timers.run_until(1.5)
    assert counters() == (100, 2, 2)
