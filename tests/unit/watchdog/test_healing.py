import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.config_fleet import WatchdogSettings
from kveik.watchdog.healing import (
    COLD_MAX_S,
    COLD_S,
    ENDS_LOOK,
    WARM_UPS_MAX,
    Act,
    Healing,
    Seen,
    Stage,
    after_failed_warm_up,
    after_refused_restart,
    at_leisure,
    next_step,
    noted,
    restart_due_s,
    resumed,
)
from kveik.watchdog.verdict import Condition, Verdict

SETTINGS = WatchdogSettings()
READY, BUSY, STARTING = Condition.READY, Condition.BUSY, Condition.STARTING
HUNG, HALF_DEAD, DEAD = Condition.HUNG, Condition.HALF_DEAD, Condition.DEAD
SICK = [HUNG, HALF_DEAD, DEAD]


def seen(condition: Condition, **given: object) -> Seen:
    return dataclasses.replace(Seen(Verdict(condition, 0.0, "as figures say")), **given)  # type: ignore[arg-type]


class Patient:
    """One engine whose every step succeeds, but for warm-ups of a ``cold`` one; what was done to it."""

    def __init__(self, stage: Stage = Stage.SERVING, settings: WatchdogSettings = SETTINGS) -> None:
        self.healing = Healing(stage=stage)
        self.settings = settings
        self.now_s = 1000.0
        self.cold = False
        self.acts: list[Act] = []
        self.whys: list[str] = []

    def look(self, condition: Condition, after_s: float = 5.0, **given: Any) -> list[Act]:
        """The acts of one look ``after_s`` later."""
        self.now_s += after_s
        now = seen(condition, **given)
        self.healing = noted(self.healing, now, self.settings, self.now_s)
        begun = len(self.acts)
        while step := next_step(self.healing, now, self.settings, self.now_s):
            self.acts.append(step.act)
            self.whys.append(step.why)
            self.healing = step.after
            if step.act is Act.WARM_UP and self.cold:
                self.healing = after_failed_warm_up(self.healing, self.now_s)
                break
            assert len(self.acts) - begun < 6, "it turns in circles"
            if step.act in ENDS_LOOK:
                break
        return self.acts[begun:]


# -- a new engine ---------------------------------------------------------------------------------


def test_a_new_engine_is_announced_after_its_first_good_probe_and_a_warm_up() -> None:
    patient = Patient(Stage.NEW)
    assert patient.look(STARTING) == []
    assert patient.look(READY, good_probes=1) == [Act.WARM_UP, Act.ANNOUNCE]
    assert patient.healing.stage is Stage.SERVING


def test_an_engine_that_began_when_nobody_served_is_warmed_up_while_it_serves() -> None:
    patient = Patient(Stage.NEW)
    assert patient.look(READY, good_probes=1, first_of_all=True) == [Act.ANNOUNCE]
    assert patient.look(HALF_DEAD, answers_rightly=True, last_in_pool=True) == [Act.SPARE], (
        "what it answers counts first"
    )
    assert patient.look(READY, good_probes=1, first_of_all=True) == [Act.WARM_UP]
    assert patient.look(READY, good_probes=1, first_of_all=True) == []


def test_an_engine_that_serves_cold_is_warmed_up_when_it_is_at_leisure() -> None:
    patient = Patient(Stage.NEW)
    patient.look(READY, good_probes=1, first_of_all=True)
    assert patient.look(READY, good_probes=1, leisure=False) == []
    assert patient.look(READY, good_probes=1) == [Act.WARM_UP]


@pytest.mark.parametrize(
    ("served_s", "idle", "others_start", "is_so"),
    [
        (COLD_S, True, False, True),
        (COLD_S - 1, True, False, False),
        (COLD_S, False, False, False),
        (COLD_S, True, True, False),
        (COLD_MAX_S, False, True, True),
    ],
    ids=["idle", "just begun", "users wait", "others start", "never idle"],
)
def test_leisure_comes_when_nobody_waits_or_in_the_end_all_the_same(
    served_s: float, idle: bool, others_start: bool, is_so: bool
) -> None:
    healing = Healing(stage=Stage.SERVING, since_s=100.0, cold=True)
    assert at_leisure(healing, idle=idle, others_start=others_start, now_s=100.0 + served_s) == is_so


@pytest.mark.parametrize("stage", [Stage.NEW, Stage.ISOLATED, Stage.RESTARTING, Stage.LEFT])
def test_an_engine_without_users_is_always_at_leisure(stage: Stage) -> None:
    assert at_leisure(Healing(stage=stage, since_s=100.0), idle=False, others_start=True, now_s=100.0)


