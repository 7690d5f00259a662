"""What kinds of mounts there are in the eyes of who wants to share a folder; and what this machine exports. Pure.

The table of mounts is read by :mod:`kveik.store.filesystem_medium`; lists of exports are as in exports(5).
"""

from collections.abc import Iterable, Sequence

from kveik.store.filesystem_medium import NETWORK_TYPES, Mount, is_below, unescaped

#: Mounts of the machine's own disk. Docker and Kubernetes bind the three files from the disk that they work on.
_SYSTEM_POINTS = frozenset({"/", "/usr", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf"})
_MEMORY_TYPES = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_LAYER_TYPES = frozenset({"overlay", "aufs", "fuse-overlayfs", "fuse.fuse-overlayfs"})


def is_memory(mount: Mount) -> bool:
    """Whether it is memory of this machine."""
    return mount.medium.type in _MEMORY_TYPES


def is_layer(mount: Mount) -> bool:
    """Whether it is a container's own layer."""
    return mount.medium.type in _LAYER_TYPES


def is_network(mount: Mount) -> bool:
    """Whether other machines may have the same."""
    return not is_layer(mount) and mount.medium.network


def is_told_by_its_type(mount: Mount) -> bool:
    """Whether the type alone says that other machines may have it; a FUSE file system may be anything."""
    return mount.medium.type in NETWORK_TYPES


def on_system_disk(mount: Mount, mounts: Sequence[Mount]) -> bool:
    """Whether the machine's own files lie on the same device, as far as the table tells."""
    if is_network(mount) or is_memory(mount) or not mount.device:
        return False
    return any(other.device == mount.device for other in mounts if other.point in _SYSTEM_POINTS)


def exported(path: str, texts: Iterable[str]) -> str:
    """The exported folder that a path lies in, of lists as in exports(5); empty if none."""
    for line in (line for text in texts for line in text.splitlines()):
        words = line.split()
        if words and words[0].startswith("/") and is_below(path, unescaped(words[0])):
            return unescaped(words[0])
    return ""
