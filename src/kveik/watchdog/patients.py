"""Which engines a watchdog looks after, and who restarts each: pure, from the configuration and the supervisor's word.

- Engines of this node that a supervisor keeps are restarted by it.
- Engines in ``[[engines]]`` tables are somebody else's: restarted by the table's ``restart`` command, or only isolated
  and reported::

      [[engines]]
      url = "http://10.0.0.7:8000"
      restart = ["docker", "restart", "vllm-7"]

- Engines given by address are announced, isolated and reported.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from kveik.config import read_toml
from kveik.errors import ConfigError
from kveik.fleet.announcement import EngineAnnouncement, check_announcement
from kveik.fleet.static_list import parse_list
from kveik.supervise.client import ControlClient
from kveik.supervise.messages import ProcessView
from kveik.watchdog.restarters import CommandRestarter, ControlRestarter, NoRestarter, Restarter
from kveik.watchdog.ward import Patient

#: How long the order for a group of several nodes may take to its supervisors.
GROUP_ORDER_S = 15.0
NOBODY = "no supervisor keeps it here, and no restart command is set for it"


@dataclass(frozen=True, slots=True)
class Listed:
    """One ``[[engines]]`` table: the engine, and the command that restarts it, empty for none."""

    words: EngineAnnouncement
    restart: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Census:
    """Who is to be watched, by the configuration.

    ``own``: engines of this node that the fleet starts, ``ranks``: further parts of each one's group that this node's
    supervisor keeps, by the engine's name; ``groups``: restarters of groups that other nodes belong to.
    ``unsupervised_too``: watch own engines also where no supervisor keeps them. ``given``: addresses.
    """

    own: tuple[EngineAnnouncement, ...] = ()
    ranks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    groups: Mapping[str, Restarter] = field(default_factory=dict)
    unsupervised_too: bool = False
    listed: tuple[Listed, ...] = ()
    given: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Care:
    """What the watchdog brings along for all: time limits, and the key that engines want.

    ``roll``: the command that rolls an engine of its own, whose name comes last; empty: there is none.
    """

    control: ControlClient
    lease_s: float
    start_s: float
    command_s: float
    roll: tuple[str, ...] = ()
    api_key: str = field(default="", repr=False)


def read_listed(file: Path) -> tuple[Listed, ...]:
    """The ``[[engines]]`` tables of a configuration file. Raises :class:`ConfigError`."""
    tables = read_toml(file).get("engines", [])
    if not isinstance(tables, list):
        raise ConfigError(f"{file}: engines must be a list of tables, each written as [[engines]]")
    engines = parse_list(tables, str(file))
    commands = [_command(table, f"{file}: entry {number} of engines") for number, table in enumerate(tables, 1)]
    return tuple(Listed(words, command) for words, command in zip(engines, commands, strict=True))


def patients(census: Census, processes: Mapping[str, ProcessView], care: Care) -> list[Patient]:
    """All engines to watch. ``processes``: what the node's supervisor keeps, empty without one.

    Raises :class:`ConfigError` where two engines have one name.
    """
    found = [
        _own(words, census, processes, care)
        for words in census.own
        if words.name in processes or (census.unsupervised_too and not processes)
    ]
    found += [_listed(listed, care) for listed in census.listed]
    found += [_given(url, care) for url in census.given]
    names = [patient.name for patient in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{names.count(name)} engines are called {name!r}; set engine_id in their tables")
    return found


def _own(words: EngineAnnouncement, census: Census, processes: Mapping[str, ProcessView], care: Care) -> Patient:
    restarter: Restarter = NoRestarter(NOBODY)
    if words.name in census.groups:
        restarter = census.groups[words.name]
    elif words.name in processes:
        restarter = ControlRestarter(care.control, (words.name, *census.ranks.get(words.name, ())))
    announced = msgspec.structs.replace(words, lease_s=care.lease_s)
    order_s = GROUP_ORDER_S if words.name in census.groups else 0.0
    roll = (*care.roll, words.name) if care.roll and words.name in processes else ()
    return Patient(words.name, words.url, restarter, announced, care.start_s, order_s, roll, care.api_key)


def _listed(listed: Listed, care: Care) -> Patient:
    name = listed.words.name
    restarter: Restarter = NoRestarter(NOBODY)
    if listed.restart:
        restarter = CommandRestarter(name, listed.restart, deadline_s=care.command_s)
    return Patient(name, listed.words.url, restarter, None, care.start_s, api_key=care.api_key)


def _given(url: str, care: Care) -> Patient:
    address = url if "//" in url else f"http://{url}"
    words = check_announcement(EngineAnnouncement(url=address, lease_s=care.lease_s))
    return Patient(words.name, words.url, NoRestarter(NOBODY), words, care.start_s, api_key=care.api_key)


def _command(table: Any, where: str) -> tuple[str, ...]:
    command = table.get("restart", [])
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise ConfigError(
            f'{where}: restart is {command!r}, expected a list of texts such as ["docker", "restart", "x"]'
        )
    if "restart" in table and not (command and command[0]):
        raise ConfigError(f"{where}: restart is empty, expected a command, or leave it out")
    return tuple(command)
