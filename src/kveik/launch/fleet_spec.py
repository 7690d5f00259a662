"""A fleet as one configuration file describes it: which engines run on which node, and with what.

::

    [fleet]
    name = "demo"
    engines = 2                     # on this one machine; or a [[launch]] table for each engine

    [engine]
    model = "/models/qwen3-8b"      # what all engines have in common

    [[nodes]]                       # only for several nodes
    name = "n0"
    address = "10.0.0.1"

    [[launch]]
    name = "a"
    node = "n0"
    port = 8001
    cores = "0-15"                  # vLLM on CPU; devices = "0,1" for CUDA and Ascend

    [[launch]]                      # ranks of a data-parallel group on another node: no API server of their own
    name = "a-1"
    node = "n1"
    head = "a"

Pure but for reading the file. Everything wrong in it is one :class:`~kveik.errors.ConfigError` that names the entry.
"""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kveik.config import EngineSettings, FleetSettings, load, read_toml
from kveik.errors import ConfigError


class NodeEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ``[[nodes]]`` table: a machine, and how the others reach it."""

    name: str
    address: str = "127.0.0.1"


class EngineEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ``[[launch]]`` table. Fields of ``[engine]`` may stand here too, in ``settings`` after parsing.

    ``data_parallel``: ranks of the whole group, ``data_parallel_local``: those of this entry; ``head``: the engine
    whose ranks these are, which then has the API server. ``rpc_port``: of the group, on the head's node.
    """

    name: str
    node: str = ""
    port: int = 0
    cores: str = ""
    devices: str = ""
    head: str = ""
    data_parallel: int = 1
    data_parallel_local: int = 0
    rpc_port: int = 0


@dataclass(frozen=True, slots=True)
class LaunchedEngine:
    """One engine to start: its entry, complete, and its settings. ``start_rank`` counts within its group."""

    entry: EngineEntry
    settings: EngineSettings
    start_rank: int = 0

    @property
    def name(self) -> str:
        """Its name in the fleet."""
        return self.entry.name

    @property
    def group(self) -> str:
        """What is restarted together: the name of the engine that has the API server."""
        return self.entry.head or self.entry.name

    @property
    def arguments(self) -> list[str]:
        """The further arguments for vLLM."""
        return shlex.split(self.settings.arguments)

    @property
    def environment(self) -> dict[str, str]:
        """The further environment variables."""
        return dict(part.partition("=")[::2] for part in shlex.split(self.settings.environment))


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """The whole fleet: all nodes and engines, in the order of the file."""

    settings: FleetSettings
    nodes: tuple[NodeEntry, ...]
    engines: tuple[LaunchedEngine, ...]
    source: Path | None = None

    @property
    def node(self) -> NodeEntry:
        """The node that this machine is. Raises :class:`ConfigError` if that is not said or not so."""
        wanted = self.settings.node
        if not wanted and len(self.nodes) == 1:
            return self.nodes[0]
        for node in self.nodes:
            if node.name == wanted:
                return node
        names = ", ".join(node.name for node in self.nodes)
        raise ConfigError(f"node is {wanted!r}, expected one of {names}: say with --node NAME which this machine is")

    def with_settings(self, overrides: Mapping[str, Mapping[str, Any]]) -> "FleetSpec":
        """The same with other ``[engine]`` settings for some engines, by name. Raises :class:`ConfigError`."""
        engines = [
            dataclasses.replace(engine, settings=_differing(engine.settings, own, f"settings of {engine.name}"))
            if (own := overrides.get(engine.name))
            else engine
            for engine in self.engines
        ]
        return dataclasses.replace(self, engines=tuple(engines))

    def engines_of(self, node: str) -> tuple[LaunchedEngine, ...]:
        """The engines and ranks that run on a node."""
        return tuple(engine for engine in self.engines if engine.entry.node == node)


_ENGINE_FIELDS = frozenset(field.name for field in dataclasses.fields(EngineSettings))


def read_fleet(file: Path, environ: Mapping[str, str], given: Mapping[str, Any] | None = None) -> FleetSpec:
    """The fleet in a file; ``given`` settings of ``[fleet]`` come from flags. Raises :class:`ConfigError`."""
    document = read_toml(file)
    settings = load(FleetSettings, file=file, environ=environ, given=given)
    common = load(EngineSettings, file=file, environ=environ)
    nodes = _nodes(_tables(document, "nodes", file), str(file))
    engines = _engines(_tables(document, "launch", file), settings, common, nodes, str(file))
    return FleetSpec(settings, nodes, engines, file)


def read_nodes(file: Path, environ: Mapping[str, str], given: Mapping[str, Any] | None = None) -> FleetSpec:
    """The fleet without its engines: enough to find a node, also where the rest of the file is not valid.

    Raises :class:`ConfigError`.
    """
    settings = load(FleetSettings, file=file, environ=environ, given=given)
    return FleetSpec(settings, _nodes(_tables(read_toml(file), "nodes", file), str(file)), (), file)


