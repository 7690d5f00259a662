"""What is known of log lines: a dictionary of entries, each with meaning, causes, remedy and source. Pure.

The entries lie in ``data/log_errors.toml``. A line is looked up by its words, so that the time for it hardly grows
with the number of entries; only the patterns of entries that share a word with it are tried.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from re import Pattern

import msgspec

from kveik.doctor.data_file import read_data
from kveik.doctor.log_line import Level, LogLine

_FILE = "log_errors.toml"
_WORDS = re.compile(r"\w+")


class Severity(Enum):
    """How bad it is that a line of this kind stands in a log."""

    FATAL = "fatal"  # a process ends by it
    ERROR = "error"  # something asked for was not done
    WARNING = "warning"  # it works, worse than it could
    NOTE = "note"  # worth knowing when looking for something; nothing is wrong


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of line.

    ``words``: one of them stands, as a whole word, in every line that ``pattern`` finds; that alone is enough where
    there is no pattern. ``quiet``: looked for in lines marked INFO or DEBUG, too. ``code``: looked for in the
    lines of code that a traceback shows, too. ``symptom``: follows from some other fault and says nothing about it.
    ``explains``: entries that follow from this one. ``causes``: most likely first.
    """

    id: str
    product: str
    severity: Severity
    words: tuple[str, ...]
    meaning: str
    causes: tuple[str, ...]
    remedy: str
    source: str
    sample: str
    pattern: str = ""
    quiet: bool = False
    code: bool = False
    symptom: bool = False
    explains: tuple[str, ...] = ()

    @property
    def is_fault(self) -> bool:
        """Whether it is more than a hint."""
        return self.severity in {Severity.FATAL, Severity.ERROR}

    @property
    def is_weak_cause(self) -> bool:
        """Whether it is named as a cause only where nothing better is found."""
        return self.symptom or self.severity is Severity.NOTE


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    entry: tuple[Entry, ...]


def read_entries() -> tuple[Entry, ...]:
    """All entries of the package, in the order of the file: the first that fits a line is the line's."""
    return read_data(_FILE, _File).entry


class Dictionary:
    """Finds a line's entry. Made once, used for every line."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries: Mapping[str, Entry] = {entry.id: entry for entry in entries}
        order = list(self.entries.values())
        self._patterns: list[tuple[Entry, Pattern[str] | None]] = [
            (entry, re.compile(entry.pattern) if entry.pattern else None) for entry in order
        ]
        self._loud = _index(order)
        self._quiet = _index([entry if entry.quiet else None for entry in order])
        self._code = _index([entry if entry.code else None for entry in order])

    def find(self, line: LogLine, *, in_code: bool = False) -> Entry | None:
        """The first entry that fits, or None if none does. ``in_code``: the line is one of a traceback's frames."""
        index = self._code if in_code else self._quiet if line.level <= Level.INFO else self._loud
        shared = index.keys() & _WORDS.findall(line.text)
        if not shared:
            return None
        for place in sorted({place for word in shared for place in index[word]}):
            entry, pattern = self._patterns[place]
            if pattern is None or pattern.search(line.text):
                return entry
        return None

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries.values())


def _index(order: Iterable[Entry | None]) -> dict[str, list[int]]:
    index: dict[str, list[int]] = {}
    for place, entry in enumerate(order):
        for word in entry.words if entry else ():
            index.setdefault(word, []).append(place)
    return index
