"""How engines are judged: what moves, what waits, and how much patience that deserves."""

import dataclasses
from collections import deque

import pytest
from hypothesis import given as for_all
from hypothesis import settings as examples
from hypothesis import strategies as st

from kveik.config_fleet import WatchdogSettings
from kveik.watchdog.decide import history_s, judge
from kveik.watchdog.verdict import Condition, Counters, Probed, ProcessFacts, RankCounters, Sample, Verdict
from tests.paper_engine import LOOK_S, SETTINGS, PaperEngine, ready_engine, steps_of_ranks

THREE_PERIODS_S = 3 * SETTINGS.probe_period_s


def about(patience_s: float, found_s: float) -> bool:
    """Whether an engine was found after that patience; it counts from the last answer, up to a period earlier."""
    return patience_s - SETTINGS.probe_period_s <= found_s <= patience_s + THREE_PERIODS_S


def test_an_engine_that_answers_is_ready_and_stays_so() -> None:
    engine = PaperEngine()
    assert engine.looks(600) == [Condition.STARTING, Condition.READY]


def test_without_a_look_nothing_is_known() -> None:
    before = Verdict(Condition.BUSY, 5.0, "because")
    assert judge([], before, SETTINGS) is before


def test_a_condition_keeps_its_beginning_and_tells_the_latest_reason() -> None:
    engine = ready_engine()
    began = engine.verdict.since_s
    engine.detail = "after 0.3 s"
    engine.looks(10)
    assert engine.verdict.since_s == began
    assert "after 0.3 s" in engine.verdict.why


# -- hung ------------------------------------------------------------------------------------------


def test_a_frozen_engine_is_hung_within_three_probe_periods() -> None:
    for looks_before in range(10):
        engine = ready_engine(requests=3)
        for _ in range(looks_before):
            engine.look()
        engine.freeze()
        assert engine.until(Condition.HUNG, 60) <= THREE_PERIODS_S
        assert "its processors rest" in engine.verdict.why


def test_an_idle_engine_is_found_hung_by_its_probe() -> None:
    engine = ready_engine(requests=0)
    engine.freeze()
    assert engine.until(Condition.HUNG, 60) <= THREE_PERIODS_S


def test_an_engine_that_goes_on_is_ready_again_and_its_work_counts_on_the_way() -> None:
    engine = ready_engine()
    engine.freeze()
    engine.until(Condition.HUNG, 60)
    engine.tokens_s, engine.processors = 30.0, 1.0
    assert engine.look().condition is Condition.BUSY
    engine.answer = Probed.RIGHT
    assert engine.look().condition is Condition.READY


def test_a_hung_engine_stays_hung_until_a_token_moves() -> None:
    engine = ready_engine()
    engine.freeze()
    engine.until(Condition.HUNG, 60)
    engine.processors = 1.0
    assert engine.looks(60) == [Condition.HUNG]


@pytest.mark.parametrize("gap_s", [11.0, 70.0, 1000.0])
def test_time_in_which_nobody_looked_is_nobodys_stillness(gap_s: float) -> None:
    """The machine slept, or the watchdog was stopped: a probe that was under way is old then, and nothing moved."""
    for unseen in (False, True):
        engine = ready_engine(unseen=unseen)
        engine.answer = None
        engine.looks(3)
        engine.now_s += gap_s
        assert engine.look().condition is Condition.BUSY
        engine.answer = Probed.RIGHT
        assert engine.looks(20)[-1] is Condition.READY


def test_a_hung_engine_is_not_well_because_nobody_looked() -> None:
    engine = ready_engine()
    engine.freeze()
    engine.until(Condition.HUNG, 60)
    engine.now_s += 40  # spent on evidence
    assert engine.looks(40) == [Condition.HUNG]


