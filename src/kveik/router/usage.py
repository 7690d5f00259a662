"""What each key used of each model, by day: counted on the loop, kept in a small SQLite file."""

import contextlib
import datetime
import sqlite3
from pathlib import Path
from typing import Any, Final

from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.errors import ConfigError
from kveik.router.records import RequestRecord

#: What is counted, in this order: the columns of the file and the fields of the document.
COUNTED: Final = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")
#: Days that are kept one by one in memory, and so in the document; the file keeps all.
DAYS_KEPT: Final = 31
#: Pairs of key and model that are told apart; later ones count as model ``other``.
PAIRS_MAX: Final = 10_000
OTHER: Final = "other"
LOCK_WAIT_S: Final = 5.0

_TABLE: Final = f"""
CREATE TABLE IF NOT EXISTS usage (
    day TEXT NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL,
    {", ".join(f"{name} INTEGER NOT NULL" for name in COUNTED)},
    PRIMARY KEY (day, key, model)
) WITHOUT ROWID"""
_ADD: Final = f"""
INSERT INTO usage VALUES ({", ".join("?" * (3 + len(COUNTED)))})
ON CONFLICT (day, key, model) DO UPDATE SET {", ".join(f"{name} = {name} + excluded.{name}" for name in COUNTED)}"""  # noqa: S608
_SUMS: Final = f"SELECT key, model, {', '.join(f'SUM({name})' for name in COUNTED)} FROM usage GROUP BY key, model"  # noqa: S608

_Pair = tuple[str, str]
_Row = list[int]
_Batch = dict[tuple[str, str, str], _Row]


class Usage:
    """A listener that adds up what was used.

    Only requests that an engine took are counted, so the models that stand here are those that are
    served. Without a file, counts begin at the router's start. The file is written in the
    background (see :mod:`kveik.router.background`).
    """

    name = "usage"

    def __init__(self, path: Path | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        """Open the file, or begin it. Raises :class:`ConfigError` if it cannot be used."""
        self._path = path
        self._clock = clock
        self._sums: dict[_Pair, _Row] = {}  # of all days
        self._days: _Batch = {}
        self._first_kept = ""
        self._unsaved: _Batch = {}
        self._day = ""
        self._day_ends_s = 0.0
        self._begin_day(clock.wall())
        if path is not None:
            self._read(path)

    def __repr__(self) -> str:
        return f"Usage({self._path}, {len(self._sums)} pairs of key and model, {len(self._unsaved)} rows unsaved)"

    def __call__(self, record: RequestRecord) -> None:
        """Count one finished request."""
        if not record.engine:
            return
        now_s = self._clock.wall()
        if now_s >= self._day_ends_s:
            self._begin_day(now_s)
        row = self._unsaved.get((self._day, record.key_name, record.model))
        if row is None:
            row = self._begin_row(record)
        row[0] += 1
        if record.prompt_tokens > 0:
            row[1] += record.prompt_tokens
        if record.cached_tokens > 0:
            row[2] += record.cached_tokens
        if record.completion_tokens > 0:
            row[3] += record.completion_tokens

    def take(self) -> _Batch | None:
        """What has been counted since the last time; None if there is nothing to write."""
        batch, self._unsaved = self._unsaved, {}
        _count(self._sums, self._days, batch)
        return batch if batch and self._path is not None else None

    def write(self, batch: _Batch) -> None:
        """Add a batch to the file; all of it or nothing. Raises :class:`OSError`."""
        assert self._path is not None
        try:
            with contextlib.closing(sqlite3.connect(self._path, timeout=LOCK_WAIT_S)) as database, database:
                database.execute(_TABLE)
                database.executemany(_ADD, [(*key, *row) for key, row in batch.items()])
        except sqlite3.Error as error:
            raise OSError(f"{self._path}: {error}") from error

    def not_written(self, batch: _Batch) -> None:
        """Keep a batch for the next time."""
        _count(self._sums, self._days, batch, -1)
        for key, row in batch.items():
            _add(self._unsaved.setdefault(key, _nothing()), row)

    def document(self) -> dict[str, Any]:
        """Sums of each key and model since counting began, and those of each of the last days (UTC)."""
        sums = {pair: list(row) for pair, row in self._sums.items()}
        days = {key: list(row) for key, row in self._days.items()}
        _count(sums, days, self._unsaved)
        return {
            "usage": [{"key": key, "model": model, **_named(row)} for (key, model), row in sorted(sums.items())],
            "days": [
                {"day": day, "key": key, "model": model, **_named(row)}
                for (day, key, model), row in sorted(days.items())
            ],
        }

    def _begin_row(self, record: RequestRecord) -> _Row:
        known = (record.key_name, record.model) in self._sums or len(self._sums) < PAIRS_MAX
        return self._unsaved.setdefault((self._day, record.key_name, record.model if known else OTHER), _nothing())

    def _begin_day(self, now_s: float) -> None:
        today = datetime.datetime.fromtimestamp(now_s, datetime.UTC).date()
        midnight = datetime.datetime.combine(today + datetime.timedelta(days=1), datetime.time(), datetime.UTC)
        self._day, self._day_ends_s = today.isoformat(), midnight.timestamp()
        first_kept = self._first_kept = (today - datetime.timedelta(days=DAYS_KEPT - 1)).isoformat()
        self._days = {key: row for key, row in self._days.items() if key[0] >= first_kept}

    def _read(self, path: Path) -> None:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(path, timeout=LOCK_WAIT_S)) as database, database:
                database.execute(_TABLE)
                self._sums = {(key, model): row for key, model, *row in database.execute(_SUMS)}
                kept = database.execute("SELECT * FROM usage WHERE day >= ?", (self._first_kept,))
                self._days = {(day, key, model): row for day, key, model, *row in kept}
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"cannot use {path} for usage: {error}") from error


def _nothing() -> _Row:
    return [0] * len(COUNTED)


def _named(row: _Row) -> dict[str, int]:
    return dict(zip(COUNTED, row, strict=True))


def _add(total: _Row, row: _Row, sign: int = 1) -> None:
    for index, amount in enumerate(row):
        total[index] += sign * amount


def _count(sums: dict[_Pair, _Row], days: _Batch, batch: _Batch, sign: int = 1) -> None:
    for key, row in batch.items():
        _add(sums.setdefault(key[1:], _nothing()), row, sign)
        _add(days.setdefault(key, _nothing()), row, sign)
