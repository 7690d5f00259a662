"""``kveik logs``: show what the parts of this node write."""

import argparse
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from kveik.cli.fleet_access import DEFAULT_CONFIG
from kveik.errors import ConfigError
from kveik.launch.place import Place
from kveik.supervise.log_file import LogTail, last_lines

EPILOG = """\
  kveik logs                  the end of each log
  kveik logs engine-1 -f      one log, and what comes

exit codes:
  0  shown
  2  wrong use, or the configuration is not valid
  3  there is no such log
"""

_POLL_S = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("name", nargs="*", metavar="NAME", help="a part, such as engine-1 or router (all)")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what comes, until Ctrl-C")
    parser.add_argument("-n", "--lines", type=int, default=20, metavar="N", help="how many lines of each (20)")
    parser.add_argument("--config", type=Path, default=DEFAULT_CONFIG, metavar="FILE", help="the fleet (kveik.toml)")
    parser.add_argument("--node", default="", metavar="NAME", help="which of its nodes this machine is")


def run(args: argparse.Namespace) -> int:
    """Show logs."""
    if args.lines < 0:
        print(f"kveik logs: --lines is {args.lines}, expected 0 or more", file=sys.stderr)
        return 2
    try:
        folder = Place.find(args.config, args.node, os.environ).folder.logs
    except ConfigError as error:
        print(f"kveik logs: {error}", file=sys.stderr)
        return 2
    there = {log.stem: log for log in sorted(folder.glob("*.log"))}
    chosen = {name: there[name] for name in args.name or there if name in there}
    if missing := [name for name in args.name if name not in there] or ([] if there else ["any part"]):
        known = f"; there are {', '.join(there)}" if there else ""
        print(f"kveik logs: no log of {', '.join(missing)} in {folder}{known}", file=sys.stderr)
        return 3
    tails = {name: LogTail(log) for name, log in chosen.items()}
    width = max(map(len, chosen)) if len(chosen) > 1 else 0
    for name, log in chosen.items():
        _show(name, last_lines(log, args.lines), width)
    while args.follow:
        time.sleep(_POLL_S)
        _show_news(tails, width)
    return 0


def _show_news(tails: Mapping[str, LogTail], width: int) -> None:
    for name, tail in tails.items():
        _show(name, tail.news(), width)


def _show(name: str, text: str, width: int) -> None:
    """Lines, with the part's name before each where several are shown."""
    for line in text.splitlines():
        print(f"{name:<{width}} | {line}" if width else line, flush=True)
