"""Tries out a folder in a directory of its own there, which is removed again: names, locks, direct access, speed.

Every function works in ``place``, an empty directory, and may hang as long as the mount does; callers wait for it with
a limit.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import statistics
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from kveik.clock import Clock, Deadline
from kveik.doctor.mount_facts import Room, Speed, Trial

CHUNK_BYTES, SPEED_BYTES = 1 << 20, 16 << 20
SPEED_S = 2.0
SMALL_FILES, SMALL_BYTES = 12, 8192
_PAGE = 4096


def room_of(folder: Path) -> Room:
    """What is left, for a user without privileges. Raises ``OSError``."""
    found = os.statvfs(folder)
    return Room(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, found.f_favail, found.f_files)


def try_rules(place: Path) -> Iterator[Trial]:
    """What a tier needs of names: first writer wins, and a name shows the old bytes or the new ones, whole."""
    for what, rule in (
        ("a name is given once", _exclusive),
        ("a rename replaces at once", _replaces),
        ("who reads keeps what was replaced", _keeps_what_is_read),
        ("a link never replaces", _links),
        ("what was deleted is gone", _deletes),
    ):
        yield Trial(what, _trouble(rule, place))


def _trouble(rule: Callable[[Path], str], place: Path) -> str:
    try:
        return rule(place)
    except OSError as error:
        return words(error)


def _exclusive(place: Path) -> str:
    name = place / "exclusive"
    os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return ""
    return "a second exclusive create of the same name worked"


def _replaces(place: Path) -> str:
    old, new = _written(place / "name", b"old"), _written(place / "aside", b"new")
    new.replace(old)
    found = old.read_bytes()
    return "" if found == b"new" and not new.exists() else f"after it the name shows {found!r}"


def _keeps_what_is_read(place: Path) -> str:
    old, new = _written(place / "name", b"old"), _written(place / "aside", b"new")
    with old.open("rb", buffering=0) as reader:
        new.replace(old)
        found = reader.read()
    return "" if found == b"old" else f"an open file shows {found!r} after its name was given to another"


def _links(place: Path) -> str:
    one, two = _written(place / "one", b"one"), _written(place / "two", b"two")
    third = place / "third"
    try:
        os.link(one, third)
    except OSError as error:
        # Then a rename gives names; both is right.
        return "" if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK) else words(error)
    try:
        os.link(two, third)
    except FileExistsError:
        return ""
    return "a link took a name that was given already"


def _deletes(place: Path) -> str:
    gone = _written(place / "gone", b"gone")
    gone.unlink()
    return "its name is still there" if gone.exists() else ""


def try_locks(place: Path) -> Iterator[Trial]:
    """Whether a lock keeps a second one out: Kveik needs none, other connectors may."""
    name = _written(place / "locked", b"lock")
    for what, lock in (("flock", _flock), ("fcntl locks", _record_lock)):
        with name.open("r+b") as one, name.open("r+b") as two:
            yield Trial(what, _lock_trouble(lock, one.fileno(), two.fileno()))


def _lock_trouble(lock: Callable[[int], None], one: int, two: int) -> str:
    try:
        lock(one)
    except OSError as error:
        return f"not possible here: {words(error)}"
    try:
        lock(two)
    except OSError as error:
        return "" if error.errno in (errno.EAGAIN, errno.EACCES) else words(error)
    return "a second one was granted beside the first"


def _flock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _record_lock(descriptor: int) -> None:
    """A lock of the open file, not of the process, so that one process can try it (fcntl(2))."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))


def try_direct(place: Path) -> Trial:
    """Whether files can be written and read past the page cache."""
    what = "O_DIRECT"
    name = place / "direct"
    with mmap.mmap(-1, _PAGE) as page, contextlib.ExitStack() as undo:
        page[:] = b"d" * _PAGE
        try:
            writer = os.open(name, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o600)
            undo.callback(os.close, writer)
            os.write(writer, page)
            reader = os.open(name, os.O_RDONLY | os.O_DIRECT)
            undo.callback(os.close, reader)
            page[:] = bytes(_PAGE)
            os.readv(reader, [page])
        except OSError as error:
            return Trial(what, words(error))
        same = page[:] == b"d" * _PAGE
    return Trial(what, "" if same else "other bytes were read than written")


def measure(place: Path, clock: Clock) -> Speed:
    """Write a few MiB and read them back past this machine's cache, then some small files. Raises ``OSError``."""
    name = place / "speed"
    wrote, write_s = _write(name, clock)
    read, read_s = _read(name, clock)
    creates, opens = [], []
    limit = Deadline.after(SPEED_S, clock)
    for number in range(SMALL_FILES):
        start_s = clock.monotonic()
        small = _written(place / f"small-{number}", bytes(SMALL_BYTES))
        between_s = clock.monotonic()
        small.read_bytes()
        creates.append(between_s - start_s)
        opens.append(clock.monotonic() - between_s)
        if limit.passed:
            break
    return Speed(
        wrote / write_s if write_s else 0.0,
        read / read_s if read_s else 0.0,
        statistics.median(creates),
        statistics.median(opens),
        wrote,
    )


def _write(name: Path, clock: Clock) -> tuple[int, float]:
    """Bytes and seconds, until all of them are with the server or on the disk."""
    chunk, limit, start_s, wrote = os.urandom(CHUNK_BYTES), Deadline.after(SPEED_S, clock), clock.monotonic(), 0
    with name.open("wb", buffering=0) as file:
        while wrote < SPEED_BYTES and not (wrote and limit.passed):
            wrote += file.write(chunk)
        os.fsync(file.fileno())
    return wrote, clock.monotonic() - start_s


def _read(name: Path, clock: Clock) -> tuple[int, float]:
    with name.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        limit, start_s, read = Deadline.after(SPEED_S, clock), clock.monotonic(), 0
        while (found := len(file.read(CHUNK_BYTES))) and not limit.passed:
            read += found
    return read, clock.monotonic() - start_s


def _written(name: Path, content: bytes) -> Path:
    name.write_bytes(content)
    return name


def words(error: OSError) -> str:
    """An error of the system with its name, which people search for."""
    code = errno.errorcode.get(error.errno or 0, "")
    return f"{error.strerror or error} ({code})" if code else str(error.strerror or error)
