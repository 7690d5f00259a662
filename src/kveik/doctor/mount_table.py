"""What a folder is mounted from, by the kernel's table of mounts; and whether this machine exports it. Pure.

Format of the table: proc(5), ``/proc/PID/mountinfo``; of exports: exports(5), ``/var/lib/nfs/etab`` is alike.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kveik.store.filesystem_medium import NETWORK_TYPES, Medium

#: Mounts of the machine's own disk. Docker and Kubernetes bind the three files from the disk that they work on.
_SYSTEM_POINTS = frozenset({"/", "/usr", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf"})
_MEMORY_TYPES = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_LAYER_TYPES = frozenset({"overlay", "aufs", "fuse-overlayfs", "fuse.fuse-overlayfs"})
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the table. ``device`` is ``major:minor``; ``source`` is a device, or ``server:/export``."""

    point: str
    device: str
    type: str
    source: str
    options: tuple[str, ...] = ()

    @property
    def network(self) -> bool:
        """Whether other machines may have the same."""
        return not self.layer and Medium(self.type).network

    @property
    def known_network(self) -> bool:
        """Whether the type alone says so; a FUSE file system may be anything."""
        return self.type in NETWORK_TYPES

    @property
    def memory(self) -> bool:
        """Whether it is memory of this machine."""
        return self.type in _MEMORY_TYPES

    @property
    def layer(self) -> bool:
        """Whether it is a container's own layer."""
        return self.type in _LAYER_TYPES

    def __str__(self) -> str:
        return f"{self.type or 'an unknown file system'} from {self.source or 'unknown'} at {self.point}"


UNKNOWN = Mount("", "", "", "")


def mounts_in(lines: Iterable[str]) -> list[Mount]:
    """All mounts, in the order of the table; lines that are not understood are left out."""
    return [mount for line in lines if (mount := _parse(line)) is not None]


def mount_of(path: str, mounts: Iterable[Mount]) -> Mount:
    """What an absolute path lies on: the longest mount point above it, of equal ones the last."""
    found = UNKNOWN
    for mount in mounts:
        if is_below(path, mount.point) and len(mount.point) >= len(found.point):
            found = mount
    return found


def on_system_disk(mount: Mount, mounts: Sequence[Mount]) -> bool:
    """Whether the machine's own files lie on the same device, as far as the table tells."""
    if mount.network or mount.memory or not mount.device:
        return False
    return any(other.device == mount.device for other in mounts if other.point in _SYSTEM_POINTS)


def exported(path: str, texts: Iterable[str]) -> str:
    """The exported folder that a path lies in, of lists as in exports(5); empty if none."""
    for line in (line for text in texts for line in text.splitlines()):
        words = line.split()
        if words and words[0].startswith("/") and is_below(path, _plain(words[0])):
            return _plain(words[0])
    return ""


def is_below(path: str, folder: str) -> bool:
    """Whether an absolute path is a folder or lies below it."""
    return folder in ("/", path) or path.startswith(folder.rstrip("/") + "/")


def _parse(line: str) -> Mount | None:
    """``36 35 98:0 /root /point options optional... - type source options``."""
    before, separator, after = line.partition(" - ")
    fields, last = before.split(" "), after.split(" ")
    if not separator or len(fields) < 6 or len(last) < 2:
        return None
    options = tuple(dict.fromkeys([*fields[5].split(","), *(last[2].split(",") if len(last) > 2 else ())]))
    return Mount(_plain(fields[4]), fields[2], last[0], _plain(last[1]), options)


def _plain(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)
