"""Whether one engine can be answered for exactly, and if not, why. Pure."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kveik.router.parity import DIFFERS, SAME, Verdict

#: The last predictions that are looked at, how many there must be, and from which part of wrong ones all are.
WINDOW, ENOUGH, WRONG = 20, 8, 0.5
NO_WORD = "its events told nothing of a prompt that it was sent: does it publish them, and is prefix caching on?"
#: After so long an engine whose predictions were wrong gets another chance.
AGAIN_S = 300.0


class Predictions:
    """Predicted against real cached tokens: the check on everything at once."""

    def __init__(self) -> None:
        self.compared = self.wrong = 0
        self._last: deque[bool] = deque(maxlen=WINDOW)
        self._example = ""
        self._distrusted_s = -AGAIN_S

    def add(self, *, expected: int, real: int, slack: int, now_s: float, more_is_fine: bool) -> None:
        """One answered request. ``more_is_fine``: other sources can add to what it holds.

        ``slack``: tokens by which both may differ. With draft models an engine computes the last block of a hit
        again, so a block is fine.
        """
        wrong = real < expected - slack or (not more_is_fine and real > expected + slack)
        self._count(f"{expected} cached tokens were expected, {real} there were" if wrong else "", now_s)

    def lengths_differ(self, ours: int, theirs: int, now_s: float) -> None:
        """The engine counted another number of prompt tokens than were rendered for it."""
        self._count(f"a prompt was rendered to {ours} tokens, and the engine counted {theirs}", now_s)

    def distrusted(self, now_s: float) -> bool:
        """Whether predictions have been wrong so often that they are not to be used now."""
        return now_s - self._distrusted_s < AGAIN_S

    def why(self, now_s: float) -> str:
        """In words; empty if they can be used."""
        if not self.distrusted(now_s):
            return ""
        return f"{sum(self._last)} of the last {len(self._last)} predictions were wrong, at last: {self._example}"

    def _count(self, wrong: str, now_s: float) -> None:
        self.compared += 1
        self._last.append(bool(wrong))
        if not wrong:
            return
        self.wrong += 1
        self._example = wrong
        mostly = len(self._last) >= ENOUGH and sum(self._last) >= WRONG * len(self._last)
        if mostly and not self.distrusted(now_s):
            self._distrusted_s = now_s


@dataclass(slots=True)
class Exactness:
    """What is known of one engine. ``rendering``: the fingerprint of its model's folder, empty if there is none."""

    events_why: str = "its events are not followed yet"
    rendering: str = ""
    rendering_why: str = ""
    verdicts: Sequence[Verdict] | None = None
    predictions: Predictions = field(default_factory=Predictions)

    @property
    def mismatch(self) -> str:
        """The first kind of body that the engine renders differently, and the first token that differs."""
        for verdict in self.verdicts or ():
            if verdict.result == DIFFERS:
                return f"{verdict.kind}: {verdict.why}"
        return ""

    @property
    def _events_speak(self) -> bool:
        """Whether a request of our own was seen among its events, so they are its own and it does publish them."""
        return any(verdict.result == SAME and verdict.how == "events" for verdict in self.verdicts or ())

    @property
    def wants_word(self) -> bool:
        """Whether nothing but a word of its events is missing."""
        return self.verdicts is not None and not self.mismatch and not self._events_speak

    def renderings(self, now_s: float) -> frozenset[str]:
        """Renderings whose prompts can be looked up exactly; empty text stands for prompts of token ids."""
        if self.events_why or self.verdicts is None or self.mismatch or self.predictions.distrusted(now_s):
            return frozenset()
        return frozenset({"", self.rendering}) if self._events_speak else frozenset()

    def why(self, now_s: float) -> str:
        """Why answers for it are approximate; empty if they are exact."""
        if self.events_why:
            return self.events_why
        if self.verdicts is None:
            return "its rendering of prompts has not been compared yet"
        if self.mismatch:
            return f"it renders prompts differently. {self.mismatch}"
        if why := self.predictions.why(now_s):
            return why
        if not self._events_speak:
            return NO_WORD
        if not self.rendering:
            return f"only prompts of token ids are looked up exactly: {self.rendering_why}"
        return ""

    def document(self, now_s: float) -> dict[str, Any]:
        """As /fleet shows it."""
        why = self.why(now_s)
        return {
            "kind": "approximate" if why else "exact",
            "why": why,
            "rendering": self.rendering[:16],
            "parity": [verdict.document for verdict in self.verdicts or ()],
            "predictions_compared": self.predictions.compared,
            "predictions_wrong": self.predictions.wrong,
        }
