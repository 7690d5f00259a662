"""What the doctor is told of a fleet: from configuration files, from routers' and engines' addresses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kveik.config import RouterSettings, load, load_stores
from kveik.doctor.fleet_described import DescribedEngine, DescribedFleet, DescribedNode
from kveik.doctor.fleet_view import named_engines
from kveik.errors import ConfigError
from kveik.fleet.etcd_gateway import EtcdAddress
from kveik.launch.addresses import engine_url, kv_event_endpoints, router_urls
from kveik.launch.data_parallel import is_headless
from kveik.launch.fleet_spec import FleetSpec, LaunchedEngine
from kveik.launch.parts import agent_socket, arena_path
from kveik.launch.up import Launch
from kveik.supervise.part import Part


@dataclass(frozen=True, slots=True)
class Named:
    """What somebody named. ``configs``: the file of this machine first, then those of other nodes."""

    configs: Sequence[Path] = ()
    node: str = ""
    routers: Sequence[str] = ()
    engines: Sequence[str] = ()


def described_fleet(named: Named, environ: Mapping[str, str]) -> DescribedFleet:
    """All of it as plain values. Raises :class:`ConfigError` for what is not valid."""
    if not named.configs:
        source = "addresses on the command line"
        return DescribedFleet(source, named_engines(named.engines), tuple(named.routers))
    first, *others = named.configs
    launch = Launch.read(first, named.node, environ)
    fleet = _of(launch, environ)
    etcds = dict(fleet.etcds)
    for file in others:
        etcds |= _etcds(load(RouterSettings, file=file, environ=environ), f"router.registry of {file}")
    return replace(
        fleet,
        engines=(*fleet.engines, *named_engines(named.engines)),
        routers=tuple(dict.fromkeys((*fleet.routers, *named.routers))),
        etcds=etcds,
    )


def _of(launch: Launch, environ: Mapping[str, str]) -> DescribedFleet:
    spec, tables = launch.spec, launch.tables
    parts = {part.name: part for part in launch.parts}
    has_agent = "agent" in parts
    return DescribedFleet(
        str(launch.config),
        engines=tuple(_engine(engine, spec, parts.get(engine.name), launch.here.python) for engine in spec.engines),
        routers=router_urls(spec, tables.router, tables.watchdog),
        nodes=tuple(DescribedNode(node.name, node.address) for node in spec.nodes),
        node=launch.node,
        config=launch.config,
        agent_socket=agent_socket(tables, launch.folder) if has_agent else "",
        arena=arena_path(spec, tables.agent) if has_agent else "",
        etcds=_etcds(tables.router, "router.registry"),
        agent=tables.agent,
        stores=load_stores(file=launch.config, environ=environ),
        router=tables.router,
        watchdog=tables.watchdog,
    )


def _engine(engine: LaunchedEngine, spec: FleetSpec, part: Part | None, python: str) -> DescribedEngine:
    settings = engine.settings
    return DescribedEngine(
        engine.name,
        engine_url(engine, spec),
        node=engine.entry.node,
        headless=is_headless(engine),
        events=kv_event_endpoints(engine, spec)[0],
        model=settings.model,
        simulated=settings.simulated,
        shared_cache=settings.shared_cache,
        kv_cache_bytes=settings.kv_cache_bytes,
        cores=engine.entry.cores,
        devices=engine.entry.devices,
        python=settings.python or python,
        environment={name: value for name, value in part.environment.items() if value is not None}
        if part
        else engine.environment,
        command=part.variants[0].command if part else (),
    )


def _etcds(router: RouterSettings, who: str) -> dict[str, tuple[str, ...]]:
    """The endpoints of a registry, by who uses it; none where there is none. Raises :class:`ConfigError`."""
    if not router.registry:
        return {}
    try:
        address = EtcdAddress.parse(router.registry)
    except ConfigError as error:
        raise ConfigError(f"{who}: {error}") from error
    return {who: tuple(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in address.endpoints)}
