"""Keeps an engine's vitals over days and says what decays, once for each kind (:mod:`kveik.watchdog.leaks`)."""

from collections import deque
from collections.abc import Callable

from kveik.watchdog.leaks import VITALS_KEPT, VITALS_PERIOD_S, Decay, Limits, Vitals, decays

#: The whole history is gone through, so not with every reading.
JUDGED_EVERY = 5


class Ageing:
    """One engine's vitals since it was started. ``decayed`` is what was found last."""

    def __init__(self) -> None:
        self.decayed: tuple[Decay, ...] = ()
        self._vitals: deque[Vitals] = deque(maxlen=VITALS_KEPT)
        self._due_s = 0.0
        self._taken = 0
        self._told: set[str] = set()

    def __repr__(self) -> str:
        return f"Ageing({len(self._vitals)} readings, {len(self.decayed)} warnings)"

    def note(self, now_s: float, vitals: Callable[[], Vitals], limits: Callable[[], Limits]) -> list[Decay]:
        """Take vitals if it is time; decays of kinds that were not told before."""
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
