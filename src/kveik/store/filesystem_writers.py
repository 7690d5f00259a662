"""Who writes into a shared folder, and how much: one small file a process, which changes as long as it lives.

As with the sweeper's lease, whoever looks compares content over its *own* time, so clocks of machines are never
compared.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from kveik.clock import Clock
from kveik.store.filesystem_files import FileTree, process_alive, read_into, unless_full
from kveik.store.filesystem_layout import WRITERS_DIRECTORY, is_writer_name

_MAX_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a writer's file held, and since when (monotonic seconds of who looks) it has held that."""

    raw: bytes
    since_s: float


def still_there(seen: Sighting, *, now_s: float, stale_s: float, host: str, alive: Callable[[int], bool]) -> bool:
    """Whether a writer lives: no dead process of this machine, and its file changed less than ``stale_s`` ago."""
    note = _parse(seen.raw)
    if note is not None and note[0] == host and not alive(note[1]):
        return False
    return now_s - seen.since_s < stale_s


class WriterFiles:
    """This process's file, and its view of others'. Used by one thread."""

    def __init__(
        self, tree: FileTree, name: str, stale_s: float, clock: Clock, alive: Callable[[int], bool] = process_alive
    ) -> None:
        self._tree = tree
        self._name = name
        self._stale_s = stale_s
        self._clock = clock
        self._alive = alive
        self._beat = 0
        self._told_bytes = 0
        self._beaten_at_s = float("-inf")
        self._seen: dict[str, Sighting] = {}

    def __repr__(self) -> str:
        return f"WriterFiles({self._name}, beat {self._beat}, {len(self._seen)} seen)"

    def keep(self, written_bytes: int) -> None:
        """Report that this process lives and what it wrote in all, if due or changed. Raises ``OSError``."""
        now_s = self._clock.monotonic()
        if written_bytes == self._told_bytes and now_s - self._beaten_at_s < self._stale_s / 3:
            return
        self._beat += 1
        note = {
            "host": self._tree.writer.host,
            "pid": self._tree.writer.pid,
            "beat": self._beat,
            "written_bytes": written_bytes,
        }
        with unless_full(), self._tree.directory(WRITERS_DIRECTORY, create=True) as directory:
            self._tree.replace(directory, "writer", self._name, json.dumps(note).encode("ascii"))
            self._beaten_at_s, self._told_bytes = now_s, written_bytes

    def living(self) -> dict[str, int]:
        """What each process that writes has reported, by its file's name; this one is among them.

        Files of others that are gone are removed. Raises ``OSError``.
        """
        now_s = self._clock.monotonic()
        living = {self._name: self._told_bytes}
        with contextlib.suppress(FileNotFoundError), self._tree.directory(WRITERS_DIRECTORY) as directory:
            found = dict(_notes(directory))
            self._seen = _looked_at(self._seen, found, now_s)
            for name, seen in self._seen.items():
                host = self._tree.writer.host
                if name == self._name:
                    continue
                if still_there(seen, now_s=now_s, stale_s=self._stale_s, host=host, alive=self._alive):
                    note = _parse(seen.raw)
                    living[name] = 0 if note is None else note[2]
                else:
                    with contextlib.suppress(OSError):  # another one removes it as well
                        os.unlink(name, dir_fd=directory)
        return living

    def leave(self) -> None:
        """Remove this process's file: it writes no more."""
        with contextlib.suppress(OSError), self._tree.directory(WRITERS_DIRECTORY) as directory:
            os.unlink(self._name, dir_fd=directory)


def _notes(directory: int) -> Iterator[tuple[str, bytes]]:
    for name in os.listdir(directory):
        if is_writer_name(name):
            buffer = memoryview(bytearray(_MAX_BYTES))
            with contextlib.suppress(OSError):  # it left just now
                _, count = read_into(directory, name, buffer)
                yield name, bytes(buffer[:count])


def _looked_at(before: Mapping[str, Sighting], found: Mapping[str, bytes], now_s: float) -> dict[str, Sighting]:
    return {
        name: before[name] if name in before and before[name].raw == raw else Sighting(raw, now_s)
        for name, raw in found.items()
    }


def _parse(raw: bytes) -> tuple[str, int, int] | None:
    """Host, process id and bytes written."""
    try:
        fields = json.loads(raw)
        return str(fields["host"]), int(fields["pid"]), max(0, int(fields["written_bytes"]))
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):  # anyone may write that file
        return None
