"""The doctor's checks of this machine, made here now and then, so that they can be read from every node.

A process of its own makes them, at the lowest priority: it takes a second or two of a core, and may take longer.
"""

import contextlib
import json
import os
import subprocess
from collections.abc import Sequence
from typing import Any

from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.fleet.report import ChecksReport, FaultReport
from kveik.watchdog.errand import Errand

#: The longest that all checks together may take.
LIMIT_S = 900.0
#: After the last engine has started, which is when everything is there that can be looked at.
SETTLED_S = 20.0
_NICE = 19
_TOLD = ("wrong", "not done", "beware")  # the worst first


class OwnChecks:
    """The last answer of ``command``, which prints what ``kveik doctor --json`` does; empty: nothing is looked at."""

    def __init__(self, command: Sequence[str], period_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._command = tuple(command) if period_s > 0 else ()
        self._period_s = period_s
        self._clock = clock
        self._errand: Errand[ChecksReport] = Errand("own-checks")
        self._settled_s: float | None = None
        self._due_s = clock.monotonic()
        self._last: ChecksReport | None = None

    def __call__(self, *, starting: bool) -> ChecksReport | None:
        """What is known now; never waits, and begins nothing while an engine is ``starting``."""
        now_s = self._clock.monotonic()
        self._last = self._errand.take() or self._last
        if starting:
            self._settled_s = None
        elif self._settled_s is None:
            self._settled_s = now_s + SETTLED_S
        settled = self._settled_s is not None and now_s >= self._settled_s
        if self._command and settled and now_s >= self._due_s and not self._errand.away:
            self._due_s = now_s + self._period_s
            self._errand.begin(lambda: made(self._command, self._clock), now_s)
        return self._last


def made(command: Sequence[str], clock: Clock = SYSTEM_CLOCK) -> ChecksReport:
    """Run the checks and read what they say; ``trouble`` says why that could not be."""
    try:
        code, printed, complaint = _run(command)
    except (OSError, subprocess.TimeoutExpired) as error:
        return ChecksReport(at_s=clock.wall(), trouble=str(error))
    try:
        return read(json.loads(printed), clock.wall())
    except (ValueError, KeyError, TypeError):
        last = (complaint or printed).strip().splitlines()[-1:]
        return ChecksReport(at_s=clock.wall(), trouble=f"ended with {code}: {''.join(last) or 'no word'}")


def _run(command: Sequence[str]) -> tuple[int, str, str]:
    """Exit code, and what was written to its two outputs."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
        try:
            printed, complaint = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return process.returncode, printed, complaint


def read(answers: Sequence[dict[str, Any]], at_s: float) -> ChecksReport:
    """The report of what ``kveik doctor --json`` printed. Raises ``KeyError`` or ``TypeError`` for anything else."""
    faults = [
        FaultReport(
            check=answer["check"],
            outcome=point["outcome"],
            about=point["about"],
            told=point["told"],
            remedy=point["remedy"],
        )
        for answer in answers
        for point in answer["points"]
        if point["outcome"] in _TOLD
    ]
    faults.sort(key=lambda fault: _TOLD.index(fault.outcome))
    return ChecksReport(at_s=at_s, checks=len(answers), faults=tuple(faults))
