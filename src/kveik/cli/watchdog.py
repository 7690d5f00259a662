"""``kveik watchdog``: look after the engines of this node in the foreground."""

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kveik.cli.settings_flags import add_settings, given_settings, log_to_stderr
from kveik.config import AgentSettings, EngineSettings, FleetSettings, RouterSettings, WatchdogSettings, load
from kveik.errors import ConfigError, KveikError, SuperviseError
from kveik.fleet.client import FleetClient
from kveik.fleet.etcd_gateway import EtcdAddress, EtcdGateway
from kveik.launch.addresses import announcements, router_urls
from kveik.launch.data_parallel import groups_over_nodes, is_headless
from kveik.launch.fleet_spec import FleetSpec, NodeEntry, read_fleet
from kveik.router.fleet_api import read_token
from kveik.supervise.client import ControlClient
from kveik.supervise.messages import ProcessView
from kveik.supervise.node_folder import NodeFolder, node_folder
from kveik.telemetry.events import EventLog
from kveik.telemetry.webhook import Webhook
from kveik.watchdog.evidence import EvidenceFolder
from kveik.watchdog.groups import Budget, GroupFollower, GroupRestarter, ended_ranks
from kveik.watchdog.node import NodePlace, NodeWatchdog
from kveik.watchdog.patients import Care, Census, patients, read_listed
from kveik.watchdog.reference import References
from kveik.watchdog.restarters import ControlRestarter, NoRestarter, Restarter
from kveik.watchdog.state_file import StateFile
from kveik.watchdog.ward import Patient

EPILOG = """\
Asks each engine for a real inference again and again, announces those that answer at the routers, and tells busy
from hung, half-dead and dead. A sick engine is isolated at the routers, evidence is saved, and it is restarted: by
the node's supervisor (kveik up), by the command in its table,

  [[engines]]
  url = "http://10.0.0.7:8000"
  restart = ["docker", "restart", "vllm-7"]

or not at all. The configuration is read again when it changes. Settings come from --config, then from the environment
(KVEIK_WATCHDOG_NAME), then from flags; the engines' own API key from KVEIK_ENGINE_API_KEY. What was done is
remembered: a watchdog that is killed goes on where it was.

exit codes:
  0  stopped by a signal; engines and routers go on
  2  a setting is not valid
  3  it could not start: the message says why
"""

#: Python runs signal handlers on the main thread, between two waits of it.
SIGNAL_CHECK_S = 0.2

#: How long a router may take for one answer: whoever waits for it does not watch.
ROUTER_S = 3.0

logger = logging.getLogger("kveik.watchdog")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments: one flag for each setting of the watchdog."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("--node", default="", metavar="NAME", help="which of the configuration's nodes this machine is")
    parser.add_argument(
        "--engine", action="append", default=[], metavar="URL", help="an engine beside those of the configuration"
    )
    add_settings(parser, "watchdog", "the fleet's TOML file")


def run(args: argparse.Namespace) -> int:
    """Watch until a signal comes."""
    log_to_stderr()
    stop = threading.Event()
    signals: list[int] = []  # no Event: its lock may be held by this very thread when the handler runs
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: signals.append(received))
    try:
        setup = read_setup(args, os.environ)
        control = ControlClient(str(setup.folder.control_socket))
        follower = group_follower(setup, control)
        watchdog, state, webhook = _open(setup, control, follower)
    except ConfigError as error:
        print(f"kveik watchdog: {error}", file=sys.stderr)
        return 2
    except KveikError as error:
        print(f"kveik watchdog: {error}", file=sys.stderr)
        return 3
    thread = threading.Thread(target=watchdog.run, args=(stop,), name="watchdog")
    thread.start()
    if follower is not None:
        follower.start()
    logger.info("watching node %s, routers %s", setup.node, ", ".join(setup.routers))
    while not signals and thread.is_alive():
        thread.join(SIGNAL_CHECK_S)
    stop.set()
    if follower is not None:
        follower.stop()
    thread.join()
    state.close()
    if webhook is not None:
        webhook.close()
    logger.info("the watchdog has stopped; engines and routers go on")
    return 0


@dataclass(frozen=True, slots=True)
class Setup:
    """All that the arguments, the file and the environment say."""

    config: Path | None
    node: str
    spec: FleetSpec
    settings: WatchdogSettings
    router: RouterSettings
    routers: tuple[str, ...]
    folder: NodeFolder
    agent_socket: str
    engines: tuple[str, ...]
    api_key: str
    environ: Mapping[str, str]

    @property
    def fleet(self) -> FleetSettings:
        """The ``[fleet]`` settings."""
        return self.spec.settings


def read_setup(args: argparse.Namespace, environ: Mapping[str, str]) -> Setup:
    """Raises :class:`ConfigError`."""
    config: Path | None = args.config
    settings = load(WatchdogSettings, file=config, environ=environ, given=given_settings(args))
    router = load(RouterSettings, file=config, environ=environ)
    spec = _spec(config, args.node, environ)
    node = spec.node.name
    folder = node_folder(spec.settings, node, environ)
    agent = load(AgentSettings, file=config, environ=environ)
    read_token(router.admission_token_file, environ)  # said now if it cannot be read
    return Setup(
        config=config.absolute() if config else None,
        node=node,
        spec=spec,
        settings=settings,
        router=router,
        routers=router_urls(spec, router, settings),
        folder=folder,
        agent_socket=agent.socket or str(folder.agent_socket),
        engines=tuple(args.engine),
        api_key=environ.get("KVEIK_ENGINE_API_KEY", ""),
        environ=environ,
    )


def _spec(config: Path | None, node: str, environ: Mapping[str, str]) -> FleetSpec:
    given = {"node": node} if node else None
    if config is not None:
        return read_fleet(config, environ, given)
    settings = load(FleetSettings, environ=environ, given=given)
    return FleetSpec(settings, (NodeEntry(name=settings.node or "local"),), ())


