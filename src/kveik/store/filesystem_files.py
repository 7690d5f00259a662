"""System calls of the filesystem tier: walking to a leaf, reading, publishing, quarantine.

Every path component below the root is opened by itself without following symbolic links, so a
link planted in place of a directory or a file leads nowhere. Errors are ``OSError``; what they
mean for a block is decided in :mod:`kveik.store.filesystem`. Files are read with ``preadv`` and
never mapped: a mapped file that is cut short on a network mount kills the process.
"""

import contextlib
import errno
import hashlib
import itertools
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kveik.errors import StoreError
from kveik.store.filesystem_layout import FORMAT_DIRECTORY, FileWriter, temporary_name
from kveik.store.linkless_open import AT_FDCWD, is_supported, open_below

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK does nothing to a regular file, and keeps a planted FIFO from hanging the open.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
NO_ROOM = FULL - {errno.EROFS}
# One count for the process: file names carry its id, and it may have several trees below one root.
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """Which file a name stood for when we looked."""

    device: int
    inode: int
    size: int
    mtime_s: float
    regular: bool

    @classmethod
    def of(cls, info: os.stat_result) -> "FileIdentity":
        """The identity in the answer of a stat call."""
        return cls(info.st_dev, info.st_ino, info.st_size, info.st_mtime, stat.S_ISREG(info.st_mode))

    def same_file(self, other: "FileIdentity") -> bool:
        """Whether both are the same file, changed or not."""
        return (self.device, self.inode) == (other.device, other.inode)


def this_writer() -> FileWriter:
    """This process. Process ids mean something only within one boot and one process-id space."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    identity = (boot.read_text(encoding="ascii") if boot.exists() else os.uname().nodename) + _pid_space()
    return FileWriter(hashlib.sha256(identity.encode()).hexdigest()[:8], os.getpid())


def _pid_space() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def process_alive(pid: int) -> bool:
    """Whether a process of this machine has that id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


class FileTree:
    """The format directory below one root, and this process's way of writing in it.

    ``fresh``: names are asked for again, directory by directory, before one counts as absent. Clients of network file
    systems remember absent names; opening the directory above makes them ask (close-to-open, nfs(5)).
    """

    def __init__(self, root: Path, *, fsync: bool = False, links: bool = True, fresh: bool = False) -> None:
        self.root = root
        self._resolved = os.path.realpath(root)
        self.writer = this_writer()
        self._fsync = fsync
        self._links = links
        self._fresh = fresh
        self._in_one_step = is_supported()

    def __repr__(self) -> str:
        return f"FileTree({str(self.root)!r})"

    def next_number(self) -> int:
        """A number that this process has not used in a file name yet."""
        return next(_numbers)

    @contextlib.contextmanager
    def directory(self, *parts: str, create: bool = False) -> Iterator[int]:
        """A file descriptor of a directory below the format directory.

        Raises :class:`FileNotFoundError` when it is not there, and another :class:`OSError`
        (``ENOTDIR`` or ``ELOOP``) when a link or file stands in its place.
        """
        found = self._leap(parts, _DIRECTORY, stepwise_next=create or self._fresh)
        if found is None:
            found = self._walk(parts, create)
        try:
            yield found
        finally:
            os.close(found)

    def open_file(self, *parts: str) -> int | None:
        """A file to read, its name last, by one system call; None when it has to be looked for in its directory.

        Raises ``OSError``. The descriptor is the caller's to close.
        """
        return self._leap(parts, _READ, stepwise_next=self._fresh)

    def _leap(self, parts: Sequence[str], flags: int, *, stepwise_next: bool) -> int | None:
        """What is there, by one system call; None when it has to be walked to.

        The root's own path was resolved when the tier was opened; whether a link stands above it now, or below it, the
        walk tells.
        """
        if not self._in_one_step:
            return None
        try:
            return open_below(AT_FDCWD, "/".join((self._resolved, FORMAT_DIRECTORY, *parts)), flags)
        except OSError as error:
            if error.errno == errno.ELOOP or (error.errno == errno.ENOENT and stepwise_next):
                return None
            raise

    def _walk(self, parts: Sequence[str], create: bool) -> int:
        current = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in (FORMAT_DIRECTORY, *parts):
                below = self._step(current, part, create)
                os.close(current)
                current = below
        except BaseException:
            os.close(current)
            raise
        return current

    def _step(self, directory: int, part: str, create: bool) -> int:
        try:
            return os.open(part, _DIRECTORY, dir_fd=directory)
        except FileNotFoundError:
            if not create:
                raise
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, 0o700, dir_fd=directory)
            if self._fsync:
                os.fsync(directory)
        return os.open(part, _DIRECTORY, dir_fd=directory)

    def publish(
        self, directory: int, stem: str, name: str, parts: Sequence[memoryview | bytes], *, over: bool = False
    ) -> bool:
        """Write a file and give it its name in one step; false when the name is taken already.

        A reader sees the whole file or none. The file that was there first stays, unless it is to be written ``over``.
        """
        temporary = self.write_temporary(directory, stem, parts)
        try:
            return self._name(directory, temporary, name, over=over)
        finally:
            with contextlib.suppress(FileNotFoundError):  # a rename took it, or another's sweep
                os.unlink(temporary, dir_fd=directory)

    def replace(self, directory: int, stem: str, name: str, data: bytes) -> None:
        """Write a file and put it in the place of whatever has that name."""
        temporary = self.write_temporary(directory, stem, [data])
        try:
            os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=directory)
            raise

    def _name(self, directory: int, temporary: str, name: str, *, over: bool) -> bool:
        if self._links and not over:
            try:
                os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                self._links = False
        if over or not self._links:
            # Without hard links two writers may both rename. Both wrote the same block, so either may stay.
            if not over and identify(directory, name) is not None:
                return False
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        if self._fsync:
            os.fsync(directory)
        return True

    def write_temporary(self, directory: int, stem: str, parts: Sequence[memoryview | bytes]) -> str:
        """Write a new temporary file and return its name; nothing is left when that fails."""
        name = temporary_name(stem, self.writer, self.next_number())
        descriptor = os.open(name, _CREATE, 0o600, dir_fd=directory)
        try:
            try:
                for part in parts:
                    _write_fully(descriptor, memoryview(part))
                if self._fsync:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)  # network mounts tell here that there was no room
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=directory)
            raise
        return name


