"""``kveik events``: what happened to a node's parts, in plain words."""

import argparse
import os
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from kveik.config import FleetSettings, load
from kveik.errors import ConfigError
from kveik.launch.fleet_spec import read_fleet
from kveik.supervise.node_folder import node_folder
from kveik.telemetry.events import Event, EventTail, read_events

EPILOG = """\
Events are kept in a file of bounded size in the fleet's state folder (fleet.events_bytes_max), and are posted to
fleet.webhook if that is set. --since takes a time such as 30m, 12h or 2d, or seconds.

exit codes:
  0  shown
  1  there are no events (yet)
  2  wrong use: a setting or --since is not valid
"""

_POLL_S = 0.3
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("--config", type=Path, metavar="FILE", help="the fleet's TOML file (kveik.toml if it is here)")
    parser.add_argument("--node", default="", metavar="NAME", help="which of its nodes this machine is")
    parser.add_argument("--follow", "-f", action="store_true", help="go on and show new ones as they come")
    parser.add_argument(
        "--since", default="", metavar="TIME", help="only the last so much time, such as 30m, 12h or 2d"
    )
    parser.add_argument("-n", type=int, default=0, metavar="N", help="only the last N (all)")
    parser.add_argument("--json", action="store_true", help="print each event as a JSON object")


def run(args: argparse.Namespace) -> int:
    """Print, and follow if that is asked for."""
    try:
        path = _path(args)
        since_s = time.time() - _seconds(args.since) if args.since else 0.0
    except ConfigError as error:
        print(f"kveik events: {error}", file=sys.stderr)
        return 2
    tail = EventTail(path)
    events = list(read_events(path, since_s))
    show(events[-args.n :] if args.n > 0 else events, as_json=args.json)
    if not args.follow:
        if not events:
            print(f"kveik events: none in {path}{f' since {args.since}' if args.since else ''}", file=sys.stderr)
        return 0 if events else 1
    while True:
        show(tail.news(), as_json=args.json)
        time.sleep(_POLL_S)


def show(events: Iterable[Event], *, as_json: bool) -> None:
    """One line each."""
    for event in events:
        print(msgspec.json.encode(event).decode() if as_json else event.line, flush=True)


def _path(args: argparse.Namespace) -> Path:
    config = args.config or (Path("kveik.toml") if Path("kveik.toml").is_file() else None)
    given = {"node": args.node} if args.node else None
    if config is not None:
        spec = read_fleet(config, os.environ, given)
        return node_folder(spec.settings, spec.node.name).events
    settings = load(FleetSettings, environ=os.environ, given=given)
    return node_folder(settings, settings.node or "local").events


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if match is None:
        raise ConfigError(f"--since is {text!r}, expected a number with s, m, h or d, such as 30m")
    return float(match[1]) * _UNITS[match[2]]
