"""What a round of probing found, and what follows from it: pure, the time is an argument."""

from dataclasses import dataclass, replace
from enum import Enum

from kveik.store.base import BlockResult, Status

#: Bad rounds in a row after which a tier is fenced, and good ones after which it is let in again.
FENCE_AFTER = 2
LIFT_AFTER = 2
#: While something is wrong, rounds come this many times as often.
HASTE = 3.0


class Verdict(Enum):
    """What is to be thought of a tier after one round, in words."""

    SOUND = "it serves what was put"
    UNKNOWN = "nothing could be learned"
    NOT_SERVED = "it acknowledges puts and does not serve them"
    OTHER_BYTES = "it serves other bytes than were put"
    EMPTIED = "it is empty: what it had stored and served is gone"
    SLOW = "it did not answer a probe in time"
    FAILING = "it refuses a probe"

    @property
    def bad(self) -> bool:
        """Whether it tells against the tier."""
        return self not in (Verdict.SOUND, Verdict.UNKNOWN)

    @property
    def lie(self) -> bool:
        """Whether calls that work cannot show it, so that no breaker would ever open."""
        return self in (Verdict.NOT_SERVED, Verdict.OTHER_BYTES, Verdict.EMPTIED)


#: Reasons that only say that nothing can be written, or that nothing is there to be judged.
_NOTHING_LEARNED = frozenset({"read_only", "no_room", "too_large", "busy", "not_open", "closed"})


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict of one round, and the detail that explains it."""

    verdict: Verdict
    detail: str = ""

    @property
    def words(self) -> str:
        """One sentence for people."""
        return f"{self.verdict.value}: {self.detail}" if self.detail else self.verdict.value


def of_put(result: BlockResult) -> Finding | None:
    """What a canary's put alone tells; None if it was stored, and has to be read to learn more."""
    return None if result.ok else _of_failure(result)


def of_get(result: BlockResult, same: bool, missing: Verdict) -> Finding:
    """What reading a block tells. ``same``: the bytes are right. ``missing``: what it means if it is not there."""
    if result.status is Status.HIT:
        return Finding(Verdict.SOUND) if same else Finding(Verdict.OTHER_BYTES, "it said that they were right")
    if result.status is Status.CORRUPT:
        return Finding(Verdict.OTHER_BYTES, result.detail or result.reason)
    if result.status is Status.MISS:
        return Finding(missing)
    return _of_failure(result)


def _of_failure(result: BlockResult) -> Finding:
    if result.reason in _NOTHING_LEARNED:
        return Finding(Verdict.UNKNOWN, result.reason)
    verdict = Verdict.SLOW if result.reason == "timeout" else Verdict.FAILING
    return Finding(verdict, result.detail or result.reason)


def together(earlier: Finding, new: Finding) -> Finding:
    """One finding from those about the canary of the round before and about the new one."""
    if new.verdict.bad or earlier.verdict is Verdict.UNKNOWN:
        return new
    return earlier


@dataclass(frozen=True, slots=True)
class ProbeCourse:
    """Where a tier stands in the eyes of its probe. Times in seconds; every change returns a new value."""

    period_s: float
    due_s: float
    bad: int = 0
    good: int = 0
    fence: str = ""

    def after(self, finding: Finding, now_s: float, *, breaker_open: bool = False) -> "ProbeCourse":
        """The course after a round that ended now.

        What every call sees (slow, failing) is left to the breaker while it is open; what only a
        probe sees counts always, and an empty tier at once, because it is seen only once.
        """
        verdict = finding.verdict
        bad, good, fence = self.bad, self.good, self.fence
        if verdict is Verdict.SOUND:
            bad, good = 0, good + 1
        elif verdict.bad and (verdict.lie or not breaker_open):
            bad, good = bad + 1, 0
        if good >= LIFT_AFTER:
            fence = ""
        elif not fence and (bad >= FENCE_AFTER or verdict is Verdict.EMPTIED):
            fence = finding.words
        hurry = bool(fence or bad)
        return replace(
            self, bad=bad, good=good, fence=fence, due_s=now_s + (self.period_s / HASTE if hurry else self.period_s)
        )
