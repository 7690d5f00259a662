"""Engines that the configuration file lists, ``[[engines]]``; read again when the file changes.

::

    [[engines]]
    url = "http://10.0.0.7:8000"
    engine_id = "seven"                  # all but url may be left out
    models = ["qwen3-8b"]
    restart = ["docker", "restart", "seven"]  # for the watchdog, which reads it elsewhere

A list that is not valid changes nothing: the engines of the last good one stay.
"""

import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kveik.config import read_toml
from kveik.errors import ConfigError, FleetError, UnknownEngineError
from kveik.fleet.announcement import EngineAnnouncement, check_announcement
from kveik.fleet.membership import Member
from kveik.fleet.registry import Registry

#: Fields of an entry that say nothing of the engine itself.
FOR_WATCHDOG = frozenset({"restart"})

_NEVER = (-1,)

logger = logging.getLogger("kveik.fleet")


def read_list(file: Path) -> tuple[EngineAnnouncement, ...]:
    """The engines that a configuration file lists. Raises :class:`ConfigError` naming entry, field and value."""
    entries = read_toml(file).get("engines", [])
    if not isinstance(entries, list):
        raise ConfigError(f"{file}: engines must be a list of tables, each written as [[engines]]")
    return parse_list(entries, str(file))


def parse_list(entries: Sequence[Any], source: str) -> tuple[EngineAnnouncement, ...]:
    """The engines in a list of tables. Raises :class:`ConfigError`."""
    engines = []
    names: dict[str, int] = {}
    addresses: dict[tuple[str, int], int] = {}
    for number, entry in enumerate(entries, 1):
        where = f"{source}: entry {number} of engines"
        if not isinstance(entry, dict) or "lease_s" in entry:
            raise ConfigError(f"{where}: expected a table without lease_s: a listed engine has no lease")
        words = {name: value for name, value in entry.items() if name not in FOR_WATCHDOG}
        try:
            engine = check_announcement(msgspec.convert({**words, "lease_s": 0.0}, EngineAnnouncement))
        except (msgspec.ValidationError, ConfigError) as error:
            raise ConfigError(f"{where}: {error}") from error
        first = names.setdefault(engine.name, number), addresses.setdefault(engine.host_port, number)
        if first != (number, number):
            raise ConfigError(
                f"{where}: name {engine.name!r} or address {engine.url} is that of entry {min(first)} too"
            )
        engines.append(engine)
    return tuple(engines)


@dataclass(frozen=True, slots=True)
class ListChange:
    """What a list asks of the registry."""

    announce: tuple[EngineAnnouncement, ...]
    withdraw: tuple[str, ...]


def plan(members: Iterable[Member], wanted: Iterable[EngineAnnouncement]) -> ListChange:
    """What turns the listed ones among ``members`` into ``wanted``."""
    listed = {member.name: member.announcement for member in members if member.listed}
    names = {engine.name for engine in wanted}
    return ListChange(
        announce=tuple(engine for engine in wanted if listed.get(engine.name) != engine),
        withdraw=tuple(sorted(listed.keys() - names)),
    )


def _stamp(file: Path) -> tuple[int, ...]:
    """What differs when a file was written or replaced; empty while there is none."""
    try:
        status = file.stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino


class StaticList:
    """Keeps the registry to the list in ``file``, on a thread that looks at it every ``poll_s`` seconds."""

    def __init__(self, registry: Registry, file: Path, *, poll_s: float = 1.0) -> None:
        """Read the list. Raises :class:`ConfigError` for one that is not valid."""
        self._registry = registry
        self._file = file
        self._poll_s = poll_s
        self._stamp: tuple[int, ...] = _stamp(file)
        self._wanted = read_list(file)
        self._applied = False
        self._told = ""
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._keep, name="fleet-list", daemon=True)

    def start(self) -> None:
        """Apply the list, and keep to it."""
        self.look()
        self._thread.start()

    def reload(self) -> None:
        """Look now, as after SIGHUP. Returns at once."""
        self._stamp = _NEVER
        self._wake.set()

    def close(self) -> None:
        """Look no more. The engines stay in the registry."""
        self._stopped = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    def look(self) -> None:
        """Read the file again if it changed, and apply what is not applied yet."""
        stamp = _stamp(self._file)
        if stamp != self._stamp:
            # The stamp is from before the reading: a change in between is seen the next time.
            self._stamp = stamp
            try:
                self._wanted = read_list(self._file)
                self._applied = False
            except ConfigError as error:
                logger.warning("the list of engines stays as it was: %s", error)
        if not self._applied:
            self._apply()

    def _apply(self) -> None:
        change = plan(self._registry.members(), self._wanted)
        failures = []
        for name in change.withdraw:  # first, so that a name or an address can go to another engine
            try:
                self._registry.withdraw(name, "left the static list")
            except UnknownEngineError:
                pass  # that is what was wanted
            except FleetError as error:
                failures.append(str(error))
        for engine in change.announce:
            try:
                self._registry.announce(engine, listed=True)
            except FleetError as error:
                failures.append(str(error))
        told = "; ".join(failures)
        if told and told != self._told:
            logger.warning("the list of engines is not fully applied, it is tried again: %s", told)
        elif change.announce or change.withdraw:
            logger.info("list of engines: %d new or changed, %d left", len(change.announce), len(change.withdraw))
        self._told, self._applied = told, not failures

    def _keep(self) -> None:
        while True:
            self._wake.wait(self._poll_s)
            self._wake.clear()
            if self._stopped:
                return
            try:
                self.look()
            except Exception:  # supervision: the file would never be read again
                logger.exception("following the list of engines failed; it is tried again")
