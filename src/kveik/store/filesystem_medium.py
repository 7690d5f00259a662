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
class Mount:
    """One line of the table of mounts. ``device``: its number, ``major:minor``, which several mounts may share."""

    point: str
    medium: Medium
    device: str = ""

    def __str__(self) -> str:
        return f"{self.medium.type or 'unknown'} from {self.medium.source or 'unknown'} at {self.point or 'unknown'}"


NOWHERE = Mount("", UNKNOWN)


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
    """What an absolute path without links lies on, by these lines."""
    return mount_above(path, mounts_in(mountinfo)).medium


def mounts_in(mountinfo: Iterable[str]) -> list[Mount]:
    """All mounts, in the order of the lines; those that are not understood are left out."""
    return [mount for line in mountinfo if (mount := _parse(line)) is not None]


def mount_above(path: str, mounts: Iterable[Mount]) -> Mount:
    """The longest mount point above an absolute path without links, of equal ones the last; else :data:`NOWHERE`."""
    found = NOWHERE
    for mount in mounts:
        if is_below(path, mount.point) and len(mount.point) >= len(found.point):
            found = mount
    return found


def is_below(path: str, folder: str) -> bool:
    """Whether an absolute path is a folder or lies below it."""
    return folder in ("/", path) or path.startswith(folder.rstrip("/") + "/")


def _parse(line: str) -> Mount | None:
    """``36 35 98:0 /root /point options optional... - type source options``."""
    before, separator, after = line.partition(" - ")
    fields, last = before.split(" "), after.split(" ")
    if not separator or len(fields) < 6 or len(last) < 2:
        return None
    return Mount(unescaped(fields[4]), Medium(last[0], unescaped(last[1])), fields[2])


def unescaped(text: str) -> str:
    """A path as tables of mounts and of exports write it, without its escapes."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)
