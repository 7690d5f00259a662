"""Rounds and sides in turn, their salts, and what is asked again."""

import json
from collections.abc import Iterator
from itertools import pairwise

import pytest

from kveik.bench import measuring
from kveik.bench.comparison import OFF, ON, Comparison
from kveik.bench.made_workloads import PrefixRepetition
from kveik.bench.measuring import Bench, BenchPlan, Target, order_of, target
from kveik.bench.planned import TokenPool, Workload
from kveik.config import SimEngineSettings
from kveik.errors import ConfigError, EngineError
from kveik.simulate.behaviour import Behaviour
from kveik.simulate.server import SimServer
from tests.meddling_proxy import MeddlingProxy

MADE = PrefixRepetition(requests=6, prefixes=3, prefix_tokens=128, suffix_tokens=32, answer_tokens=4)


@pytest.fixture
def behaviour() -> Behaviour:
    return Behaviour()


@pytest.fixture
def engine(behaviour: Behaviour) -> Iterator[SimServer]:
    """An engine whose own cache holds one prompt, with a shared one behind it."""
    settings = SimEngineSettings(port=0, cache_blocks=11, prefill_tokens_s=4000.0)
    with SimServer(settings, record=True, behaviour=behaviour, shared=set()) as server:
        yield server


def make(pool: TokenPool) -> Workload:
    return MADE.workload(pool, 1)


def at(engine: SimServer) -> Target:
    return target(engine.url, timeout_s=60.0)


def run(plan: BenchPlan) -> Comparison:
    return Bench(plan, make, 1, lambda text: None).run()


def kinds(found: Comparison) -> set[str]:
    return {finding.kind for finding in found.findings}


def test_every_second_round_begins_with_the_other_side() -> None:
    assert list(order_of((ON, OFF), 3)) == [(1, ON), (1, OFF), (2, OFF), (2, ON), (3, ON), (3, OFF)]
    assert list(order_of((ON,), 2)) == [(1, ON), (2, ON)]


def test_runs_alternate_over_time_and_no_two_have_one_salt(engine: SimServer) -> None:
    found = run(BenchPlan(on=at(engine), off_by_salt=True, rounds=2, places=1))
    assert [(one.round, one.side) for one in found.runs] == [(1, ON), (1, OFF), (2, OFF), (2, ON)]
    assert all(earlier.outcomes[-1].over_s <= later.outcomes[0].sent_s for earlier, later in pairwise(found.runs))
    on, off = found.sides
    assert on.external_tokens > 0
    assert on.local_tokens + on.external_tokens == on.cached_tokens == on.reusable_tokens == 2 * 3 * 128
    assert off.cached_tokens == 0
    assert not {"warm", "salt_ignored", "foreign_traffic", "answers_wrong", "failed"} & kinds(found)


def test_a_hit_that_changes_answers_is_found_out(engine: SimServer, behaviour: Behaviour) -> None:
    behaviour.wrong_after_shared_hit = True
    found = run(BenchPlan(on=at(engine), off_by_salt=True, places=1))
    assert found.verdict == "void"
    assert "answers_wrong" in kinds(found)


def test_traffic_of_others_is_found_out(engine: SimServer, behaviour: Behaviour) -> None:
    behaviour.foreign_tokens = 100
    found = run(BenchPlan(on=at(engine), places=1))
    assert found.verdict == "void"
    assert "foreign_traffic" in kinds(found)


def test_without_usage_the_engine_s_counters_still_tell(engine: SimServer, behaviour: Behaviour) -> None:
    behaviour.reports_cached_tokens = False
    found = run(BenchPlan(on=at(engine), places=1))
    assert found.sides[0].cached_tokens == 3 * 128
    assert "warm" not in kinds(found)


def test_one_salt_for_all_runs_makes_the_second_one_warm(engine: SimServer) -> None:
    found = run(BenchPlan(on=at(engine), rounds=2, fixed_salt="mine", places=1))
    warm = [finding.text for finding in found.findings if finding.kind == "warm"]
    assert found.verdict == "warm"
    assert len(warm) == 1
    assert warm[0].startswith("on, round 2")


def test_without_salts_each_round_has_prompts_of_its_own(engine: SimServer) -> None:
    found = run(BenchPlan(on=at(engine), rounds=2, salted=False, places=1))
    first, second = ({request.prompt for request in one.workload.requests} for one in found.runs)
    assert first.isdisjoint(second)
    assert "warm" not in kinds(found)
    bodies = [one.body for one in engine.seen.recorded if one.path == "/v1/completions"]
    assert not [body for body in bodies if b"cache_salt" in body]


def test_the_service_must_serve_the_model_and_take_the_prompts(engine: SimServer) -> None:
    with pytest.raises(ConfigError, match="does not serve another, expected one of simulated"):
        target(engine.url, model="another", timeout_s=60.0)
    with pytest.raises(EngineError):
        target("http://127.0.0.1:9", timeout_s=60.0)
    long = PrefixRepetition(requests=3, prefixes=3, prefix_tokens=40_000)
    bench = Bench(BenchPlan(on=at(engine)), lambda pool: long.workload(pool, 1), 1, lambda text: None)
    with pytest.raises(ConfigError, match="expected at most 32768"):
        bench.run()


def test_plans_that_contradict_themselves_are_refused(engine: SimServer) -> None:
    here = at(engine)
    with pytest.raises(ConfigError, match="not both"):
        BenchPlan(on=here, off=here, off_by_salt=True)
    for given in ({"off_by_salt": True}, {"fixed_salt": "x"}):
        with pytest.raises(ConfigError, match="--no-salt contradicts"):
            BenchPlan(on=here, salted=False, **given)


