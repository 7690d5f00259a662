"""What a check of the doctor is: a question, and an answer with evidence, verdict and remedy."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from kveik.doctor.fleet_view import Fleet
from kveik.errors import DoctorError


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
    ``fleet``: None if none was named. ``folders``: of a shared store, as somebody named them.
    ``hold_s``: how long other nodes may be looked for where no agent runs yet, 0: not at all.
    """

    python: str
    environ: Mapping[str, str]
    pasted: str | None = None
    pid: int = 0
    ascend: Path = field(default=Path("/usr/local/Ascend"))
    fleet: Fleet | None = None
    folders: tuple[Path, ...] = ()
    hold_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Check:
    """One question of the doctor. ``run`` raises :class:`kveik.errors.KveikError` if it cannot be answered.

    ``needs_fleet``: it says something of a fleet only, so it is left out where none is named. ``of_machine``: it looks
    at this machine alone, asks nobody else, and writes nothing.
    """

    name: str
    group: str
    question: str
    run: Callable[[Context], Verdict]
    limit_s: float
    needs_fleet: bool = False
    of_machine: bool = False


def fleet_of(context: Context) -> Fleet:
    """The fleet that was named. Raises :class:`DoctorError` if none was."""
    if context.fleet is None:
        raise DoctorError("no fleet was named: --config FILE, --router URL or --engine URL")
    return context.fleet
