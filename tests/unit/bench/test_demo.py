"""The demonstration over simulated engines: what it measures, and what it refuses to call a result."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kveik.bench.demo import Demo, DemoPlan
from kveik.bench.workload import HIT_REPEATS, Route, cold_repeats
from kveik.engine.client import EngineClient
from kveik.errors import VerifyError
from kveik.simulate.engine import SimulatedEngine
from kveik.verify.proof import Subject

LENGTHS = (40, 100)


class Pair:
    """Two simulated engines with one shared cache, and a demonstration over them."""

    def __init__(self, first: SimulatedEngine, second: SimulatedEngine) -> None:
        self.first, self.second = first, second
        self.said: list[str] = []

    @property
    def demo(self) -> Demo:
        first, second = (
            Subject(name, EngineClient(engine.url), "simulated", engine.restart)
            for name, engine in (("engine-a", self.first), ("engine-b", self.second))
        )
        return Demo(first, second, 2, self.said.append)


@pytest.fixture
def pair() -> Iterator[Pair]:
    shared: set[bytes] = set()
    with SimulatedEngine(shared) as first, SimulatedEngine(shared) as second:
        yield Pair(first, second)


def test_every_length_is_measured_over_every_route(pair: Pair) -> None:
    found = pair.demo.run(LENGTHS)
    assert [row.tokens for row in found] == [40, 100]
    for row, hits in zip(found, (32, 96), strict=True):
        assert row.equal
        assert {route: row.measurements[route].hit_tokens for route in Route} == {
            Route.COLD: 0,
            Route.LOCAL: hits,
            Route.OTHER: hits,
            Route.RESTART: hits,
        }
        assert len(row.measurements[Route.COLD].ttfts_s) == cold_repeats(row.tokens)
        assert len(row.measurements[Route.OTHER].ttfts_s) == HIT_REPEATS


def test_each_step_is_told_with_its_figures(pair: Pair) -> None:
    pair.demo.run(LENGTHS)
    assert len(pair.said) == len(LENGTHS) * len(Route)
    assert any("100 tokens, other engine" in line and "96 tokens from the cache" in line for line in pair.said)


def test_it_can_run_again_and_is_cold_again(pair: Pair) -> None:
    assert all(row.equal for _ in range(2) for row in pair.demo.run((40,)))


def test_wrong_answers_make_rows_unequal(pair: Pair) -> None:
    pair.second.behaviour.wrong_after_shared_hit = True
    [row] = pair.demo.run((40,))
    assert not row.equal
    assert row.differences[Route.OTHER].diverged_at == 0
    assert row.differences[Route.RESTART].same_ids


def test_an_engine_that_computes_instead_of_hitting_is_no_result(pair: Pair) -> None:
    pair.second.behaviour.ignores_shared_cache = True
    with pytest.raises(VerifyError, match="40 tokens over other engine: no token came from there"):
        pair.demo.run((40,))


def test_a_restarted_engine_that_computes_instead_of_hitting_is_no_result(pair: Pair) -> None:
    pair.first.behaviour.ignores_shared_cache = True
    with pytest.raises(VerifyError, match="no token came from there"):
        pair.demo.run((40,))


def test_saves_that_were_dropped_are_no_result(pair: Pair) -> None:
    pair.first.behaviour.drops_saves = True
    with pytest.raises(VerifyError, match="dropped"):
        pair.demo.run((40,))


def test_an_engine_that_nobody_can_restart_is_refused_before_anything_is_asked(pair: Pair) -> None:
    demo = pair.demo
    demo._first = replace(demo._first, restart=None)
    with pytest.raises(VerifyError, match="cannot be restarted"):
        demo.run((40,))
    assert pair.first.requests == []


def test_the_testbed_has_room_for_the_longest_prompt_and_all_saves() -> None:
    plan = DemoPlan(model=Path("m"), engine_python="p", agent_python="p", lengths=(512, 7000))
    assert plan.testbed.max_model_tokens >= 7000 + plan.answer_tokens
    assert plan.testbed.engine_tokens >= 4 * 7000
    assert plan.testbed.shared_tokens >= 512 * cold_repeats(512) + 7000
    assert plan.testbed.dtype == "float32"
