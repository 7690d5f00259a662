"""What a check of the doctor is: a question, and an answer with evidence, verdict and remedy. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path


class Outcome(Enum):
    """How a thing is; the worst first."""

    WRONG = "wrong"
    NOT_DONE = "not done"  # the check itself could not be carried out
    BEWARE = "beware"  # right, unless something holds that cannot be seen from here
    UNKNOWN = "unknown"
    WELL = "well"


_WORST_FIRST = tuple(Outcome)


@dataclass(frozen=True, slots=True)
class Point:
    """One thing that a check says: about what, how it is, in words; what to do, and where that is known from."""

    outcome: Outcome
    about: str
    told: str
    remedy: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A check's answer. ``evidence``: what was looked at, so that people can see it for themselves."""

    evidence: Sequence[str]
    points: Sequence[Point]

    @property
    def outcome(self) -> Outcome:
        """The worst of its points; well if it has none."""
        return min((point.outcome for point in self.points), key=_WORST_FIRST.index, default=Outcome.WELL)


@dataclass(frozen=True, slots=True)
class Context:
    """What checks look at.

    ``python``: the interpreter of the engines. ``pasted``: text that somebody gave instead of a look at this machine.
    ``pid``: a process whose environment is looked at, 0 for our own. ``ascend``: the folder that CANN is installed in.
    """

    python: str
    environ: Mapping[str, str]
    pasted: str | None = None
    pid: int = 0
    ascend: Path = field(default=Path("/usr/local/Ascend"))


@dataclass(frozen=True, slots=True)
class Check:
    """One question of the doctor. ``run`` raises :class:`kveik.errors.KveikError` if it cannot be answered."""

    name: str
    group: str
    question: str
    run: Callable[[Context], Verdict]
    limit_s: float
