"""Which engine was sent which prefix, kept in a file: a router that restarts sends prompts where they were before.

The file is written whole, at intervals and at the end, beside the loop. It holds keys, not prompts,
and the secret they were made with. One that cannot be read or is damaged is ignored: it only saves hits.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
import xxhash

from kveik.router.engines import EngineView
from kveik.router.prefix_index import ApproximateIndex, Entries

logger = logging.getLogger("kveik.router")

_PAUSE_S = 0.0005
_FORMAT = "kveik prefixes 1"
_ENTRY = np.dtype([("key", "<u8"), ("mask", "<u8"), ("age_s", "<f4")])


class _Header(msgspec.Struct, frozen=True):
    """The first line. ``engines``: who has which bit."""

    format: str
    secret: int
    saved_at_s: float
    engines: dict[int, str]
    digest: int


class SavedPrefixes(msgspec.Struct, frozen=True):
    """What a file holds. ``secret``: the hasher's; ``engines``: what each bit of the masks stands for."""

    secret: int
    engines: dict[int, str]
    entries: Entries


def write(file: BinaryIO, secret: int, engines: dict[int, str], pieces: Iterable[Entries], now_s: float) -> None:
    """Write a file's content, one piece after the other, so that never more than one is in memory.

    ``now_s`` is the time of day. What stands in the first line is known at the end: it goes into room left for it.
    """

    def header(digest: int) -> bytes:
        return msgspec.json.encode(_Header(_FORMAT, secret, now_s, engines, digest))

    room, digest = len(header((1 << 64) - 1)), xxhash.xxh3_64()
    file.write(b" " * room + b"\n")
    for piece in pieces:
        table = np.empty(len(piece.keys), _ENTRY)
        table["key"], table["mask"], table["age_s"] = piece
        file.write(table.data)
        digest.update(table.data)
    file.seek(0)
    file.write(header(digest.intdigest()).ljust(room))


def decoded(raw: bytes, now_s: float) -> SavedPrefixes:
    """What these bytes say; ages count up to ``now_s``. Raises :class:`ValueError` for bytes that are no sound file."""
    line, _, body = raw.partition(b"\n")
    header = msgspec.json.decode(line, type=_Header)
    if header.format != _FORMAT:
        raise ValueError(f"its format is {header.format!r}, expected {_FORMAT!r}")
    if xxhash.xxh3_64_intdigest(body) != header.digest:
        raise ValueError("its checksum is wrong")
    table = np.frombuffer(body, _ENTRY)
    ages_s = table["age_s"] + np.float32(max(0.0, now_s - header.saved_at_s))
    keys, masks = table["key"].astype(np.uint64), table["mask"].astype(np.uint64)
    return SavedPrefixes(header.secret, header.engines, Entries(keys, masks, ages_s))


class PrefixKeeper:
    """Gives an index back what it knew of each engine, and saves it. ``path`` None: keeps nothing."""

    def __init__(
        self, path: Path | None, index: ApproximateIndex, secret: int, clock: Callable[[], float] = time.time
    ) -> None:
        """Reads the file. ``secret`` is used where there is none; ``clock`` gives the time of day."""
        self._path, self._index, self._clock = path, index, clock
        self._saved_changes = 0
        self._writing = threading.Lock()  # the last save may begin while another one is under way
        self._waiting = _read(path, clock()) if path is not None else None
        self.secret = self._waiting.secret if self._waiting is not None else secret

    def adopt(self, engine: EngineView) -> None:
        """An engine came: it is expected to hold what it was sent before the restart."""
        saved = self._waiting
        if saved is None:
            return
        bit = next((bit for bit, known in saved.engines.items() if known == _identity(engine)), None)
        if bit is None:
            return
        del saved.engines[bit]
        mine = (saved.entries.masks >> np.uint64(bit) & np.uint64(1)).astype(np.bool_)
        self._index.adopt(saved.entries.keys[mine], saved.entries.ages_s[mine], engine.slot)
        if not saved.engines:
            self._waiting = None

    def to_save(self, engines: Iterable[EngineView]) -> dict[int, str] | None:
        """Whose prefixes :meth:`save` has to save now; None if nothing has changed since it was asked last."""
        if self._path is None or self._index.changes == self._saved_changes:
            return None
        self._saved_changes = self._index.changes
        return {engine.slot: _identity(engine) for engine in engines}

    def save(self, engines: dict[int, str]) -> None:
        """Replace the file; may run on any thread. A failure is logged: the old content is still there."""
        assert self._path is not None
        beside = self._path.with_name(self._path.name + ".new")
        with self._writing:
            try:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                with open(descriptor, "wb") as file:
                    write(file, self.secret, engines, _gently(self._index.pieces()), self._clock())
                beside.replace(self._path)
            except OSError as error:
                logger.warning("cannot save the prefix index in %s: %s", self._path, error.strerror or error)


def _gently(pieces: Iterable[Entries]) -> Iterator[Entries]:
    """Let the loop's thread have the interpreter after each piece, instead of after the switch interval."""
    for piece in pieces:
        yield piece
        time.sleep(_PAUSE_S)


def _identity(engine: EngineView) -> str:
    """Another model or address under the same name is another engine."""
    announcement = engine.announcement
    return "\n".join((engine.name, announcement.url, announcement.namespace))


def _read(path: Path, now_s: float) -> SavedPrefixes | None:
    try:
        return decoded(path.read_bytes(), now_s)
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("cannot read the prefix index in %s: %s", path, error.strerror or error)
    except (ValueError, RecursionError) as error:  # among them msgspec's errors, and numpy's for a cut file
        logger.warning("the prefix index in %s is of no use and is ignored: %s", path, error)
    return None
