"""The fleet as somebody describes it to the doctor: by a configuration, or by addresses. Plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from kveik.config import AgentSettings, RouterSettings, StoreSettings, WatchdogSettings


@dataclass(frozen=True, slots=True)
class DescribedNode:
    """A machine of the fleet, and how the others reach it."""

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class DescribedEngine:
    """One engine. Empty, and None, is what nobody said.

    ``headless``: further ranks of another engine, which nobody can ask. ``events``: where it publishes KV events.
    ``shared_cache``: whether it is meant to load Kveik's connector. ``python``: its interpreter. ``environment``: what
    the configuration gives it beyond what all get. ``command``: the ``vllm serve`` line that starts it, for those of
    this node.
    """

    name: str
    url: str
    node: str = ""
    headless: bool = False
    events: str = ""
    model: str = ""
    simulated: bool = False
    shared_cache: bool | None = None
    kv_cache_bytes: int = 0
    cores: str = ""
    devices: str = ""
    python: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()

    @property
    def host(self) -> str:
        """The host of its address."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """The port of its address; 0 if it has none."""
        return urlsplit(self.url).port or 0


@dataclass(frozen=True, slots=True)
class DescribedFleet:
    """All of it. ``source``: who says so, in words. ``config``: the file, None where only addresses were given.

    ``node``: the name of the node that this machine is. ``agent_socket`` and ``arena``: of this node's agent, empty
    where it needs none. ``etcds``: who uses which etcd, as lists of ``HOST:PORT``; several where nodes have files of
    their own. The settings are those of the file, or the defaults.
    """

    source: str
    engines: tuple[DescribedEngine, ...] = ()
    routers: tuple[str, ...] = ()
    nodes: tuple[DescribedNode, ...] = ()
    node: str = ""
    config: Path | None = None
    agent_socket: str = ""
    arena: str = ""
    etcds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    agent: AgentSettings = field(default_factory=AgentSettings)
    stores: StoreSettings = field(default_factory=StoreSettings)
    router: RouterSettings = field(default_factory=RouterSettings)
    watchdog: WatchdogSettings = field(default_factory=WatchdogSettings)

    @property
    def here(self) -> tuple[DescribedEngine, ...]:
        """The engines of this node; all of them where nobody said which node this is."""
        return tuple(engine for engine in self.engines if not self.node or engine.node in {"", self.node})

    @property
    def address(self) -> str:
        """This node's address; empty if it is not known."""
        return next((node.address for node in self.nodes if node.name == self.node), "")


def is_loopback(host: str) -> bool:
    """Whether only the machine itself reaches that host."""
    return host in ("localhost", "::1", "[::1]") or host.startswith("127.")


def host_of(address: str) -> str:
    """The host of ``HOST:PORT`` or of a URL."""
    return urlsplit(address if "//" in address else f"//{address}").hostname or ""
