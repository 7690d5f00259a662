"""Which lines of a log are one message: a headline, its traceback, and the lines that go on with it. Pure.

A traceback is many lines and one fault; what it says is its exception, and the exception may be explained by a line
below it. So a fault that no entry knows is told only when its message has ended.
"""

import re
from dataclasses import dataclass
from enum import Enum

from kveik.doctor.log_line import Level, LogLine

_TRACEBACK = "Traceback (most recent call last)"
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
#: What tells a fault where no level does.
_PLAIN_FAULT = re.compile(
    r"(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)\b(?::|$)"
    r"|[\w./-]+: (?:fatal )?error: |(?:fatal error|panic|FATAL|ERROR|Fatal Python error|terminate called)\b"
)


class Part(Enum):
    """What a line is to the message that its process has begun."""

    BEGINS = "begins"  # a message of its own; the one before has ended
    GOES_ON = "goes on"  # belongs to it
    CODE = "code"  # one of the frames of its traceback
    TELLS = "tells"  # the exception of its traceback


@dataclass(slots=True)
class Message:
    """A message that may go on. ``text``: what to tell of it if no entry knows it; empty for nothing."""

    line: int
    time: str
    where: str
    text: str = ""
    known: bool = False
    in_traceback: bool = False
    had_traceback: bool = False
    chained: bool = False

    def takes(self, line: LogLine) -> Part:
        """What the next line of the same process is to this message; notes it."""
        text = line.text
        if _TRACEBACK in text:
            if self.had_traceback and not self.chained:
                return Part.BEGINS
            self.in_traceback, self.had_traceback, self.chained = True, True, False
            return Part.GOES_ON
        if text.startswith(_CHAIN):
            self.chained = True
            return Part.GOES_ON
        if not text.strip() or text[0] in " \t|+":
            return Part.CODE if self.in_traceback else Part.GOES_ON
        if self.in_traceback:
            self.in_traceback = False
            self._tell(text)
            return Part.TELLS
        same = bool(line.where) and (line.where, line.time) == (self.where, self.time)
        return Part.GOES_ON if same and line.level >= Level.ERROR else Part.BEGINS

    def _tell(self, exception: str) -> None:
        """The first exception of a chain is the cause; it says more than the headline."""
        if not self._told:
            self.text, self._told = exception, True

    _told: bool = False


def opened(number: int, line: LogLine, told: bool) -> Message:
    """A message that begins with this line. ``told``: whether the line is worth telling if no entry knows it."""
    message = Message(number, line.time, line.where, line.text.strip() if told else "")
    if _TRACEBACK in line.text:
        message.text, message.in_traceback, message.had_traceback = "", True, True
    return message


def is_fault(line: LogLine) -> bool:
    """Whether a line that begins a message reports a fault, by its level or, without one, by its form."""
    if line.level is Level.PLAIN:
        return _TRACEBACK in line.text or _PLAIN_FAULT.match(line.text) is not None
    return line.level >= Level.ERROR or _TRACEBACK in line.text
