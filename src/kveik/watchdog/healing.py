"""What to do next for one engine: a pure function of its verdict and of what was done so far.

::

    new --good probe, warm-up--> serving --sick--> isolated --well again--------------------> serving
                                                      |  ^                                       ^
                                        evidence, then|  |sick again                             |
                                    grace and back-off v  |                                       |
                                                   restarting --good probes, warm-up--> readmitted
    isolated --budget is spent--> left to a person, who readmits it

An engine that began when nobody served is announced before its warm-up: a fleet that starts has no better one. It is
warmed up when it is at leisure, so that those who waited for it do not wait for that, too.
A busy or starting engine is never touched, nor is one that somebody holds. What is done to an engine is noted before
it is done, so a watchdog that is killed in the midst of it does not do it twice.
"""

from dataclasses import dataclass
from enum import Enum

import msgspec

from kveik.config_fleet import WatchdogSettings
from kveik.watchdog.verdict import Condition, Verdict

#: Warm-ups in a row that may fail before a restart counts as failed.
WARM_UPS_MAX = 3
#: Least pause after an order that was not taken.
REFUSED_PAUSE_S = 1.0
#: So long an engine that began to serve cold is left to its users, and so long at most if they leave it no leisure.
COLD_S = 5.0
COLD_MAX_S = 30.0
#: Good probes of an engine that never served: it is new, nothing speaks against it.
FIRST_GOOD_PROBES = 1


class Stage(Enum):
    """How far an engine is."""

    NEW = "new"  # not announced yet
    SERVING = "serving"
    ISOLATED = "isolated"  # without requests, because it is sick
    RESTARTING = "restarting"  # its restart was ordered, and it did not prove itself since
    LEFT = "left"  # restarts did not help: it stays isolated until a person readmits it


class Act(Enum):
    """What can be done."""

    WARM_UP = "warm up"
    ANNOUNCE = "announce"
    ISOLATE = "isolate"
    SAVE_EVIDENCE = "save evidence"
    RESTART = "restart"
    READMIT = "readmit"
    REPORT = "report"  # say that nobody restarts it
    SPARE = "spare"  # say why it is not isolated
    LEAVE = "leave"  # say that it stays isolated, and how to readmit it


#: After these the engine has to be looked at again: what was seen of it counts no more.
ENDS_LOOK = frozenset({Act.RESTART, Act.ANNOUNCE, Act.READMIT, Act.LEAVE})


