"""The contract of every tier.

A store moves whole frames (:mod:`kveik.kv.frame`). The caller owns every buffer: a store reads
from and writes into buffers it was given and keeps no reference after it returned. A store
whose call may touch the buffer later (a hung disk, a network store's late write) must say so
with :attr:`BlockResult.buffer_busy`; the caller then neither reads nor reuses that buffer
until :attr:`BlockResult.buffer_busy` turns false.

Single keys never raise: each key has its own :class:`BlockResult`. A store raises
:class:`~kveik.errors.StoreError` only when it cannot be opened at all.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, runtime_checkable

from kveik.clock import Deadline
from kveik.errors import FrameError, FrameForeignError
from kveik.kv.keys import BlockKey
from kveik.kv.namespace import Namespace
from kveik.store.batching import BATCH_BYTES


class Status(Enum):
    """What became of one key."""

    HIT = "hit"  # get: the frame is in the buffer and verified
    MISS = "miss"  # get or delete: the key is not there
    STORED = "stored"  # put: durable as far as this tier promises
    EXISTS = "exists"  # put: the key was there already and is kept as it was
    DELETED = "deleted"  # delete: gone
    FAILED = "failed"  # the tier could not do it; `reason` says why
    CORRUPT = "corrupt"  # get: bytes were there but wrong; quarantined, now a miss


#: Reasons a result may give. A small set, because they become metric labels.
REASONS = (
    "timeout",
    "io_error",
    "no_room",
    "too_large",
    "read_only",
    "checksum",
    "truncated",
    "foreign",
    "busy",
    "breaker_open",
    "fenced",
    "closed",
    "unavailable",
    "not_open",
    "injected",
)


def _idle() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class BlockResult:
    """What became of one key in one call. ``bytes`` counts frame bytes that moved."""

    status: Status
    bytes: int = 0
    reason: str = ""
    detail: str = field(default="", compare=False)
    still_running: Callable[[], bool] = field(default=_idle, compare=False, repr=False)

    @property
    def ok(self) -> bool:
        """Whether the caller got what it asked for (a hit, stored, already there, deleted)."""
        return self.status in (Status.HIT, Status.STORED, Status.EXISTS, Status.DELETED)

    @property
    def buffer_busy(self) -> bool:
        """Whether the store may still read or write the buffer of this key."""
        return self.still_running()


MISS = BlockResult(Status.MISS)


def failed(reason: str, detail: str = "") -> BlockResult:
    """The result of a key that the tier could not serve; ``reason`` is one of :data:`REASONS`."""
    return BlockResult(Status.FAILED, reason=reason, detail=detail)


def corrupt(error: FrameError) -> BlockResult:
    """The result of a get that found wrong bytes."""
    reason = "foreign" if isinstance(error, FrameForeignError) else "checksum"
    return BlockResult(Status.CORRUPT, reason=reason, detail=str(error))


def unsealed(error: FrameError) -> BlockResult:
    """The result of a put whose buffer does not start with the header of that very block."""
    reason = "foreign" if isinstance(error, FrameForeignError) else "checksum"
    return failed(reason, f"not stored, the buffer holds no sealed frame of this block: {error}")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a tier promises; callers ask these, never the tier's name."""

    durable: bool  # survives a restart of the agent and of the machine
    shared: bool  # other nodes can see the same blocks
    bounded: bool  # has a size limit and evicts by itself
    batch_keys: int = 1  # keys that are best moved by one call: more than 1 where a call is a round trip
    batch_bytes: int = BATCH_BYTES  # and bytes, so that a call's duration stays far below what counts as hung


#: States of a tier: usable, waiting for its medium, or given up for now.
READY, OPENING, OUT = "ready", "opening", "out"


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Sizes of a tier, as far as it knows them."""

    blocks: int
    bytes: int
    capacity_bytes: int
    read_only: bool = False
    notes: tuple[str, ...] = ()
    state: str = READY


class BlockStore(Protocol):
    """A tier. All methods may be called from several threads at once."""

    @property
    def name(self) -> str:
        """Short name used in metrics and messages, for example ``filesystem``."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What this tier promises."""
        ...

    def lookup(self, keys: Sequence[BlockKey], deadline: Deadline) -> list[bool]:
        """For each key whether it seems to be there. A hint: only ``get`` decides.

        Keys that could not be asked for before the deadline count as absent.
        """
        ...

    def get(self, keys: Sequence[BlockKey], buffers: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        """Read each frame into its buffer and verify it: HIT, MISS, FAILED or CORRUPT.

        A buffer shorter than the frame gives FAILED ``too_large``. Corrupt blocks are
        quarantined: reported once, a miss afterwards.
        """
        ...

    def put(self, keys: Sequence[BlockKey], frames: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        """Store each sealed frame: STORED, EXISTS or FAILED.

        First writer wins. A frame is visible whole or not at all. A buffer may be longer than
        its frame. The store checks the header page but trusts the caller's seal of the payload.
        """
        ...

    def delete(self, keys: Sequence[BlockKey]) -> list[BlockResult]:
        """Drop each key: DELETED, MISS or FAILED (``busy`` while it is in use)."""
        ...

    def stats(self) -> StoreStats:
        """Sizes now, as far as they are known without asking the medium: it must not block."""
        ...

    def close(self) -> None:
        """Release what is held. Calls after that give FAILED ``closed``."""
        ...


@runtime_checkable
class ListedStore(Protocol):
    """A store that can say which blocks it has."""

    def keys(self, namespace: bytes) -> Iterator[Sequence[BlockKey]]:
        """The blocks of one namespace, or all (empty digest), in portions that each take little time to find.

        A portion may be empty. Blocks that come or go meanwhile may be missed or named. Raises
        :class:`~kveik.errors.StoreError`, while iterating, when the medium cannot be read.
        """
        ...


@runtime_checkable
class DroppingStore(Protocol):
    """A store that can drop a whole namespace without being told, or saying, which blocks those are."""

    def drop(self, namespace: bytes) -> int | None:
        """Drop the blocks of one namespace, or all but probes' (empty digest); how many they were.

        None: it can't after all, and is to be listed instead. Raises :class:`~kveik.errors.StoreError`
        when it did not do it.
        """
        ...


@runtime_checkable
class DescribedStore(Protocol):
    """A store that can keep, beside the blocks, what their namespace stands for."""

    def describe(self, namespace: Namespace) -> None:
        """Keep the namespace's facts where a person who looks at the medium finds them."""
        ...
