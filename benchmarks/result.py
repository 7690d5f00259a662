"""What a benchmark measured, and how its claims are judged. Pure.

A *round* measures all sides of a comparison shortly after one another, so that whatever else the
machine does hits all of them. A claim is judged on the median over rounds of the comparison made
within each round; the spread over rounds is shown beside it.
"""

from collections.abc import Sequence
from statistics import median
from typing import Literal

import msgspec

#: Measured values by side of the comparison.
Samples = dict[str, list[float]]


class BenchmarkError(Exception):
    """The benchmark could not measure what it wanted to; the message says why."""


class Round(msgspec.Struct, kw_only=True):
    """Samples of one round by side, and the prompt tokens that each side took from a cache.

    ``foreign_cores`` is the computing time that others took meanwhile.
    """

    samples: Samples = {}
    hit_tokens: dict[str, int] = {}
    foreign_cores: float = 0.0

    def add(self, label: str, value: float, hit_tokens: int = 0) -> None:
        """One more sample of a side."""
        self.samples.setdefault(label, []).append(value)
        self.hit_tokens[label] = hit_tokens


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Rounds of one workload. ``tokens`` is the prompt length where groups form a curve, else 0."""

    name: str
    unit: str
    rounds: list[Round]
    tokens: int = 0


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What should hold in one group: ``first`` over (or minus) ``second``, or its value alone, against ``bound``."""

    group: str
    first: str
    second: str = ""
    direction: Literal["at most", "at least"]
    bound: float
    kind: Literal["ratio", "difference", "value"] = "ratio"


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where and with what."""

    processor: str
    cores: int
    memory_gib: float
    system: str
    versions: dict[str, str]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """All of one benchmark run; this is what its JSON file holds."""

    benchmark: str
    question: str
    conditions: dict[str, str]
    machine: Machine
    started: str
    finished: str
    load_average_before: float
    groups: list[Group]
    claims: list[Claim]

    def group(self, name: str) -> Group:
        """The group of that name."""
        return next(group for group in self.groups if group.name == name)

    @property
    def foreign_cores(self) -> float:
        """The most computing time that others took in any round, in cores."""
        return max((one.foreign_cores for group in self.groups for one in group.rounds), default=0.0)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Several values in short."""

    median: float
    low: float
    high: float
    count: int


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A claim and what was measured. ``holds`` looks at the median over rounds."""

    claim: Claim
    measured: Summary
    holds: bool


def summarise(values: Sequence[float]) -> Summary:
    """Median and extremes. Raises ValueError without values."""
    return Summary(median=median(values), low=min(values), high=max(values), count=len(values))


def side(group: Group, label: str) -> Summary:
    """All samples of one side over all rounds. Raises ValueError when the side was never measured."""
    return summarise([value for one in group.rounds for value in one.samples.get(label, ())])


def hit_tokens(group: Group, label: str) -> str:
    """How many prompt tokens a side took from a cache, or from how many to how many."""
    counts = [one.hit_tokens[label] for one in group.rounds if label in one.hit_tokens]
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)}..{max(counts)}"


def sides(group: Group) -> list[str]:
    """Sides that were measured, in order of appearance."""
    return list(dict.fromkeys(label for one in group.rounds for label in one.samples))


def compared(group: Group, claim: Claim) -> list[float]:
    """The comparison made within each round; for a claim about a value alone that value."""
    if claim.kind == "value":
        return [median(one.samples[claim.first]) for one in group.rounds if one.samples.get(claim.first)]
    pairs = [
        (median(one.samples[claim.first]), median(one.samples[claim.second]))
        for one in group.rounds
        if one.samples.get(claim.first) and one.samples.get(claim.second)
    ]
    if claim.kind == "difference":
        return [first - second for first, second in pairs]
    return [first / second for first, second in pairs]


def judge(result: Result, claim: Claim) -> Verdict:
    """Whether the claim holds in this run. Raises BenchmarkError when it was never measured."""
    values = compared(result.group(claim.group), claim)
    if not values:
        what = " and ".join(filter(None, (claim.first, claim.second)))
        raise BenchmarkError(f"{what} were never measured together in {claim.group}")
    measured = summarise(values)
    holds = measured.median <= claim.bound if claim.direction == "at most" else measured.median >= claim.bound
    return Verdict(claim=claim, measured=measured, holds=holds)


def verdicts(result: Result) -> list[Verdict]:
    """All claims, judged."""
    return [judge(result, claim) for claim in result.claims]
