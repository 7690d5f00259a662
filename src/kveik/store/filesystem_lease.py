"""Who sweeps: one process among all, on any machine, that share a folder.

A lease file names its owner and counts its beats. Whoever sees the same content for
``stale_s`` of its *own* clock takes the lease over, so clocks of machines are never compared.
Two owners at once are possible for a moment (a file system has no compare-and-swap) and do no
harm: both would delete the same oldest files. The owner notices at its next beat.
"""

import contextlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum

from kveik.clock import Clock
from kveik.store.filesystem_files import FileTree, process_alive, read_into, unless_full
from kveik.store.filesystem_layout import LEASE_NAME, temporary_name
from kveik.store.filesystem_space import NO_COUNT, Count

_MAX_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class LeaseNote:
    """Content of the lease file. The owner's last count goes with it, for those who do not sweep.

    So does the room that was given away last, the number of that gift, and who got a share, with the report that it
    takes account of.
    """

    owner: str
    host: str
    pid: int
    beat: int = 0
    count: Count = NO_COUNT
    gift: int = 0
    room_bytes: int = 0
    writers: Mapping[str, int] = field(default_factory=dict)

    def pack(self) -> bytes:
        """The content as JSON."""
        return json.dumps(asdict(self)).encode("ascii")

    @classmethod
    def parse(cls, raw: bytes) -> "LeaseNote | None":
        """The note in a lease file; None when it is none."""
        try:
            fields = json.loads(raw)
            count = Count(*(int(fields["count"][name]) for name in ("round", "blocks", "bytes")))
            writers = {str(name): int(size) for name, size in fields.get("writers", {}).items()}
            gift, room_bytes = int(fields.get("gift", 0)), int(fields.get("room_bytes", 0))
            owner = str(fields["owner"]), str(fields["host"]), int(fields["pid"]), int(fields["beat"])
            return cls(*owner, count, gift, room_bytes, writers)
        except (
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
        ):  # anyone may write that file
            return None


class Step(Enum):
    """What to do about the lease now."""

    CREATE = "create"
    BEAT = "beat"
    REST = "rest"  # it is ours and fresh
    TAKE = "take"  # its owner is gone
    WAIT = "wait"  # it is somebody else's


def next_step(raw: bytes | None, *, own: LeaseNote, owner_alive: bool, unchanged_s: float, stale_s: float) -> Step:
    """Decide from the lease file's content and how long it has not changed."""
    if raw is None:
        return Step.CREATE
    note = LeaseNote.parse(raw)
    if note is not None and note.owner == own.owner:
        return Step.BEAT if unchanged_s >= stale_s / 3 else Step.REST
    abandoned = note is not None and note.host == own.host and not owner_alive
    return Step.TAKE if abandoned or unchanged_s >= stale_s else Step.WAIT


class SweeperLease:
    """This process's view of the lease. Used by one thread."""

    def __init__(self, tree: FileTree, stale_s: float, clock: Clock) -> None:
        self._tree = tree
        self._stale_s = stale_s
        self._clock = clock
        self._own = LeaseNote(secrets.token_hex(8), tree.writer.host, tree.writer.pid)
        self._seen: bytes | None = None
        self._seen_at_s = clock.monotonic()

    def __repr__(self) -> str:
        return f"SweeperLease({self._own.owner}, beat {self._own.beat})"

    @property
    def seen(self) -> LeaseNote | None:
        """The note that was read last."""
        return None if self._seen is None else LeaseNote.parse(self._seen)

    @property
    def owner(self) -> str:
        """This process's name in the lease: 16 hex digits."""
        return self._own.owner

    def announce(self, count: Count, writers: Mapping[str, int], room_bytes: int) -> None:
        """Give room away, and tell the last count, at once if the lease is ours still. Raises ``OSError``."""
        self._own = replace(self._own, gift=self._own.gift + 1, room_bytes=room_bytes, writers=dict(writers))
        with unless_full(), self._tree.directory(create=True) as directory:
            if self._step(self._read(directory)) in (Step.BEAT, Step.REST):
                self._beat(directory, count)

    def keep(self, count: Count) -> bool:
        """Get or keep the lease if that is possible now; whether it is ours. Raises ``OSError``.

        Where no room is left even for the lease file, it counts as ours unless another one holds it.
        """
        with self._tree.directory(create=True) as directory:
            raw = self._read(directory)
            step = self._step(raw)
            if step is Step.TAKE and not self._remove(directory, raw):
                return False
            with unless_full():
                if step in (Step.TAKE, Step.CREATE):
                    return self._create(directory, count)
                if step is Step.BEAT:
                    self._beat(directory, count)
            return step is not Step.WAIT

    def keep_if_due(self, count: Count) -> None:
        """Beat in the middle of long work; a lost lease or an unreadable one does not stop the work."""
        if self._clock.monotonic() - self._seen_at_s >= self._stale_s / 3:
            with contextlib.suppress(OSError):
                self.keep(count)

    def release(self) -> None:
        """Give the lease up, if it is ours, so that another need not wait."""
        with contextlib.suppress(OSError), self._tree.directory() as directory:
            note = LeaseNote.parse(self._read(directory) or b"")
            if note is not None and note.owner == self._own.owner:
                os.unlink(LEASE_NAME, dir_fd=directory)

    def _step(self, raw: bytes | None) -> Step:
        if raw != self._seen:
            self._remember(raw)
        note = LeaseNote.parse(raw or b"")
        return next_step(
            raw,
            own=self._own,
            owner_alive=note is None or note.host != self._own.host or process_alive(note.pid),
            unchanged_s=self._clock.monotonic() - self._seen_at_s,
            stale_s=self._stale_s,
        )

    def _beat(self, directory: int, count: Count) -> None:
        self._own = replace(self._own, beat=self._own.beat + 1, count=count)
        self._tree.replace(directory, "sweeper", LEASE_NAME, self._own.pack())
        self._remember(self._own.pack())

    def _create(self, directory: int, count: Count) -> bool:
        own = replace(self._own, beat=self._own.beat + 1, count=count)
        if not self._tree.publish(directory, "sweeper", LEASE_NAME, [own.pack()]):
            return False
        self._own = own
        self._remember(own.pack())
        return True

    def _remember(self, raw: bytes | None) -> None:
        self._seen = raw
        self._seen_at_s = self._clock.monotonic()

    def _remove(self, directory: int, stale: bytes | None) -> bool:
        """Move the stale lease away; false when another process took it over meanwhile."""
        aside = temporary_name("stale", self._tree.writer, self._tree.next_number())
        try:
            os.rename(LEASE_NAME, aside, src_dir_fd=directory, dst_dir_fd=directory)
        except FileNotFoundError:
            return True
        taken = self._read(directory, aside)
        if taken != stale:
            # It was the fresh lease of a faster process: give it back unless there is yet another.
            with contextlib.suppress(OSError):
                os.link(aside, LEASE_NAME, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside, dir_fd=directory)
        return taken == stale

    @staticmethod
    def _read(directory: int, name: str = LEASE_NAME) -> bytes | None:
        buffer = memoryview(bytearray(_MAX_BYTES))
        try:
            _, count = read_into(directory, name, buffer)
        except FileNotFoundError:
            return None
        return bytes(buffer[:count])
