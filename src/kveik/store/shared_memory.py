"""Mapping the arena's file, faulting it in, and asking the kernel about memory. Linux only."""

import contextlib
import ctypes
import mmap
import os
import threading

# linux/mman.h; Python's mmap module does not name them.
_MADV_POPULATE_WRITE = 23
_MADV_HUGEPAGE = 14
_PIECE_BYTES = 32 << 20

# Called through ctypes, because mmap.madvise keeps the GIL for the whole call.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Mapping:
    """A shared, writable mapping of a file, as one memoryview of ``size`` bytes, which lie at ``address``.

    ``close`` gives up this object's own references. The memory stays mapped as long as somebody
    holds a slice of :attr:`view`, so that a copy under way never loses the ground under its feet.
    """

    def __init__(self, fd: int, size: int, *, huge_pages: bool = False) -> None:
        self._mmap = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self.size = size
        self.populated_bytes = 0
        self.view = memoryview(self._mmap)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._mmap))
        if huge_pages:  # a wish: most kernels refuse it for shared memory, and nothing depends on it
            _libc.madvise(self.address, size, _MADV_HUGEPAGE)

    def populate(self, stop: threading.Event) -> bool:
        """Fault every page in for writing, piece by piece, until ``stop``; ``populated_bytes`` grows with it.

        The first touch of a page of shared memory costs several times what the copy into it
        costs, so it must not happen while a block is copied. Content is not changed. False if
        stopped, or if this kernel does not know how (before 5.14) or has no memory left.
        """
        for start in range(0, self.size, _PIECE_BYTES):
            length = min(_PIECE_BYTES, self.size - start)
            if stop.is_set() or _libc.madvise(self.address + start, length, _MADV_POPULATE_WRITE) != 0:
                return False
            self.populated_bytes = start + length
        return True

    def close(self) -> None:
        """Give the mapping up; the kernel unmaps it when the last slice is gone."""
        with contextlib.suppress(BufferError):  # slices are alive; the mapping goes with the last of them
            self.view.release()
            self._mmap.close()


def available_memory_bytes() -> int:
    """Memory that can be taken now without swapping: the machine's, or less in a limited cgroup."""
    available = _meminfo_available()
    limit, used = _number("/sys/fs/cgroup/memory.max"), _number("/sys/fs/cgroup/memory.current")
    if limit is not None and used is not None:
        available = min(available, max(0, limit - used))
    return available


def free_file_bytes(folder: str) -> int:
    """Bytes that an unprivileged process may still store in the file system of this folder."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _meminfo_available() -> int:
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _number(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):  # no such controller, or "max"
        return None