def _write_fully(descriptor: int, view: memoryview) -> None:
    written = 0
    while written < len(view):
        count = os.write(descriptor, view[written:])
        if count == 0:
            raise OSError(errno.EIO, "wrote nothing")
        written += count


def identify(directory: int, name: str) -> FileIdentity | None:
    """What has that name in the directory, not following links; None when nothing has."""
    try:
        return FileIdentity.of(os.stat(name, dir_fd=directory, follow_symlinks=False))
    except FileNotFoundError:
        return None


def read_into(directory: int, name: str, buffer: memoryview) -> tuple[FileIdentity, int]:
    """Read as much of a file as fits into ``buffer``; what was opened and how many bytes it gave.

    Something that is no regular file gives no bytes. Raises :class:`FileNotFoundError` or, for
    a link, ``ELOOP``.
    """
    return read_opened(os.open(name, _READ, dir_fd=directory), buffer)


def read_opened(descriptor: int, buffer: memoryview) -> tuple[FileIdentity, int]:
    """Like :func:`read_into`, of a file that is open; it is closed after that."""
    try:
        identity = FileIdentity.of(os.fstat(descriptor))
        if not identity.regular:
            return identity, 0
        wanted = buffer[: identity.size]
        count = 0
        while count < len(wanted):
            step = os.preadv(descriptor, [wanted[count:]], count)
            if step == 0:
                break
            count += step
        return identity, count
    finally:
        os.close(descriptor)


def forget_pages(directory: int, name: str) -> None:
    """Let the kernel drop what it keeps of a file, if it can, so that the next read asks the medium."""
    with contextlib.suppress(OSError):
        descriptor = os.open(name, _READ, dir_fd=directory)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def unless_full() -> Iterator[None]:
    """Do without a small file for which there is no room: sweeping, which makes room, must not end for want of it."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise


def touch(directory: int, name: str) -> None:
    """Set the times of a file to now; a file that is gone or not ours to touch is left alone."""
    with contextlib.suppress(OSError):
        os.utime(name, dir_fd=directory, follow_symlinks=False)


def check_root(root: Path) -> bool:
    """Make the format directory below ``root`` and try it out; whether hard links work there.

    A full disk passes: what is stored can still be read. Raises :class:`StoreError` that names
    the path and says what to do when the folder cannot be made or written.
    """
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        tree = FileTree(root)
        with tree.directory(create=True) as directory:
            return _try_links(tree, directory)
    except OSError as error:
        raise StoreError(
            f"filesystem tier: {root} cannot be used ({error.strerror}); name a folder on a mounted disk"
            f" that user {os.geteuid()} may create and write, and that is no link below it"
        ) from error


def _try_links(tree: FileTree, directory: int) -> bool:
    try:
        name = tree.write_temporary(directory, "check", [b"kveik"])
    except OSError as error:
        if error.errno in NO_ROOM:
            return True
        raise
    second = temporary_name("check", tree.writer, tree.next_number())
    try:
        os.link(name, second, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
        os.unlink(second, dir_fd=directory)
    except OSError as error:
        if error.errno in FULL:
            return True
        if error.errno not in _NO_LINKS:
            raise
        return False
    finally:
        os.unlink(name, dir_fd=directory)
    return True
