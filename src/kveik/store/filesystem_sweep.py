"""Sweeping a folder of blocks: what must go (pure), and the round that counts and removes.

A round costs one walk over the tree and memory for the candidates only. It removes nothing but
files that carry this tier's exact names: blocks, and temporary files whose writer is gone.
"""

import contextlib
import heapq
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kveik.clock import Clock
from kveik.kv.keys import BlockKey
from kveik.store.filesystem_files import FileTree, identify, process_alive
from kveik.store.filesystem_layout import (
    FORMAT_DIRECTORY,
    QUARANTINE_DIRECTORY,
    FileWriter,
    is_fan_directory,
    is_namespace_directory,
    leaf_of,
    parse_block_name,
    parse_quarantine_name,
    parse_temporary_name,
)

#: A round begins to evict when the limit is filled to HIGH_MARK, and evicts down to LOW_MARK.
HIGH_MARK = 0.95
LOW_MARK = 0.90


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A block's file; ``path`` is relative to the format directory."""

    path: str
    size: int
    mtime_s: float


@dataclass(frozen=True, slots=True)
class Space:
    """Sizes that decide on eviction, in bytes. ``free`` is what the disk has for us."""

    used: int
    limit: int
    free: int
    reserve: int
    wanted: int = 0  # size of a block that found no room
    disk_full: bool = False  # a write was refused, whatever the figures say (a quota, inodes)


def bytes_to_free(space: Space) -> int:
    """How much must go.

    Down to the low mark of the limit; until the reserve is free again, with a tenth to spare;
    a tenth of all blocks when a write met a full disk; and in each case room for what is wanted.
    """
    over_limit = short = refused = 0
    if space.limit and (space.used >= space.limit * HIGH_MARK or space.used + space.wanted > space.limit):
        over_limit = max(space.used - int(space.limit * LOW_MARK), space.used + space.wanted - space.limit)
    if space.free < space.reserve + space.wanted:
        short = space.reserve + space.reserve // 10 + space.wanted - space.free
    if space.disk_full:
        refused = space.used // 10
    return min(space.used, max(over_limit, short, refused))


def plan_eviction(files: Iterable[StoredFile], need_bytes: int) -> list[StoredFile]:
    """The least recently used files, oldest first, that together free ``need_bytes``."""
    victims: list[StoredFile] = []
    freed = 0
    for file in sorted(files, key=lambda file: (file.mtime_s, file.path)):
        if freed >= need_bytes:
            break
        victims.append(file)
        freed += file.size
    return victims


class OldestFiles:
    """Of all files offered, the oldest ones that together reach ``budget_bytes``.

    A folder may hold millions of files; those that cannot become victims are not remembered.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._youngest_first: list[tuple[float, str, int]] = []
        self._bytes = 0

    def offer(self, file: StoredFile) -> None:
        """Remember the file as long as no older ones fill the budget."""
        heapq.heappush(self._youngest_first, (-file.mtime_s, file.path, file.size))
        self._bytes += file.size
        while self._youngest_first and self._bytes - self._youngest_first[0][2] >= self._budget_bytes:
            self._bytes -= heapq.heappop(self._youngest_first)[2]

    def files(self) -> list[StoredFile]:
        """The files that are remembered, in no order."""
        return [StoredFile(path, size, -negative_mtime_s) for negative_mtime_s, path, size in self._youngest_first]


def is_leftover(writer: FileWriter, age_s: float, *, host: str, alive: Callable[[int], bool], max_age_s: float) -> bool:
    """Whether nobody writes this temporary file any more: its process is gone, or it is too old."""
    return age_s > max_age_s or (writer.host == host and not alive(writer.pid))


def excess_quarantine(files: Sequence[StoredFile], max_blocks: int, max_bytes: int) -> list[StoredFile]:
    """The oldest quarantined files beyond either bound."""
    kept_bytes = 0
    excess = []
    newest_first = sorted(files, key=lambda file: (file.mtime_s, file.path), reverse=True)
    for position, file in enumerate(newest_first):
        kept_bytes += file.size
        if position >= max_blocks or kept_bytes > max_bytes:
            excess.append(file)
    return excess


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What a round found and removed."""

    blocks: int
    bytes: int
    evicted_blocks: int
    evicted_bytes: int
    leftovers: int
    seconds: float


@dataclass(slots=True)
class _Count:
    blocks: int = 0
    bytes: int = 0
    leftovers: int = 0