def test_processors_that_work_without_a_token_get_minutes_but_not_for_ever() -> None:
    engine = ready_engine(processors=0.01)
    engine.freeze()
    engine.processors = 1.36
    assert about(SETTINGS.hung_computing_s, engine.until(Condition.HUNG, 400))
    assert "its processors work" in engine.verdict.why


def test_steps_without_tokens_count_as_work_and_not_as_tokens() -> None:
    """A scheduler that turns in circles makes steps; so does one that is in the middle of a long prompt."""
    engine = ready_engine()
    engine.freeze()
    engine.steps_s = 2.0
    assert about(SETTINGS.hung_computing_s, engine.until(Condition.HUNG, 400))
    assert "it makes steps" in engine.verdict.why


def test_a_process_that_gets_next_to_no_processor_works_too() -> None:
    engine = ready_engine()
    engine.freeze()
    engine.processors, engine.starved = 0.02, 0.9
    assert engine.looks(120) == [Condition.READY, Condition.BUSY]


def test_threads_that_wake_up_now_and_then_do_not_make_it_busy() -> None:
    engine = ready_engine()
    engine.freeze()
    engine.processors, engine.starved = 0.02, 0.1
    assert engine.until(Condition.HUNG, 60) <= THREE_PERIODS_S


def test_a_stopped_process_is_enough_where_others_spin_for_it() -> None:
    engine = ready_engine()
    engine.freeze()
    engine.processors, engine.stopped = 1.0, 1
    assert engine.until(Condition.HUNG, 60) <= THREE_PERIODS_S
    assert "1 of its processes is stopped" in engine.verdict.why


def test_an_engine_that_was_put_to_sleep_is_let_sleep_and_gets_its_time_when_it_is_woken() -> None:
    engine = ready_engine()
    engine.freeze()
    engine.asleep = True
    assert engine.looks(3600) == [Condition.BUSY]
    assert "put to sleep" in engine.verdict.why
    engine.asleep = False
    assert engine.looks(SETTINGS.probe_period_s) == [Condition.BUSY]
    assert engine.until(Condition.HUNG, 60) <= THREE_PERIODS_S


def test_an_engine_on_another_machine_gets_a_minute() -> None:
    engine = ready_engine(unseen=True)
    engine.freeze()
    assert about(SETTINGS.hung_unseen_s, engine.until(Condition.HUNG, 90))


def test_an_engine_of_which_nothing_is_seen_gets_minutes() -> None:
    engine = ready_engine(unseen=True, mute=True)
    engine.freeze()
    assert about(SETTINGS.hung_computing_s, engine.until(Condition.HUNG, 400))


def test_a_given_up_probe_is_still_late() -> None:
    engine = ready_engine()
    engine.freeze()
    engine.until(Condition.HUNG, 60)
    engine.answer = Probed.LATE
    engine.look()
    engine.answer = None
    assert engine.looks(30) == [Condition.HUNG]
    assert "given up" in engine.verdict.why or "has waited" in engine.verdict.why


def test_metrics_that_do_not_answer_are_no_movement() -> None:
    engine = ready_engine()
    engine.freeze()
    engine.mute = True
    assert engine.until(Condition.HUNG, 60) <= THREE_PERIODS_S


# -- busy ------------------------------------------------------------------------------------------


def test_long_prompts_make_an_engine_busy_and_not_sick() -> None:
    """Twelve prompts of 7,500 tokens: steps of 20 s without a sign but of its processors, then tokens at once."""
    engine = ready_engine(requests=12)
    engine.answer = None
    seen = set()
    for _ in range(12):
        engine.processors, engine.tokens_s = 1.0, 0.0
        seen.update(engine.looks(19))
        engine.tokens_s = 7500.0
        seen.update(engine.looks(1))
    assert seen == {Condition.READY, Condition.BUSY}
    engine.tokens_s, engine.processors, engine.answer = 0.0, 0.0, Probed.RIGHT
    assert engine.looks(20)[-1] is Condition.READY


