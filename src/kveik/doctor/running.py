"""Runs checks, each within its time limit."""

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kveik.doctor.check import Check, Context, Outcome, Point, Verdict
from kveik.errors import KveikError


@dataclass(frozen=True, slots=True)
class Answer:
    """A check, what came of it, and how long that took."""

    check: Check
    verdict: Verdict
    took_s: float = 0.0


def run_checks(checks: Iterable[Check], context: Context) -> Iterator[Answer]:
    """One after the other. A check that takes longer than its limit is left behind and counts as not done."""
    for check in checks:
        began_s = time.monotonic()
        verdict = _run(check, context)
        yield Answer(check, verdict, time.monotonic() - began_s)


def _run(check: Check, context: Context) -> Verdict:
    verdicts: list[Verdict] = []
    thread = threading.Thread(
        target=lambda: verdicts.append(_answered(check, context)), name=f"doctor-{check.name}", daemon=True
    )
    thread.start()
    thread.join(check.limit_s)
    if thread.is_alive():
        return _not_done(check, f"it took longer than {check.limit_s:g} s")
    return verdicts[0] if verdicts else _not_done(check, "it broke; the traceback above is a fault of Kveik")


def _answered(check: Check, context: Context) -> Verdict:
    try:
        return check.run(context)
    except KveikError as error:
        return _not_done(check, str(error))


def _not_done(check: Check, why: str) -> Verdict:
    return Verdict((), (Point(Outcome.NOT_DONE, check.name, why),))
