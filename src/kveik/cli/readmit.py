"""``kveik readmit``: an engine that was drained, isolated or stopped gets requests again."""

import argparse
import sys
import time

from kveik.cli.fleet_access import READY_S, Access, Say, add_access, kept_by, open_access, sayer
from kveik.errors import ConfigError, FleetError, SuperviseError
from kveik.launch.drain import readmit, wait_ready
from kveik.supervise.client import ControlClient
from kveik.supervise.messages import ProcessView

EPILOG = """\
Ends the hold of a drain or a roll, and an isolation of the watchdog, also one that it has given up on. A process that
its supervisor keeps and that is down is started first. The router sends requests once the engine has proved itself.

exit codes:
  0  it gets requests
  1  it does not yet, when the time is over: the message says why
  2  wrong use: an argument that is not valid
  3  no router answered, or the supervisor refused
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("engine", metavar="ENGINE", help="its name in the fleet")
    parser.add_argument(
        "--wait", type=float, default=READY_S, metavar="S", help=f"until it gets requests, once it is up ({READY_S:g})"
    )
    parser.add_argument("--reason", default="readmitted by a person", metavar="TEXT", help="what others see")
    add_access(parser)


def run(args: argparse.Namespace) -> int:
    """Readmit it; the exit code says what came of it."""
    say = sayer(as_json=args.json)
    try:
        return _readmit(args, open_access(args), say)
    except ConfigError as error:
        print(f"kveik readmit: {error}", file=sys.stderr)
        return 2
    except (FleetError, SuperviseError) as error:
        print(f"kveik readmit: {error}", file=sys.stderr)
        return 3


def _readmit(args: argparse.Namespace, access: Access, say: Say) -> int:
    name = args.engine
    control = access.control
    kept = kept_by(control, name)
    if control is not None and kept is not None:
        _bring_up(kept, control, access.start_s(name), say)
    readmit(access.routers, name, args.reason)
    if control is not None and kept is not None:
        control.release(name)
    access.tell(name, f"may have requests again: {args.reason}")
    ready, why = wait_ready(access.routers, name, args.wait, pause=_sleep)
    if not ready:
        say(f"{name} gets no requests yet, after {args.wait:g} s: {why}", engine=name, state="waiting")
        return 1
    say(f"{name} gets requests", engine=name, state="ready")
    return 0


def _bring_up(view: ProcessView, control: ControlClient, start_s: float, say: Say) -> None:
    """Start a process that is down, and wait until it is ready. Raises :class:`SuperviseError`."""
    if view.state in ("stopped", "failed", "waiting"):
        control.start(view.name)
        say(f"{view.name} is being started", engine=view.name, state="starting")
    after = control.wait(view.name, lambda now: now.state in ("ready", "failed"), start_s)
    if after.state == "failed":
        raise SuperviseError(f"{view.name} does not start: {after.why or 'no reason is known'}; its log is {after.log}")


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False
