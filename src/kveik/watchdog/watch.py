"""One engine under watch: look, judge, decide, act; again and again on a thread of its own.

Judging (:mod:`kveik.watchdog.decide`) and healing (:mod:`kveik.watchdog.healing`) are pure; here is what they are
fed with and how their acts are carried out. Whatever is done is told as an event.
"""

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence

import msgspec
import psutil

from kveik.engine.client import EngineClient
from kveik.errors import EngineError, RestartError
from kveik.fleet.announcement import HEARTBEATS_A_LEASE, EngineAnnouncement
from kveik.watchdog.ageing import Ageing
from kveik.watchdog.announcing import OURS, Door, EngineWatch
from kveik.watchdog.decide import OF_ANSWERS, history_s, judge
from kveik.watchdog.errand import Errand
from kveik.watchdog.evidence import Incident
from kveik.watchdog.healing import (
    ENDS_LOOK,
    Act,
    Healing,
    Seen,
    Stage,
    Step,
    after_failed_warm_up,
    after_refused_restart,
    at_leisure,
    next_step,
    noted,
    resumed,
)
from kveik.watchdog.history import outcomes
from kveik.watchdog.leaks import Limits
from kveik.watchdog.look import Eyes, look_period_s
from kveik.watchdog.state_file import Remembered
from kveik.watchdog.supervised import Supervised, supervised
from kveik.watchdog.verdict import Condition, Probed, Sample, Verdict
from kveik.watchdog.ward import Patient, Ward
from kveik.watchdog.warm_up import WarmedUp, warm_up

logger = logging.getLogger("kveik.watchdog")

#: An engine that starts is looked at that often at least.
_STARTING_LOOK_S = 0.25
#: Acts of one look, in case the rules should ever turn in circles.
_ACTS_MAX = 8
#: What an engine says of itself is asked for this often at most; its adapters may change.
_WORDS_PERIOD_S = 30.0
_WORDS_DEADLINE_S = 5.0
_METRICS_DEADLINE_S = 2.0
#: So long a supervisor may take to say why a process is gone.
_NOTICED_S = 2.0
#: Lines of what was done, for evidence.
_DONE_MAX = 20
#: How the reason of an isolation begins that only a person ends.
LEFT = "left to a person: "
_STAGES: Mapping[Stage, str] = {
    Stage.NEW: "not announced yet",
    Stage.ISOLATED: "isolated",
    Stage.RESTARTING: "restarted, and has to prove itself",
    Stage.LEFT: "isolated until a person readmits it",
}


