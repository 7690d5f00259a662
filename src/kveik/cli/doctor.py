"""``kveik doctor``: why a fleet runs and yet is of no use."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kveik.errors import ConfigError, DoctorError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kveik.doctor.check import Check, Context
    from kveik.doctor.fleet_view import Fleet
    from kveik.doctor.running import Answer

EPILOG = """\
  kveik doctor                                    all checks, of the fleet in kveik.toml if that is here
  kveik doctor --list                             which there are
  kveik doctor --config kveik.toml --node n1      a fleet, before its start or while it runs
  kveik doctor --config kveik.toml --machine      of these checks those of this machine; watchdogs make them, too
  kveik doctor hashes --engine URL --engine URL   engines of which only the addresses are known
  kveik doctor etcd --config A --config B         files of several nodes: this node's first
  kveik doctor pairs --config A --node n1 --hold 60   on each node at once: do they share the stores, before agents run?
  kveik doctor versions --python /venv/bin/python whether the engines' packages go together, and were not patched
  pip freeze | kveik doctor versions --from -     the same of a list; the name of an image will do, too
  kveik doctor environment --pid 1234             what the variables of a running engine do
  kveik doctor environment --from engine.env      the same of lines NAME=VALUE

Nothing is changed. Each check has a time limit. What cannot be known is called unknown. Engines are sent a few prompts
under a salt of their own; KVEIK_ENGINE_API_KEY is the key that is shown to them.

exit codes:
  0  nothing is wrong, as far as can be known
  1  something is wrong: the report says what to do
  2  wrong use: no such check, no such fleet, or --from does not go with what was asked
  3  a check could not be carried out
