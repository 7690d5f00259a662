"""What prefill costs this engine, learned from its own steps.

A step costs something by itself, something for each token, and something for each token and every token before it that
it attends to. From that follows what computing any part of a prompt takes: whether a load is worth it, and the default
deadline of one, since later than that it cannot help any more.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from kveik.learned_cost import Cost, LearnedCost

#: Steps with fewer tokens are decodes or tails and say little about prefill.
MIN_STEP_TOKENS = 64
#: So many such steps before computing is thought to be known.
STEPS_MIN = 3
#: Deadline of a load before anything was measured, and the shortest one in any case.
UNMEASURED_S = 5.0
SHORTEST_S = 0.25
#: Steps under way that are kept; vLLM has two at most.
STEPS_KEPT = 8


@dataclass(frozen=True, slots=True)
class Step:
    """Tokens that one step computes, and for all of them together how many tokens they attend to."""

    tokens: int
    attended: float = 0.0
    began_s: float = 0.0


def step_of(parts: Iterable[tuple[int, int]], began_s: float = 0.0) -> Step:
    """A step from its requests: for each the tokens before, and the new tokens."""
    tokens, attended = 0, 0.0
    for before, new in parts:
        tokens += new
        attended += new * (before + new / 2)
    return Step(tokens, attended, began_s)


@dataclass(slots=True)
class PrefillRate:
    """Learns from steps as they begin and end. ``step_tokens_max`` is how many tokens one step computes at most."""

    step_tokens_max: int = 1 << 30
    _under_way: deque[Step] = field(default_factory=lambda: deque(maxlen=STEPS_KEPT))
    _learned: LearnedCost = field(default_factory=lambda: LearnedCost(half_life_s=600.0))
    _cost: Cost | None = None
    _last_end_s: float = 0.0

    def step_begins(self, now_s: float, parts: Iterable[tuple[int, int]]) -> None:
        """A step was handed to the workers: for each of its requests the tokens before, and the new ones."""
        step = step_of(parts, now_s)
        if step.tokens > 0:
            self._under_way.append(step)

    def step_ends(self, now_s: float) -> None:
        """The oldest step's output came back. The next one may have been handed over long before it could begin."""
        if not self._under_way:
            return
        step = self._under_way.popleft()
        seconds = now_s - max(step.began_s, self._last_end_s)
        self._last_end_s = now_s
        if step.tokens >= MIN_STEP_TOKENS:
            self._learned = self._learned.observed((1, step.tokens, step.attended), seconds, now_s)
            self._cost = None

    @property
    def steps(self) -> int:
        """How many steps were learned from."""
        return self._learned.samples

    def cost(self, now_s: float) -> Cost | None:
        """Seconds of a step by (1, its tokens, tokens attended to); None before anything was measured."""
        if self._cost is None:
            self._cost = self._learned.cost(now_s)
        return self._cost

    def known(self, now_s: float) -> bool:
        """Whether enough was measured to decide by it."""
        cost = self.cost(now_s)
        return cost is not None and cost.samples >= STEPS_MIN

    def seconds(self, start_tokens: int, end_tokens: int, now_s: float, *, beside_tokens: int = 0) -> float:
        """What computing a prompt from one token count to another takes; 0 before anything was measured.

        ``beside_tokens`` are computed in each step for other requests, one for each that generates.
        """
        cost = self.cost(now_s)
        if cost is None or end_tokens <= start_tokens:
            return 0.0
        step = step_of([(start_tokens, end_tokens - start_tokens)])
        steps = -(-step.tokens // max(1, self.step_tokens_max))
        return cost.seconds(steps, step.tokens + steps * beside_tokens, step.attended)

    def deadline_s(self, start_tokens: int, end_tokens: int, longest_s: float, now_s: float) -> float:
        """How long a load of these tokens may take: what computing them would, within bounds."""
        if self.cost(now_s) is None:
            return min(UNMEASURED_S, longest_s)
        return min(max(self.seconds(start_tokens, end_tokens, now_s), SHORTEST_S), longest_s)
