"""One run of a workload on one side: what was asked, what became of it, what the engines counted. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from kveik.bench.client_strain import Strain
from kveik.bench.engine_counters import Counted
from kveik.bench.planned import Planned, Workload
from kveik.bench.reuse import Reusable, reusable
from kveik.bench.sender import Outcome


class Sharing(Enum):
    """Which requests of a run may take tokens from each other's blocks: all of one salt, or none."""

    ALL = "one salt a run"
    NONE = "a salt for each request"


@dataclass(frozen=True, slots=True)
class SideRun:
    """One run. ``places``: requests under way at once that were allowed, 0 for no limit."""

    side: str
    round: int
    workload: Workload
    outcomes: Sequence[Outcome]
    counted: Counted
    strain: Strain
    sharing: Sharing = Sharing.ALL
    places: int = 0
    reusable: Sequence[Reusable] = field(default_factory=tuple)

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.side}, round {self.round}"

    @property
    def answered(self) -> list[tuple[Planned, Outcome]]:
        """The requests that got a whole answer."""
        pairs = zip(self.workload.requests, self.outcomes, strict=True)
        return [(planned, outcome) for planned, outcome in pairs if not outcome.failure]

    @property
    def ttfts_s(self) -> list[float]:
        """Times to the first token, from the intended moments."""
        return [outcome.ttft_s for _, outcome in self.answered]

    @property
    def seconds(self) -> float:
        """From the first intended moment to the end of the last answer."""
        began_s = min(outcome.intended_s for outcome in self.outcomes)
        return max(1e-9, max(outcome.over_s for outcome in self.outcomes) - began_s)

    @property
    def prompt_tokens(self) -> int:
        """Of the requests that got a whole answer, as the service counts them."""
        return sum(outcome.prompt_tokens for _, outcome in self.answered)

    @property
    def answer_tokens(self) -> int:
        """Tokens of all whole answers."""
        return sum(len(outcome.token_ids) for _, outcome in self.answered)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens from a cache as the answers say, or the engines' counters where they do not; -1: not known."""
        if all(outcome.cached_tokens >= 0 for _, outcome in self.answered):
            return sum(outcome.cached_tokens for _, outcome in self.answered)
        return self.counted.evidence.local + self.counted.evidence.external if self.counted.sourced else -1

    @property
    def reusable_tokens(self) -> int:
        """Prompt tokens that a cache which was empty before can have had."""
        return sum(one.earlier for one in self.reusable)


def side_run(
    side: str,
    number: int,
    workload: Workload,
    outcomes: Sequence[Outcome],
    counted: Counted,
    strain: Strain,
    sharing: Sharing = Sharing.ALL,
    places: int = 0,
) -> SideRun:
    """A run, and what its prompts can have had from each other."""
    spans = [None if outcome.failure else (outcome.sent_s, outcome.first_s) for outcome in outcomes]
    prompts = [request.prompt for request in workload.requests]
    found = reusable(prompts, spans) if sharing is Sharing.ALL else [Reusable()] * len(prompts)
    return SideRun(side, number, workload, outcomes, counted, strain, sharing, places, found)
