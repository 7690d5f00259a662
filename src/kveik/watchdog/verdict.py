"""What the watchdog sees of an engine, and what it makes of it: the values between its eyes and its hands."""

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
    LATE = "late"  # no answer within its deadline
    REFUSED = "refused"  # nobody listens
    FAILED = "failed"  # an HTTP error, or a connection that broke


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters and gauges of one reading of an engine's metrics; they only grow, but for the gauges.

    ``prompt_tokens``, ``output_tokens``, ``iterations``: totals over all ranks. ``running`` and
    ``waiting``: requests. ``per_rank_iterations``: one total a data-parallel rank, by its label.
    """

    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    iterations: float = 0.0
    running: int = 0
    waiting: int = 0
    per_rank_iterations: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at an engine. Times are monotonic seconds.

    ``probe`` is None while a probe is still under way (``probe_age_s`` old). ``counters`` is None where
    metrics did not answer. ``process_alive`` is None for an engine whose processes we cannot see, and
    ``processor_s`` (seconds of processor time that all its processes have used) too.
    """

    at_s: float
    probe: Probed | None
    probe_age_s: float = 0.0
    detail: str = ""
    counters: Counters | None = None
    process_alive: bool | None = None
    processor_s: float | None = None
