"""What commands that change a running fleet have in common: its routers, its supervisor, and how they say things."""

import argparse
import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kveik.config import RouterSettings, WatchdogSettings, load, read_toml
from kveik.errors import ConfigError, SuperviseError
from kveik.fleet.client import FleetClient
from kveik.fleet.static_list import parse_list
from kveik.launch.addresses import engine_url, router_urls
from kveik.launch.data_parallel import is_headless
from kveik.launch.fleet_spec import FleetSpec, LaunchedEngine, read_fleet
from kveik.launch.pool import Routers
from kveik.launch.roll_plan import Rolled
from kveik.router.fleet_api import read_token
from kveik.supervise.client import ControlClient
from kveik.supervise.messages import ProcessView
from kveik.supervise.node_folder import NodeFolder, node_folder
from kveik.telemetry.events import EventLog

DEFAULT_CONFIG = Path("kveik.toml")
#: How long a router may take for one answer, and a supervisor.
ROUTER_S, SUPERVISOR_S = 10.0, 30.0
#: How long an engine that is readmitted may take until it gets requests, unless another time is given.
READY_S = 120.0

Say = Callable[..., None]


def add_access(parser: argparse.ArgumentParser) -> None:
    """Declare where the fleet is."""
    where = parser.add_argument_group("where the fleet is: its configuration, or its routers alone")
    where.add_argument(
        "--config", type=Path, metavar="FILE", help=f"the fleet's configuration ({DEFAULT_CONFIG} if it is here)"
    )
    where.add_argument("--node", default="", metavar="NAME", help="which of its nodes this machine is")
    where.add_argument(
        "--router", action="append", default=[], metavar="URL", help="a router; for each of several (as configured)"
    )
    where.add_argument("--token-file", default="", metavar="FILE", help="file with the routers' admission token")
    parser.add_argument("--json", action="store_true", help="print each line as a JSON object")


@dataclass(frozen=True, slots=True)
class Access:
    """A fleet: ``spec`` and ``folder`` are None without a configuration."""

    routers: Routers
    config: Path | None = None
    spec: FleetSpec | None = None
    folder: NodeFolder | None = None

    @property
    def control(self) -> ControlClient | None:
        """The node's supervisor, if one answers."""
        if self.folder is None:
            return None
        client = ControlClient(str(self.folder.control_socket), deadline_s=SUPERVISOR_S)
        try:
            client.status()
        except SuperviseError:
            return None
        return client

    @property
    def events(self) -> EventLog | None:
        """Where this node's events are told, if it has a place for them."""
        if self.spec is None or self.folder is None or not self.folder.root.is_dir():
            return None
        settings = self.spec.settings
        return EventLog(self.folder.events, bytes_max=settings.events_bytes_max, node=self.spec.node.name)

    def tell(self, engine: str, told: str) -> None:
        """An event about an engine, for those who were not there."""
        if self.events is not None:
            self.events.tell("ordered", engine, told)

    def start_s(self, engine: str) -> float:
        """Longest start of an engine."""
        engines = self.spec.engines if self.spec is not None else ()
        return next((one.settings.start_s for one in engines if one.name == engine), READY_S)

    @property
    def drain_s(self) -> float:
        """How long requests under way may go on."""
        return self.spec.settings.drain_s if self.spec is not None else 120.0