class Healing(msgspec.Struct, frozen=True, kw_only=True):
    """What was done so far about one engine. Times are monotonic seconds.

    ``since_s``: of the stage. ``why``: of the isolation. ``incident``: where evidence is, empty if none was saved yet.
    ``restarts``: when restarts were ordered within the window. ``refused``: orders in a row that were not taken.
    ``told``: what is said once was said. ``cold``: it serves, and its warm-up is still to come. ``pid``: the engine's
    first process before the restart.
    """

    stage: Stage = Stage.NEW
    since_s: float = 0.0
    cause: Condition | None = None
    why: str = ""
    incident: str = ""
    restarts: tuple[float, ...] = ()
    refused: int = 0
    told: bool = False
    warm: bool = False
    cold: bool = False
    cold_tries: int = 0
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of an engine now.

    ``good_probes``: right answers in a row within the stage. ``answers_rightly``: the last one is right, and none of
    those before it was wrong. ``held``: why hands must be off, empty if not.
    ``no_restart``: why nobody can restart it, empty if somebody can. ``starting``: its supervisor is at it.
    ``given_up``: its supervisor has tried and tried. ``first_of_all``: nobody served when it began to start.
    ``last_in_pool``: no other engine is ready. ``readmitted``: a person has ended the isolation at a router.
    ``leisure``: see :func:`at_leisure`.
    """

    verdict: Verdict
    good_probes: int = 0
    answers_rightly: bool = False
    held: str = ""
    no_restart: str = ""
    starting: bool = False
    given_up: bool = False
    first_of_all: bool = False
    last_in_pool: bool = False
    readmitted: bool = False
    leisure: bool = True
    pid: int = 0

    @property
    def sick(self) -> bool:
        """Whether it must not get requests."""
        return self.verdict.condition.sick


@dataclass(frozen=True, slots=True)
class Step:
    """One act, why, and how far the engine is once it is done."""

    act: Act
    why: str
    after: Healing


def noted(healing: Healing, seen: Seen, settings: WatchdogSettings, now_s: float) -> Healing:
    """What happened by itself or by a person, put into what was done: nothing has to be done for it."""
    restarts = tuple(at_s for at_s in healing.restarts if now_s - at_s < settings.restarts_window_s)
    healing = msgspec.structs.replace(healing, restarts=restarts)
    if seen.readmitted and (healing.stage is Stage.LEFT or (healing.stage is Stage.ISOLATED and healing.told)):
        return Healing(stage=Stage.SERVING, since_s=now_s)  # a person answers for it: all counts begin anew
    if healing.stage is Stage.SERVING and healing.told and not seen.sick:
        return msgspec.structs.replace(healing, told=False)
    return healing


def next_step(healing: Healing, seen: Seen, settings: WatchdogSettings, now_s: float) -> Step | None:
    """The one thing to do now, None for nothing."""
    if seen.held:
        return None
    if healing.stage is Stage.NEW:
        return _new(healing, seen, now_s)
    if healing.stage is Stage.SERVING:
        return _serving(healing, seen, now_s)
    if healing.stage is Stage.ISOLATED:
        return _isolated(healing, seen, settings, now_s)
    if healing.stage is Stage.RESTARTING:
        return _restarting(healing, seen, settings, now_s)
    return None


def after_refused_restart(healing: Healing, now_s: float) -> Healing:
    """The order was not taken, so it ended nothing and does not count; it is given again after a pause that grows."""
    return msgspec.structs.replace(
        healing, stage=Stage.ISOLATED, since_s=now_s, restarts=healing.restarts[:-1], refused=healing.refused + 1
    )


def after_failed_warm_up(healing: Healing, now_s: float) -> Healing:
    """The engine has to prove itself from the beginning; one that serves already goes on and is tried again."""
    if healing.stage is Stage.SERVING:
        return msgspec.structs.replace(healing, cold=True, cold_tries=healing.cold_tries + 1)
    return msgspec.structs.replace(healing, since_s=now_s, warm=False, cold_tries=healing.cold_tries + 1)


def resumed(healing: Healing, seen_pid: int, now_s: float) -> Healing:
    """Where a watchdog that begins goes on. Waiting times begin anew, so nothing is killed for what nobody saw.

    A restart was noted before it was ordered. If the same process is still there, it was not carried out.
    """
    if healing.stage is Stage.RESTARTING and healing.pid and healing.pid == seen_pid:
        restarts = healing.restarts[:-1]
        return msgspec.structs.replace(healing, stage=Stage.ISOLATED, since_s=now_s, restarts=restarts)
    return msgspec.structs.replace(healing, since_s=now_s)


def at_leisure(healing: Healing, *, idle: bool, others_start: bool, now_s: float) -> bool:
    """Whether an engine may be held up for the seconds in which it compiles what no user asked for yet.

    ``idle``: nobody waits for it. ``others_start``: other engines of the machine do, and need its cores.
    """
    if healing.stage is not Stage.SERVING:
        return True
    served_s = now_s - healing.since_s
    return served_s >= COLD_MAX_S or (served_s >= COLD_S and idle and not others_start)


def restart_due_s(healing: Healing, condition: Condition, settings: WatchdogSettings) -> float:
    """When a sick engine is restarted: after its grace, and after the pause since the last restart or order."""
    if healing.refused:
        return healing.since_s + max(REFUSED_PAUSE_S, _pause_s(healing.refused, settings))
    due_s = healing.since_s + (settings.restart_grace_s if condition is Condition.HUNG else 0.0)
    if not healing.restarts:
        return due_s
    return max(due_s, healing.restarts[-1] + _pause_s(len(healing.restarts), settings))


def _pause_s(times: int, settings: WatchdogSettings) -> float:
    return min(settings.restart_pause_s * 2.0 ** min(times - 1, 30), settings.restart_pause_max_s)


def _new(healing: Healing, seen: Seen, now_s: float) -> Step | None:
    if _well(seen, FIRST_GOOD_PROBES):
        if seen.first_of_all and not healing.cold_tries:
            why = "it answered; nobody served when it began, so it is warmed up meanwhile"
            return Step(Act.ANNOUNCE, why, Healing(stage=Stage.SERVING, since_s=now_s, cold=True))
        failed = healing.cold_tries >= WARM_UPS_MAX
        if not (healing.warm or failed):
            return Step(Act.WARM_UP, "its first answer is right", msgspec.structs.replace(healing, warm=True))
        why = f"it answered a probe, but {healing.cold_tries} warm-ups failed" if failed else "it answered and is warm"
        return Step(Act.ANNOUNCE, why, Healing(stage=Stage.SERVING, since_s=now_s))
    own_start = seen.starting or (seen.given_up and seen.verdict.condition is Condition.DEAD)
    return _isolation(healing, seen, now_s) if seen.sick and not own_start else None


def _serving(healing: Healing, seen: Seen, now_s: float) -> Step | None:
    if not seen.sick:
        tries = healing.cold and seen.leisure and healing.cold_tries < WARM_UPS_MAX
        return (
            Step(Act.WARM_UP, "it began to serve cold", msgspec.structs.replace(healing, cold=False)) if tries else None
        )
    answers = seen.answers_rightly and seen.verdict.condition is Condition.HALF_DEAD
    if seen.last_in_pool and answers:
        why = f"{_told(seen)}; it still answers rightly and no other engine is ready, so it keeps its requests"
        return None if healing.told else Step(Act.SPARE, why, msgspec.structs.replace(healing, told=True))
    return _isolation(healing, seen, now_s)


def _isolated(healing: Healing, seen: Seen, settings: WatchdogSettings, now_s: float) -> Step | None:
    condition = seen.verdict.condition
    if not healing.incident:
        return Step(Act.SAVE_EVIDENCE, healing.why, msgspec.structs.replace(healing, incident="none"))
    failed = healing.cold_tries >= WARM_UPS_MAX
    if _well(seen, settings.good_probes) and not failed:
        why = f"it came back by itself: {seen.good_probes} good probes in a row"
        return Step(Act.READMIT, why, Healing(stage=Stage.SERVING, since_s=now_s, restarts=healing.restarts))
    if not (seen.sick or failed):
        return None
    no_restart = "watchdog.restart is false" if not settings.restart else seen.no_restart
    if no_restart:
        why = f"it is not restarted: {no_restart}. It is readmitted when it answers rightly again"
        return None if healing.told else Step(Act.REPORT, why, msgspec.structs.replace(healing, told=True))
    if now_s < restart_due_s(healing, condition, settings):
        return None
    if len(healing.restarts) >= settings.restarts_max:
        return Step(Act.LEAVE, _left(healing, settings), msgspec.structs.replace(healing, stage=Stage.LEFT))
    after = msgspec.structs.replace(
        healing, stage=Stage.RESTARTING, since_s=now_s, restarts=(*healing.restarts, now_s), warm=False, cold_tries=0,
        pid=seen.pid, told=False, refused=healing.refused,
    )  # fmt: skip
    return Step(Act.RESTART, healing.why, after)


def _restarting(healing: Healing, seen: Seen, settings: WatchdogSettings, now_s: float) -> Step | None:
    if _well(seen, settings.good_probes):
        if healing.cold_tries >= WARM_UPS_MAX:
            why = f"its warm-up failed {healing.cold_tries} times after a restart"
            return Step(
                Act.ISOLATE, why, msgspec.structs.replace(healing, stage=Stage.ISOLATED, since_s=now_s, why=why)
            )
        if not healing.warm:
            why = f"{seen.good_probes} good probes in a row since its restart"
            return Step(Act.WARM_UP, why, msgspec.structs.replace(healing, warm=True))
        serving = Healing(stage=Stage.SERVING, since_s=now_s, restarts=healing.restarts)
        return Step(Act.READMIT, f"{seen.good_probes} good probes and a warm-up after its restart", serving)
    return _isolation(healing, seen, now_s) if seen.sick and not seen.starting else None


def _isolation(healing: Healing, seen: Seen, now_s: float) -> Step:
    after = Healing(
        stage=Stage.ISOLATED, since_s=now_s, cause=seen.verdict.condition, why=_told(seen), restarts=healing.restarts
    )
    return Step(Act.ISOLATE, after.why, after)


def _well(seen: Seen, good_probes: int) -> bool:
    return seen.verdict.condition is Condition.READY and seen.good_probes >= good_probes


def _told(seen: Seen) -> str:
    return f"{seen.verdict.condition.value}: {seen.verdict.why}"


def _left(healing: Healing, settings: WatchdogSettings) -> str:
    return (
        f"{len(healing.restarts)} restarts within {settings.restarts_window_s:g} s did not help, the last trouble was "
        f"{healing.why}. It stays isolated. Find the cause (evidence: {healing.incident}), then readmit it: "
        "kveik readmit ENGINE"
    )
