"""Hardware, models and cache tiers that can be launched: read from the tables beside this module.

The tables are data with sources (``data/*.toml``); this module gives them types and says in words what is not there.
"""

import functools
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kveik.errors import ConfigError

DATA = Path(__file__).parent / "data"

#: An option of ``vllm serve``, its value ("" for a flag) and why it is set.
Option = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable, and why it is set."""

    name: str
    value: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One kind of node. ``devices`` of ``memory_gib`` each; ``folders`` and ``files`` are mounted where they are."""

    name: str
    title: str
    platform: str
    devices: int
    memory_gib: int
    image: str
    wheels: str
    source: str
    docker: tuple[str, ...]
    device_files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    pool_protocol: str = ""
    variables: tuple[Variable, ...] = ()
    pool_variables: tuple[Variable, ...] = ()

    @property
    def all_device_files(self) -> tuple[str, ...]:
        """Device files of all accelerators of a node."""
        numbered = (f"/dev/davinci{number}" for number in range(self.devices)) if self.platform == "ascend" else ()
        return (*numbered, *self.device_files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One layout of a model on one kind of hardware: ``tensor`` devices a rank, ``local`` ranks a node.

    ``nodes``: how many it is for, empty for any number. ``how``: ``documented`` or ``derived``. ``utilization`` 0: not
    given.
    """

    hardware: str
    tensor: int
    local: int
    context: int
    requests: int
    batch: int
    utilization: float
    how: str
    nodes: tuple[int, ...] = ()
    options: tuple[Option, ...] = ()
    variables: tuple[Variable, ...] = ()
    docker: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model. ``group``: all its ranks are one data-parallel group; ``hybrid``: it has several kinds of caches.

    ``config``: its config.json where that is known, ``bits`` of a weight, ``parameters`` and ``kv_bytes_a_token``: what
    is published where the config does not tell (0: it does).
    """

    name: str
    title: str
    folder: str
    served: str
    group: bool
    source: str
    bits: float
    hybrid: bool = False
    parameters: float = 0.0
    kv_bytes_a_token: int = 0
    config: Mapping[str, Any] | None = None
    options: tuple[Option, ...] = ()
    variables: tuple[Variable, ...] = ()
    presets: tuple[Preset, ...] = ()
    refused: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One way to keep KV blocks beyond the engine's own cache.

    ``install``: packages that the images of a platform lack. ``not_for``: models that it cannot serve, and why.
    ``known_models``: those that its release notes name; empty: any.
    """

    name: str
    title: str
    platforms: tuple[str, ...]
    source: str
    backend: str = ""
    install: Mapping[str, Sequence[str]]
    ports: Mapping[str, int]
    not_for: Mapping[str, str]
    known_models: tuple[str, ...] = ()


def hardware(name: str) -> Hardware:
    """The hardware of that name. Raises :class:`ConfigError` that lists what there is."""
    row = _row("hardware", name)
    many = ("device_files", "folders", "files", "setup", "docker")
    plain: dict[str, Any] = {key: value for key, value in row.items() if "variables" not in key}
    plain |= {key: tuple(plain.get(key, ())) for key in many}
    return Hardware(
        name=name,
        **plain,
        variables=_variables(row.get("variables")),
        pool_variables=_variables(row.get("pool_variables")),
    )


def model(name: str, platform: str = "") -> Model:
    """The model of that name as it runs on ``platform``. Raises :class:`ConfigError` that lists what there is."""
    row = dict(_row("models", name))
    here = row.pop("on", {}).get(platform, {})
    row.pop("mtp", None)
    config = row.pop("config", "")
    row.update({key: here[key] for key in ("folder", "bits") if key in here})
    return Model(
        **row
        | {
            "name": name,
            "config": json.loads((DATA / "configs" / f"{config}.json").read_text("utf8")) if config else None,
            "options": (*_options(row.get("options")), *_options(here.get("options"))),
            "variables": _variables(here.get("variables")),
            "presets": tuple(_preset(preset) for preset in row.get("presets", ())),
            "refused": tuple(row.get("refused", ())),
        }
    )


def tier(name: str) -> Tier:
    """The tier of that name. Raises :class:`ConfigError` that lists what there is."""
    row = dict(_row("tiers", name))
    row["platforms"] = tuple(row["platforms"])
    row["known_models"] = tuple(row.get("known_models", ()))
    return Tier(**{"name": name, "install": {}, "ports": {}, "not_for": {}} | row)


def names(table: str) -> tuple[str, ...]:
    """What a table has: ``hardware``, ``models`` or ``tiers``."""
    return tuple(data_table(table))


def preset(of: Model, on: Hardware, nodes: int) -> Preset:
    """The layout for so many nodes. Raises :class:`ConfigError` that says why there is none, and what there is."""
    mine = [one for one in of.presets if one.hardware == on.name]
    for one in mine:
        if not one.nodes or nodes in one.nodes:
            return one
    for row in of.refused:
        if row["hardware"] == on.name and nodes in row.get("nodes", [nodes]):
            raise ConfigError(f"{of.name} on {nodes} x {on.name}: {row['why']}")
    known = sorted({count for one in mine for count in one.nodes})
    has = f"there are presets for {', '.join(map(str, known))} nodes" if known else "there is no preset"
    raise ConfigError(f"{of.name} on {nodes} x {on.name}: {has}; `kveik plan` says what would fit")


@functools.cache
def data_table(name: str) -> Mapping[str, Mapping[str, Any]]:
    """One of the package's tables, by its file's name."""
    return tomllib.loads((DATA / f"{name}.toml").read_text("utf8"))


def _row(table: str, name: str) -> Mapping[str, Any]:
    rows = data_table(table)
    if name not in rows:
        raise ConfigError(f"{table} {name!r} is not known, expected one of {', '.join(rows)}")
    return rows[name]


def _preset(row: Mapping[str, Any]) -> Preset:
    given = dict(row)
    given["nodes"] = tuple(given.get("nodes", ()))
    given["options"] = _options(given.get("options"))
    given["variables"] = _variables(given.get("variables"))
    given["docker"] = tuple(given.get("docker", ()))
    return Preset(**given)


def _options(rows: Sequence[Sequence[str]] | None) -> tuple[Option, ...]:
    return tuple((name, value, why) for name, value, why in rows or ())


def _variables(rows: Sequence[Mapping[str, str]] | None) -> tuple[Variable, ...]:
    return tuple(Variable(**row) for row in rows or ())
