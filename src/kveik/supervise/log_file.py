"""Keeps the logs of running processes within a size: what writes them never notices."""

import contextlib
import os
import shutil
from pathlib import Path

#: The cause of an engine's end stands some hundred lines above it.
_TAIL_BYTES = 256 << 10


def set_aside_if_large(log: Path, bytes_max: int) -> bool:
    """Copy a log that reached its size beside itself (``NAME.log.1``) and empty it; whether that was so.

    Its writers append, so they go on at the new end. What they write between the copy's end and the cut is lost:
    a line, if any. Raises nothing: a log is not worth a fleet.
    """
    try:
        if log.stat().st_size <= bytes_max:
            return False
        older = log.with_name(f"{log.name}.1")
        partial = log.with_name(f"{log.name}.1.part")
        with log.open("r+b") as source, partial.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
            os.ftruncate(source.fileno(), 0)
        partial.replace(older)
    except OSError:
        return False
    return True


def size_of(log: Path) -> int:
    """Bytes in a log, 0 if there is none."""
    with contextlib.suppress(OSError):
        return log.stat().st_size
    return 0


def text_since(log: Path, offset: int) -> str:
    """The end of a log, nothing from before ``offset``; all of it if it was set aside meanwhile."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            begin = offset if offset <= size else 0
            file.seek(max(begin, size - _TAIL_BYTES))
            return file.read().decode("utf8", "replace")
    except OSError:
        return ""


def last_lines(log: Path, count: int) -> str:
    """The last lines of a log; nothing if there is none."""
    return "\n".join(text_since(log, 0).splitlines()[-count:]) if count else ""


class LogTail:
    """Reads a log as it grows, from its end now on; whole lines only."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._offset = size_of(log)

    def news(self) -> str:
        """What came since the last call; all of it if the log was set aside meanwhile."""
        try:
            with self._log.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._offset:
                    self._offset = 0
                file.seek(self._offset)
                lines, end, _ = file.read().rpartition(b"\n")
        except OSError:
            return ""
        self._offset += len(lines) + len(end)
        return lines.decode("utf8", "replace")
