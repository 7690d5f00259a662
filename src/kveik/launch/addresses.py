"""Where a fleet's engines and routers listen, and how others reach them. Pure."""

from kveik.config import RouterSettings, WatchdogSettings
from kveik.fleet.announcement import EngineAnnouncement
from kveik.launch.data_parallel import is_headless
from kveik.launch.fleet_spec import FleetSpec, LaunchedEngine, NodeEntry
from kveik.supervise.node_folder import node_folder

LOOPBACK = "127.0.0.1"
#: KV events of an engine that other machines must reach are published this far above its port, and replayed here.
EVENTS_ABOVE, REPLAY_ABOVE = 2000, 3000


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches that host."""
    return host in ("localhost", "::1") or host.startswith("127.")


def is_wildcard(host: str) -> bool:
    """Whether who listens there is reached by any address of the machine."""
    return host in ("", "0.0.0.0", "::")  # noqa: S104 (compared, not bound to)


def node_of(engine: LaunchedEngine, spec: FleetSpec) -> NodeEntry:
    """The node that an engine runs on."""
    return next(node for node in spec.nodes if node.name == engine.entry.node)


def listening_host(engine: LaunchedEngine, spec: FleetSpec) -> str:
    """The address that an engine binds: that of its node, unless ``engine.host`` says another."""
    host, address = engine.settings.host, node_of(engine, spec).address
    return address if host == LOOPBACK else host


def engine_url(engine: LaunchedEngine, spec: FleetSpec) -> str:
    """Where clients and routers find an engine."""
    host = listening_host(engine, spec)
    reached = node_of(engine, spec).address if is_wildcard(host) else host
    return f"http://{_in_url(reached)}:{engine.entry.port}"


def kv_event_endpoints(engine: LaunchedEngine, spec: FleetSpec) -> tuple[str, str]:
    """Where a router subscribes to an engine's KV events and asks for missed ones; empty if it publishes none.

    What only this machine reaches goes through sockets in the node's folder, so no port can be taken. The ranks of a
    data-parallel group publish each their own, which no router follows.
    """
    if not engine.settings.kv_events or is_headless(engine) or engine.entry.data_parallel > 1:
        return "", ""
    host = listening_host(engine, spec)
    if is_loopback(host):
        root = node_folder(spec.settings, engine.entry.node).root
        return f"ipc://{root}/{engine.name}.events", f"ipc://{root}/{engine.name}.replay"
    reached = _in_url(node_of(engine, spec).address if is_wildcard(host) else host)
    port = engine.entry.port
    return f"tcp://{reached}:{port + EVENTS_ABOVE}", f"tcp://{reached}:{port + REPLAY_ABOVE}"


def announcements(spec: FleetSpec, node: str) -> tuple[EngineAnnouncement, ...]:
    """What is known of a node's engines before they are asked; ranks without an API server are none."""
    found = []
    for engine in spec.engines_of(node):
        if not is_headless(engine):
            events, replay = kv_event_endpoints(engine, spec)
            labels = {"node": node, **({"model_path": engine.settings.model} if engine.settings.model else {})}
            found.append(
                EngineAnnouncement(
                    url=engine_url(engine, spec), engine_id=engine.name, events=events, replay=replay, labels=labels
                )
            )
    return tuple(found)


def runs_router(spec: FleetSpec, node: str, router: RouterSettings) -> bool:
    """Whether a node has a router: each does if they share a registry, else only the first can know all engines."""
    return bool(router.registry) or spec.nodes[0].name == node


def router_host(spec: FleetSpec, node: str, router: RouterSettings) -> str:
    """The address that a node's router binds: that of the node if others must reach it, unless another is set."""
    address = next(entry.address for entry in spec.nodes if entry.name == node)
    return address if router.host == LOOPBACK and len(spec.nodes) > 1 else router.host


def router_url(spec: FleetSpec, node: str, router: RouterSettings) -> str:
    """Where a node's router is found from that node and, if it does not listen on loopback alone, from others."""
    host = router_host(spec, node, router)
    if is_wildcard(host):
        host = next(entry.address for entry in spec.nodes if entry.name == node)
    return f"http://{_in_url(host)}:{router.port}"


def router_urls(spec: FleetSpec, router: RouterSettings, watchdog: WatchdogSettings) -> tuple[str, ...]:
    """The routers that engines are announced at: as set, or all that this configuration starts.

    Routers that share a registry need to be told once, by any of them that answers; all are named.
    """
    if watchdog.routers:
        return tuple(url for part in watchdog.routers.split(",") if (url := part.strip()))
    nodes = [node.name for node in spec.nodes if runs_router(spec, node.name, router)]
    return tuple(router_url(spec, node, router) for node in nodes)


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
