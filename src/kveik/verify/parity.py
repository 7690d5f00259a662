"""Is this answer the cold answer? Pure functions over token ids and log probabilities.

Two rules, chosen by dtype, because rounding differs:

*float32*: an answer from the cache must have the cold answer's token ids, and the log probability
of each of them may differ by at most :data:`FLOAT32_TOLERANCE`. Measured differences are around
1e-5; wrong KV bytes change whole units.

*bfloat16, float16*: even the engine's own prefix cache changes the answer, because the rest of the
prompt is computed in another shape. So the reference of an external hit is the *local hit* of the
same prompt, which splits the prompt at the same token, and what is judged is a distance of log
probabilities, never the text. The bound comes from the engine itself::

    bound = min(CEILING, max(FLOOR, FACTOR * the largest distance between cold and local))

The *distance* of two answers is the largest absolute difference between the log probabilities that
both give to the reference's tokens, up to and including the first position where the tokens differ:
up to there both saw the same text. After it they did not, so later positions say nothing.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from kveik.engine.client import Completion
from kveik.errors import VerifyError

FLOAT32_TOLERANCE = 1e-3
FLOOR = 0.25
FACTOR = 2.0
CEILING = 1.0


@dataclass(frozen=True, slots=True)
class Distance:
    """How far an answer is from its reference.

    ``diverged_at`` is the first position with another token, None when all ids are equal.
    ``logprob`` is infinite when the reference's token was not among the answer's candidates.
    """

    logprob: float
    diverged_at: int | None = None

    @property
    def same_ids(self) -> bool:
        """Whether both answers have the same token ids."""
        return self.diverged_at is None


def distance(reference: Completion, answer: Completion) -> Distance:
    """The distance of ``answer`` from ``reference``.

    Raises :class:`~kveik.errors.VerifyError` when either has no log probabilities.
    """
    for completion in (reference, answer):
        if not len(completion.token_ids) == len(completion.logprobs) == len(completion.top_logprobs):
            raise VerifyError("an answer without a log probability for each of its tokens")
    largest = 0.0
    for position, (wanted, got) in enumerate(zip(reference.token_ids, answer.token_ids, strict=False)):
        theirs = answer.logprobs[position] if wanted == got else answer.top_logprobs[position].get(wanted, -math.inf)
        difference = abs(theirs - reference.logprobs[position])
        # NaN compares false with everything, and must not pass for "no difference".
        largest = math.inf if math.isnan(difference) else max(largest, difference)
        if wanted != got:
            return Distance(largest, position)
    if len(reference.token_ids) != len(answer.token_ids):
        return Distance(math.inf, min(len(reference.token_ids), len(answer.token_ids)))
    return Distance(largest)


@dataclass(frozen=True, slots=True)
class ParityRule:
    """What an answer must keep to, and against which leg it is measured (``cold`` or ``local``)."""

    reference: str
    bound: float
    same_ids: bool
    why: str

    def complaint(self, found: Distance) -> str:
        """Why this distance does not hold, in words; empty when it does."""
        if self.same_ids and not found.same_ids:
            return f"other token at position {found.diverged_at}, |Δlogprob| {found.logprob:.3g}"
        if not found.logprob <= self.bound:
            return f"|Δlogprob| {found.logprob:.3g} over the bound of {self.bound:.3g}"
        return ""


def exact(dtype: str) -> bool:
    """Whether answers in this dtype can be judged by their token ids."""
    return dtype in ("float32", "float")


def float32_rule() -> ParityRule:
    """The rule for float32."""
    return ParityRule(
        "cold",
        FLOAT32_TOLERANCE,
        True,
        f"float32: same ids, |Δlogprob| <= {FLOAT32_TOLERANCE:g}",
    )


def rounded_rule(cold_to_local: Iterable[Distance]) -> ParityRule:
    """The rule for bfloat16 and float16, from the engine's own distances between cold and local."""
    noise = max((found.logprob for found in cold_to_local), default=0.0)
    bound = min(CEILING, max(FLOOR, FACTOR * noise))
    return ParityRule(
        "local",
        bound,
        False,
        f"bound {bound:.3g} on |Δlogprob| to the local hit; cold to local was {noise:.3g}",
    )
