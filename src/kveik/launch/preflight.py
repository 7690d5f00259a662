"""What would keep a node from starting, judged before anything starts, all at once and in plain words. Pure.

:func:`needs_of` says what the parts need, :mod:`kveik.launch.preflight_look` looks, :func:`problems` judges.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kveik.byte_size import size_text
from kveik.launch.addresses import kv_event_endpoints, listening_host, router_host, runs_router
from kveik.launch.data_parallel import is_headless
from kveik.launch.fleet_spec import FleetSpec, LaunchedEngine
from kveik.launch.parts import Tables, agent_socket, arena_path
from kveik.launch.sizes import ENGINE_BYTES
from kveik.supervise.node_folder import NodeFolder
from kveik.supervise.part import Part

#: The versions of vLLM that the connector is written for: major and minor.
KNOWN_VLLM = ("0.32",)
#: Room in a path of a Unix socket (``sun_path``), without what is appended while it is being made.
SOCKET_BYTES_MAX = 107 - len(".starting")
#: The key that supervisor and watchdog show to engines.
ENGINE_KEY_VARIABLE = "KVEIK_ENGINE_API_KEY"
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. ``about``: a part, a setting or a path. ``told``: what it is, and what to do."""

    about: str
    told: str

    def __str__(self) -> str:
        return f"{self.about}: {self.told}"


@dataclass(frozen=True, slots=True)
class PortNeed:
    """A part wants to listen there."""

    part: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Needs:
    """What the parts that are to be started need. ``models`` and ``pythons``: who needs each.

    ``engines``: those that compute here, by name, with model folder and KV bytes. ``arena``: its file and size, empty
    and 0 where the agent runs already or none is needed. ``sockets``: paths by what they are for.
    ``connected_pythons``: those whose engines share the cache. ``keyed``: engines that ask for an API key that nobody
    told us.
    """

    ports: tuple[PortNeed, ...] = ()
    models: Mapping[str, Sequence[str]] = field(default_factory=dict)
    pythons: Mapping[str, Sequence[str]] = field(default_factory=dict)
    connected_pythons: Collection[str] = ()
    engines: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    arena: str = ""
    arena_bytes: int = 0
    sockets: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    agent_socket: str = ""
    registry: str = ""
    several_nodes_without_registry: bool = False
    keyed: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class PythonFound:
    """What an engine's Python has. ``trouble``: why it cannot even be run; versions are empty where not installed."""

    vllm: str = ""
    kveik: str = ""
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """What was found. Missing entries are fine.

    ``ports``: who listens there (or why nobody can), by host and port. ``models``: what is wrong with a folder.
    ``weights_bytes``: by folder. ``arena_is_there``: the file exists, so its memory is taken already.
    """

    ports: Mapping[tuple[str, int], str] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    weights_bytes: Mapping[str, int] = field(default_factory=dict)
    pythons: Mapping[str, PythonFound] = field(default_factory=dict)
    available_bytes: int = 1 << 62
    shared_bytes: int = 1 << 62
    arena_is_there: bool = False
    folder: str = ""
    agent_lock: str = ""
    registry: str = ""
    kveik: str = ""