def test_a_warm_up_of_an_engine_that_serves_already_is_tried_a_few_times() -> None:
    patient = Patient(Stage.NEW)
    patient.look(READY, good_probes=1, first_of_all=True)
    patient.cold = True
    for _ in range(WARM_UPS_MAX):
        assert patient.look(READY, good_probes=1) == [Act.WARM_UP]
        assert patient.healing.stage is Stage.SERVING
    assert patient.look(READY, good_probes=1) == []


def test_a_warm_up_that_fails_is_tried_again_and_in_the_end_an_engine_with_right_answers_is_announced() -> None:
    patient = Patient(Stage.NEW)
    patient.cold = True
    for _ in range(WARM_UPS_MAX):
        assert patient.look(READY, good_probes=1) == [Act.WARM_UP]
    assert patient.look(READY, good_probes=1) == [Act.ANNOUNCE]
    assert "3 warm-ups failed" in patient.whys[-1]


@pytest.mark.parametrize("given", [{"starting": True}, {"given_up": True}])
def test_an_engine_that_ends_before_it_ever_served_is_its_supervisors_business(given: dict[str, bool]) -> None:
    assert Patient(Stage.NEW).look(DEAD, **given) == []


def test_an_engine_that_answers_nonsense_from_the_start_is_never_announced() -> None:
    assert Patient(Stage.NEW).look(HALF_DEAD) == [Act.ISOLATE, Act.SAVE_EVIDENCE, Act.RESTART]


# -- a sick one -----------------------------------------------------------------------------------


@pytest.mark.parametrize("condition", [DEAD, HALF_DEAD])
def test_a_dead_or_half_dead_engine_is_isolated_evidence_is_saved_and_it_is_restarted_at_once(
    condition: Condition,
) -> None:
    patient = Patient()
    assert patient.look(condition, pid=7) == [Act.ISOLATE, Act.SAVE_EVIDENCE, Act.RESTART]
    assert patient.healing.restarts == (patient.now_s,)
    assert patient.healing.pid == 7


def test_a_hung_engine_gets_its_grace() -> None:
    patient = Patient()
    assert patient.look(HUNG) == [Act.ISOLATE, Act.SAVE_EVIDENCE]
    assert patient.look(HUNG, SETTINGS.restart_grace_s - 0.1) == []
    assert patient.look(HUNG, 0.1) == [Act.RESTART]


def test_a_hung_engine_that_comes_back_within_the_grace_is_readmitted_without_a_restart() -> None:
    patient = Patient()
    patient.look(HUNG)
    for number in range(1, SETTINGS.good_probes):
        assert patient.look(READY, good_probes=number) == []
    assert patient.look(READY, good_probes=SETTINGS.good_probes) == [Act.READMIT]
    assert patient.healing == Healing(stage=Stage.SERVING, since_s=patient.now_s)


def test_a_hung_engine_that_dies_within_the_grace_is_restarted_at_once() -> None:
    patient = Patient()
    patient.look(HUNG)
    assert patient.look(DEAD, 1.0) == [Act.RESTART]


def test_a_restarted_engine_is_readmitted_after_good_probes_and_a_warm_up() -> None:
    patient = Patient()
    patient.look(DEAD)
    assert patient.look(STARTING) == []
    assert patient.look(READY, good_probes=SETTINGS.good_probes - 1) == []
    assert patient.look(READY, good_probes=SETTINGS.good_probes) == [Act.WARM_UP, Act.READMIT]
    assert patient.healing.stage is Stage.SERVING
    assert len(patient.healing.restarts) == 1, "it still counts"


def test_an_engine_whose_warm_ups_fail_after_a_restart_is_restarted_again_whatever_its_probes_say() -> None:
    patient = Patient()
    patient.look(DEAD)
    patient.cold = True
    for _ in range(WARM_UPS_MAX):
        assert patient.look(READY, good_probes=3) == [Act.WARM_UP]
    assert patient.look(READY, good_probes=3) == [Act.ISOLATE, Act.RESTART]
    assert "warm-up failed 3 times" in patient.whys[-1]


@pytest.mark.parametrize("stage", [Stage.NEW, Stage.SERVING, Stage.RESTARTING])
@pytest.mark.parametrize("condition", [BUSY, STARTING])
def test_a_busy_or_starting_engine_is_never_touched(stage: Stage, condition: Condition) -> None:
    assert Patient(stage).look(condition, good_probes=9) == []


@pytest.mark.parametrize("stage", list(Stage))
@pytest.mark.parametrize("condition", list(Condition))
def test_an_engine_that_somebody_holds_is_never_touched(stage: Stage, condition: Condition) -> None:
    patient = Patient(stage)
    patient.healing = msgspec.structs.replace(patient.healing, incident="i")
    assert patient.look(condition, 1e6, good_probes=9, held="is being rolled") == []


