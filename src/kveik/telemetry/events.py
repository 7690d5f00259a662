"""Events: what happened to a node's parts, one line each in plain words, in a bounded file.

Supervisor and watchdog of a node write the same file, each line under a lock and at once. The file is set aside at
half of its limit and the one set aside before goes, so the newest always stay. Each line is one JSON object::

    {"at_s": 1790000000.0, "kind": "isolated", "part": "engine-1", "told": "...", "node": "n0", "fields": {...}}

What cannot be written is lost with a warning: no event is worth a fleet that stands still.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.lock_file import owned_in_turn
from kveik.records import Record, StateRecord
from kveik.telemetry.redaction import redacted

FILE_NAME = "events.jsonl"
#: A line longer than this says too much: it is cut.
TOLD_MAX = 2000

logger = logging.getLogger("kveik.events")

Value = str | int | float | bool


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened. ``at_s``: wall time. ``told``: for people; ``kind`` and ``fields``: for programs."""

    at_s: float
    kind: str
    part: str
    told: str
    node: str = ""
    fields: dict[str, Value] = {}

    @property
    def line(self) -> str:
        """For people: when, which part, and what."""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.at_s))
        return f"{when}  {self.part}: {self.told}"


#: Is told each event after it was written. It must not block and must not raise.
EventListener = Callable[[Event], None]

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Event)


class EventLog:
    """Writes a node's events. Shared between threads, and the file between processes."""

    def __init__(
        self, path: Path, *, bytes_max: int, node: str = "", listener: EventListener | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:  # fmt: skip
        self.path = path
        self._half_bytes = max(1, bytes_max // 2)
        self._node = node
        self._listener = listener
        self._clock = clock
        self._failed = False

    def __repr__(self) -> str:
        return f"EventLog({self.path})"

    def tell(self, kind: str, part: str, told: str, **fields: Value) -> Event:
        """Write one event. What looks like a secret is hidden. Never raises."""
        words = " ".join(redacted(told).split())
        shown = {name: redacted(value) if isinstance(value, str) else value for name, value in fields.items()}
        event = Event(
            at_s=round(self._clock.wall(), 3), kind=kind, part=part, told=_cut(words), node=self._node, fields=shown
        )
        self._write(_encode(event) + b"\n")
        logger.info("%s: %s", part, event.told)
        if self._listener is not None:
            self._listener(event)
        return event

    def __call__(self, record: Record) -> None:
        """A listener for records: changes of state become events."""
        if isinstance(record, StateRecord):
            why = f": {record.why}" if record.why else ""
            told = f"{record.before} -> {record.after}{why}"
            self.tell("state", record.part, told, before=record.before, after=record.after)

    def _write(self, line: bytes) -> None:
        try:
            with _locked(self.path):
                self._set_aside_if_full(len(line))
                _append(self.path, line)
            self._failed = False
        except OSError as error:
            if not self._failed:  # once, not with every event while the disk is full
                logger.warning("cannot write events to %s: %s", self.path, error.strerror)
            self._failed = True

    def _set_aside_if_full(self, more_bytes: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self.path.stat().st_size + more_bytes > self._half_bytes:
                self.path.replace(_older(self.path))


def read_events(path: Path, since_s: float = 0.0) -> Iterator[Event]:
    """The events in a file and in the one set aside before it, oldest first; those after ``since_s`` (wall time).

    A line that is not understood, as after a loss of power, is left out. Nothing where there is no file.
    """
    for file in (_older(path), path):
        with contextlib.suppress(FileNotFoundError), file.open("rb") as lines:
            yield from _events_of(lines, since_s)


def last_events(path: Path, count: int) -> tuple[Event, ...]:
    """The newest ``count`` events, oldest first."""
    events: list[Event] = []
    for event in read_events(path):
        events.append(event)
        if len(events) > 2 * count:
            del events[:-count]
    return tuple(events[-count:]) if count else ()


class EventTail:
    """Reads events as they are written, also when the file is set aside meanwhile."""

    def __init__(self, path: Path) -> None:
        """Begin after what is there now."""
        self._path = path
        self._inode, self._offset = 0, 0
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            self._inode, self._offset = status.st_ino, status.st_size

    def news(self) -> list[Event]:
        """What came since the last call."""
        events: list[Event] = []
        try:
            now = self._path.stat()
        except FileNotFoundError:
            return events
        if now.st_ino != self._inode:
            if self._inode:
                events += self._rest(_older(self._path))
            self._inode, self._offset = now.st_ino, 0
        return events + self._rest(self._path)

    def _rest(self, file: Path) -> list[Event]:
        """Whole lines after the offset, in the file that had it."""
        with contextlib.suppress(FileNotFoundError), file.open("rb") as lines:
            if os.fstat(lines.fileno()).st_ino != self._inode:
                return []
            lines.seek(self._offset)
            whole = lines.read().rpartition(b"\n")
            self._offset += len(whole[0]) + len(whole[1])
            return list(_events_of(whole[0].split(b"\n"), 0.0))
        return []


def _events_of(lines: Iterable[bytes], since_s: float) -> Iterator[Event]:
    for line in lines:
        if not line.strip():
            continue
        try:
            event = _decoder.decode(line)
        except (msgspec.MsgspecError, RecursionError):
            continue
        if event.at_s > since_s:
            yield event


def _older(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


def _cut(text: str) -> str:
    return text if len(text) <= TOLD_MAX else f"{text[: TOLD_MAX - 1]}…"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Own the file among all processes that write it; who dies lets go."""
    lock = owned_in_turn(path.with_name(f"{path.name}.lock"))
    try:
        yield
    finally:
        os.close(lock)


def _append(path: Path, line: bytes) -> None:
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(fd).st_size
        torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        os.write(fd, b"\n" + line if torn else line)
    finally:
        os.close(fd)
