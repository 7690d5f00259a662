"""The arena's file: create it, or open what an earlier agent left, and own it alone.

What is already stored is never thrown away without a word: a foreign file is refused, and an
arena of another size or version is replaced with a note that says so.
"""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kveik.errors import ArenaError
from kveik.lock_file import locked
from kveik.store.arena_layout import (
    HEADER_USED_BYTES,
    PAGE_BYTES,
    RECORD,
    TABLE_OFFSET,
    ArenaLayout,
    FoundHeader,
    default_slab_bytes,
    read_header,
)
from kveik.store.shared_memory import Mapping, available_memory_bytes, free_file_bytes

_PIECE_BYTES = 256 << 20
_OPEN_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class ArenaRequest:
    """What the arena should be. Sizes of 0 mean: keep what is there, else choose."""

    path: str
    arena_bytes: int = 0
    slab_bytes: int = 0
    huge_pages: bool = False


class ArenaFile:
    """An arena's file that this process alone has open as its owner, mapped and locked."""

    def __init__(self, path: str, fd: int, layout: ArenaLayout, *, huge_pages: bool, notes: tuple[str, ...]) -> None:
        self.path = path
        self.fd = fd
        self.layout = layout
        self.notes = notes
        self.mapping = Mapping(fd, layout.arena_bytes, huge_pages=huge_pages)
        self.view = self.mapping.view
        table = self.view[TABLE_OFFSET : TABLE_OFFSET + 8 * layout.slab_count]
        self.slab_table: NDArray[np.uint64] = np.frombuffer(table, np.uint64)

    def records(self, slab: int, count: int) -> NDArray[np.void]:
        """The slot records of one slab with ``count`` slots, writable in place."""
        offset = self.layout.slab_offset(slab)
        return np.frombuffer(self.view[offset : offset + count * RECORD.itemsize], RECORD)

    def open_for_client(self) -> int:
        """A file descriptor to hand to a client.

        Opened anew: a client's mapping of our own open file would hold our lock beyond our death.
        """
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDWR | os.O_CLOEXEC)

    def close(self) -> None:
        """Unmap and unlock; the blocks stay in the file for the next agent."""
        del self.slab_table
        self.mapping.close()
        # Not left to close(): a mapping that a stuck thread still uses would keep the lock.
        fcntl.flock(self.fd, fcntl.LOCK_UN)
        os.close(self.fd)


def open_arena_file(request: ArenaRequest) -> ArenaFile:
    """Open, or create, the arena's file.

    Raises :class:`ArenaError` for a file that is not ours, that another agent uses, that others
    may read, or that does not fit; the message says what to do.
    """
    notes: list[str] = []
    for _ in range(3):  # another agent may create or replace the file while we look at it
        fd = _open_existing(request.path)
        if fd is None:
            created = _create(request, notes)
            if created is not None:
                return created
            continue
        with _closing_on_error(fd):
            found = _judge(fd, request.path)
            if os.stat(request.path).st_ino != os.fstat(fd).st_ino:
                os.close(fd)
                continue
            reason = _why_replace(found, request)
            if not reason and found.layout is not None:
                _allocate(fd, request.path, found.layout.arena_bytes)
                return ArenaFile(request.path, fd, found.layout, huge_pages=request.huge_pages, notes=tuple(notes))
            # Unlinked, never truncated: an engine that still maps the old file must not fault.
            notes.append(f"the arena {request.path} is replaced and its blocks are given up: {reason}")
            os.unlink(request.path)
            os.close(fd)
    raise ArenaError(f"the arena {request.path} keeps changing; is another agent starting?")


@contextlib.contextmanager
def _closing_on_error(fd: int) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            os.close(fd)
        raise


def _open_existing(path: str) -> int | None:
    try:
        return os.open(path, _OPEN_FLAGS)
    except FileNotFoundError:
        return None
    except OSError as error:
        why = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise ArenaError(f"cannot open the arena {path}: {why}") from error