def test_a_late_probe_of_a_moving_engine_says_so() -> None:
    engine = ready_engine()
    engine.answer, engine.tokens_s = None, 5.0
    engine.looks(60)
    assert engine.verdict.condition is Condition.BUSY
    assert "the last token moved" in engine.verdict.why


# -- starting --------------------------------------------------------------------------------------


def test_a_first_compile_gets_its_time_whatever_it_looks_like() -> None:
    engine = PaperEngine(answer=Probed.REFUSED, processors=1.0)
    assert engine.looks(900) == [Condition.STARTING]
    engine.answer = None
    engine.processors = 0.0
    assert engine.looks(890) == [Condition.STARTING]
    engine.answer = Probed.RIGHT
    assert engine.looks(20)[-1] is Condition.READY


def test_a_start_without_end_ends() -> None:
    engine = PaperEngine(answer=None)
    assert engine.looks(61, start_s=60)[-1] is Condition.HUNG
    assert "within 60 s" in engine.verdict.why
    refusing = PaperEngine(answer=Probed.REFUSED)
    assert refusing.looks(80, start_s=60)[-1] is Condition.DEAD


def test_an_engine_that_has_served_before_we_came_is_not_starting() -> None:
    engine = PaperEngine(answer=None)
    engine._tokens = 5000.0
    assert engine.until(Condition.HUNG, 60) <= THREE_PERIODS_S


def test_an_engine_that_served_another_before_our_probe_was_due_is_not_dead() -> None:
    """While it loaded nobody listened; what made it ready may be somebody else's first request."""
    engine = PaperEngine(answer=Probed.REFUSED, mute=True, processors=1.0)
    assert engine.looks(30) == [Condition.STARTING]
    engine.mute, engine._tokens, engine._sent_s = False, 1.0, None
    assert engine.looks(LOOK_S) == [Condition.STARTING]
    engine.answer = Probed.RIGHT
    assert engine.looks(10)[-1] is Condition.READY


def test_a_start_that_died_is_dead() -> None:
    engine = PaperEngine(answer=Probed.REFUSED, processors=1.0)
    engine.looks(30)
    engine.missing = "its process 17 is gone"
    assert engine.looks(2 * LOOK_S) == [Condition.STARTING, Condition.DEAD]
    assert engine.verdict.why == "its process 17 is gone"


# -- dead and half-dead ----------------------------------------------------------------------------


def test_a_missing_process_is_death_at_the_second_look() -> None:
    """Whoever stops an engine on purpose tells so a moment later."""
    engine = ready_engine()
    engine.missing = "VLLM::EngineCore (process 17) is gone"
    assert engine.looks(2 * LOOK_S) == [Condition.READY, Condition.DEAD]
    assert engine.verdict.why == engine.missing
    engine.missing = ""
    assert engine.looks(LOOK_S) == [Condition.READY]


def test_one_refused_connection_is_none_two_are_death() -> None:
    engine = ready_engine(unseen=True)
    engine.answer = Probed.REFUSED
    assert engine.looks(SETTINGS.probe_period_s) == [Condition.READY]
    assert engine.looks(SETTINGS.probe_period_s)[-1] is Condition.DEAD
    engine.answer = Probed.RIGHT
    assert engine.looks(10)[-1] is Condition.READY


def test_one_wrong_answer_does_not_condemn_two_do() -> None:
    engine = ready_engine()
    engine.answer, engine.detail = Probed.WRONG, "log probabilities are not finite"
    engine.looks(SETTINGS.probe_period_s)
    assert engine.verdict.condition is Condition.READY
    engine.answer = Probed.RIGHT
    assert engine.looks(120) == [Condition.READY]
    engine.answer = Probed.WRONG
    engine.until(Condition.HALF_DEAD, 20)
    assert "log probabilities are not finite" in engine.verdict.why