def test_rounds_before_a_service_went_away_are_not_thrown_away(
    engine: SimServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "REST_S", 0.5)

    def say(text: str) -> None:
        if text == "round 1 of 2, on: 6 of 6 requests":
            engine.crash()

    found = Bench(BenchPlan(on=at(engine), rounds=2, places=1), make, 1, say).run()
    assert "ended_early" in kinds(found)
    assert found.sides[0].requests == 6


def test_whole_runs_are_kept_when_somebody_interrupts_a_later_one(engine: SimServer) -> None:
    def say(text: str) -> None:
        if text.startswith("round 2"):
            raise KeyboardInterrupt

    bench = Bench(BenchPlan(on=at(engine), rounds=3, places=1), make, 1, say)
    found = bench.run()
    (finding,) = (finding for finding in found.findings if finding.kind == "ended_early")
    assert finding.text.endswith("before its last round: it was interrupted")
    assert [one.round for one in found.runs] == [1]

    def at_once(text: str) -> None:
        if text.startswith("round 1"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Bench(BenchPlan(on=at(engine), places=1), make, 1, at_once).run()


def test_each_run_has_a_salt_of_its_own_and_the_off_side_one_for_each_request(engine: SimServer) -> None:
    bench = Bench(BenchPlan(on=at(engine), off_by_salt=True, rounds=2), make, 1, lambda text: None)
    on = {bench.salt_of_run(ON, number)(request) for number in (1, 2) for request in range(5)}
    off = {bench.salt_of_run(OFF, number)(request) for number in (1, 2) for request in range(5)}
    assert (len(on), len(off)) == (2, 10)
    assert on.isdisjoint(off)
    again = Bench(BenchPlan(on=at(engine), off_by_salt=True), make, 1, lambda text: None)
    assert again.salt_of_run(ON, 1)(0) not in on


def test_a_fixed_salt_is_the_on_side_s_alone(engine: SimServer) -> None:
    bench = Bench(BenchPlan(on=at(engine), off_by_salt=True, fixed_salt="mine"), make, 1, lambda text: None)
    assert {bench.salt_of_run(ON, number)(3) for number in (1, 2)} == {"mine"}
    assert "mine" not in bench.salt_of_run(OFF, 1)(3)


def test_what_warms_an_engine_up_is_not_of_the_workload(engine: SimServer) -> None:
    run(BenchPlan(on=at(engine), places=1))
    bodies = [json.loads(one.body) for one in engine.seen.recorded if one.path == "/v1/completions"]
    warm_ups, asked = bodies[:2], bodies[2:]
    assert len(asked) == 6
    prompts = {tuple(body["prompt"]) for body in asked}
    assert {tuple(body["prompt"]) for body in warm_ups}.isdisjoint(prompts)
    assert len({body["cache_salt"] for body in warm_ups} | {asked[0]["cache_salt"]}) == 3
    assert {body["temperature"] for body in asked} == {0.0}
    assert {body["ignore_eos"] for body in asked} == {True}


def test_two_services_with_other_models_are_told(engine: SimServer) -> None:
    with SimServer(SimEngineSettings(port=0, model="another", prefill_tokens_s=4000.0)) as other:
        found = run(BenchPlan(on=at(engine), off=at(other), places=1))
    (finding,) = (finding for finding in found.findings if finding.kind == "other_model")
    assert "the sides serve simulated and another" in finding.text


def test_differing_answers_are_looked_at_again_but_not_all_of_many(
    engine: SimServer, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "RECHECKS_MAX", 1)
    behaviour.wrong_after_shared_hit = True
    assert "answers_wrong" in kinds(run(BenchPlan(on=at(engine), off_by_salt=True, places=1)))
    bodies = [json.loads(one.body) for one in engine.seen.recorded if one.path == "/v1/completions"]
    again = [body for body in bodies if "again" in body["cache_salt"]]
    assert len(again) == 1
    assert again[0]["logprobs"] == 20


def test_a_service_that_is_gone_when_answers_are_looked_at_again_costs_nothing_but_that(
    engine: SimServer, behaviour: Behaviour
) -> None:
    behaviour.wrong_after_shared_hit = True
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if text.startswith("round 1 of 1, off: 6 of 6"):
            engine.call(lambda: engine.app.change_faults({"status": 503}))

    found = Bench(BenchPlan(on=at(engine), off_by_salt=True, places=1), make, 1, say).run()
    (finding,) = (finding for finding in found.findings if finding.kind == "answers_differ")
    assert "nobody looked why" in finding.text
    assert any("could not be looked at again" in text for text in said)


def test_a_simulated_engine_behind_something_else_is_still_called_simulated(engine: SimServer) -> None:
    def without_mark(body: dict[str, object]) -> dict[str, object]:
        return body

    with MeddlingProxy(engine.url, without_mark) as proxy:
        assert target(proxy.url, timeout_s=60.0).simulated
        assert target(proxy.url, engines=[engine.url], timeout_s=60.0).engines == [engine.url]


def test_progress_is_told(engine: SimServer) -> None:
    said: list[str] = []
    Bench(BenchPlan(on=at(engine), places=1), make, 1, said.append).run()
    assert "round 1 of 1, on: 6 of 6 requests" in said
    assert any("1 engines are watched" in text for text in said)
