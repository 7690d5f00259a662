"""Frozen records of what happened. Core code emits them; logs and metrics listen.

A listener must not raise and must not block: it runs on the thread that did the work.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

PackedKeys = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class LookupRecord:
    """One lookup: how many keys were asked for and how many are there, by tier."""

    tier: str
    asked: int
    found: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TransferRecord:
    """Blocks that moved through one tier. ``direction`` is ``get`` or ``put``."""

    tier: str
    direction: str
    blocks: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """Blocks that one tier could not get or put, by reason.

    ``kind`` is ``failed`` or ``corrupt``; ``reason`` is short and from a small set, because it
    becomes a metric label.
    """

    tier: str
    direction: str
    kind: str
    reason: str
    blocks: int


@dataclass(frozen=True, slots=True)
class AdmissionRecord:
    """Blocks of the arena that were to go down. ``outcome`` says what became of that.

    ``wanted`` and ``new`` were admitted, in that order; ``single_use`` may not go down before they are asked for again;
    for ``queue_full`` there was no room.
    """

    outcome: str
    blocks: int


@dataclass(frozen=True, slots=True)
class EvictionRecord:
    """Blocks that a tier dropped to make room. ``keys``: which, in packed form, where the tier says so."""

    tier: str
    blocks: int
    bytes: int
    keys: PackedKeys = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class StateRecord:
    """A part changed state, for example a breaker opened. ``why`` is for people."""

    part: str
    before: str
    after: str
    why: str


@dataclass(frozen=True, slots=True)
class OutageRecord:
    """A tier could not be used for so long, and can again. ``text`` tells all of it in one line for people.

    ``lost_keys`` are those that it forgot meanwhile, as far as known.
    """

    tier: str
    seconds: float
    not_stored_blocks: int
    not_read_blocks: int
    lost_keys: int
    text: str


Record = LookupRecord | TransferRecord | FailureRecord | AdmissionRecord | EvictionRecord | StateRecord | OutageRecord
Listener = Callable[[Record], None]


def ignore(record: Record) -> None:
    """The listener that does nothing."""