def test_an_engine_that_is_wrong_now_and_then_is_half_dead() -> None:
    engine = ready_engine()
    for _ in range(3):
        engine.answer = Probed.WRONG
        engine.looks(SETTINGS.probe_period_s)
        engine.answer = Probed.RIGHT
        engine.looks(2 * SETTINGS.probe_period_s)
    assert engine.verdict.condition is Condition.HALF_DEAD
    assert "3 of the last" in engine.verdict.why
    assert engine.looks(120) == [Condition.HALF_DEAD, Condition.READY]


def test_an_engine_that_is_wrong_from_its_start_is_half_dead() -> None:
    engine = PaperEngine(answer=Probed.WRONG)
    engine.until(Condition.HALF_DEAD, 20)


def test_errors_in_a_row_are_half_death_unless_tokens_move() -> None:
    engine = ready_engine()
    engine.answer, engine.detail = Probed.FAILED, "HTTP 500"
    engine.tokens_s = 3.0
    assert engine.looks(60) == [Condition.READY, Condition.BUSY]
    engine.tokens_s = 0.0
    assert engine.until(Condition.HALF_DEAD, 20) <= THREE_PERIODS_S
    assert "HTTP 500" in engine.verdict.why


def test_a_probe_that_does_not_fit_condemns_nobody() -> None:
    engine = PaperEngine(answer=Probed.UNFIT, detail="HTTP 401: Unauthorized")
    assert engine.looks(600)[-1] is Condition.READY
    assert "HTTP 401" in engine.verdict.why
    engine.requests = 2  # requests of others that get no token
    engine.until(Condition.HUNG, 30)
    assert "2 requests are under way" in engine.verdict.why


# -- ranks of a data-parallel group ----------------------------------------------------------------


def test_one_silent_rank_with_requests_is_half_death() -> None:
    engine = ready_engine(tokens_s=10.0, processors=2.0)
    engine.ranks = {"0": RankCounters(5, 2), "1": RankCounters(5, 2)}
    engine.rank_processors = {"0": 1.0, "1": 1.0}
    assert {v.condition for v in steps_of_ranks(engine, lambda rank: True, 30)} == {Condition.READY}
    engine.rank_processors = {"0": 1.0, "1": 0.0}
    verdicts = list(steps_of_ranks(engine, lambda rank: rank == "0", THREE_PERIODS_S))
    assert verdicts[-1].condition is Condition.HALF_DEAD
    assert verdicts[-1].why.startswith("rank 1 has requests and has made no step for 1")


def test_a_rank_in_a_long_step_and_one_without_requests_are_well() -> None:
    engine = ready_engine(tokens_s=10.0, processors=2.0)
    engine.ranks = {"0": RankCounters(5, 2), "1": RankCounters(5, 2), "2": RankCounters(5, 0)}
    engine.rank_processors = {"0": 1.0, "1": 1.0, "2": 0.0}
    verdicts = list(steps_of_ranks(engine, lambda rank: rank == "0", 120))
    assert {verdict.condition for verdict in verdicts} == {Condition.READY}


def test_a_probe_meant_for_a_rank_is_a_request_there() -> None:
    quiet, busy = RankCounters(5, 0), RankCounters(5, 1)

    def sample(at_s: float, number: int, age_s: float) -> Sample:
        ranks = {"0": dataclasses.replace(busy, iterations=at_s), "1": quiet}
        counters = Counters(0, at_s, at_s, 1, 0, per_rank=ranks)
        processes = ProcessFacts(at_s, 0.0, {"0": at_s, "1": 3.0})
        probe = Probed.RIGHT if age_s == 0 else None
        return Sample(at_s, probe, number, age_s, "1" if age_s else "", "", counters, processes)

    history = [sample(100.0, 1, 0.0), *(sample(100.0 + n, 2, float(n)) for n in range(1, 12))]
    verdict = judge(history, Verdict(Condition.READY, 0.0, ""), SETTINGS)
    assert verdict.condition is Condition.HALF_DEAD
    assert "rank 1" in verdict.why


