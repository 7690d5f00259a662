"""What the watchdog sees of an engine, and what it makes of it: the values between its eyes and its hands."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Condition(Enum):
    """What an engine is like, judged by its history."""

    STARTING = "starting"  # loading or compiling for the first time: it has answered nothing yet
    READY = "ready"  # the last probe was answered as it should be
    BUSY = "busy"  # probes are late, but work goes on
    HUNG = "hung"  # requests wait and nothing moves
    HALF_DEAD = "half-dead"  # it answers, but wrongly; or a part of it is silent
    DEAD = "dead"  # its process is gone, or nobody listens

    @property
    def sick(self) -> bool:
        """Whether such an engine must not get requests."""
        return self in (Condition.HUNG, Condition.HALF_DEAD, Condition.DEAD)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A condition, since when (monotonic seconds) and why, for people, with the figures that decided."""

    condition: Condition
    since_s: float
    why: str


class Probed(Enum):
    """What became of one probe."""

    RIGHT = "right"
    WRONG = "wrong"  # an answer, but not the known one: other tokens by far, not finite, or empty
    LATE = "late"  # no answer, and nobody waits for it any more
    REFUSED = "refused"  # nobody listens
    FAILED = "failed"  # an HTTP error of the engine, or a connection that broke
    UNFIT = "unfit"  # the engine listens, but wants no such question (HTTP 4xx): the probe's fault, not the engine's


@dataclass(frozen=True, slots=True)
class RankCounters:
    """What one data-parallel rank did: its steps so far, and its requests that run or wait."""

    iterations: float = 0.0
    requests: int = 0


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters and gauges of one reading of an engine's metrics; they only grow, but for the gauges.

    ``prompt_tokens``, ``output_tokens``, ``iterations``: totals over all ranks. Steps without a token are
    iterations, too. ``running`` and ``waiting``: requests. ``asleep``: it was put to sleep (vLLM's sleep mode).
    ``per_rank``: by the label of the rank.
    """

    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    iterations: float = 0.0
    running: int = 0
    waiting: int = 0
    asleep: bool = False
    per_rank: Mapping[str, RankCounters] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What one look at an engine's processes on this machine shows.

    ``processor_s``: seconds of processor time that the processes that compute (engine cores, workers and what they
    started) used since they were first seen; ``starved_s``: for which their threads were ready and had no
    processor; ``per_rank_s``: processor time by rank, where there are several. All three only grow. ``stopped``:
    processes that were stopped by a signal. ``missing``: what was there and is gone; empty where all live.
    ``resident_bytes``: host memory of all processes.
    """

    processor_s: float = 0.0
    starved_s: float = 0.0
    per_rank_s: Mapping[str, float] = field(default_factory=dict)
    stopped: int = 0
    missing: str = ""
    resident_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at an engine. Times are monotonic seconds.

    ``probe`` is what became of the last probe, the ``number``-th since the first look, and None while one is
    under way (``probe_age_s`` old) or none has been sent yet; looks come oftener than probes, so the same
    outcome may stand in several samples. ``probe_rank``: the data-parallel rank that it was meant for, if one.
    ``counters`` is None where metrics have not answered since the last look. ``processes`` is None for an engine
    whose processes we cannot see.
    """

    at_s: float
    probe: Probed | None
    number: int = 0
    probe_age_s: float = 0.0
    probe_rank: str = ""
    detail: str = ""
    counters: Counters | None = None
    processes: ProcessFacts | None = None
