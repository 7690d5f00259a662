"""``kveik status``: how the fleet is, from its router; or a node's processes where no router answers."""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from kveik.cli.fleet_access import DEFAULT_CONFIG, Access, add_access, open_routers
from kveik.cli.status_tables import fleet_tables, supervisor_tables
from kveik.errors import ConfigError, FleetError, SuperviseError
from kveik.fleet.client import FleetClient
from kveik.fleet.report import plain_text
from kveik.fleet.status import FleetStatus
from kveik.supervise.messages import StatusAnswer

EPILOG = f"""\
Without --config, {DEFAULT_CONFIG} and --router, a router on this machine is asked. Its page /dashboard shows the same
with the last ten minutes as plots. The token comes from --token-file, the configuration or KVEIK_ADMISSION_TOKEN.

exit codes:
  0  all is well
  1  an engine or another part is not well: the lines that begin with "not well" say which, and why
  2  wrong use: a setting is not valid
  3  no router answers, or none says it without the token; the node's processes are shown if its supervisor answers
"""

WELL, NOT_WELL, AWAY = 0, 1, 3


@dataclass(frozen=True, slots=True)
class Shown:
    """What was found out at one moment. ``away``: why routers do not answer, by address."""

    status: FleetStatus | None = None
    router: str = ""
    away: dict[str, str] = field(default_factory=dict)
    supervisor: StatusAnswer | None = None

    @property
    def code(self) -> int:
        """The exit code."""
        if self.status is None:
            return AWAY
        return WELL if self.status.well and not self.away else NOT_WELL

    @property
    def why(self) -> str:
        """Why routers do not answer, in one line."""
        return "; ".join(self.away.values())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("--watch", "-w", action="store_true", help="go on and show it again and again, until Ctrl-C")
    parser.add_argument("--every", type=float, default=2.0, metavar="S", help="how often, with --watch (2)")
    add_access(parser)


def run(args: argparse.Namespace) -> int:
    """Ask and print; the exit code says whether all is well."""
    try:
        access, clients = open_routers(args)
        if not 0.1 <= args.every <= 3600:
            raise ConfigError(f"--every is {args.every:g}, expected 0.1 to 3600 s")
    except ConfigError as error:
        print(f"kveik status: {error}", file=sys.stderr)
        return 2
    shown = find_out(clients, access)
    if args.watch:
        return _watch(shown, clients, access, args)
    if args.json:
        print(as_json(shown))
    else:
        console = Console()
        console.print(tables(shown, console.width))
    return shown.code


def find_out(clients: Sequence[FleetClient], access: Access | None) -> Shown:
    """Ask the routers in turn until one answers; if none does, the node's supervisor."""
    away: dict[str, str] = {}
    found: FleetStatus | None = None
    router = ""
    for client in clients:
        try:
            status = client.status()
        except (FleetError, ConfigError) as error:
            away[client.url] = str(error)
            continue
        if found is None:
            found, router = status, client.url
    supervisor = None if found is not None or access is None else _supervisor(access)
    return Shown(found, router, away, supervisor)


def tables(shown: Shown, width: int) -> RenderableType:
    """What people see, on ``width`` columns."""
    if shown.status is not None:
        table = fleet_tables(shown.status, shown.router, width)
        note = Text(plain_text(f"not well: another router: {shown.why}", 2000), "red")
        return Group(table, note) if shown.away else table
    if shown.supervisor is not None:
        return supervisor_tables(shown.supervisor, shown.why)
    return Text(f"no router says how the fleet is: {plain_text(shown.why, 2000)}", "red")


def as_json(shown: Shown) -> str:
    """What programs see: one JSON document on one line."""
    document = {
        "well": shown.code == WELL,
        "router": shown.router,
        "routers_away": shown.away,
        "fleet": shown.status,
        "supervisor": shown.supervisor,
    }
    return msgspec.json.encode(document).decode()


def _watch(shown: Shown, clients: Sequence[FleetClient], access: Access | None, args: argparse.Namespace) -> int:
    console = Console()
    whole_screen = console.is_terminal and not args.json
    try:
        with Live(console=console, auto_refresh=False, screen=whole_screen, transient=True) as live:
            while True:
                if args.json:
                    print(as_json(shown), flush=True)
                elif whole_screen:
                    live.update(tables(shown, console.width), refresh=True)
                else:
                    console.print(tables(shown, console.width))
                time.sleep(args.every)
                shown = find_out(clients, access)
    except KeyboardInterrupt:
        return shown.code


def _supervisor(access: Access) -> StatusAnswer | None:
    control = access.control
    try:
        return control.status() if control is not None else None
    except SuperviseError:
        return None
