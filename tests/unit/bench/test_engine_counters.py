"""What the engines behind an address count beside a run: over simulated engines and a router."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kveik.bench import engine_counters
from kveik.bench.engine_counters import EngineWatch, Look, engines_behind, restart_in
from kveik.engine.client import CompletionRequest, EngineClient
from kveik.errors import EngineError
from kveik.simulate.behaviour import Behaviour
from kveik.simulate.engine import SimulatedEngine
from tests.agents import wait_until
from tests.routers import RouterThread


@pytest.fixture
def engine() -> Iterator[SimulatedEngine]:
    with SimulatedEngine() as engine:
        yield engine


def ask(engine: SimulatedEngine, tokens: int = 40, answer_tokens: int = 3) -> None:
    EngineClient(engine.url).complete(CompletionRequest(tuple(range(tokens)), answer_tokens), "simulated")


def test_the_prompt_tokens_of_all_engines_are_counted_by_source(engine: SimulatedEngine) -> None:
    ask(engine)
    with SimulatedEngine() as other, EngineWatch([engine.url, other.url]) as watch:
        ask(engine)
        ask(other)
        counted = watch.counted(80, 20.0)
    evidence = counted.evidence
    assert (evidence.prompt, evidence.local, evidence.computed, evidence.external) == (80, 32, 48, 0)
    assert counted.answer_tokens == 6
    assert counted.sourced
    assert (counted.restarts, counted.busy_before, counted.unanswered) == ((), 0, 0)


def test_a_restart_is_seen_by_counters_that_began_anew(engine: SimulatedEngine) -> None:
    ask(engine)
    with EngineWatch([engine.url]) as watch:
        engine.restart()
        counted = watch.counted(40, 20.0)
    (why,) = counted.restarts
    assert "ran backwards" in why
    assert not counted.sourced


def test_an_engine_that_is_gone_is_not_the_same_as_before(engine: SimulatedEngine) -> None:
    with EngineWatch([engine.url]) as watch:
        engine.server.crash()
        (why,) = watch.counted(40, 20.0).restarts
    assert engine.url in why


@pytest.mark.parametrize(
    ("looks", "why"),
    [
        ([Look(5.0, 10, 1), Look(5.0, 10, 1), Look(5.0, 30, 4)], ""),
        ([Look(0.0, 10, 1), Look(0.0, 3, 2)], "its counters began anew"),
        ([Look(0.0, 10, 8), Look(0.0, 10, 2)], "its counters began anew"),
        ([Look(5.0, 10, 1), Look(9.0, 99, 9)], "its process began anew"),
        ([Look(5.0, 10, 1)], ""),
    ],
    ids=["grows", "fewer prompt tokens", "fewer answer tokens", "new process", "one look"],
)
def test_looks_at_an_engine_show_whether_it_was_restarted(looks: list[Look], why: str) -> None:
    assert restart_in(looks) == why


def test_requests_of_others_at_the_start_are_counted_and_keep_an_engine_from_rest() -> None:
    behaviour = Behaviour()
    with SimulatedEngine(behaviour=behaviour) as engine:
        behaviour.busy = 3
        watch = EngineWatch([engine.url])
        assert not watch.rest(0.3)
        with watch:
            assert watch.counted(0, 0.0).busy_before == 3
        behaviour.busy = 0
        assert EngineWatch([engine.url]).rest(20.0)


class _Engine(EngineClient):
    """An engine of which only the metrics matter, as vLLM writes them."""

    def __init__(self) -> None:
        super().__init__("http://engine")
        self.texts: list[str] = []

    def metrics_text(self) -> str:
        if not self.texts:
            raise EngineError("no answer")
        return self.texts.pop(0)


METRICS = """\
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds {began}
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{{engine="0",model_name="m"}} {first}
vllm:prompt_tokens_total{{engine="1",model_name="m"}} {second}
vllm:prompt_tokens_created{{engine="0",model_name="m"}} 1.7e+09
vllm:prompt_tokens_by_source_total{{engine="0",source="local_compute"}} 999
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{{engine="0",model_name="m"}} 7
"""


def test_a_look_reads_the_few_lines_that_it_needs_and_sums_over_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = _Engine()
    engine.texts = [METRICS.format(began=5.5, first=10, second=n) for n in (20, 30)]
    monkeypatch.setattr(engine_counters, "LOOK_S", 0.01)
    watch = EngineWatch([])
    watch._clients, watch._looks = {"http://engine": engine}, {"http://engine": []}
    watch._thread.start()
    wait_until(lambda: watch._unanswered > 0, "a look without an answer")
    watch.__exit__(None, None, None)
    assert watch._looks["http://engine"] == [Look(5.5, 30, 7), Look(5.5, 40, 7)]


def test_where_no_engine_is_watched_nothing_is_known_and_nothing_waited_for() -> None:
    watch = EngineWatch([])
    assert watch.rest(0.0)
    with watch:
        counted = watch.counted(1000, 0.0)
    assert (counted.engines, counted.evidence.prompt, counted.sourced) == ((), 0, False)


def test_an_engine_without_counters_cannot_be_watched() -> None:
    with pytest.raises(EngineError), EngineWatch(["http://127.0.0.1:9"]):
        pass


def test_the_engines_of_a_router_are_found_and_an_engine_is_its_own(engine: SimulatedEngine, tmp_path: Path) -> None:
    assert engines_behind(engine.url) == [engine.url]
    with SimulatedEngine() as other, RouterThread(tmp_path, [engine.url, other.url]) as router:
        assert engines_behind(router.url) == sorted([engine.url, other.url])
    assert engines_behind("http://127.0.0.1:9") == []
