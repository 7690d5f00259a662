"""Is this engine starting, ready, busy, hung, half-dead or dead? A pure function of what was seen of it.

A late probe alone says nothing: a long prompt and a hung engine look alike from outside. What decides is
whether anything moves while a request waits, and how much patience that deserves::

    tokens move                                     busy, for ever
    none moves, but steps or processors do          hung after hung_computing_s  (a long step, compiling; a loop)
    none moves, and no processor works              hung after hung_periods probe periods
    none moves, processes cannot be seen            hung after hung_unseen_s     (their metrics answer)
                                                    or hung_computing_s          (they have none)

The probe itself is the request that waits, so an engine without users is judged, too. Wrong answers and errors
condemn only when they repeat; an engine that has never answered has ``start_s``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from kveik.config_fleet import WatchdogSettings
from kveik.watchdog.history import (
    Outcome,
    computing,
    last_right_s,
    newest_counters,
    outcomes,
    processors_of,
    rank_counters,
    rank_processors,
    since_change_s,
    since_gap,
    steps_of,
    tokens_of,
)
from kveik.watchdog.verdict import Condition, Probed, Sample, Verdict

#: So many wrong answers among the last so many condemn, even with right ones between.
WRONG_MAX, OF_ANSWERS = 3, 10
#: Probes that are looked back on: late and failed ones among them are no answers.
_OUTCOMES = 3 * OF_ANSWERS
#: Errors in a row that condemn.
FAILURES_MAX = 2

_Reason = tuple[Condition, str]


def history_s(settings: WatchdogSettings) -> float:
    """How many seconds of samples :func:`judge` can make use of; older ones may be dropped."""
    longest = max(settings.hung_computing_s, settings.hung_unseen_s)
    return longest + 4 * (settings.probe_period_s + settings.probe_deadline_s)


def judge(
    history: Sequence[Sample], before: Verdict, settings: WatchdogSettings, *, start_s: float = 1800.0
) -> Verdict:
    """The verdict at the newest sample, the last of ``history``; ``before`` if there is none.

    ``before`` is the last verdict, at the beginning STARTING since the process started. After a restart the
    history begins anew: nothing that another process did counts. ``start_s``: longest start, from process to
    first answer (``[engine] start_s``). ``since_s`` stays as long as the condition does; ``why`` is new each time.
    """
    if not history:
        return before
    condition, why = _Judge(tuple(history), before, settings, start_s).verdict()
    since_s = before.since_s if condition is before.condition else history[-1].at_s
    return Verdict(condition, since_s, why)


@dataclass(frozen=True, slots=True)
class _Patience:
    """How long an engine may stand still, and what shows it."""

    seconds: float
    sign: str


class _Judge:
    """One decision; what several rules need is found out once."""

    def __init__(self, history: Sequence[Sample], before: Verdict, settings: WatchdogSettings, start_s: float) -> None:
        self._history = history
        self._now = history[-1]
        self._before = before
        self._settings = settings
        self._start_s = start_s
        self._window_s = settings.hung_periods * settings.probe_period_s
        self._seen = since_gap(history, self._window_s)  # time in which we were away is nobody's stillness
        self._ended: list[Outcome] = outcomes(history, _OUTCOMES)

    def verdict(self) -> _Reason:
        """The first rule that applies."""
        return (
            self._gone()
            or self._asleep()
            or self._garbage()
            or self._starting()
            or self._broken()
            or self._silent_rank()
            or self._stuck()
            or self._good()
        )

    # -- the rules, in order ---------------------------------------------------------------------

    def _gone(self) -> _Reason | None:
        """Gone in two looks: which processes there are is a moment old, and may just have been changed on purpose."""
        last = [one.processes.missing for one in self._history[-2:] if one.processes is not None]
        return (Condition.DEAD, last[-1]) if len(last) == 2 and all(last) else None

    def _asleep(self) -> _Reason | None:
        """Somebody put it to sleep: requests wait, nothing moves, and all that is meant to be so."""
        return (
            (Condition.BUSY, "it was put to sleep; requests wait until it is woken") if self._awake_s() == 0 else None
        )

    def _garbage(self) -> _Reason | None:
        answers = [one for one in self._ended if one.probed in (Probed.RIGHT, Probed.WRONG)][-OF_ANSWERS:]
        wrong = [one for one in answers if one.probed is Probed.WRONG]
        twice = len(answers) >= 2 and answers[-1].probed is answers[-2].probed is Probed.WRONG
        if twice or len(wrong) >= WRONG_MAX:
            count = f"{len(wrong)} of the last {len(answers)} answers are wrong"
            return Condition.HALF_DEAD, f"{count}; the last: {wrong[-1].detail}"
        return None

    def _starting(self) -> _Reason | None:
        if self._before.condition is not Condition.STARTING or self._has_served():
            return None
        age_s = self._now.at_s - self._before.since_s
        what = f"it has answered nothing for {age_s:.0f} s since its start"
        if age_s <= self._start_s:
            return Condition.STARTING, f"{what}, of at most {self._start_s:g} s"
        refused = bool(self._ended) and self._ended[-1].probed is Probed.REFUSED
        condition = Condition.DEAD if refused else Condition.HUNG
        return condition, f"{what}, expected its first answer within {self._start_s:g} s"

    def _has_served(self) -> bool:
        counters = newest_counters(self._history)
        if any(one.probed in (Probed.RIGHT, Probed.WRONG, Probed.UNFIT) for one in self._ended):
            return True
        if self._ended and self._ended[-1].probed is Probed.REFUSED:
            return False  # others were served since it listens, and our next probe will be
        return counters is not None and counters.output_tokens > 0

    def _broken(self) -> _Reason | None:
        last = self._ended[-FAILURES_MAX:]
        if len(last) < FAILURES_MAX or any(one.probed not in (Probed.REFUSED, Probed.FAILED) for one in last):
            return None
        if last[-1].probed is Probed.REFUSED:
            return Condition.DEAD, f"nobody listens: {last[-1].detail}"
        if since_change_s(self._history, tokens_of) < self._now.at_s - last[0].at_s:
            return Condition.BUSY, f"probes fail, but tokens move: {last[-1].detail}"
        return Condition.HALF_DEAD, f"{len(last)} probes in a row failed: {last[-1].detail}"

    def _silent_rank(self) -> _Reason | None:
        counters = newest_counters(self._history)
        ranks = sorted(counters.per_rank) if counters is not None else []
        still_s = {rank: since_change_s(self._seen, partial(rank_counters, rank=rank)) for rank in ranks}
        if len(ranks) < 2 or min(still_s.values()) >= self._window_s:
            return None  # one rank is the engine, and if none moves, it is no matter of ranks
        for rank in ranks:
            patience = self._patience(rank)
            if still_s[rank] >= patience.seconds and self._is_asked(rank):
                told = f"rank {rank} has requests and has made no step for {still_s[rank]:.0f} s while others did"
                return Condition.HALF_DEAD, f"{told}; {patience.sign}"
        return None

    def _stuck(self) -> _Reason | None:
        still_s = min(_still_s(self._seen), self._awake_s())
        late = self._late(still_s)
        if not late:
            return None
        patience = self._patience()
        told = f"{late}; no token has moved for {still_s:.0f} s, and {patience.sign}"
        if still_s >= patience.seconds:
            return Condition.HUNG, told
        if self._before.condition.sick and _still_s(self._history) >= self._now.at_s - self._before.since_s:
            return self._before.condition, told  # to be well again takes more than working processors
        if still_s < self._window_s:
            return Condition.BUSY, f"{late}; the last token moved {still_s:.0f} s ago"
        return Condition.BUSY, f"{told}: hung after {patience.seconds:g} s"

    def _good(self) -> _Reason:
        last = self._ended[-1] if self._ended else None
        if last is None:
            return self._before.condition, "no probe has ended yet"
        if last.probed is Probed.RIGHT:
            return Condition.READY, f"it answers: {last.detail}"
        if last.probed is Probed.UNFIT:
            return Condition.READY, f"it listens and is judged by its counters, since no probe fits: {last.detail}"
        return self._before.condition, f"one probe ended otherwise than it should, it is asked again: {last.detail}"

    # -- what the rules use ----------------------------------------------------------------------

    def _late(self, still_s: float) -> str:
        """What waits for too long, in words; empty if nothing does."""
        age_s, last = self._now.probe_age_s, self._ended[-1].probed if self._ended else None
        if self._now.probe is None and age_s >= self._settings.probe_deadline_s:
            return f"a probe has waited for {age_s:.0f} s"
        if last is Probed.LATE:
            return f"the last probe was given up: {self._ended[-1].detail}"
        counters = newest_counters(self._history)
        if last is Probed.UNFIT and counters is not None and still_s >= self._window_s:
            requests = counters.running + counters.waiting
            return f"{requests} requests are under way" if requests else ""
        return ""

    def _awake_s(self) -> float:
        """Since when it has not slept, as far as the history goes back; 0 while it sleeps."""
        known = [(one.at_s, one.counters) for one in reversed(self._history) if one.counters is not None]
        slept = next((place for place, (_, counters) in enumerate(known) if counters.asleep), None)
        if slept is None:
            return math.inf
        return 0.0 if slept == 0 else self._now.at_s - known[slept][0]

    def _is_asked(self, rank: str) -> bool:
        """Whether a request waits at this rank. A rank that stands still does not count those that came since."""
        now = self._now
        if now.probe is None and now.probe_rank == rank and now.probe_age_s >= self._settings.probe_deadline_s:
            return True
        counters = newest_counters(self._history)
        return counters is not None and counters.per_rank[rank].requests > 0

    def _patience(self, rank: str = "") -> _Patience:
        """How long the engine, or one rank of it, may stand still."""
        processes, settings = self._now.processes, self._settings
        if processes is not None and processes.stopped:
            one = processes.stopped == 1
            return _Patience(self._window_s, f"{processes.stopped} of its processes {'is' if one else 'are'} stopped")
        worked = computing(self._seen, self._window_s, partial(rank_processors, rank=rank) if rank else processors_of)
        if worked:
            return _Patience(settings.hung_computing_s, "its processors work")
        known = newest_counters(self._history) is not None
        if not rank and known and since_change_s(self._seen, steps_of) < self._window_s:
            return _Patience(settings.hung_computing_s, "it makes steps")
        if worked is not None:
            return _Patience(self._window_s, "its processors rest")
        if known:
            return _Patience(max(settings.hung_unseen_s, self._window_s), "its processes cannot be seen")
        return _Patience(settings.hung_computing_s, "neither its processes nor its counters can be seen")


def _still_s(history: Sequence[Sample]) -> float:
    """For how long no token has moved: by the counters, or by the probe that had some for an answer."""
    right_s = last_right_s(history)
    by_answer_s = math.inf if right_s is None else history[-1].at_s - right_s
    return min(since_change_s(history, tokens_of), by_answer_s)