class Watch:
    """Watches one engine: :meth:`step` again and again, from one thread."""

    def __init__(self, patient: Patient, ward: Ward) -> None:
        self.patient = patient
        self._ward = ward
        self._settings = ward.settings
        now_s = ward.clock.monotonic()
        self.eyes = Eyes(
            patient.name, patient.url, ward.settings, ward.references,
            api_key=patient.api_key, devices=ward.devices, clock=ward.clock,
        )  # fmt: skip
        self.door = Door(patient.name, ward.routers, listed=patient.words is None, clock=ward.clock)
        client = EngineClient(patient.url, read_timeout_s=_WORDS_DEADLINE_S, api_key=patient.api_key)
        self._introduction = EngineWatch(client, patient.words) if patient.words is not None else None
        self._words_due_s = 0.0
        self._history: deque[Sample] = deque()
        self._ageing = Ageing(patient.name, patient.roll, self._settings.planned_restart_days)
        self._done: deque[str] = deque(maxlen=_DONE_MAX)
        self._ordered_s = 0.0
        self._pid = 0
        self.healing = Healing()
        self.verdict = Verdict(Condition.STARTING, now_s, "it has not been looked at yet")
        self._remembered: Remembered | None = None
        self._adopted = False
        self._first_of_all: bool | None = None
        self._warming: Errand[WarmedUp] = Errand(f"warm-up-{patient.name}")
        self._resume(now_s)

    def __repr__(self) -> str:
        return f"Watch({self.patient.name}, {self.verdict.condition.value}, {self.healing.stage.value})"

    @property
    def newest(self) -> Sample | None:
        """The last look."""
        return self._history[-1] if self._history else None

    @property
    def told(self) -> str:
        """How far its healing is, for people; empty where all is well."""
        stage = self.healing.stage
        return "" if stage is Stage.SERVING else _STAGES[stage]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Slow decay, and what routers could not be told."""
        return tuple(filter(None, (*(decay.told for decay in self._ageing.decayed), self.door.trouble)))

    def run(self, stop: threading.Event) -> None:
        """Watch until ``stop`` is set."""
        pause_s = 0.0
        while not stop.wait(pause_s):
            try:
                pause_s = self.step()
            except Exception:  # supervision: an engine that nobody watches any more would be worse
                logger.exception("watching %s failed; it goes on", self.patient.name)
                pause_s = look_period_s(self._settings)

    def step(self) -> float:
        """One look, and what follows from it; seconds until the next one."""
        status = self._ward.status()
        if status is not None and status.asked_s <= self._ordered_s:
            return self._keep_door()  # it is from before our last order: nothing can be told from it
        view = status.processes.get(self.patient.name) if status is not None else None
        facts = supervised(view, self.healing.stage, self._ward.clock.wall())
        self._notice_process(facts)
        if facts.stopped:
            self._leave()
            return self._keep_door()
        self._look(facts)
        self._adopt_hold()
        self._learn_whether_first()
        self._take_warm_up()
        self._heal(facts)
        self._learn_words()
        return self._keep_door()

    # -- looking ------------------------------------------------------------------------------

    @property
    def _is_awaited(self) -> bool:
        """Whether it starts, and users may be waiting for its first answer."""
        return self.healing.stage in (Stage.NEW, Stage.RESTARTING) and self.verdict.condition is Condition.STARTING

    def _look(self, facts: Supervised) -> None:
        if self._is_awaited:
            self.eyes.hurry()
        self._history.append(self.eyes.look(facts.pids))
        oldest_s = self._history[-1].at_s - history_s(self._settings)
        while self._history[0].at_s < oldest_s:
            self._history.popleft()
        before = self.verdict
        self.verdict = judge(tuple(self._history), before, self._settings, start_s=self.patient.start_s)
        if self.verdict.condition is not before.condition:
            logger.info("%s: %s: %s", self.patient.name, self.verdict.condition.value, self.verdict.why)
        may_roll = self.healing.stage is Stage.SERVING and not facts.busy
        for kind, told in self._ageing.step(self._now_s, self.eyes.vitals, self._limits, may_roll=may_roll):
            self._tell(kind, f"{self.patient.name}: {told}")

    def _limits(self) -> Limits:
        """What an engine on this machine could have at most."""
        newest, device_bytes = self.newest, self.eyes.device_limit_bytes()
        if newest is None or newest.processes is None:
            return Limits(device_bytes=device_bytes)
        host_bytes = newest.processes.resident_bytes + psutil.virtual_memory().available
        return Limits(host_bytes=host_bytes, device_bytes=device_bytes)

    def _notice_process(self, facts: Supervised) -> None:
        """Another process is another engine: nothing that the old one did counts."""
        known, self._pid = self._pid, facts.pid or self._pid
        if self._pid != known and (known or self.verdict.condition is not Condition.STARTING):
            self._begin_anew(f"process {facts.pid} was started")

    def _begin_anew(self, why: str) -> None:
        self.eyes.restarted()
        self.eyes.metrics = None  # of the old one
        self._ageing.begin_anew()
        self._history.clear()
        self.verdict = Verdict(Condition.STARTING, self._now_s, why)
        self._words_due_s = 0.0

    def _seen(self, facts: Supervised) -> Seen:
        ended = outcomes(self._history, max(OF_ANSWERS, self._settings.good_probes))
        views = self._ward.views()
        return Seen(
            verdict=self.verdict,
            good_probes=_good_in_a_row([one.probed for one in ended if one.at_s >= self.healing.since_s]),
            answers_rightly=_rightly([one.probed for one in ended[-OF_ANSWERS:]]),
            held=facts.busy or self._supervisor_may_know(facts) or self.door.held_by_others(views),
            no_restart=self.patient.restarter.no_restart,
            starting=facts.starting or self._order_is_under_way(facts),
            given_up=facts.given_up,
            first_of_all=bool(self._first_of_all),
            last_in_pool=any(not view.ready - {self.patient.name} for view in views.values()),
            readmitted=self.door.readmitted,
            leisure=at_leisure(
                self.healing, idle=self._is_idle(), others_start=self._others_start(), now_s=self._now_s
            ),
            pid=facts.pid,
        )

    def _is_idle(self) -> bool:
        """Whether nobody waited for an answer when counters were read last; true of an engine that tells none."""
        counters = next((sample.counters for sample in reversed(self._history) if sample.counters), None)
        return counters is None or counters.running + counters.waiting == 0

    def _others_start(self) -> bool:
        """Whether another engine of this node is starting."""
        status = self._ward.status()
        views = status.processes.values() if status is not None else ()
        return any(
            view.kind == "engine" and view.state == "starting" and view.name != self.patient.name for view in views
        )

    def _supervisor_may_know(self, facts: Supervised) -> str:
        """A process is gone that the supervisor had: whether it was ended on purpose, the next word says."""
        newest = self.newest
        gone = newest is not None and newest.processes is not None and bool(newest.processes.missing)
        passing = facts.pid and gone and self._now_s - self.verdict.since_s < _NOTICED_S
        return "its supervisor may have ended it" if passing else ""

    def _order_is_under_way(self, facts: Supervised) -> bool:
        """Whether what is seen may still be the engine as it was before its restart."""
        ordered = self.healing.stage is Stage.RESTARTING and facts.pid in (0, self.healing.pid)
        return ordered and self._now_s - self.healing.since_s < self.patient.order_s

    # -- healing ------------------------------------------------------------------------------

    def _heal(self, facts: Supervised) -> None:
        seen = self._seen(facts)
        if self.healing.stage is not Stage.NEW and seen.leisure:
            self.eyes.look_closely()
        self._note(noted(self.healing, seen, self._settings, self._now_s))
        for _ in range(_ACTS_MAX):
            step = next_step(self.healing, seen, self._settings, self._now_s)
            if step is None:
                break
            self._carry_out(step)
            if step.act in ENDS_LOOK or self.healing.stage is not step.after.stage:
                break
        self._remember()

    def _note(self, healing: Healing) -> None:
        """Take over what happened by itself; an isolation that a person ended is over, or is set again."""
        before, self.healing = self.healing, healing
        if before.stage in (Stage.LEFT, Stage.ISOLATED) and healing.stage is Stage.SERVING:
            self._tell("readmitted", "a person readmitted it; restarts are counted anew")
            self.door.open()
        elif self.door.readmitted and healing.stage is not Stage.LEFT:
            self.door.close(healing.why)

    def _carry_out(self, step: Step) -> None:
        name, why = self.patient.name, step.why
        if step.act is Act.RESTART:
            self._restart(step)
            return
        if step.act is Act.WARM_UP:
            self._warm_up(step)
            return
        self.healing = step.after
        if step.act is Act.SAVE_EVIDENCE:
            self._save_evidence()
            return
        self._remember()  # first: who goes on after us does the rest, since all of it may be done twice
        if step.act in (Act.ANNOUNCE, Act.READMIT):
            self.door.open(self._said())
            told = "gets requests" if step.act is Act.ANNOUNCE else "gets requests again"
            self._tell("announced" if step.act is Act.ANNOUNCE else "readmitted", f"{name} {told}: {why}")
        elif step.act is Act.ISOLATE:
            self.door.close(why)
            self._keep_door()
            self._tell("isolated", f"{name} gets no requests: {why}", condition=self.verdict.condition.value)
        elif step.act is Act.LEAVE:
            self.door.close(f"{LEFT}{why}")
            self._tell("left", why)
        else:
            self._tell("spared" if step.act is Act.SPARE else "not restarted", why)

    def _restart(self, step: Step) -> None:
        """Noted first, then ordered: a watchdog that is killed in between does not order it twice."""
        self.healing = step.after
        self._remember()
        settings, count = self._settings, len(step.after.restarts)
        if not step.after.refused:
            of = f"{count} of at most {settings.restarts_max} within {settings.restarts_window_s:g} s"
            self._tell("restarted", f"{self.patient.name} is restarted ({of}): {step.why}", restarts=count)
        try:
            told = self.patient.restarter.restart(step.why)
        except RestartError as error:
            told = f"the restart failed: {error}"
            if not step.after.refused:  # once, not with every try
                self._tell("restart failed", told)
            self.healing = after_refused_restart(step.after, self._now_s)
        else:
            self.healing = msgspec.structs.replace(step.after, refused=0)
            self._ordered_s = self._now_s
            self._begin_anew("its restart was ordered")
        self._done.append(told)
        self._ward.evidence.add(step.after.incident, "restart.txt", f"{told}\n")

    def _warm_up(self, step: Step) -> None:
        """Warm it up: while the watch waits if it gets no requests yet, beside the watch if it serves."""

        def call() -> WarmedUp:
            return warm_up(self.patient.url, deadline_s=self._settings.warm_up_s, api_key=self.patient.api_key)

        if step.after.stage is not Stage.SERVING:
            self._warmed(call(), step.after)
            return
        self.healing = step.after
        if not self._warming.away:
            self._warming.begin(call, self._now_s)

    def _take_warm_up(self) -> None:
        """What became of a warm-up beside the watch; of no interest if the engine was taken out meanwhile."""
        warmed = self._warming.take()
        if warmed is not None and self.healing.stage is Stage.SERVING:
            self._warmed(warmed, self.healing)

    def _warmed(self, warmed: WarmedUp, after: Healing) -> None:
        if warmed.trouble:
            self.healing = after_failed_warm_up(self.healing, self._now_s)
            self._tell("warm-up failed", f"{self.patient.name} could not be warmed up: {warmed.trouble}")
            return
        logger.info("%s is warm after %.1f s", self.patient.name, warmed.took_s)
        self.healing = after

    def _save_evidence(self) -> None:
        status = self._ward.status()
        view = status.processes.get(self.patient.name) if status is not None else None
        facts = supervised(view, self.healing.stage, self._ward.clock.wall())
        incident = Incident(
            engine=self.patient.name,
            node=self._ward.node,
            url=self.patient.url,
            verdict=self.verdict,
            at_s=self._ward.clock.wall(),
            pids=facts.pids or (),
            log=view.log if view is not None else "",
            samples=tuple(self._history),
            history=tuple(self._done),
            metrics=self._metrics_text,
        )
        try:
            folder = self._ward.evidence.save(incident)
        except OSError as error:
            self._tell("no evidence", f"evidence could not be saved: {error}")
            return
        self.healing = msgspec.structs.replace(self.healing, incident=folder.name)
        self._remember()
        self._tell("evidence", f"evidence is in {folder}")

    def _metrics_text(self) -> str:
        client = EngineClient(
            self.patient.url, read_timeout_s=_METRICS_DEADLINE_S, connect_timeout_s=_METRICS_DEADLINE_S,
            api_key=self.patient.api_key,
        )  # fmt: skip
        try:
            return client.metrics_text()
        except EngineError as error:
            return f"# {error}\n"

    # -- the routers --------------------------------------------------------------------------

    def _keep_door(self) -> float:
        for line in self.door.keep(self._ward.views()):
            logger.info("%s", line)
        period_s = look_period_s(self._settings)
        return min(period_s, _STARTING_LOOK_S) if self._is_awaited else period_s

    def _said(self) -> EngineAnnouncement | None:
        """The engine's announcement, asked for now; None if it does not answer or is not announced."""
        if self._introduction is None:
            return None
        self._words_due_s = self._now_s + min(_WORDS_PERIOD_S, self._settings.lease_s / HEARTBEATS_A_LEASE)
        return self._introduction.look()[1]

    def _learn_words(self) -> None:
        """What an engine says of itself may change; a watchdog that was restarted has yet to hear it."""
        well = self.verdict.condition is Condition.READY and self.healing.stage is Stage.SERVING
        if well and self._now_s >= self._words_due_s:
            self.door.learn(self._said())

    def _leave(self) -> None:
        """Somebody stopped the engine on purpose: it leaves the fleet, and what was begun with it is over."""
        if self.healing.stage is Stage.NEW:
            return
        self.door.leave()
        self.healing = Healing(restarts=self.healing.restarts)
        self._first_of_all = None
        self._begin_anew("it was stopped on purpose")
        self._remember()
        self._tell("stopped", f"{self.patient.name} was stopped on purpose and is taken out of the fleet")

    # -- memory -------------------------------------------------------------------------------

    def _resume(self, now_s: float) -> None:
        """Go on where the watchdog before this one was."""
        remembered = self._ward.state.get(self.patient.name)
        if remembered is None:
            return
        status = self._ward.status()
        view = status.processes.get(self.patient.name) if status is not None else None
        self._pid = remembered.pid
        self.healing = resumed(remembered.healing, view.pid if view is not None else 0, now_s)
        starting = self.healing.stage is Stage.RESTARTING
        self.verdict = Verdict(Condition.STARTING, now_s, "it is restarted") if starting else remembered.verdict
        if self.healing.stage is Stage.SERVING:
            self.door.open()
        elif self.healing.stage is Stage.LEFT:
            self.door.closed_before(f"{LEFT}{self.healing.why}")
        elif self.healing.stage is not Stage.NEW:
            self.door.close(self.healing.why)
        logger.info("%s: resumed as %s (%s)", self.patient.name, self.healing.stage.value, self.verdict.why)

    def _adopt_hold(self) -> None:
        """An engine that is new to us and that a watchdog isolated, whose memory is gone: healing goes on there."""
        views = self._ward.views()
        if self._adopted or not views:
            return
        self._adopted = True
        shown = next((s for view in views.values() if (s := view.engines.get(self.patient.name)) and s.ours), None)
        if shown is None or self.healing.stage is not Stage.NEW:
            return
        why = shown.why.removeprefix(OURS)
        stage = Stage.LEFT if why.startswith(LEFT) else Stage.ISOLATED
        self.healing = Healing(stage=stage, since_s=self._now_s, why=why, incident="unknown")
        self.door.closed_before(why)

    def _learn_whether_first(self) -> None:
        """When an engine begins: whether any other one serves. If none does, a plain answer is enough to begin with."""
        views = self._ward.views()
        if self.healing.stage is not Stage.NEW or self._first_of_all is not None or not views:
            return
        self._first_of_all = not any(view.ready - {self.patient.name} for view in views.values())
        if self._first_of_all:
            self.eyes.begin_plainly()

    def _remember(self) -> None:
        """Write down what must outlive us, if it changed."""
        verdict = self.verdict
        remembered = Remembered(
            healing=self.healing, condition=verdict.condition, since_s=verdict.since_s,
            why=verdict.why if verdict.condition.sick else "", pid=self._pid,
        )  # fmt: skip
        if remembered != self._remembered:
            self._ward.state.put(self.patient.name, remembered)
            self._remembered = remembered

    @property
    def _now_s(self) -> float:
        return self._ward.clock.monotonic()

    def _tell(self, kind: str, told: str, **fields: str | int | float | bool) -> None:
        self._done.append(told)
        self._ward.events.tell(kind, self.patient.name, told, **fields)


def _good_in_a_row(ended: Sequence[Probed]) -> int:
    """Probes that were answered rightly, counted from the last; an engine that wants no probe counts as good."""
    count = 0
    for probed in reversed(ended):
        if probed not in (Probed.RIGHT, Probed.UNFIT):
            break
        count += 1
    return count


def _rightly(ended: Sequence[Probed]) -> bool:
    return bool(ended) and ended[-1] is Probed.RIGHT and Probed.WRONG not in ended
