"""The demonstration over simulated engines: what it measures, and what it refuses to call a result."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kveik.bench.clients import Asked, Tally
from kveik.bench.demo import Demo, Demonstrated, DemoPlan
from kveik.bench.service import Outage
from kveik.bench.workload import HIT_REPEATS, Route, cold_repeats
from kveik.engine.client import EngineClient
from kveik.errors import VerifyError
from kveik.simulate.engine import SimulatedEngine
from kveik.verify.proof import Subject

LENGTHS = (40, 100)


class Pair:
    """Two simulated engines with one shared cache, and a demonstration over them without a router."""

    def __init__(self, first: SimulatedEngine, second: SimulatedEngine) -> None:
        self.engines = {"engine-a": first, "engine-b": second}
        self.said: list[str] = []
        self.first, self.second = (
            Subject(name, EngineClient(engine.url), "simulated") for name, engine in self.engines.items()
        )

    def through(self, engine: Subject) -> EngineClient:
        return engine.client

    def lose(self, engine: Subject) -> Outage:
        self.engines[engine.name].restart()
        return Outage(engine.name, 3.0, Tally((Asked(0.0, 1.0),)))

    @property
    def demo(self) -> Demo:
        return Demo(self, 2, self.said.append)


@pytest.fixture
def pair() -> Iterator[Pair]:
    shared: set[bytes] = set()
    with SimulatedEngine(shared) as first, SimulatedEngine(shared) as second:
        yield Pair(first, second)


def test_every_length_is_measured_over_every_route(pair: Pair) -> None:
    found = pair.demo.run(LENGTHS)
    assert [row.tokens for row in found.rows] == [40, 100]
    assert found.fine
    for row, hits in zip(found.rows, (32, 96), strict=True):
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
    assert all(row.equal for _ in range(2) for row in pair.demo.run((40,)).rows)


def test_wrong_answers_make_rows_unequal(pair: Pair) -> None:
    pair.engines["engine-b"].behaviour.wrong_after_shared_hit = True
    found = pair.demo.run((40,))
    [row] = found.rows
    assert not found.fine
    assert not row.equal
    assert row.differences[Route.OTHER].diverged_at == 0
    assert row.differences[Route.RESTART].same_ids


def test_an_engine_that_computes_instead_of_hitting_is_no_result(pair: Pair) -> None:
    pair.engines["engine-b"].behaviour.ignores_shared_cache = True
    with pytest.raises(VerifyError, match="40 tokens over other engine: no token came from there"):
        pair.demo.run((40,))


def test_a_restarted_engine_that_computes_instead_of_hitting_is_no_result(pair: Pair) -> None:
    pair.engines["engine-a"].behaviour.ignores_shared_cache = True
    with pytest.raises(VerifyError, match="no token came from there"):
        pair.demo.run((40,))


def test_saves_that_were_dropped_are_no_result(pair: Pair) -> None:
    pair.engines["engine-a"].behaviour.drops_saves = True
    with pytest.raises(VerifyError, match="dropped"):
        pair.demo.run((40,))


def test_failed_requests_while_an_engine_was_killed_are_not_fine() -> None:
    outage = Outage("engine-a", 3.0, Tally((Asked(0.0, 1.0, failure="connection refused"),)))
    assert not Demonstrated([], outage).fine
    assert Demonstrated([], replace(outage, tally=Tally((Asked(0.0, 1.0),)))).fine


def test_the_fleet_has_room_for_the_longest_prompt_and_all_saves() -> None:
    plan = DemoPlan(model=Path("m"), engine_python="p", folder=Path("f"), lengths=(512, 7000))
    assert plan.fleet.max_model_tokens >= 7000 + plan.answer_tokens
    assert plan.fleet.engine_tokens >= 4 * 7000
    assert plan.fleet.shared_tokens >= 512 * cold_repeats(512) + 7000
    assert plan.fleet.dtype == "float32"
