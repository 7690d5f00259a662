"""How a folder is used as a tier."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from kveik.config import AgentSettings
from kveik.store.base import Capabilities


@dataclass(frozen=True, kw_only=True, slots=True)
class FilesystemOptions:
    """How one folder is used. Sizes in bytes, times in seconds.

    A process alone never exceeds ``limit_bytes``. When several share the folder, each knows of
    the others' blocks only from the last round of sweeping, so the limit may be exceeded by
    what the others wrote since then; ``reserve_bytes`` of free space are kept at all times.
    """

    root: Path
    limit_bytes: int = 0  # 0: no limit but free space
    reserve_bytes: int = 0  # free space left to others
    fsync: bool = False
    sweep_interval_s: float = 60.0  # 0: no thread; rounds only when `sweep` is called
    lease_stale_s: float = 30.0
    leftover_age_s: float = 3600.0
    touch_after_s: float = 600.0
    read_only_pause_s: float = 10.0
    quarantine_blocks: int = 64
    quarantine_bytes: int = 1 << 30

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