def open_access(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Access:
    """The fleet that the arguments speak of. Raises :class:`ConfigError`."""
    config = args.config or (DEFAULT_CONFIG if DEFAULT_CONFIG.is_file() and not args.router else None)
    if config is None:
        if not args.router:
            raise ConfigError(f"no {DEFAULT_CONFIG} is here: say where the fleet is with --config FILE or --router URL")
        return Access(routers_at(args.router, args.token_file, environ))
    spec = read_fleet(config, environ, {"node": args.node} if args.node else None)
    router = load(RouterSettings, file=config, environ=environ)
    urls = args.router or router_urls(spec, router, load(WatchdogSettings, file=config, environ=environ))
    folder = node_folder(spec.settings, spec.node.name, environ)
    token_file = args.token_file or router.admission_token_file
    return Access(routers_at(urls, token_file, environ), config.absolute(), spec, folder)


def open_routers(args: argparse.Namespace) -> tuple[Access | None, list[FleetClient]]:
    """The fleet's routers one by one, and the fleet if a configuration describes it; by default one on this machine.

    Raises :class:`ConfigError`.
    """
    if args.config is None and not args.router and not DEFAULT_CONFIG.is_file():
        settings = load(RouterSettings, environ=os.environ)
        here = f"http://{settings.host}:{settings.port}"
        return None, _clients([here], args.token_file or settings.admission_token_file, os.environ)
    access = open_access(args)
    token_file = args.token_file
    if access.config is not None and not token_file:
        token_file = load(RouterSettings, file=access.config, environ=os.environ).admission_token_file
    return access, _clients(access.routers.urls, token_file, os.environ)


def routers_at(urls: Sequence[str], token_file: str, environ: Mapping[str, str]) -> Routers:
    """The routers at these addresses, with the admission token. Raises :class:`ConfigError` if it cannot be read."""
    return Routers(_clients(urls, token_file, environ))


def _clients(urls: Sequence[str], token_file: str, environ: Mapping[str, str]) -> list[FleetClient]:
    read_token(token_file, environ)  # said now if it cannot be read
    return [FleetClient(url, token=lambda: read_token(token_file, environ), deadline_s=ROUTER_S) for url in urls]


def kept_by(control: ControlClient | None, engine: str) -> ProcessView | None:
    """The engine's process, if that supervisor keeps it. Raises :class:`SuperviseError`."""
    if control is None:
        return None
    return next((view for view in control.status().processes if view.name == engine and view.kind == "engine"), None)


def rolled_engines(access: Access) -> tuple[Rolled, ...]:
    """The engines of this node that can be rolled, and those of others with a restart command.

    Raises :class:`ConfigError`.
    """
    spec, config = access.spec, access.config
    if spec is None or config is None:
        raise ConfigError("a roll restarts engines as a configuration says: give it with --config FILE")
    engines = [
        Rolled(
            engine.name,
            engine_url(engine, spec),
            parts=_parts(engine, spec),
            settings=_digest(engine),
            start_s=engine.settings.start_s,
        )
        for engine in spec.engines_of(spec.node.name)
        if not is_headless(engine)
    ]
    return (*engines, *_foreign(config))


def _parts(head: LaunchedEngine, spec: FleetSpec) -> tuple[str, ...]:
    """The parts of an engine's group. Raises :class:`ConfigError` if some of them are on another node."""
    group = [engine for engine in spec.engines if engine.group == head.name]
    if elsewhere := [engine.name for engine in group if engine.entry.node != head.entry.node]:
        raise ConfigError(
            f"{head.name} has ranks on other nodes ({', '.join(elsewhere)}), which no roll restarts: "
            "drain it, and restart the group there and here"
        )
    return tuple(engine.name for engine in sorted(group, key=lambda engine: engine.start_rank))


def _foreign(config: Path) -> list[Rolled]:
    """The listed engines that have a restart command. Raises :class:`ConfigError`."""
    tables = read_toml(config).get("engines", [])
    listed = parse_list(tables, str(config)) if tables else ()
    engines = []
    for table, announced in zip(tables, listed, strict=True):
        command = table.get("restart")
        if not command:
            continue
        if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
            raise ConfigError(f"{config}: restart of {announced.name} is {command!r}, expected a list of words")
        engines.append(Rolled(announced.name, announced.url, command=tuple(command)))
    return engines


def _digest(engine: LaunchedEngine) -> str:
    return hashlib.sha256(msgspec.json.encode(dataclasses.asdict(engine.settings))).hexdigest()[:16]


def sayer(*, as_json: bool) -> Say:
    """Says one line, with the seconds since now; more ``fields`` are for programs."""
    began_s = time.monotonic()

    def say(told: str, **fields: Any) -> None:
        seconds = round(time.monotonic() - began_s, 1)
        print(
            json.dumps({"at_s": seconds, "told": told, **fields}) if as_json else f"[{seconds:6.1f} s] {told}",
            flush=True,
        )

    return say
