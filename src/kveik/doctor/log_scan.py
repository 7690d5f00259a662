"""Reads a log line by line and groups what it finds. Pure: no files, no clock; memory does not grow with the log."""

import re
from dataclasses import dataclass, field

from kveik.doctor.log_dictionary import Dictionary, Entry
from kveik.doctor.log_line import Level, LogLine, read_line
from kveik.doctor.log_message import Message, Part, is_fault, opened

#: A longer line is cut: what names a fault stands before that.
LINE_CHARS_MAX = 8192
_TEXT_CHARS = 400
#: Kinds of unknown faults that are kept apart; more are counted together.
UNKNOWN_MAX = 200
_PROCESSES_MAX = 256
_PROCESSES_SHOWN = 8
#: What differs between two reports of the same thing.
_VARYING = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{8,}\b|\d+")


@dataclass(frozen=True, slots=True)
class Sighting:
    """One line: its number from 1, its time as the log writes it (or empty), its message without prefix, cut."""

    line: int
    time: str
    text: str


@dataclass(slots=True)
class Group:
    """All lines of one kind. ``entry`` is None for what is not known."""

    entry: Entry | None
    first: Sighting
    last: Sighting
    count: int = 1
    processes: dict[str, int] = field(default_factory=dict)

    def add(self, sighting: Sighting, process: str) -> None:
        """Count one more."""
        self.count += 1
        if sighting.line < self.first.line:
            self.first = sighting  # held back until its message had ended
        elif sighting.line > self.last.line:
            self.last = sighting
        self.note(process)

    def note(self, process: str) -> None:
        """Remember who wrote it, of a few processes."""
        if process and (process in self.processes or len(self.processes) < _PROCESSES_SHOWN):
            self.processes[process] = self.processes.get(process, 0) + 1


class LogScan:
    """What was found in the lines given so far.

    ``found``: by entry. ``unknown``: faults that no entry knows, by their shape. ``unknown_more``: those of further
    shapes. ``warnings``: lines marked as warnings that no entry knows.
    """

    def __init__(self, dictionary: Dictionary) -> None:
        self._dictionary = dictionary
        self._open: dict[str, Message] = {}
        self.lines = 0
        self.found: dict[str, Group] = {}
        self.unknown: dict[str, Group] = {}
        self.unknown_more = 0
        self.warnings = 0

    def feed(self, raw: str) -> list[Group]:
        """Take the next line; the groups that grew by it."""
        self.lines += 1
        line = read_line(raw[:LINE_CHARS_MAX])
        message = self._open.get(line.process)
        part = message.takes(line) if message else Part.BEGINS
        entry = self._dictionary.find(line, in_code=part is Part.CODE)
        grown: list[Group] = []
        if message is None or part is Part.BEGINS:
            self._close(line.process, grown)
            self._begin(line, entry)
        elif entry and not entry.symptom:
            message.known = True
        elif entry and part is Part.TELLS:
            message.text = ""
        if entry:
            sighting = Sighting(self.lines, line.time, line.text.strip()[:_TEXT_CHARS])
            grown.append(self._count(self.found, entry.id, entry, sighting, line.process))
        if len(self._open) > _PROCESSES_MAX:
            self._close(next(iter(self._open)), grown)
        return grown

    def settle(self) -> list[Group]:
        """Nothing follows, or nothing did for a while: the groups that what was held back makes."""
        grown: list[Group] = []
        for process in list(self._open):
            self._close(process, grown)
        return grown

    def _begin(self, line: LogLine, entry: Entry | None) -> None:
        if is_fault(line):
            message = opened(self.lines, line, told=entry is None)
            message.known = entry is not None and not entry.symptom
            self._open[line.process] = message
        elif entry is None and line.level is Level.WARNING:
            self.warnings += 1

    def _close(self, process: str, grown: list[Group]) -> None:
        message = self._open.pop(process, None)
        if message is None or message.known or not message.text:
            return
        shape = _VARYING.sub("#", message.text[:_TEXT_CHARS])
        if shape not in self.unknown and len(self.unknown) >= UNKNOWN_MAX:
            self.unknown_more += 1
            return
        sighting = Sighting(message.line, message.time, message.text[:_TEXT_CHARS])
        grown.append(self._count(self.unknown, shape, None, sighting, process))

    @staticmethod
    def _count(groups: dict[str, Group], key: str, entry: Entry | None, sighting: Sighting, process: str) -> Group:
        group = groups.get(key)
        if group is None:
            group = groups[key] = Group(entry, sighting, sighting)
            group.note(process)
        else:
            group.add(sighting, process)
        return group
