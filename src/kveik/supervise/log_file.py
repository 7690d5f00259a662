"""Keeps the logs of running processes within a size: what writes them never notices."""

import contextlib
import os
import shutil
from pathlib import Path

_TAIL_BYTES = 65536


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
