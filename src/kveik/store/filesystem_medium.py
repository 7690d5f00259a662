"""Whether a folder lies on this machine's disk or on a server's. Pure, but for reading the table of mounts.

Kernels tell the type of each mount in ``/proc/self/mountinfo`` (proc(5)); reading that table asks no server
anything, so it cannot hang. Rules for network file systems are stricter (see :mod:`kveik.store.filesystem`): their
clients keep names and sizes for a while, so an answer may be old.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

#: Types whose names and sizes a client keeps for itself.
NETWORK_TYPES = frozenset({
    "9p", "afs", "beegfs", "beegfs_nodev", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs3", "nfs4",
    "ocfs2", "pvfs2", "smb2", "smb3", "smbfs", "virtiofs", "wekafs",
})  # fmt: skip
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Medium:
    """What a folder lies on: the file system's type, and where it comes from (``server:/export`` or a device)."""

    type: str
    source: str = ""

    @property
    def network(self) -> bool:
        """Whether other machines may change what lies there. A FUSE file system may be one, so it counts as one."""
        return self.type in NETWORK_TYPES or self.type == "fuse" or self.type.startswith("fuse.")

    def __str__(self) -> str:
        return f"{self.type or 'unknown'} ({'network' if self.network else 'local'})"


UNKNOWN = Medium("")


@dataclass(frozen=True, slots=True)
class _Mount:
    point: str
    medium: Medium


def medium_of(path: Path) -> Medium:
    """What ``path`` lies on; :data:`UNKNOWN`, which counts as local, where the kernel does not say.

    Follows symbolic links of ``path``, so it may hang as any other access does.
    """
    return medium_in(os.path.realpath(path), mount_table())


def mount_table() -> list[str]:
    """The lines of this process's table of mounts; none where the kernel has no such table."""
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf8", errors="surrogateescape").splitlines()
    except OSError:
        return []


def medium_in(path: str, mountinfo: Iterable[str]) -> Medium:
    """What an absolute path without links lies on: the longest mount point above it, of equal ones the last."""
    found = _Mount("", UNKNOWN)
    for line in mountinfo:
        mount = _parse(line)
        if mount is not None and _is_below(path, mount.point) and len(mount.point) >= len(found.point):
            found = mount
    return found.medium


def _parse(line: str) -> _Mount | None:
    """``36 35 98:0 /root /point options optional... - type source options``."""
    before, separator, after = line.partition(" - ")
    fields, last = before.split(" "), after.split(" ")
    if not separator or len(fields) < 6 or len(last) < 2:
        return None
    return _Mount(_plain(fields[4]), Medium(last[0], _plain(last[1])))


def _plain(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def _is_below(path: str, point: str) -> bool:
    return point in ("/", path) or path.startswith(point.rstrip("/") + "/")
