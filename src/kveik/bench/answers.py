"""Whether answers with hits are those without: which ones differ, and whether rounding can explain it. Pure.

Answers are greedy, so a hit must give the cold run's tokens, but for one thing: where two tokens are about equally
likely, rounding decides, and a hit rounds differently (another split of the prompt, another batch). So the cold run's
log probabilities are asked for once more. Up to the first token that differs both answers saw the same text; there the
cold run says how much less likely the hit's token is than its own. More than rounding changes, and the hit was wrong.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kveik.bench.side_run import SideRun
from kveik.engine.client import Completion
from kveik.verify.parity import CEILING


@dataclass(frozen=True, slots=True)
class Difference:
    """An answer of the on side that is not the off side's. ``request`` is its number in the workload."""

    request: int
    prompt: tuple[int, ...]
    answer_tokens: int
    got: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Recheck:
    """A difference, looked at again. ``gap``: by how much the cold run prefers its own token, in log probability."""

    request: int
    position: int
    gap: float

    @property
    def is_wrong(self) -> bool:
        """Whether rounding cannot explain it."""
        return not self.gap <= CEILING

    @property
    def told(self) -> str:
        """In words."""
        how = (
            "is not among the candidates of a cold run"
            if math.isinf(self.gap)
            else (f"is {self.gap:.3g} less likely in a cold run (log probability; up to {CEILING:g} is rounding)")
        )
        return f"of request {self.request}, token {self.position} of the answer {how}"


def differences(on: Sequence[SideRun], off: Sequence[SideRun]) -> tuple[list[Difference], int]:
    """The answers of the on side that no round of the off side gave, one a request; and how many were compared."""
    cold: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for run in off:
        for planned, outcome in run.answered:
            cold.setdefault(planned.prompt, set()).add(outcome.token_ids)
    found: dict[int, Difference] = {}
    compared = 0
    for run in on:
        for number, (planned, outcome) in enumerate(zip(run.workload.requests, run.outcomes, strict=True)):
            if outcome.failure or planned.prompt not in cold:
                continue
            compared += 1
            if outcome.token_ids not in cold[planned.prompt]:
                found.setdefault(number, Difference(number, planned.prompt, planned.answer_tokens, outcome.token_ids))
    return list(found.values()), compared


def recheck(difference: Difference, cold: Completion) -> Recheck:
    """A difference against a cold answer with log probabilities."""
    for position, (mine, theirs) in enumerate(zip(cold.token_ids, difference.got, strict=False)):
        if mine != theirs:
            their = cold.top_logprobs[position].get(theirs, -math.inf) if cold.top_logprobs else -math.inf
            return Recheck(difference.request, position, cold.logprobs[position] - their if cold.logprobs else math.inf)
    return Recheck(difference.request, len(difference.got), 0.0)
