"""Reads logs from files and pipes in bounded pieces."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

#: Bytes of a line that are read; the rest of a longer one is skipped.
_LINE_BYTES_MAX = 64 << 10


def lines_of(file: BinaryIO) -> Iterator[str]:
    """The lines of a binary file as text, each cut to 64 KiB. Raises OSError."""
    while piece := file.readline(_LINE_BYTES_MAX):
        yield piece.decode("utf8", "replace")
        while not piece.endswith(b"\n"):
            piece = file.readline(_LINE_BYTES_MAX)
            if not piece:
                return


class GrowingLog:
    """A file that others append to, cut or replace. Gives whole lines only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb")
        self._identity = _identity(self._file.fileno())
        self._held = b""

    def news(self) -> Iterator[str]:
        """The lines that came since the last call; from its beginning if another file stands there now."""
        yield from self._whole_lines()
        if self._was_replaced():
            self._file.close()
            self._file = self._path.open("rb")
            self._identity = _identity(self._file.fileno())
            self._held = b""
            yield from self._whole_lines()

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _whole_lines(self) -> Iterator[str]:
        while piece := self._file.readline(_LINE_BYTES_MAX):
            self._held = (self._held + piece)[:_LINE_BYTES_MAX]
            if piece.endswith(b"\n"):
                yield self._held.decode("utf8", "replace")
                self._held = b""

    def _was_replaced(self) -> bool:
        try:
            now = self._path.stat()
        except OSError:
            return False  # between two files; look again later
        return (now.st_dev, now.st_ino) != self._identity or now.st_size < self._file.tell()


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino
