"""How a folder is used as a tier."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from kveik.config import AgentSettings
from kveik.store.base import Capabilities
from kveik.store.filesystem_medium import Medium


@dataclass(frozen=True, kw_only=True, slots=True)
class FilesystemOptions:
    """How one folder is used. Sizes in bytes, times in seconds.

    All processes that share the folder keep ``limit_bytes`` together: each round of counting gives the room that is
    left away in shares (:mod:`kveik.store.filesystem_quota`). What may go beyond it: blocks of a process that is not
    heard of for ``lease_stale_s`` and writes on, which a stopped one does with those it has under way, at most one a
    thread. ``reserve_bytes`` of free space are kept by each process as it sees the disk, at most a second late.
    ``medium`` is asked for unless it is given.
    """

    root: Path
    limit_bytes: int = 0  # 0: no limit but free space
    reserve_bytes: int = 0  # free space left to others
    fsync: bool = False
    sweep_interval_s: float = 60.0  # 0: no thread; rounds only when `sweep` is called
    lease_stale_s: float = 30.0
    shared_turn_s: float = 1.0  # how often one that shares the folder looks what was counted
    leftover_age_s: float = 3600.0
    touch_after_s: float = 600.0
    read_only_pause_s: float = 10.0
    quarantine_blocks: int = 64
    quarantine_bytes: int = 1 << 30
    medium: Medium | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What the tier promises: it survives restarts, every node that mounts the folder sees it, and it evicts."""
        return Capabilities(durable=True, shared=True, bounded=self.limit_bytes > 0 or self.reserve_bytes > 0)

    @classmethod
    def from_settings(cls, settings: AgentSettings) -> Self:
        """The options that the ``[agent]`` section gives."""
        return cls(
            root=Path(settings.filesystem),
            limit_bytes=settings.filesystem_bytes,
            reserve_bytes=settings.filesystem_reserve_bytes,
            fsync=settings.filesystem_fsync,
        )