# -- what always holds -----------------------------------------------------------------------------

lives = st.lists(
    st.tuples(
        st.floats(1, 60),  # seconds
        st.sampled_from([0.0, 0.3, 1.0, 2.0]),  # processors
        st.booleans(),  # whether probes are answered
        st.booleans(),  # whether metrics answer
    ),
    min_size=1,
    max_size=6,
)


@examples(max_examples=20, deadline=None)
@for_all(lives, st.booleans(), st.booleans())
def test_an_engine_whose_tokens_move_is_never_sick(
    life: list[tuple[float, float, bool, bool]], answered: bool, unseen: bool
) -> None:
    engine = ready_engine(unseen=unseen) if answered else PaperEngine(unseen=unseen)
    engine.tokens_s = 1.0
    for seconds, processors, answers, _ in life:
        engine.processors, engine.answer = processors, Probed.RIGHT if answers else None
        assert not any(condition.sick for condition in engine.looks(seconds))


@examples(max_examples=20, deadline=None)
@for_all(lives)
def test_a_frozen_engine_is_always_found_and_never_after_the_bound(life: list[tuple[float, float, bool, bool]]) -> None:
    engine = ready_engine()
    for seconds, processors, answers, metrics in life:
        engine.processors, engine.tokens_s, engine.mute = processors, 2.0, not metrics
        engine.answer = Probed.RIGHT if answers else None
        engine.looks(seconds)
    engine.freeze()
    assert engine.until(Condition.HUNG, 60) <= THREE_PERIODS_S


@examples(max_examples=20, deadline=None)
@for_all(lives, st.floats(-900, 1e6))
def test_only_differences_of_time_count(life: list[tuple[float, float, bool, bool]], shift_s: float) -> None:
    """Times are whole looks, so that a shift by a multiple of them rounds nothing."""
    shift_s = round(shift_s)
    here, there = PaperEngine(), PaperEngine(now_s=1000.0 + shift_s)
    for seconds, processors, answers, metrics in life:
        for engine in (here, there):
            engine.processors, engine.mute = processors, not metrics
            engine.answer = Probed.RIGHT if answers else None
            engine.tokens_s = 1.0 if processors > 1 else 0.0
        for _ in range(round(seconds / LOOK_S)):
            one, other = here.look(), there.look()
            assert one == dataclasses.replace(other, since_s=other.since_s - shift_s)


@examples(max_examples=20, deadline=None)
@for_all(lives)
def test_verdicts_do_not_flap_between_sick_and_well(life: list[tuple[float, float, bool, bool]]) -> None:
    """A sick engine is well again only after a token or a right answer: here there is none after the freeze."""
    engine = ready_engine()
    engine.freeze()
    found = engine.looks(20)
    for seconds, processors, _, metrics in life:
        engine.processors, engine.mute = processors, not metrics
        found += engine.looks(seconds)
    first = next(index for index, condition in enumerate(found) if condition.sick)
    assert set(found[first:]) == {Condition.HUNG}


@pytest.mark.parametrize("given", [SETTINGS, WatchdogSettings(hung_unseen_s=900.0)])
def test_the_history_that_is_kept_suffices_for_every_patience(given: WatchdogSettings) -> None:
    assert history_s(given) > max(given.hung_computing_s, given.hung_unseen_s)


def test_dropping_what_is_older_than_the_history_changes_nothing() -> None:
    engine = ready_engine()
    engine.freeze()
    engine.processors = 1.0
    everything = list(engine.history)
    for _ in range(round(330 / LOOK_S)):
        before = engine.verdict
        verdict = engine.look()
        everything.append(engine.history[-1])
        assert judge(everything, before, SETTINGS) == verdict
    assert engine.verdict.condition is Condition.HUNG


def test_a_history_may_be_kept_in_a_deque() -> None:
    engine = ready_engine()
    assert judge(deque(engine.history), engine.verdict, SETTINGS) == engine.verdict
