"""What was seen of a folder that is meant to be a tier. Plain values; times in seconds, sizes in bytes."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kveik.doctor.fleet_described import is_loopback
from kveik.store.filesystem_medium import NOWHERE, Mount


@dataclass(frozen=True, slots=True)
class Room:
    """What is left there. ``files`` 0: the file system does not count them."""

    free_bytes: int
    total_bytes: int
    free_files: int = 0
    files: int = 0


@dataclass(frozen=True, slots=True)
class Speed:
    """As measured on a few blocks by one thread: bytes a second, and seconds for a small file. 0: not measured."""

    write_bytes_s: float = 0.0
    read_bytes_s: float = 0.0
    create_s: float = 0.0
    open_s: float = 0.0
    tried_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Trial:
    """One thing that was tried: what, and why it is not as it should be; empty if it is."""

    what: str
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class MountFacts:
    """All of one folder.

    ``tried_in``: the folder that was written in, the nearest one above it where it is not there yet; empty: none.
    ``silent``: what never answered. ``trouble``: why nothing could be written. ``rules`` are those that a tier needs,
    ``locks`` and ``direct`` what other connectors may need. ``unmeasured``: why its speed is not known.
    """

    folder: str
    mount: Mount = NOWHERE
    tried_in: str = ""
    system_disk: bool = False
    exported: str = ""
    silent: str = ""
    trouble: str = ""
    room: Room | None = None
    rules: tuple[Trial, ...] = ()
    locks: tuple[Trial, ...] = ()
    direct: Trial | None = None
    speed: Speed = field(default_factory=Speed)
    unmeasured: str = ""

    @property
    def is_there(self) -> bool:
        """Whether the folder itself was there."""
        return self.tried_in == self.folder


@dataclass(frozen=True, slots=True)
class Meant:
    """What the folder is meant for. ``nodes``: how many nodes are to share it, each another machine."""

    limit_bytes: int = 0
    reserve_bytes: int = 0
    nodes: int = 1


def machines(addresses: Iterable[str]) -> int:
    """How many machines nodes with these addresses are: those that only reach themselves are one."""
    return max(1, len({address for address in addresses if not is_loopback(address)}))