def test_the_last_engine_that_still_answers_rightly_keeps_its_requests_and_that_is_said_once() -> None:
    patient = Patient()
    assert patient.look(HALF_DEAD, last_in_pool=True, answers_rightly=True) == [Act.SPARE]
    assert patient.look(HALF_DEAD, last_in_pool=True, answers_rightly=True) == []
    assert patient.look(HALF_DEAD, last_in_pool=True, answers_rightly=False)[0] is Act.ISOLATE


def test_as_soon_as_another_engine_is_ready_it_is_isolated() -> None:
    patient = Patient()
    patient.look(HALF_DEAD, last_in_pool=True, answers_rightly=True)
    assert patient.look(HALF_DEAD, answers_rightly=True)[0] is Act.ISOLATE


# -- back-off, budget, loop protection ------------------------------------------------------------


def crash_loop(patient: Patient) -> None:
    for _ in range(10_000):
        if patient.healing.stage is Stage.LEFT:
            return
        patient.look(DEAD, 0.5)
        patient.look(STARTING, 0.5)
    raise AssertionError("it never ends")


def test_a_crash_loop_ends_with_the_budget_and_one_event_says_how_to_readmit() -> None:
    patient = Patient()
    crash_loop(patient)
    assert patient.acts.count(Act.RESTART) == SETTINGS.restarts_max
    assert patient.acts.count(Act.LEAVE) == 1
    assert "5 restarts within 3600 s did not help" in patient.whys[-1]
    assert "readmit" in patient.whys[-1]
    for condition in (*SICK, READY):
        assert patient.look(condition, 100.0, good_probes=9) == []


def test_the_pause_between_restarts_doubles_up_to_a_bound() -> None:
    settings = WatchdogSettings(restart_pause_s=2.0, restart_pause_max_s=7.0, restarts_max=9)
    patient, times = Patient(settings=settings), []
    while patient.healing.stage is not Stage.LEFT:
        if Act.RESTART in patient.look(DEAD, 0.5):
            times.append(patient.now_s)
    assert [after - before for before, after in itertools.pairwise(times)] == [2, 4, 7, 7, 7, 7, 7, 7]


def test_restarts_of_long_ago_do_not_count() -> None:
    patient = Patient()
    for _ in range(3 * SETTINGS.restarts_max):
        assert Act.RESTART in patient.look(DEAD, SETTINGS.restarts_window_s)
        assert patient.look(READY, good_probes=3) == [Act.WARM_UP, Act.READMIT]


def test_a_person_who_readmits_it_begins_anew() -> None:
    patient = Patient()
    crash_loop(patient)
    assert patient.look(STARTING, readmitted=True) == []
    assert patient.healing == Healing(stage=Stage.SERVING, since_s=patient.now_s)
    assert patient.look(DEAD)[-1] is Act.RESTART


def test_an_order_that_is_not_taken_costs_no_budget_and_is_given_again_after_a_growing_pause() -> None:
    patient = Patient(settings=WatchdogSettings(restart_pause_s=10.0, restart_pause_max_s=25.0))
    patient.look(DEAD)
    for pause_s in (10.0, 20.0, 25.0, 25.0, 25.0, 25.0, 25.0):
        patient.healing = after_refused_restart(patient.healing, patient.now_s)
        assert patient.healing.restarts == ()
        assert patient.look(DEAD, pause_s - 0.5) == []
        assert patient.look(DEAD, 0.5) == [Act.RESTART]
    assert patient.healing.refused == 7


def test_an_order_that_is_not_taken_does_not_begin_a_new_grace() -> None:
    patient = Patient()
    patient.look(HUNG)
    assert patient.look(HUNG, SETTINGS.restart_grace_s) == [Act.RESTART]
    patient.healing = after_refused_restart(patient.healing, patient.now_s)
    assert patient.look(HUNG, 2.0) == [Act.RESTART]


# -- where nobody restarts ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "given"),
    [(WatchdogSettings(restart=False), {}), (SETTINGS, {"no_restart": "no command is set"})],
)
def test_an_engine_that_nobody_can_restart_is_isolated_and_reported_once(
    settings: WatchdogSettings, given: dict[str, Any]
) -> None:
    patient = Patient(settings=settings)
    assert patient.look(DEAD, **given) == [Act.ISOLATE, Act.SAVE_EVIDENCE, Act.REPORT]
    assert patient.look(DEAD, 1e6, **given) == []
    assert patient.look(READY, good_probes=3, **given) == [Act.READMIT]


# -- after a restart of the watchdog --------------------------------------------------------------


