"""How often a tier may be asked a second time: pure, the time is an argument.

Retries help against a single lost connection. Against a tier that is down they only multiply the load,
so they never make up more than a share of the calls of the last minute.
"""

from dataclasses import dataclass

WINDOW_S = 60.0
SHARE = 0.1
_STEP_S = 5.0


@dataclass(frozen=True, slots=True)
class _Step:
    """What was counted in one part of the window."""

    number: int
    calls: int = 0
    retries: int = 0


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """Calls and retries, each of one block, of about the last minute. Every change returns a new value."""

    share: float = SHARE
    steps: tuple[_Step, ...] = ()

    @property
    def calls(self) -> int:
        """Calls in the window, without retries."""
        return sum(step.calls for step in self.steps)

    @property
    def retries(self) -> int:
        """Retries in the window."""
        return sum(step.retries for step in self.steps)

    def called(self, calls: int, now_s: float) -> "RetryBudget":
        """The budget after so many calls that are no retries."""
        return self._counted(calls, 0, now_s)

    def granted(self, wanted: int, now_s: float) -> tuple["RetryBudget", int]:
        """How many of the ``wanted`` retries may be made now, and the budget after them."""
        known = self._counted(0, 0, now_s)
        room = int(self.share * known.calls) - known.retries
        allowed = max(0, min(wanted, room))
        return known._counted(0, allowed, now_s), allowed

    def _counted(self, calls: int, retries: int, now_s: float) -> "RetryBudget":
        number = int(now_s // _STEP_S)
        oldest = number - int(WINDOW_S // _STEP_S)
        steps = [step for step in self.steps if step.number > oldest]
        if not steps or steps[-1].number < number:
            steps.append(_Step(number))
        last = steps[-1]
        steps[-1] = _Step(last.number, last.calls + calls, last.retries + retries)
        return RetryBudget(self.share, tuple(steps))