def sweep(
    tree: FileTree,
    space: Space,
    *,
    leftover_age_s: float,
    clock: Clock,
    beat: Callable[[], None] = lambda: None,
) -> SweepReport:
    """Count all blocks, remove leftovers, and evict what :func:`bytes_to_free` says.

    ``space.used`` is an estimate that bounds how many candidates are kept; the true figure
    comes from the walk. ``beat`` is called now and then. Raises ``OSError`` only when the
    format directory itself cannot be read.
    """
    start_s = clock.monotonic()
    candidates = OldestFiles(max(bytes_to_free(space) * 3 // 2, space.limit // 8))
    count = _Count()
    for directory, names in _walk(tree):
        beat()
        for entry in names:
            _look_at(tree, directory, entry, candidates, count, leftover_age_s, clock)
    evicted_blocks = evicted_bytes = 0
    for victim in plan_eviction(candidates.files(), bytes_to_free(replace(space, used=count.bytes))):
        beat()
        if _evict(tree, victim):
            evicted_blocks += 1
            evicted_bytes += victim.size
    return SweepReport(
        count.blocks - evicted_blocks,
        count.bytes - evicted_bytes,
        evicted_blocks,
        evicted_bytes,
        count.leftovers,
        clock.monotonic() - start_s,
    )


def stored_keys(tree: FileTree, namespace: str) -> Iterator[list[BlockKey]]:
    """The blocks of one namespace directory, or of all (empty name), one directory's at a time.

    Blocks that lie where nobody looks for them are left out. Raises ``OSError`` when the format
    directory cannot be read.
    """
    for directory, entries in _walk(tree, namespace):
        keys = (parse_block_name(entry.name) for entry in entries)
        yield [key for key in keys if key is not None and "/".join(leaf_of(key)) == directory]


def _walk(tree: FileTree, only: str = "") -> Iterator[tuple[str, list[os.DirEntry[str]]]]:
    """All directories of the tier, as path below the format directory and entries; links are not followed.

    ``only`` is the one namespace directory to look into, if given.
    """
    top = tree.root / FORMAT_DIRECTORY
    with os.scandir(top) as scan:
        entries = list(scan)
    yield "", entries
    for namespace in _subdirectories(entries, is_namespace_directory):
        if only not in ("", namespace):
            continue
        with contextlib.suppress(OSError):  # swept by another, or not readable: the rest still counts
            yield from _walk_below(top, namespace, depth=2)


def _walk_below(top: Path, path: str, depth: int) -> Iterator[tuple[str, list[os.DirEntry[str]]]]:
    with os.scandir(top / path) as scan:
        entries = list(scan)
    yield path, entries
    if depth:
        for name in _subdirectories(entries, is_fan_directory):
            with contextlib.suppress(OSError):
                yield from _walk_below(top, f"{path}/{name}", depth - 1)


def _subdirectories(entries: Iterable[os.DirEntry[str]], wanted: Callable[[str], bool]) -> list[str]:
    return [entry.name for entry in entries if wanted(entry.name) and entry.is_dir(follow_symlinks=False)]


def _look_at(
    tree: FileTree,
    directory: str,
    entry: os.DirEntry[str],
    candidates: OldestFiles,
    count: _Count,
    leftover_age_s: float,
    clock: Clock,
) -> None:
    writer = parse_temporary_name(entry.name)
    is_block = writer is None and directory.count("/") == 2 and parse_block_name(entry.name) is not None
    if not (is_block or writer):
        return
    try:
        info = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(info.st_mode):
        return
    if writer is None:
        count.blocks += 1
        count.bytes += info.st_size
        candidates.offer(StoredFile(f"{directory}/{entry.name}", info.st_size, info.st_mtime))
        return
    age_s = clock.wall() - info.st_mtime
    if is_leftover(writer, age_s, host=tree.writer.host, alive=process_alive, max_age_s=leftover_age_s):
        count.leftovers += _remove(tree, directory, entry.name)


def _evict(tree: FileTree, victim: StoredFile) -> bool:
    """Remove the file unless it was used since the walk."""
    directory, name = victim.path.rsplit("/", 1)
    try:
        with tree.directory(*directory.split("/")) as descriptor:
            found = identify(descriptor, name)
            if found is None or found.mtime_s != victim.mtime_s:
                return False
            os.unlink(name, dir_fd=descriptor)
            return True
    except OSError:
        return False


def _remove(tree: FileTree, directory: str, name: str) -> bool:
    try:
        with tree.directory(*filter(None, directory.split("/"))) as descriptor:
            os.unlink(name, dir_fd=descriptor)
            return True
    except OSError:
        return False


def trim_quarantine(tree: FileTree, max_blocks: int, max_bytes: int) -> None:
    """Keep the quarantine within its bounds. Raises ``OSError`` when it cannot be read."""
    with tree.directory(QUARANTINE_DIRECTORY) as directory:
        files = []
        for name in os.listdir(directory):
            found = identify(directory, name)
            time_s = parse_quarantine_name(name)
            if found is not None and time_s is not None:
                files.append(StoredFile(name, found.size, time_s))
        for file in excess_quarantine(files, max_blocks, max_bytes):
            with contextlib.suppress(OSError):  # another process trims as well; directories stay
                os.unlink(file.path, dir_fd=directory)
