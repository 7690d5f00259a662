"""Which engines are rolled in which order, when one may be taken out, what is proved, and what people are told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.errors import ConfigError
from kveik.launch.pool import Pool, PooledEngine
from kveik.launch.roll_plan import (
    Rolled,
    RollState,
    Stage,
    Version,
    advice,
    in_words,
    needs_proof,
    news,
    plan_roll,
    too_few_without,
    why_not_out,
)

ENGINES = [Rolled(name, f"http://{name}:8000", parts=(name,)) for name in "abc"]


def names(asked: tuple[str, ...] = (), before: RollState | None = None, config: str = "1") -> list[str]:
    return [engine.name for engine in plan_roll(ENGINES, asked, config, before).order]


def pool(**states: str) -> Pool:
    """Engines by name; ``ready`` ones take requests."""
    return {name: PooledEngine(name, f"http://{name}", state, state == "ready") for name, state in states.items()}


class TestOrder:
    def test_all_engines_in_the_order_of_the_file_or_those_that_are_named(self) -> None:
        assert names() == ["a", "b", "c"]
        assert names(("c", "a", "c")) == ["c", "a"]

    def test_an_unknown_name_is_refused_with_those_that_are_known(self) -> None:
        with pytest.raises(ConfigError, match="no engine 'd' to roll here, expected one of a, b, c"):
            names(("d",))

    def test_an_unfinished_roll_goes_on_with_what_it_had_in_hand(self) -> None:
        before = RollState(config="1", done=("a",), in_hand="c", stage="drain")
        plan = plan_roll(ENGINES, (), "1", before)
        assert [engine.name for engine in plan.order] == ["c", "b"]
        assert plan.done == ("a",)
        assert plan.suspects == frozenset()
        assert any("done a" in note for note in plan.notes)
        assert any("c in hand (drain)" in note for note in plan.notes)

    @pytest.mark.parametrize(
        "before",
        [
            RollState(config="0", done=("a",), in_hand="b", stage="verify"),
            RollState(config="1", asked=("a",), done=("a",), in_hand="b", stage="verify"),
        ],
    )
    def test_another_wish_begins_anew_but_first_with_what_is_perhaps_out_of_the_pool(self, before: RollState) -> None:
        plan = plan_roll(ENGINES, (), "1", before)
        assert [engine.name for engine in plan.order] == ["b", "a", "c"]
        assert (plan.done, plan.proved) == ((), ())
        assert any("begins anew" in note for note in plan.notes)

    @pytest.mark.parametrize(
        ("stage", "suspect"),
        [("drain", False), ("restart", True), ("answer", True), ("verify", True), ("warm up", False)],
    )
    def test_an_engine_that_was_restarted_and_not_proved_is_a_suspect(self, stage: str, suspect: bool) -> None:
        plan = plan_roll(ENGINES, (), "1", RollState(config="1", in_hand="b", stage=stage))
        assert ("b" in plan.suspects) is suspect

    def test_versions_that_were_proved_stay_so_while_the_roll_goes_on(self) -> None:
        proved = (Version("0.33", "ab", "x"),)
        assert plan_roll(ENGINES, (), "1", RollState(config="1", done=("a",), proved=proved)).proved == proved

    def test_an_engine_that_is_no_longer_described_is_forgotten(self) -> None:
        assert names(before=RollState(config="1", done=("z",), in_hand="y", stage="restart")) == ["a", "b", "c"]


class TestTakingOut:
    def test_an_engine_may_go_while_enough_others_get_requests(self) -> None:
        assert why_not_out("a", pool(a="ready", b="ready", c="ready"), 2) == ""

    def test_too_few_others_are_told_with_their_reasons(self) -> None:
        why = why_not_out("a", pool(a="ready", b="ready", c="isolated"), 2)
        assert why.startswith("without a, 1 engines would get requests, expected at least 2 (fleet.ready_min)")
        assert "c is isolated" in why

    def test_an_engine_that_gets_no_requests_takes_nothing_from_the_pool(self) -> None:
        assert why_not_out("a", pool(a="isolated", b="ready"), 2) == ""
        assert why_not_out("a", pool(b="ready"), 2) == ""

    def test_while_it_drains_the_others_may_become_too_few(self) -> None:
        assert too_few_without("a", pool(a="draining", b="ready", c="ready"), 2) == ""
        assert "c is lost" in too_few_without("a", pool(a="draining", b="ready", c="lost"), 2)

    @given(
        st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["ready", "lost", "draining"]), min_size=1),
        st.integers(0, 4),
    )
    def test_whatever_is_taken_out_the_pool_stays_at_its_minimum(self, states: dict[str, str], ready_min: int) -> None:
        engines = pool(**states)
        ready = {name for name, state in states.items() if state == "ready"}
        for name in states:
            if not why_not_out(name, engines, ready_min):
                assert len(ready - {name}) >= min(ready_min, len(ready))


class TestProof:
    V1, V2 = Version("0.32", "aaaa", "x"), Version("0.33", "aaaa", "x")

    def test_an_engine_that_is_as_it_was_and_as_the_others_are_is_no_news(self) -> None:
        assert news(self.V1, self.V1, {"b": Version("0.32", "aaaa")}) == ()

    def test_each_difference_is_told(self) -> None:
        found = news(Version(settings="y"), self.V2, {"b": Version("0.32", "bbbb"), "c": Version("0.33", "aaaa")})
        assert found == (
            "its configuration is another",
            "its vLLM is 0.33, other than at b",
            "its KV namespace is aaaa, other than at b",
        )

    def test_what_engines_do_not_tell_is_no_difference(self) -> None:
        assert news(self.V1, self.V1, {"b": Version()}) == ()
        assert news(Version(), Version(), {"b": self.V1}) == ()

    def test_only_the_first_of_a_version_is_proved(self) -> None:
        assert needs_proof(self.V2, ["its vLLM is 0.33"], [])
        assert not needs_proof(self.V2, ["its vLLM is 0.33"], [self.V2])
        assert needs_proof(self.V1, ["its vLLM is 0.32"], [self.V2])
        assert not needs_proof(self.V1, [], [])


class TestWords:
    @pytest.mark.parametrize("stage", list(Stage))
    def test_after_a_failure_people_know_what_serves_what_does_not_and_how_to_go_on(self, stage: Stage) -> None:
        told = "\n".join(advice("b", stage, "a reason", ["a"], ["c"]))
        assert f"b: the step '{stage.value}' failed: a reason" in told
        assert "already rolled, and serving: a" in told
        assert "not touched: c" in told
        assert ("b is as it was before" in told) is stage.undone
        assert ("kveik roll b a" in told) is not stage.undone
        assert ("kveik readmit b" in told) is not stage.undone

    def test_the_plan_names_each_step_of_each_engine_and_who_restarts_it(self) -> None:
        foreign = Rolled("d", "http://d:8000", command=("systemctl", "restart", "vllm"), start_s=600)
        plan = plan_roll([*ENGINES[:1], foreign], (), "1", RollState(config="0", in_hand="d", stage="drain"))
        lines = in_words(plan, ready_min=2, drain_s=90)
        assert lines[0].startswith("note: an earlier roll had d in hand")
        text = "\n".join(lines)
        assert "restart it by systemctl restart vllm" in text
        assert "restart it by its supervisor" in text
        assert "at least 2 other engines" in text
        assert "wait up to 90 s for those under way" in text
        assert text.count("hold:") == 1, "nobody holds an engine that has no supervisor"

    def test_nothing_to_roll_is_said(self) -> None:
        assert in_words(plan_roll([], (), "1", None), ready_min=1, drain_s=1) == ["nothing to roll"]
