"""The legs of the proof, and what counters must show for each.

====== ================================================================== =================
leg    what is done                                                       tokens come from
====== ================================================================== =================
cold   a prompt that no cache has seen, first engine                      computed
local  the same again                                                     the engine's own cache
reset  the same after the engine's own cache was emptied                  the shared cache
other  the same on another engine that never saw the prompt               the shared cache
restart the same after kill -9 and restart of the first engine            the shared cache
====== ================================================================== =================

Each leg is run with one request at a time (``single``) and with several at once (``concurrent``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from kveik.engine.client import Completion
from kveik.engine.metrics import TokenEvidence
from kveik.verify.prompts import Prompt


class Leg(Enum):
    """One way to get an answer."""

    COLD = "cold"
    LOCAL = "local"
    RESET = "reset"
    OTHER = "other"
    RESTART = "restart"

    @property
    def external(self) -> bool:
        """Whether the tokens must come from the shared cache."""
        return self in (Leg.RESET, Leg.OTHER, Leg.RESTART)


class Mode(Enum):
    """How many requests at once."""

    SINGLE = "single"
    CONCURRENT = "concurrent"


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that ran at the same time, one a prompt, and what the counters say about them all."""

    prompts: tuple[Prompt, ...]
    completions: tuple[Completion, ...]
    evidence: TokenEvidence


@dataclass(frozen=True, slots=True)
class LegRun:
    """One leg in one mode, as it was observed."""

    leg: Leg
    mode: Mode
    batches: tuple[Batch, ...]

    @property
    def evidence(self) -> TokenEvidence:
        """The sum over all batches."""
        return sum((batch.evidence for batch in self.batches), TokenEvidence())

    @property
    def answers(self) -> dict[str, Completion]:
        """The answer to each prompt, by the prompt's name."""
        return {
            prompt.name: completion
            for batch in self.batches
            for prompt, completion in zip(batch.prompts, batch.completions, strict=True)
        }


def most_hit_tokens(prompt_tokens: int, unit_tokens: int) -> int:
    """The longest possible hit: whole units, and the last token is always computed."""
    return (prompt_tokens - 1) // unit_tokens * unit_tokens


def evidence_complaints(leg: Leg, batch: Batch, expected_hits: Sequence[int]) -> list[str]:
    """Where the tokens of one batch did not come from where the leg claims, in words.

    ``expected_hits`` are the hit tokens that each prompt should have in this leg.
    """
    found = batch.evidence
    expected = sum(expected_hits)
    local = expected if leg is Leg.LOCAL else 0
    external = expected if leg.external else 0
    complaints = [
        f"{got} tokens {source}, expected {wanted}"
        for source, got, wanted in (
            ("from the engine's own cache", found.local, local),
            ("from the shared cache", found.external, external),
            ("loaded by the connector", found.used, external),
        )
        if got != wanted
    ]
    complaints += _reported_hits(batch, expected_hits)
    if found.unanswered_lookups and complaints:
        complaints.append(f"{found.unanswered_lookups} lookups got no answer in time (raise lookup_deadline_s?)")
    if found.failed_blocks:
        complaints.append(f"{found.failed_blocks} blocks failed to load and were computed again")
    if found.mismatched_blocks:
        complaints.append(f"{found.mismatched_blocks} loaded blocks differ in the engine's memory from their digest")
    return complaints


def _reported_hits(batch: Batch, expected_hits: Sequence[int]) -> list[str]:
    """Answers whose own ``cached_tokens`` (where reported) are not the expected hits."""
    return [
        f"{prompt.name}: the answer reports {completion.cached_tokens} cached tokens, expected {expected}"
        for prompt, completion, expected in zip(batch.prompts, batch.completions, expected_hits, strict=True)
        if completion.cached_tokens not in (-1, expected)
    ]


def foreign_tokens(batch: Batch) -> int:
    """Prompt tokens that the engine processed beyond ours: somebody else uses it."""
    return batch.evidence.prompt - sum(prompt.tokens for prompt in batch.prompts)