"""

WELL, WRONG, WRONG_USE, NOT_DONE = 0, 1, 2, 3
_ASCEND = "/usr/local/Ascend"
_DEFAULT_CONFIG = Path("kveik.toml")
_HOLD_MAX_S = 80.0
_PACKAGES = ("packaging", "zmq")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("check", nargs="*", metavar="CHECK", help="which checks (all)")
    parser.add_argument("--group", default="", metavar="GROUP", help="only the checks of a group")
    parser.add_argument("--list", action="store_true", help="say which checks there are, and end")
    parser.add_argument(
        "--machine", action="store_true", help="only what looks at this machine, and asks no engine or router"
    )
    parser.add_argument("--json", action="store_true", help="print the answers as one JSON list")
    fleet = parser.add_argument_group("the fleet")
    fleet.add_argument(
        "--config", type=Path, action="append", default=[], metavar="FILE",
        help=f"its configuration, this node's first ({_DEFAULT_CONFIG} if it is here)",
    )  # fmt: skip
    fleet.add_argument("--node", default="", metavar="NAME", help="which of its nodes this machine is")
    fleet.add_argument("--router", action="append", default=[], metavar="URL", help="a router; for each of several")
    fleet.add_argument("--engine", action="append", default=[], metavar="URL", help="an engine; for each of several")
    fleet.add_argument(
        "--hold", type=float, default=0.0, metavar="S",
        help="pairs: before agents run, look for the other nodes so long; run it on all of them at once",
    )  # fmt: skip
    fleet.add_argument("--token-file", default="", metavar="FILE", help="file with the routers' admission token")
    where = parser.add_argument_group("what is looked at without a fleet, or beside it")
    where.add_argument("--python", default="", metavar="PATH", help="the interpreter of the engines (this one)")
    where.add_argument(
        "--from", dest="source", metavar="FILE", help="read a list instead of looking here; -: from a pipe"
    )
    where.add_argument(
        "--folder", type=Path, action="append", default=[], metavar="DIR", help="a shared folder; two must be one"
    )
    where.add_argument("--pid", type=int, default=0, metavar="PID", help="look at the environment of this process")
    where.add_argument("--ascend", type=Path, default=Path(_ASCEND), metavar="DIR", help=f"where CANN is ({_ASCEND})")


def run(args: argparse.Namespace) -> int:
    """Ask, print, and say by the exit code what came of it."""
    try:
        from kveik.diagnose.all_checks import ALL_CHECKS
        from kveik.doctor.checks import chosen_checks
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _PACKAGES:
            raise
        print(f"kveik doctor: the package `{error.name}` is missing: pip install 'kveik[doctor]'", file=sys.stderr)
        return NOT_DONE
    try:
        checks = chosen_checks(args.check, args.group, ALL_CHECKS, machine=args.machine)
        if args.list:
            return _list(checks)
        fleet = _fleet(args)
        checks = _possible(checks, args, fleet)
        if args.source and len(checks) > 1:
            raise ConfigError("--from says something to one check: name it")
        context = _context(args, fleet)
    except ConfigError as error:
        print(f"kveik doctor: {error}", file=sys.stderr)
        return WRONG_USE
    except DoctorError as error:
        print(f"kveik doctor: {error}", file=sys.stderr)
        return NOT_DONE
    return _ask(checks, context, as_json=args.json)


def _ask(checks: "Sequence[Check]", context: "Context", *, as_json: bool) -> int:
    """Run them, and show each as soon as it has answered."""
    from kveik.doctor.check_report import text_of, values_of
    from kveik.doctor.running import run_checks

    answers: list[Answer] = []
    for check in checks:
        if sys.stderr.isatty():
            print(f"looking: {check.question}", end="\r", file=sys.stderr, flush=True)
        answers += run_checks([check], context)
        if sys.stderr.isatty():
            print("\x1b[K", end="", file=sys.stderr, flush=True)
        if not as_json:
            print("\n".join(text_of(answers[-1])), flush=True)
    if as_json:
        print(json.dumps(values_of(answers), ensure_ascii=False))
    outcomes = {answer.verdict.outcome.value for answer in answers}
    return WRONG if "wrong" in outcomes else NOT_DONE if "not done" in outcomes else WELL


def _list(checks: "Sequence[Check]") -> int:
    width = max(len(check.name) for check in checks)
    print("\n".join(f"{check.name:<{width}}  {check.group}: {check.question}" for check in checks))
    return WELL


def _possible(checks: "list[Check]", args: argparse.Namespace, fleet: "Fleet | None") -> "list[Check]":
    """Without a fleet those that need none. Raises ConfigError for one that was named."""
    needy = [check.name for check in checks if check.needs_fleet]
    if fleet is not None or not needy:
        return checks
    where = "say which, with --config FILE, --router URL or --engine URL"
    if needy[0] in args.check or len(needy) == len(checks):
        raise ConfigError(f"{needy[0]} looks at a fleet: {where}")
    if not args.source:
        print(f"kveik doctor: {len(needy)} checks look at a fleet and are left out: {where}", file=sys.stderr)
    return [check for check in checks if not check.needs_fleet]


def _fleet(args: argparse.Namespace) -> "Fleet | None":
    """What was named; None if nothing was. Raises ConfigError."""
    from kveik.diagnose.described import Named, described_fleet
    from kveik.doctor.fleet_view import Fleet
    from kveik.launch.preflight import ENGINE_KEY_VARIABLE
    from kveik.router.fleet_api import read_token

    configs = args.config
    if not configs and not (args.router or args.engine or args.source) and _DEFAULT_CONFIG.is_file():
        configs = [_DEFAULT_CONFIG]
    if missing := [str(file) for file in configs if not file.is_file()]:
        raise ConfigError(f"there is no {missing[0]}")
    if not configs and not args.router and not args.engine:
        return None
    described = described_fleet(Named(configs, args.node, args.router, args.engine), os.environ)
    token_file = args.token_file or described.router.admission_token_file
    read_token(token_file, os.environ)  # said now if it cannot be read
    key = os.environ.get(ENGINE_KEY_VARIABLE, "")
    return Fleet(described, api_key=key, token=lambda: read_token(token_file, os.environ), asks=not args.machine)


def _context(args: argparse.Namespace, fleet: "Fleet | None") -> "Context":
    from kveik.doctor.check import Context

    configured = [engine.python for engine in fleet.described.here if engine.python] if fleet else []
    python = args.python or next(iter(configured), sys.executable)
    if not 0 <= args.hold <= _HOLD_MAX_S:
        raise ConfigError(f"--hold is {args.hold:g}, expected 0 to {_HOLD_MAX_S:g} s")
    pasted, folders = _pasted(args.source), tuple(args.folder)
    return Context(python, os.environ, pasted, args.pid, args.ascend, fleet, folders, args.hold)


def _pasted(source: str | None) -> str | None:
    if not source:
        return None
    try:
        return sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf8", errors="replace")
    except OSError as error:
        raise DoctorError(f"cannot read {source}: {error.strerror or error}") from error
