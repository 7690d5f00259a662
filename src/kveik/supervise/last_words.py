"""Why a process ended, in a few words: from its exit code and from the end of its log. Pure."""

import re
import signal

#: What engines put before a line: process, level, time, place.
_PREFIX = re.compile(
    r"^(?:\([^)]*\)\s*)?(?:(?:ERROR|WARNING|INFO|CRITICAL)\s+)?(?:\d[\d.:, -]*)?(?:(?:ERROR|WARNING|INFO|CRITICAL)\s+)?"
    r"(?:\[[\w./-]+:\d+\]\s*)?"
)
_CAUSE = re.compile(r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)\b: ?.|\w[\w -]*: error: |kveik [\w-]+: )")
#: A cause that only points to another one.
_HOLLOW = re.compile(r"See root cause above|Engine core initialization failed|WorkerProc initialization failed")
_LONGEST = 300


def ending(exit_code: int | None) -> str:
    """How a process ended, from its exit code: negative, or 128 and more, for a signal."""
    if exit_code is None:
        return "it ended"
    number = -exit_code if exit_code < 0 else exit_code - 128
    if number > 0 and number in {known.value for known in signal.Signals}:
        return f"it was ended by {signal.Signals(number).name}"
    return f"it ended with exit code {exit_code}"


def cause(log: str) -> str:
    """The line of a log that most likely says why: the last error that does not point to another, or the last line."""
    lines = [stripped for line in log.splitlines() if (stripped := _PREFIX.sub("", line.strip()).strip())]
    causes = [line for line in lines if _CAUSE.match(line)]
    telling = [line for line in causes if not _HOLLOW.search(line)] or causes or lines
    return telling[-1][:_LONGEST] if telling else ""


def why_ended(exit_code: int | None, log: str) -> str:
    """Both in one phrase."""
    said = cause(log)
    return f"{ending(exit_code)}; its log says: {said}" if said else ending(exit_code)