class Source:
    """Which engines there are now: the configuration is read again when it changed."""

    def __init__(self, setup: Setup, control: ControlClient, follower: GroupFollower | None = None) -> None:
        """Raises :class:`ConfigError` for a file that is not valid."""
        self._setup = setup
        self._follower = follower
        self._care = Care(
            control=control,
            lease_s=setup.settings.lease_s,
            start_s=load(EngineSettings, file=setup.config, environ=setup.environ).start_s,
            command_s=setup.settings.restart_command_s,
            roll=_roll_command(setup),
            api_key=setup.api_key,
        )
        self._stamp = self._now()
        self._census = self._read()
        patients(self._census, {}, self._care)

    def __call__(self, processes: Mapping[str, ProcessView]) -> Sequence[Patient]:
        """The engines to watch. Raises :class:`ConfigError`; then those of the last call stay."""
        stamp = self._now()
        if stamp != self._stamp:
            self._census = self._read()
            self._stamp = stamp
        return patients(self._census, processes, self._care)

    def _now(self) -> tuple[int, ...]:
        try:
            status = self._setup.config.stat() if self._setup.config else None
        except OSError:
            return ()
        return (status.st_mtime_ns, status.st_size, status.st_ino) if status else ()

    def _read(self) -> Census:
        setup = self._setup
        if setup.config is None:
            return Census(given=setup.engines)
        spec = read_fleet(setup.config, setup.environ, {"node": setup.node} if setup.spec.settings.node else None)
        common = load(EngineSettings, file=setup.config, environ=setup.environ)
        return Census(
            own=announcements(spec, setup.node),
            ranks=_ranks(spec, setup.node),
            groups={name: self._restarter(name) for name in groups_over_nodes(spec, setup.node)},
            unsupervised_too=bool(common.model),
            # One node looks after what is nobody's: two watchdogs must not restart one engine.
            listed=read_listed(setup.config) if spec.nodes[0].name == setup.node else (),
            given=setup.engines,
        )

    def _restarter(self, group: str) -> Restarter:
        if self._follower is None:
            return NoRestarter(f"engine {group} has ranks on several nodes, which needs router.registry = etcd://...")
        return GroupRestarter(self._follower, group)


def _roll_command(setup: Setup) -> tuple[str, ...]:
    """Rolls the engine whose name follows."""
    return _command(setup, "roll", "--anew")


def _checks_command(setup: Setup) -> tuple[str, ...]:
    """Makes the doctor's checks of this machine."""
    return _command(setup, "doctor", "--machine", "--json")


def _command(setup: Setup, *words: str) -> tuple[str, ...]:
    """A command for this node of this fleet; empty where no file describes it."""
    if setup.config is None:
        return ()
    command = (sys.executable, "-m", "kveik.cli.main", *words, "--config", str(setup.config))
    return (*command, "--node", setup.node) if setup.spec.settings.node else command


def group_follower(setup: Setup, control: ControlClient) -> GroupFollower | None:
    """Who restarts this node's ranks of groups that other nodes belong to, together with those; None if there are none.

    Groups that a changed configuration adds are followed after a restart of the watchdog, which its supervisor does.
    Raises :class:`ConfigError`.
    """
    groups = groups_over_nodes(setup.spec, setup.node)
    if not groups or not setup.router.registry:
        return None
    headless = {engine.name for engine in setup.spec.engines_of(setup.node) if is_headless(engine)}
    unasked = {group: tuple(name for name in names if name in headless) for group, names in groups.items()}

    def look_here() -> Mapping[str, str]:
        try:
            return ended_ranks(control.status().processes, unasked, time.time())
        except SuperviseError:
            return {}

    settings = setup.settings
    return GroupFollower(
        EtcdGateway(EtcdAddress.parse(setup.router.registry), deadline_s=setup.router.registry_deadline_s),
        setup.node,
        tuple(groups),
        lambda group, why: ControlRestarter(control, groups[group]).restart(why),
        look_here=look_here,
        budget=Budget(settings.restarts_max if settings.restart else 0, settings.restarts_window_s),
    )


def _ranks(spec: FleetSpec, node: str) -> dict[str, tuple[str, ...]]:
    """Further parts of each engine's group on this node."""
    here = spec.engines_of(node)
    heads = [engine.name for engine in here if not engine.entry.head]
    return {head: tuple(rank.name for rank in here if rank.entry.head == head) for head in heads}


def _open(
    setup: Setup, control: ControlClient, follower: GroupFollower | None
) -> tuple[NodeWatchdog, StateFile, Webhook | None]:
    """The watchdog, ready to run. Raises :class:`KveikError`."""
    source = Source(setup, control, follower)
    token_file, environ = setup.router.admission_token_file, setup.environ
    routers = [
        FleetClient(url, token=lambda: read_token(token_file, environ), deadline_s=ROUTER_S) for url in setup.routers
    ]
    state = StateFile(setup.folder.watchdog)
    webhook = Webhook(setup.fleet.webhook) if setup.fleet.webhook else None
    events = EventLog(setup.folder.events, bytes_max=setup.fleet.events_bytes_max, node=setup.node, listener=webhook)
    watchdog = NodeWatchdog(
        NodePlace(setup.fleet.name, setup.node, str(setup.folder.control_socket), setup.agent_socket),
        setup.settings,
        source,
        routers=routers,
        state=state,
        evidence=EvidenceFolder(setup.folder.evidence, bundles_max=setup.settings.evidence_max),
        events=events,
        references=References(setup.folder.root / "answers.json"),
        own_checks=_checks_command(setup),
    )
    return watchdog, state, webhook