def _tables(document: Mapping[str, Any], name: str, file: Path) -> Sequence[Any]:
    tables = document.get(name, [])
    if not isinstance(tables, list):
        raise ConfigError(f"{file}: {name} must be a list of tables, each written as [[{name}]]")
    return tables


def _nodes(tables: Sequence[Any], source: str) -> tuple[NodeEntry, ...]:
    nodes = [_entry(table, NodeEntry, f"{source}: entry {n} of nodes") for n, table in enumerate(tables, 1)]
    _refuse_twice([node.name for node in nodes], f"{source}: nodes")
    return tuple(nodes) or (NodeEntry(name="local"),)


def _engines(
    tables: Sequence[Any],
    settings: FleetSettings,
    common: EngineSettings,
    nodes: Sequence[NodeEntry],
    source: str,
) -> tuple[LaunchedEngine, ...]:
    if not tables:
        tables = [{"name": f"engine-{n}", "node": nodes[0].name} for n in range(1, settings.engines + 1)]
    engines: list[LaunchedEngine] = []
    for number, table in enumerate(tables, 1):
        where = f"{source}: entry {number} of launch"
        if not isinstance(table, dict):
            raise ConfigError(f"{where}: expected a table, written as [[launch]]")
        own = {name: value for name, value in table.items() if name in _ENGINE_FIELDS}
        entry = _entry({k: v for k, v in table.items() if k not in own}, EngineEntry, where)
        entry = _completed(entry, number, settings, nodes, where)
        engine_settings = _differing(common, own, where)
        engines.append(LaunchedEngine(entry, engine_settings))
    _refuse_twice([engine.name for engine in engines], f"{source}: launch")
    return _with_ranks(engines, source)


def _completed(
    entry: EngineEntry, number: int, settings: FleetSettings, nodes: Sequence[NodeEntry], where: str
) -> EngineEntry:
    node = entry.node or (nodes[0].name if len(nodes) == 1 else "")
    if node not in {known.name for known in nodes}:
        raise ConfigError(f"{where}: node is {node!r}, expected one of {', '.join(known.name for known in nodes)}")
    port = entry.port or settings.first_port + number - 1
    if not 1 <= port <= 65535:
        raise ConfigError(f"{where}: port is {port}, expected 1 to 65535")
    if entry.data_parallel < 1 or entry.data_parallel_local < 0:
        raise ConfigError(
            f"{where}: data_parallel is {entry.data_parallel} with data_parallel_local {entry.data_parallel_local}, "
            "expected at least 1, and 0 or more local ones"
        )
    return msgspec.structs.replace(entry, node=node, port=port)


def _differing(common: EngineSettings, own: Mapping[str, Any], where: str) -> EngineSettings:
    try:
        checked = load(EngineSettings, given=own)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    return dataclasses.replace(common, **{name: getattr(checked, name) for name in own})


def _with_ranks(engines: Sequence[LaunchedEngine], source: str) -> tuple[LaunchedEngine, ...]:
    """Ranks are counted within each group, in the order of the file, the head first."""
    heads = {engine.name: engine for engine in engines if not engine.entry.head}
    next_rank: dict[str, int] = {}
    ranked = []
    for engine in sorted(engines, key=lambda engine: bool(engine.entry.head)):
        head = heads.get(engine.group)
        if head is None:
            raise ConfigError(f"{source}: engine {engine.name}: head is {engine.entry.head!r}, which is no engine here")
        total = head.entry.data_parallel
        local = engine.entry.data_parallel_local or (1 if engine.entry.head else _rest_of(head, engines))
        start = next_rank.get(engine.group, 0)
        next_rank[engine.group] = start + local
        entry = msgspec.structs.replace(
            engine.entry,
            data_parallel=total,
            data_parallel_local=local,
            rpc_port=head.entry.rpc_port or head.entry.port + 1000,
        )
        ranked.append(dataclasses.replace(engine, entry=entry, start_rank=start))
    for group, ranks in next_rank.items():
        if ranks != heads[group].entry.data_parallel:
            raise ConfigError(
                f"{source}: engine {group} has data_parallel = {heads[group].entry.data_parallel}, "
                f"but its entries have {ranks} ranks together"
            )
    order = {engine.name: number for number, engine in enumerate(engines)}
    return tuple(sorted(ranked, key=lambda engine: order[engine.name]))


def _rest_of(head: LaunchedEngine, engines: Sequence[LaunchedEngine]) -> int:
    """The ranks that no other entry of the group has."""
    others = [engine for engine in engines if engine.entry.head == head.name]
    return max(1, head.entry.data_parallel - sum(engine.entry.data_parallel_local or 1 for engine in others))


def _entry(table: Any, kind: Any, where: str) -> Any:
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from error


def _refuse_twice(names: Sequence[str], where: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{where}: the name {name!r} is there {names.count(name)} times")
