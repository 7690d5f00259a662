"""What this machine allows of memory: its size, the cgroup's limit, shared memory, locked memory, huge pages."""

import contextlib
import os
import re
import resource
from dataclasses import dataclass
from pathlib import Path

_CGROUP_FILES = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")
#: Version 1 writes this, or a little less, where there is no limit.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """Bytes; -1 is without limit, and 0 not known. ``shared_*``: of the file system in which the arena lies.

    ``locked_bytes``: what one of our processes may lock. ``transparent``: the kernel's word for huge pages in shared
    memory, such as ``never``. ``arena_is_there``: its file exists, so its memory is taken already.
    """

    total_bytes: int = 0
    limit_bytes: int = -1
    shared_total_bytes: int = 0
    shared_free_bytes: int = 0
    locked_bytes: int = -1
    huge_page_bytes: int = 0
    huge_pages: int = 0
    huge_pages_free: int = 0
    transparent: str = ""
    arena_is_there: bool = False


def look_at_memory(arena: str, root: Path = Path("/")) -> MachineMemory:
    """This machine now. ``arena``: where the arena's file is or will be; empty for /dev/shm."""
    table = _meminfo(_text(root / "proc/meminfo"))
    folder = str(Path(arena).parent) if arena else "/dev/shm"  # noqa: S108 (looked at only)
    total = free = 0
    with contextlib.suppress(OSError):
        status = os.statvfs(folder)
        total, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    chosen = re.search(r"\[(\w+)\]", _text(root / "sys/kernel/mm/transparent_hugepage/shmem_enabled"))
    return MachineMemory(
        total_bytes=table.get("MemTotal", 0),
        limit_bytes=_limit(root),
        shared_total_bytes=total,
        shared_free_bytes=free,
        locked_bytes=-1 if soft == resource.RLIM_INFINITY else soft,
        huge_page_bytes=table.get("Hugepagesize", 0),
        huge_pages=table.get("HugePages_Total", 0),
        huge_pages_free=table.get("HugePages_Free", 0),
        transparent=chosen[1] if chosen else "",
        arena_is_there=bool(arena) and Path(arena).exists(),
    )


def _meminfo(text: str) -> dict[str, int]:
    """The kernel's table: kB as bytes, numbers of pages as they are."""
    found = {}
    for match in re.finditer(r"^(\w+):\s+(\d+)( kB)?", text, re.MULTILINE):
        found[match[1]] = int(match[2]) * (1024 if match[3] else 1)
    return found


def _limit(root: Path) -> int:
    for name in _CGROUP_FILES:
        text = _text(root / name).strip()
        if text.isdigit() and int(text) < _NO_LIMIT:
            return int(text)
    return -1


def _text(file: Path) -> str:
    with contextlib.suppress(OSError):
        return file.read_text(encoding="utf8")
    return ""
