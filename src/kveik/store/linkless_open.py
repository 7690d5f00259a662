"""Open a path of several components, none of which may be a symbolic link, with one system call.

``openat2`` with ``RESOLVE_NO_SYMLINKS`` (Linux 5.6, openat2(2)). Opening each directory by itself does the same with
one call a component, and on a network file system each of those asks the server. Python has no name for the call yet.
"""

import ctypes
import errno
import os

_OPENAT2 = 437  # the same on every architecture but Alpha
_NO_SYMLINKS = 0x04
#: For a path that is absolute, or relative to where the process works.
AT_FDCWD = -100
_REFUSALS = frozenset({errno.ENOSYS, errno.EPERM, errno.EINVAL})
_LIBC = ctypes.CDLL(None, use_errno=True)


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_below(directory: int, path: str, flags: int) -> int:
    """A file descriptor of ``path``, relative to ``directory``.

    Raises ``OSError``: ``ELOOP`` for a symbolic link anywhere in the path, ``ENOTDIR``, ``FileNotFoundError`` and so
    on.
    """
    how = _How(flags, 0, _NO_SYMLINKS)
    while True:
        found: int = _LIBC.syscall(_OPENAT2, directory, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
        if found >= 0:
            return found
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number), path)


def is_supported() -> bool:
    """Whether this kernel has the call, and lets this process use it."""
    try:
        os.close(open_below(AT_FDCWD, ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in _REFUSALS
    return True
