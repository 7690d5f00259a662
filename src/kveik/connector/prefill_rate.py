"""How fast this engine prefills, measured from its own steps.

The default deadline of a load is what computing the same tokens would take: later than that, the
load cannot help any more.
"""

from dataclasses import dataclass

#: Steps with fewer tokens are decodes or tails and say little about prefill.
MIN_STEP_TOKENS = 64
#: Weight of a new step in the moving average.
WEIGHT = 0.3
#: Deadline of a load before anything was measured, and the shortest one in any case.
UNMEASURED_S = 5.0
SHORTEST_S = 0.25


@dataclass(slots=True)
class PrefillRate:
    """Exponential moving average of tokens a second over prefill steps."""

    tokens_per_s: float = 0.0
    _began_s: float = 0.0
    _tokens: int = 0

    def step_begins(self, now_s: float, tokens: int) -> None:
        """A step with ``tokens`` scheduled tokens was handed to the workers."""
        self._began_s, self._tokens = now_s, tokens

    def step_ends(self, now_s: float) -> None:
        """Its output came back."""
        seconds, tokens = now_s - self._began_s, self._tokens
        self._tokens = 0
        if tokens < MIN_STEP_TOKENS or seconds <= 0:
            return
        rate = tokens / seconds
        self.tokens_per_s = rate if self.tokens_per_s == 0 else WEIGHT * rate + (1 - WEIGHT) * self.tokens_per_s

    def seconds_for(self, tokens: int, longest_s: float) -> float:
        """What computing ``tokens`` would take, within the bounds above and ``longest_s``."""
        if self.tokens_per_s == 0:
            return min(UNMEASURED_S, longest_s)
        return min(max(tokens / self.tokens_per_s, SHORTEST_S), longest_s)
