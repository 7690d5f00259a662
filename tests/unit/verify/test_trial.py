"""The whole proof, over simulated engines that behave and that do not."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.engine.client import EngineClient
from kveik.errors import EngineError, VerifyError
from kveik.simulate.behaviour import Behaviour
from kveik.simulate.engine import SimulatedEngine
from kveik.verify.legs import Leg, Mode
from kveik.verify.prompts import Prompt
from kveik.verify.proof import Subject, together
from kveik.verify.trial import Outcome, TrialOptions, prove, read_facts, window_tokens

LENGTHS = (15, 16, 17, 40, 100)
OPTIONS = TrialOptions(lengths=LENGTHS, answer_tokens=3, quiet_s=0.0)


class Fleet:
    """Two simulated engines with one shared cache."""

    def __init__(self, first: SimulatedEngine, second: SimulatedEngine) -> None:
        self.first, self.second = first, second
        self.said: list[str] = []

    def subject(self, engine: SimulatedEngine, name: str) -> Subject:
        return Subject(name, EngineClient(engine.url), "simulated", engine.restart)

    def prove(self, options: TrialOptions = OPTIONS) -> Outcome:
        first, second = self.subject(self.first, "engine-a"), self.subject(self.second, "engine-b")
        return prove(replace(first, written=self.written), second, options, self.said.append)

    def written(self) -> None:
        self.said.append("all is written")


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    shared: set[bytes] = set()
    with SimulatedEngine(shared) as first, SimulatedEngine(shared) as second:
        yield Fleet(first, second)


def test_other_nodes_are_asked_only_once_the_stores_have_what_was_saved(fleet: Fleet) -> None:
    fleet.prove(replace(OPTIONS, modes=(Mode.SINGLE,)))
    steps = [line.partition(",")[0] for line in fleet.said]
    assert steps.index("engine-a: cold") < steps.index("all is written") < steps.index("engine-b: other")


def complaints(outcome: Outcome) -> list[str]:
    return [f"{leg.leg.value}: {text}" for leg in outcome.verdict.legs for text in leg.complaints]


def failed_legs(outcome: Outcome) -> set[Leg]:
    return {leg.leg for leg in outcome.verdict.legs if not leg.holds}


def test_a_good_fleet_holds_in_every_leg_and_mode(fleet: Fleet) -> None:
    outcome = fleet.prove()
    assert complaints(outcome) == []
    assert outcome.verdict.holds
    assert {(leg.leg, leg.mode) for leg in outcome.verdict.legs} == {(leg, mode) for leg in Leg for mode in Mode}
    assert outcome.about["unit_tokens"] == 16
    assert outcome.about["dtype"] == "float32"


def test_every_leg_uses_the_tokens_it_claims(fleet: Fleet) -> None:
    verdict = fleet.prove(replace(OPTIONS, modes=(Mode.SINGLE,))).verdict
    hits = 2 * (0 + 0 + 16 + 32 + 96)
    found = {leg.leg: leg.evidence for leg in verdict.legs}
    assert found[Leg.COLD].computed == 2 * sum(LENGTHS)
    assert found[Leg.LOCAL].local == hits
    assert [found[leg].external for leg in Leg if leg.external] == [hits] * 3


def test_prompts_that_end_with_a_block_may_be_loaded_to_their_end(fleet: Fleet) -> None:
    for engine in (fleet.first, fleet.second):
        engine.behaviour.whole_prompt_hits = True
    outcome = fleet.prove(replace(OPTIONS, lengths=(15, 16, 17, 48, 100)))
    assert complaints(outcome) == []
    found = {leg.leg: leg.evidence for leg in outcome.verdict.legs if leg.mode is Mode.SINGLE}
    assert found[Leg.LOCAL].local == 2 * (0 + 0 + 16 + 32 + 96)
    assert [found[leg].external for leg in Leg if leg.external] == [2 * (0 + 0 + 16 + 48 + 96)] * 3


def test_hits_that_are_shorter_than_either_split_do_not_hold(fleet: Fleet) -> None:
    fleet.second.behaviour.whole_prompt_hits = True
    fleet.second.behaviour.ignores_shared_cache = True
    assert failed_legs(fleet.prove(replace(OPTIONS, lengths=(16, 48)))) == {Leg.OTHER}


def test_running_twice_is_cold_again(fleet: Fleet) -> None:
    assert fleet.prove().verdict.holds
    assert fleet.prove().verdict.holds


def test_wrong_answers_behind_perfect_hit_rates_are_caught(fleet: Fleet) -> None:
    for engine in (fleet.first, fleet.second):
        engine.behaviour.wrong_after_shared_hit = True
    outcome = fleet.prove()
    assert failed_legs(outcome) == {Leg.RESET, Leg.OTHER, Leg.RESTART}
    assert all("other token" in text for text in complaints(outcome))
    verdict = {leg.leg: leg.evidence for leg in outcome.verdict.legs}
    assert verdict[Leg.OTHER].external == verdict[Leg.LOCAL].local


@pytest.mark.parametrize("dtype", ["bfloat16", ""])
def test_rounding_holds_in_bfloat16_and_wrong_answers_still_do_not(fleet: Fleet, dtype: str) -> None:
    for engine in (fleet.first, fleet.second):
        engine.behaviour.dtype = dtype
        engine.behaviour.rounding_after_hit = 0.05
    assert fleet.prove().verdict.holds
    fleet.second.behaviour.wrong_after_shared_hit = True
    assert failed_legs(fleet.prove()) == {Leg.OTHER}


def test_rounding_does_not_hold_in_float32(fleet: Fleet) -> None:
    fleet.first.behaviour.rounding_after_hit = 0.05
    assert Leg.LOCAL in failed_legs(fleet.prove())


def test_an_engine_that_computes_instead_of_hitting_does_not_hold(fleet: Fleet) -> None:
    fleet.second.behaviour.ignores_shared_cache = True
    outcome = fleet.prove()
    assert failed_legs(outcome) == {Leg.OTHER}
    assert any("0 tokens from the shared cache" in text for text in complaints(outcome))
    assert any("lookups got no answer in time" in text for text in complaints(outcome))


def test_blocks_that_differ_in_memory_do_not_hold(fleet: Fleet) -> None:
    fleet.second.behaviour.mismatched_blocks = 1
    assert failed_legs(fleet.prove()) == {Leg.OTHER}


def test_failed_loads_do_not_hold(fleet: Fleet) -> None:
    fleet.second.behaviour.failed_blocks = 1
    assert failed_legs(fleet.prove()) == {Leg.OTHER}


def test_without_read_back_nothing_is_proved_unless_it_is_left_out(fleet: Fleet) -> None:
    fleet.first.behaviour.compares_blocks = fleet.second.behaviour.compares_blocks = False
    with pytest.raises(VerifyError, match="read_back_every"):
        fleet.prove()
    assert fleet.prove(replace(OPTIONS, read_back=False)).verdict.holds


def test_a_second_engine_that_does_not_read_back_is_seen(fleet: Fleet) -> None:
    fleet.second.behaviour.compares_blocks = False
    assert any("no loaded block was read back" in text for text in complaints(fleet.prove()))


def test_engines_that_hide_cached_tokens_are_judged_by_counters(fleet: Fleet) -> None:
    fleet.first.behaviour.reports_cached_tokens = False
    assert fleet.prove().verdict.holds


def test_prompts_too_short_to_hit_prove_nothing(fleet: Fleet) -> None:
    outcome = fleet.prove(replace(OPTIONS, lengths=(15, 16)))
    assert not outcome.verdict.holds
    assert any("nothing was tested" in text for text in complaints(outcome))


def test_dropped_saves_end_the_proof(fleet: Fleet) -> None:
    fleet.first.behaviour.drops_saves = True
    with pytest.raises(VerifyError, match="dropped"):
        fleet.prove()


def test_another_client_of_the_engine_ends_the_proof(fleet: Fleet) -> None:
    fleet.first.behaviour.foreign_tokens = 7
    with pytest.raises(VerifyError, match=r"\+7 prompt tokens that are not ours"):
        fleet.prove()


def test_a_busy_engine_ends_the_proof(fleet: Fleet) -> None:
    fleet.second.behaviour.busy = 2
    with pytest.raises(VerifyError, match="engine-b serves 2 requests"):
        fleet.prove()


def test_an_engine_without_the_connector_ends_the_proof(fleet: Fleet) -> None:
    fleet.second.behaviour.has_connector = False
    with pytest.raises(VerifyError, match="engine-b exports no kveik metrics"):
        fleet.prove()


def test_without_development_mode_the_reset_leg_is_impossible(fleet: Fleet) -> None:
    fleet.first.behaviour.development_mode = False
    with pytest.raises(VerifyError, match="--skip reset"):
        fleet.prove()
    outcome = fleet.prove(replace(OPTIONS, skipped=(Leg.RESET,), dtype="float32"))
    assert outcome.verdict.holds
    assert outcome.verdict.skipped == (Leg.RESET,)


def test_one_engine_alone_cannot_show_the_other_leg(fleet: Fleet) -> None:
    first = fleet.subject(fleet.first, "engine-a")
    with pytest.raises(VerifyError, match="--skip other"):
        prove(first, None, OPTIONS, fleet.said.append)
    assert prove(first, None, replace(OPTIONS, skipped=(Leg.OTHER,)), fleet.said.append).verdict.holds


def test_an_engine_that_nobody_can_restart_cannot_show_the_restart_leg(fleet: Fleet) -> None:
    first = replace(fleet.subject(fleet.first, "engine-a"), restart=None)
    with pytest.raises(VerifyError, match="--skip restart"):
        prove(first, fleet.subject(fleet.second, "engine-b"), OPTIONS, fleet.said.append)


def test_an_answer_that_is_cut_off_ends_the_proof(fleet: Fleet) -> None:
    fleet.second.behaviour.breaks_stream_after = 2
    with pytest.raises(EngineError, match="ended before"):
        fleet.prove()


def test_in_bfloat16_the_local_leg_cannot_be_left_out(fleet: Fleet) -> None:
    with pytest.raises(VerifyError, match="leg local is needed"):
        fleet.prove(replace(OPTIONS, dtype="bfloat16", skipped=(Leg.LOCAL,)))


def test_in_float32_the_local_leg_can_be_left_out(fleet: Fleet) -> None:
    assert fleet.prove(replace(OPTIONS, skipped=(Leg.LOCAL,))).verdict.holds


def test_a_prompt_that_does_not_fit_is_refused(fleet: Fleet) -> None:
    with pytest.raises(VerifyError, match="2048 tokens does not fit"):
        fleet.prove(replace(OPTIONS, lengths=(2048,)))


def test_progress_names_engine_leg_and_mode(fleet: Fleet) -> None:
    fleet.prove()
    assert "engine-b: other, concurrent, 10 prompts" in fleet.said


@given(st.integers(1, 40), st.integers(1, 10))
def test_prompts_that_run_together_are_few_enough_and_none_is_lost(count: int, at_once: int) -> None:
    prompts = tuple(Prompt(f"en-{number}", "en", (number,)) for number in range(count))
    groups = together(prompts, at_once)
    assert sorted(prompt.name for group in groups for prompt in group) == sorted(prompt.name for prompt in prompts)
    assert all(1 <= len(group) <= at_once for group in groups)


def test_facts_come_from_the_engine_and_options_win() -> None:
    with SimulatedEngine(behaviour=Behaviour(dtype="bfloat16")) as engine:
        client = EngineClient(engine.url)
        facts = read_facts(client, TrialOptions())
        assert (facts.model, facts.dtype, facts.unit_tokens, facts.read_back_every) == ("simulated", "bfloat16", 16, 1)
        assert read_facts(client, TrialOptions(dtype="float32", block_tokens=32)).unit_tokens == 32


def test_without_development_mode_facts_are_unknown_not_wrong() -> None:
    with SimulatedEngine(behaviour=Behaviour(development_mode=False)) as engine:
        facts = read_facts(EngineClient(engine.url), TrialOptions())
    assert (facts.dtype, facts.read_back_every, facts.cache_tokens) == ("", None, 0)


@pytest.mark.parametrize(
    ("config", "window"),
    [
        ({}, 0),
        ({"sliding_window": 512}, 512),
        ({"sliding_window": None}, 0),
        ({"sliding_window": 4096, "use_sliding_window": False}, 0),
    ],
)
def test_the_window_is_read_from_the_models_configuration(config: dict[str, object], window: int) -> None:
    assert window_tokens(config) == window