def test_a_restart_that_was_noted_but_not_carried_out_is_not_counted() -> None:
    healing = Healing(stage=Stage.RESTARTING, restarts=(1.0, 2.0), pid=7, incident="i")
    assert resumed(healing, 7, 50.0) == Healing(
        stage=Stage.ISOLATED, since_s=50.0, restarts=(1.0,), pid=7, incident="i"
    )


@pytest.mark.parametrize("pid", [0, 8])
def test_a_restart_that_was_carried_out_or_cannot_be_seen_is_waited_for(pid: int) -> None:
    healing = Healing(stage=Stage.RESTARTING, restarts=(2.0,), pid=7)
    assert resumed(healing, pid, 50.0) == msgspec.structs.replace(healing, since_s=50.0)


@pytest.mark.parametrize("stage", list(Stage))
def test_the_stage_survives(stage: Stage) -> None:
    healing = Healing(stage=stage, since_s=1.0, incident="i", why="hung: 3 waiting")
    assert resumed(healing, 0, 50.0) == msgspec.structs.replace(healing, since_s=50.0)


def test_waiting_times_begin_anew_so_nothing_is_killed_at_once() -> None:
    hung = Healing(stage=Stage.ISOLATED, since_s=1.0, incident="i")
    patient = Patient()
    patient.healing = resumed(hung, 0, patient.now_s)
    assert patient.look(HUNG, SETTINGS.restart_grace_s - 1) == []


# -- whatever happens -----------------------------------------------------------------------------

looks: st.SearchStrategy[dict[str, object]] = st.builds(
    dict,
    condition=st.sampled_from(list(Condition)),
    after_s=st.floats(0.1, 400.0),
    good_probes=st.integers(0, 4),
    answers_rightly=st.booleans(),
    held=st.sampled_from(["", "", "", "roll"]),
    no_restart=st.sampled_from(["", "", "", "no command"]),
    starting=st.booleans(),
    last_in_pool=st.booleans(),
    readmitted=st.booleans(),
)


def history(patient: Patient, given: list[dict[str, object]]) -> Iterator[tuple[dict[str, object], list[Act], Healing]]:
    for look in given:
        before = patient.healing
        yield look, patient.look(**look), before  # type: ignore[arg-type]


@given(st.lists(looks, max_size=40), st.sampled_from([Stage.NEW, Stage.SERVING]))
def test_whatever_happens_restarts_come_after_isolation_and_evidence_and_within_the_budget(
    given: list[dict[str, object]], stage: Stage
) -> None:
    patient, ordered = Patient(stage), []
    isolated = evidence = False
    for look, acts, _ in history(patient, given):
        for act in acts:
            if act is Act.ISOLATE:
                isolated, evidence = True, evidence and isolated
            elif act is Act.SAVE_EVIDENCE:
                assert isolated
                evidence = True
            elif act is Act.RESTART:
                assert isolated, "requests could still be on it"
                assert evidence, "nobody would ever know why"
                assert look["condition"] in SICK or patient.healing.cold_tries
                ordered.append(patient.now_s)
            elif act is Act.READMIT:
                isolated = evidence = False
        if look["readmitted"] and patient.healing.stage is Stage.SERVING:
            isolated = evidence = False
            ordered = []
        window = [at_s for at_s in ordered if patient.now_s - at_s < SETTINGS.restarts_window_s]
        assert len(window) <= SETTINGS.restarts_max


@given(st.lists(looks, max_size=40))
def test_whatever_happened_before_a_busy_or_starting_engine_is_never_restarted_or_isolated(
    given: list[dict[str, object]],
) -> None:
    for look, acts, _ in history(Patient(), given):
        if look["condition"] in (BUSY, STARTING):
            assert not {Act.ISOLATE, Act.RESTART} & set(acts)


@given(st.lists(looks, max_size=40))
def test_only_an_engine_that_answers_rightly_is_announced_or_readmitted(given: list[dict[str, object]]) -> None:
    for look, acts, before in history(Patient(Stage.NEW), given):
        if {Act.ANNOUNCE, Act.READMIT} & set(acts):
            assert look["condition"] is READY
            assert look["good_probes"]
            assert before.stage is not Stage.LEFT


@given(
    st.lists(st.floats(0, 1e4), max_size=5).map(sorted),
    st.sampled_from(SICK),
    st.floats(0, 1e4),
)
def test_a_restart_is_never_due_before_its_pause_is_over(
    restarts: list[float], condition: Condition, since_s: float
) -> None:
    healing = Healing(since_s=since_s, restarts=tuple(restarts))
    due_s = restart_due_s(healing, condition, SETTINGS)
    assert due_s >= since_s
    if restarts:
        assert due_s - restarts[-1] >= SETTINGS.restart_pause_s - 1e-6
