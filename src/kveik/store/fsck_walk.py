"""Walk the folder of a filesystem tier and judge what lies there, while agents may be using it.

Nothing is changed unless ``repair`` is asked for; then only what two looks, at least :data:`APART_S` apart, found
wrong.
"""

import contextlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.errors import StoreError
from kveik.kv import frame
from kveik.kv.keys import BlockKey
from kveik.store.filesystem_files import FileIdentity, FileTree, forget_pages, identify, process_alive, read_into
from kveik.store.filesystem_layout import (
    FORMAT_DIRECTORY,
    NAMESPACE_NAME,
    QUARANTINE_DIRECTORY,
    WRITERS_DIRECTORY,
    is_fan_directory,
    is_namespace_directory,
)
from kveik.store.filesystem_medium import medium_of
from kveik.store.filesystem_sweep import is_leftover
from kveik.store.fsck import Depth, Finding, FolderReport, Found, NamespaceTally, judge_block, may_remove, role_of

#: A block younger than this is never removed: a network file system may show a new file half-way.
MIN_AGE_S = 60.0
#: A temporary file of another machine counts as orphaned when it is older than this.
LEFTOVER_AGE_S = 3600.0
#: Time between the two looks at what is to be removed.
APART_S = 1.0
_DESCRIPTION_MAX_BYTES = 1 << 20
_BUFFER_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a walk is."""

    files: int
    bytes: int
    where: str


@dataclass(frozen=True, slots=True)
class _Suspect:
    directory: str
    name: str
    found: Found
    identity: FileIdentity | None


class FolderWalk:
    """One walk over one tier's folder. Raises :class:`~kveik.errors.StoreError` where there is no such tier.

    ``pause`` waits so many seconds between the looks; ``progress`` is told after each directory.
    """

    def __init__(
        self,
        root: Path,
        depth: Depth = Depth.BYTES,
        *,
        clock: Clock = SYSTEM_CLOCK,
        pause: Callable[[float], None] = time.sleep,
        progress: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self._tree = FileTree(root)
        self._depth = depth
        self._clock = clock
        self._pause = pause
        self._progress = progress
        self._buffer = memoryview(bytearray(0))
        self._suspects: list[_Suspect] = []
        self._files = self._bytes = 0
        self.report = FolderReport(str(root))

    def run(self, *, repair: bool = False) -> FolderReport:
        """Look at everything; with ``repair`` remove what is certainly wrong and old enough."""
        began_s = self._clock.monotonic()
        self.report.medium = str(medium_of(self._tree.root))
        for directory, entries in self._directories():
            for entry in entries:
                self._look(directory, entry.name)
            self._progress(Progress(self._files, self._bytes, directory))
        if repair and self._suspects:
            self._pause(APART_S)
            for suspect in self._suspects:
                self._remove(suspect)
        self.report.seconds = self._clock.monotonic() - began_s
        return self.report

    # -- walking ----------------------------------------------------------------------------

    def _directories(self) -> Iterator[tuple[str, list[os.DirEntry[str]]]]:
        """Each directory of the tier's with what lies in it, directories that belong there left out."""
        top = self._tree.root / FORMAT_DIRECTORY
        try:
            entries = _entries(top)
        except OSError as error:
            raise StoreError(
                f"{self._tree.root} holds no tier that can be read ({error.strerror}):"
                f" expected a folder {FORMAT_DIRECTORY} in it"
            ) from error
        below = [entry for entry in entries if _is_directory(entry) and _belongs(entry.name)]
        yield "", [entry for entry in entries if entry not in below]
        for entry in below:
            if is_namespace_directory(entry.name):
                self.report.namespaces[entry.name] = self._described(entry.name)
                yield from self._below(entry.name, 2)
            else:
                yield from self._below(entry.name, 0)

    def _below(self, directory: str, depth: int) -> Iterator[tuple[str, list[os.DirEntry[str]]]]:
        try:
            entries = _entries(self._tree.root / FORMAT_DIRECTORY / directory)
        except FileNotFoundError:
            return
        except OSError as error:
            self.report.add(Found(directory, Finding.UNREADABLE, 0, 0.0, str(error.strerror)))
            return
        deeper = [entry for entry in entries if depth and is_fan_directory(entry.name) and _is_directory(entry)]
        yield directory, [entry for entry in entries if entry not in deeper]
        for entry in deeper:
            yield from self._below(f"{directory}/{entry.name}", depth - 1)

    def _described(self, namespace: str) -> NamespaceTally:
        """The namespace's description, as far as there is one and it is of this namespace."""
        buffer = memoryview(bytearray(_DESCRIPTION_MAX_BYTES))
        try:
            with self._tree.directory(namespace) as directory:
                _, count = read_into(directory, NAMESPACE_NAME, buffer)
            told = json.loads(bytes(buffer[:count]))
            if told["digest"] == namespace:
                facts = {str(name): str(value) for name, value in told["facts"].items()}
                return NamespaceTally(label=str(told["label"]), facts=facts)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            pass  # only for people: the blocks do without
        return NamespaceTally()

    # -- one file ---------------------------------------------------------------------------

    def _look(self, directory: str, name: str) -> None:
        try:
            found, identity = self._judge(directory, name)
        except FileNotFoundError:
            return  # evicted, published or taken away meanwhile
        except OSError as error:
            found, identity = Found(_join(directory, name), Finding.UNREADABLE, 0, 0.0, str(error.strerror)), None
        if found is None:
            return
        self._files += 1
        self.report.add(found)
        key = role_of(directory, name).key
        if key is not None and found.finding is not Finding.UNREADABLE:
            self.report.namespaces[directory.split("/", maxsplit=1)[0]].add_block(
                found.size, found.age_s, found.finding
            )
        if may_remove(found, MIN_AGE_S):
            self._suspects.append(_Suspect(directory, name, found, identity))

    def _judge(self, directory: str, name: str) -> tuple[Found | None, FileIdentity | None]:
        """The finding; None for the tier's own small files. Raises ``OSError``."""
        role = role_of(directory, name)
        if role.own:
            return None, None
        with self._tree.directory(*filter(None, directory.split("/"))) as descriptor:
            identity = identify(descriptor, name)
            if identity is None:
                raise FileNotFoundError
            if role.key is not None:
                finding, why = self._judge_block(descriptor, directory, name, role.key, identity)
            else:
                finding, why = Finding.UNKNOWN, ""
        age_s = max(0.0, self._clock.wall() - identity.mtime_s)
        if role.writer is not None and identity.regular:
            host = self._tree.writer.host
            gone = is_leftover(role.writer, age_s, host=host, alive=process_alive, max_age_s=LEFTOVER_AGE_S)
            finding = Finding.ORPHANED if gone else Finding.WRITING
        elif role.quarantined:
            finding = Finding.QUARANTINED
        return Found(_join(directory, name), finding, identity.size, age_s, why), identity

    def _judge_block(
        self, descriptor: int, directory: str, name: str, key: BlockKey, identity: FileIdentity
    ) -> tuple[Finding, str]:
        if self._depth is Depth.SIZES or not identity.regular:
            return judge_block(directory, key, self._buffer[:0], identity, Depth.SIZES)
        wanted = identity.size if self._depth is Depth.BYTES else frame.HEADER_BYTES
        opened, count = read_into(descriptor, name, self._room(wanted))
        self._bytes += count
        return judge_block(directory, key, self._buffer[:count], opened, self._depth)

    def _room(self, size: int) -> memoryview:
        if len(self._buffer) < size:
            self._buffer = memoryview(bytearray(max(size, _BUFFER_BYTES)))
        return self._buffer[:size]

    # -- repair -----------------------------------------------------------------------------

    def _remove(self, suspect: _Suspect) -> None:
        """Remove the file if a second look finds the same file with the same fault."""
        with contextlib.suppress(OSError):  # what vanished or cannot be removed is left as it is
            with self._tree.directory(*filter(None, suspect.directory.split("/"))) as descriptor:
                forget_pages(descriptor, suspect.name)
            again, identity = self._judge(suspect.directory, suspect.name)
            same = identity is not None and suspect.identity is not None and identity.same_file(suspect.identity)
            if again is None or not same or again.finding is not suspect.found.finding:
                return
            with self._tree.directory(*filter(None, suspect.directory.split("/"))) as descriptor:
                os.unlink(suspect.name, dir_fd=descriptor)
            self.report.removed += 1
            self.report.listed = [
                replace(found, removed=True) if found is suspect.found else found for found in self.report.listed
            ]


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    with os.scandir(directory) as scan:
        return sorted(scan, key=lambda entry: entry.name)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return stat.S_ISDIR(entry.stat(follow_symlinks=False).st_mode)
    except OSError:
        return False


def _belongs(name: str) -> bool:
    return is_namespace_directory(name) or name in (QUARANTINE_DIRECTORY, WRITERS_DIRECTORY)


def _join(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name
