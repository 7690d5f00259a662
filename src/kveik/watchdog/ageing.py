"""Keeps an engine's vitals over days, says what decays, and rolls the engine in good time where that is allowed."""

import math
from collections import deque
from collections.abc import Callable

from kveik.errors import RestartError
from kveik.setting import WAIT_MAX_S
from kveik.watchdog.errand import Errand
from kveik.watchdog.leaks import VITALS_KEPT, VITALS_PERIOD_S, Decay, Limits, Vitals, decays
from kveik.watchdog.restarters import CommandRestarter

#: The whole history is gone through, so not with every reading.
JUDGED_EVERY = 5

#: What to tell: the kind of event, and words.
Told = tuple[str, str]


class Ageing:
    """One engine since it was started. ``decayed`` is what was found last.

    ``roll`` is the command that restarts it without a lost request, empty for none; it is run once in an engine's
    life, if memory will be used up in fewer than ``planned_days``.
    """

    def __init__(self, name: str, roll: tuple[str, ...] = (), planned_days: float = 0.0) -> None:
        self.decayed: tuple[Decay, ...] = ()
        self._name = name
        self._command = roll
        self._planned_days = planned_days
        self._rolling: Errand[str] = Errand(f"roll-{name}")
        self._vitals: deque[Vitals] = deque(maxlen=VITALS_KEPT)
        self.begin_anew()

    def __repr__(self) -> str:
        return f"Ageing({self._name}, {len(self._vitals)} readings, {len(self.decayed)} warnings)"

    def begin_anew(self) -> None:
        """The engine was started anew. A roll that is under way goes on: perhaps it was that."""
        self.decayed = ()
        self._vitals.clear()
        self._due_s = 0.0
        self._taken = 0
        self._told: set[str] = set()
        self._rolled = False

    def step(
        self, now_s: float, vitals: Callable[[], Vitals], limits: Callable[[], Limits], *, may_roll: bool = False
    ) -> list[Told]:
        """Take vitals if it is time, and do what follows; what is to be told."""
        told = [("warning", decay.told) for decay in self._news(now_s, vitals, limits)]
        ended = self._rolling.take()
        if ended is not None:
            told.append(("rolled", ended))
        days = min((decay.days for decay in self.decayed if decay.days is not None), default=math.inf)
        if may_roll and days < self._planned_days and self._command and not (self._rolled or self._rolling.away):
            self._rolled = True
            self._rolling.begin(self._roll, now_s)
            told.append(("planned restart", f"it is rolled, since memory will be used up in {days:.1f} days"))
        return told

    def _news(self, now_s: float, vitals: Callable[[], Vitals], limits: Callable[[], Limits]) -> list[Decay]:
        """Decays of kinds that were not told before."""
        if now_s < self._due_s:
            return []
        self._due_s = now_s + VITALS_PERIOD_S
        self._vitals.append(vitals())
        self._taken += 1
        if self._taken % JUDGED_EVERY:
            return []
        self.decayed = tuple(decays(self._vitals, limits()))
        news = [decay for decay in self.decayed if decay.kind not in self._told]
        self._told = {decay.kind for decay in self.decayed}
        return news

    def _roll(self) -> str:
        try:
            return CommandRestarter(self._name, self._command, deadline_s=WAIT_MAX_S).restart("slow decay")
        except RestartError as error:
            return f"the planned restart failed: {error}"
