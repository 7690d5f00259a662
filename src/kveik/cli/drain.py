"""``kveik drain``: no new requests for an engine; it is out when those under way are answered."""

import argparse
import sys
import time

from kveik.cli.fleet_access import Access, Say, add_access, kept_by, open_access, sayer
from kveik.errors import ConfigError, FleetError, SuperviseError, UnknownEngineError
from kveik.launch.drain import begin_drain, wait_drained
from kveik.supervise.client import ControlClient

EPILOG = """\
The engine stays out of the pool, and the watchdog keeps its hands off it, until kveik readmit ENGINE.

exit codes:
  0  drained: nothing is under way there, and nothing new will be; with --stop it is stopped, too
  1  the time is over and requests are still under way; they go on, and nothing was stopped
  2  wrong use: an unknown engine, or an argument that is not valid
  3  no router answered, or --stop and no supervisor keeps the engine
"""

#: Beyond the engine's own grace, which the supervisor keeps.
STOPPED_S = 900.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("engine", metavar="ENGINE", help="its name in the fleet")
    parser.add_argument(
        "--wait", type=float, metavar="S", help="how long to wait for requests under way (fleet.drain_s, or 120)"
    )
    parser.add_argument("--stop", action="store_true", help="then stop its process, too")
    parser.add_argument("--reason", default="drained by a person", metavar="TEXT", help="what others see")
    add_access(parser)


def run(args: argparse.Namespace) -> int:
    """Drain it; the exit code says what came of it."""
    say = sayer(as_json=args.json)
    try:
        access = open_access(args)
        if args.wait is not None and args.wait < 0:
            raise ConfigError(f"--wait is {args.wait:g}, expected 0 s or more")
        return _drain(args, access, say)
    except (ConfigError, UnknownEngineError) as error:
        print(f"kveik drain: {error}", file=sys.stderr)
        return 2
    except (FleetError, SuperviseError) as error:
        print(f"kveik drain: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        say(f"{args.engine} gets no new requests, and goes on with the rest; to undo: kveik readmit {args.engine}")
        return 130


def _drain(args: argparse.Namespace, access: Access, say: Say) -> int:
    control = access.control
    kept = kept_by(control, args.engine)
    if args.stop and kept is None:
        raise SuperviseError(f"--stop: no supervisor of this node keeps {args.engine}; stop it where it was started")
    begin_drain(access.routers, args.engine, args.reason)
    if control is not None and kept is not None:
        control.hold(args.engine, args.reason)
    access.tell(args.engine, f"gets no new requests: {args.reason}")
    limit_s = access.drain_s if args.wait is None else args.wait
    say(f"{args.engine} gets no new requests", engine=args.engine, state="draining")
    drained = wait_drained(
        access.routers,
        args.engine,
        limit_s,
        pause=_sleep,
        told=lambda left: say(f"{left} requests left", engine=args.engine, left=left),
    )
    if drained.left:
        say(
            f"{drained.left} requests are still under way after {limit_s:g} s; they go on",
            engine=args.engine, state="draining", left=drained.left,
        )  # fmt: skip
        return 1
    say(f"{args.engine} is drained", engine=args.engine, state="drained", left=0)
    if args.stop and control is not None:
        _stop(args.engine, control, say)
    return 0


def _stop(engine: str, control: ControlClient, say: Say) -> None:
    control.stop(engine)
    control.wait(engine, lambda view: view.state in ("stopped", "failed"), STOPPED_S)
    say(f"{engine} is stopped; to have it back: kveik readmit {engine}", engine=engine, state="stopped")


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False