def needs_of(
    spec: FleetSpec, tables: Tables, folder: NodeFolder, parts: Sequence[Part], running: Collection[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Needs:  # fmt: skip
    """What the parts need that do not run yet; ``running`` are the names of those that do."""
    starting = {part.name for part in parts} - set(running)
    node = spec.node.name
    engines = [engine for engine in spec.engines_of(node) if engine.name in starting]
    real = [engine for engine in engines if not engine.settings.simulated]
    agent = "agent" in starting
    has_router = runs_router(spec, node, tables.router)
    return Needs(
        ports=tuple(_ports(spec, tables, engines, router=has_router and "router" in starting)),
        models=_by_value({engine.name: engine.settings.model for engine in real}),
        pythons=_by_value({engine.name: engine.settings.python for engine in real}),
        connected_pythons={engine.settings.python for engine in real if engine.settings.shared_cache},
        engines={engine.name: (engine.settings.model, engine.settings.kv_cache_bytes) for engine in real},
        arena=arena_path(spec, tables.agent) if agent else "",
        arena_bytes=tables.agent.arena_bytes if agent else 0,
        sockets=_sockets(spec, tables, folder, parts),
        folder=str(folder.root),
        agent_socket=agent_socket(tables, folder) if agent else "",
        registry=tables.router.registry if has_router else "",
        several_nodes_without_registry=not has_router and not tables.watchdog.routers,
        keyed=[engine.name for engine in engines if _asks_for_a_key(engine, environ or {})],
    )


def problems(needs: Needs, found: Found) -> tuple[Problem, ...]:
    """All that is wrong, the most general first."""
    told = [
        *_about_places(needs, found),
        *_about_ports(needs, found),
        *(Problem(_names(needs.models[folder]), why) for folder, why in found.models.items()),
        *(
            Problem(name, f"it asks for an API key: set {ENGINE_KEY_VARIABLE}, or nobody here can ask it anything")
            for name in needs.keyed
        ),
        *_about_pythons(needs, found),
        *_about_memory(needs, found),
    ]
    return tuple(dict.fromkeys(told))


def _ports(spec: FleetSpec, tables: Tables, engines: Sequence[LaunchedEngine], *, router: bool) -> list[PortNeed]:
    needs = [
        PortNeed(engine.name, listening_host(engine, spec), engine.entry.port)
        for engine in engines
        if not is_headless(engine)
    ]
    if router:
        needs.append(PortNeed("router", router_host(spec, spec.node.name, tables.router), tables.router.port))
    return needs


def _asks_for_a_key(engine: LaunchedEngine, environ: Mapping[str, str]) -> bool:
    """Whether an engine refuses who brings no key, and none was told us."""
    given = any(word.partition("=")[0] == "--api-key" for word in engine.arguments)
    return (given or "VLLM_API_KEY" in engine.environment) and not environ.get(ENGINE_KEY_VARIABLE)


def _sockets(spec: FleetSpec, tables: Tables, folder: NodeFolder, parts: Sequence[Part]) -> dict[str, str]:
    """The longest path in the node's folder, and the agent's."""
    endpoints = [kv_event_endpoints(engine, spec) for engine in spec.engines_of(spec.node.name)]
    ours = [path.removeprefix("ipc://") for both in endpoints for path in both if path.startswith("ipc://")]
    paths = {"fleet.state_folder": max([str(folder.control_socket), *ours], key=len)}
    if any(part.kind == "agent" for part in parts):
        paths["agent.socket"] = agent_socket(tables, folder)
    return paths


def _about_places(needs: Needs, found: Found) -> list[Problem]:
    told = []
    for setting, path in needs.sockets.items():
        if len(os.fsencode(path)) > SOCKET_BYTES_MAX:
            told.append(
                Problem(setting, f"{path} is too long for a Unix socket ({SOCKET_BYTES_MAX} bytes): set a shorter one")
            )
    if found.folder:
        told.append(Problem("fleet.state_folder", found.folder))
    if found.agent_lock:
        told.append(Problem("agent", f"{found.agent_lock}: stop it, or set another agent.socket"))
    if found.registry:
        told.append(
            Problem("router.registry", f"{needs.registry} does not answer ({found.registry}): start etcd first")
        )
    if needs.several_nodes_without_registry:
        told.append(
            Problem(
                "router.registry",
                "it is empty, so only the first node has a router: set an etcd:// address that all nodes share, or "
                "name the routers in watchdog.routers",
            )
        )
    return told


def _about_ports(needs: Needs, found: Found) -> list[Problem]:
    told = []
    seen: dict[int, str] = {}
    for need in needs.ports:
        if need.port == 0:
            told.append(Problem(need.part, "its port is 0, expected a fixed one, by which clients find it"))
            continue
        if need.port in seen:
            told.append(Problem(need.part, f"port {need.port} is that of {seen[need.port]}, too: set another port"))
        seen[need.port] = need.part
        if who := found.ports.get((need.host, need.port)):
            told.append(Problem(need.part, f"cannot listen on {need.host}:{need.port}: {who}"))
    return told


def _about_pythons(needs: Needs, found: Found) -> list[Problem]:
    told = []
    for python, names in needs.pythons.items():
        has = found.pythons.get(python, PythonFound())
        where = f"the Python {python or 'that runs kveik'}"
        about = _names(names)
        connected = python in needs.connected_pythons
        if has.trouble:
            told.append(Problem(about, f"{where} cannot be run: {has.trouble}"))
            continue
        if missing := [name for name in ("vllm", "kveik") if not getattr(has, name)]:
            told.append(
                Problem(about, f"{where} has no {' and no '.join(missing)}: install it, or set another engine.python")
            )
        elif connected and not has.vllm.startswith(tuple(f"{version}." for version in KNOWN_VLLM)):
            told.append(
                Problem(
                    about,
                    f"{where} has vLLM {has.vllm}, expected {' or '.join(KNOWN_VLLM)}: install that, or set "
                    "shared_cache = false",
                )
            )
        if has.kveik and found.kveik and has.kveik != found.kveik:
            told.append(Problem(about, f"{where} has Kveik {has.kveik}, but this is {found.kveik}: make them equal"))
    return told


def _about_memory(needs: Needs, found: Found) -> list[Problem]:
    told = []
    arena = 0 if found.arena_is_there else needs.arena_bytes
    if arena > found.shared_bytes:
        told.append(
            Problem(
                "agent",
                f"an arena of {size_text(arena)} does not fit into {Path(needs.arena).parent}, which has "
                f"{size_text(found.shared_bytes)} left: set a smaller agent.arena_bytes, or give it more "
                "(in a container: --shm-size)",
            )
        )
    weights = sum(found.weights_bytes.get(model, 0) for model, _ in needs.engines.values())
    space = sum(kv for _, kv in needs.engines.values())
    own = ENGINE_BYTES * len(needs.engines)
    wanted = weights + space + own + arena
    if wanted > found.available_bytes:
        told.append(
            Problem(
                "memory",
                f"{size_text(wanted)} are wanted ({size_text(weights)} for weights, {size_text(space)} for KV caches, "
                f"{size_text(arena)} for the arena, {size_text(own)} for {len(needs.engines)} engines themselves), but "
                f"{size_text(found.available_bytes)} are free: set a smaller engine.kv_cache_bytes or "
                "agent.arena_bytes, or fewer engines",
            )
        )
    return told


def _by_value(values: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in values.items():
        found.setdefault(value, []).append(name)
    return found


def _names(names: Sequence[str]) -> str:
    return ", ".join(names)