def _judge(fd: int, path: str) -> FoundHeader:
    """Check owner, mode and lock of an existing file and read its header."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise ArenaError(f"the arena {path} is no regular file")
    if status.st_uid != os.geteuid():
        raise ArenaError(f"the arena {path} belongs to user {status.st_uid}, this agent runs as {os.geteuid()}")
    if status.st_mode & 0o077:
        raise ArenaError(
            f"the arena {path} is open to other users (mode {status.st_mode & 0o777:o}); "
            "remove it, or `chmod 600` it if you trust its content"
        )
    _lock(fd, path)
    raw = os.pread(fd, HEADER_USED_BYTES, 0)
    if not raw.strip(b"\0"):  # an agent was killed before it wrote the header: nothing is lost
        return FoundHeader(True, None, "it was never finished")
    found = read_header(raw)
    if not found.ours:
        raise ArenaError(f"{path} holds something else ({found.problem}); remove it, or name another arena file")
    if found.layout is not None and status.st_size != found.layout.arena_bytes:
        return FoundHeader(True, None, f"it has {status.st_size} bytes, its header says {found.layout.arena_bytes}")
    return found


def _lock(fd: int, path: str) -> None:
    if not locked(fd):
        raise ArenaError(f"another agent uses the arena {path}; stop it, or give this one its own arena and socket")


def _why_replace(found: FoundHeader, request: ArenaRequest) -> str:
    """Why an existing arena of ours cannot be used as it is; empty if it can."""
    if found.layout is None:
        return found.problem
    for name, wanted, present in (
        ("arena", request.arena_bytes, found.layout.arena_bytes),
        ("slab", request.slab_bytes, found.layout.slab_bytes),
    ):
        if wanted and wanted // PAGE_BYTES * PAGE_BYTES != present:
            return f"its {name} size is {present} bytes, {wanted} are configured"
    return ""


def _create(request: ArenaRequest, notes: list[str]) -> ArenaFile | None:
    """A fresh arena file, or None if somebody else created one meanwhile."""
    layout = _choose_layout(request, notes)
    try:
        fd = os.open(request.path, _OPEN_FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return None
    except OSError as error:
        raise ArenaError(f"cannot create the arena {request.path}: {error.strerror}") from error
    with _closing_on_error(fd):
        _lock(fd, request.path)
        try:
            _allocate(fd, request.path, layout.arena_bytes)
        except BaseException:
            os.unlink(request.path)
            raise
        os.pwrite(fd, layout.pack_header(), 0)
        return ArenaFile(request.path, fd, layout, huge_pages=request.huge_pages, notes=tuple(notes))


def _choose_layout(request: ArenaRequest, notes: list[str]) -> ArenaLayout:
    folder = os.path.dirname(os.path.abspath(request.path))
    try:
        room = free_file_bytes(folder)
    except OSError as error:
        raise ArenaError(f"cannot create the arena {request.path}: {folder}: {error.strerror}") from error
    memory = available_memory_bytes()
    wanted = request.arena_bytes
    if not wanted:
        wanted = min(memory // 4, room * 9 // 10)
        if wanted < memory // 4:
            notes.append(f"{folder} has only {room} bytes free, so the arena gets {wanted}; {_ADVICE}")
    wanted = wanted // PAGE_BYTES * PAGE_BYTES
    if wanted > min(room, memory):
        raise _too_small(request.path, wanted, room, memory)
    slab = request.slab_bytes // PAGE_BYTES * PAGE_BYTES or default_slab_bytes(wanted)
    return ArenaLayout(wanted, slab)


_ADVICE = (
    "enlarge it (`mount -o remount,size=...`; containers: `--shm-size` or an emptyDir with medium Memory), "
    "set a smaller agent.arena_bytes, or put agent.arena into another file system"
)


def _too_small(path: str, wanted: int, room: int, memory: int) -> ArenaError:
    if room < wanted:
        folder = os.path.dirname(os.path.abspath(path))
        return ArenaError(f"the arena {path} needs {wanted} bytes, {folder} has {room} free; {_ADVICE}")
    return ArenaError(
        f"the arena {path} needs {wanted} bytes, only {memory} bytes of memory are available; "
        "set a smaller agent.arena_bytes"
    )


def _allocate(fd: int, path: str, size: int) -> None:
    """Reserve every page now: a sparse file would kill its users with SIGBUS once memory is short."""
    try:
        for start in range(0, size, _PIECE_BYTES):
            os.posix_fallocate(fd, start, min(_PIECE_BYTES, size - start))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT):
            folder = os.path.dirname(os.path.abspath(path))
            raise _too_small(path, size, free_file_bytes(folder), available_memory_bytes()) from error
        raise ArenaError(f"cannot reserve {size} bytes for the arena {path}: {error.strerror}") from error
