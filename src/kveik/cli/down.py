"""``kveik down``: end all parts of this node, in order."""

import argparse
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from kveik.cli.fleet_access import DEFAULT_CONFIG, Say, sayer
from kveik.clock import Deadline
from kveik.config import AgentSettings, load
from kveik.engine.group import identity_of
from kveik.errors import ConfigError, KveikError
from kveik.launch.parts import arena_path
from kveik.launch.place import Place
from kveik.records import ignore
from kveik.supervise.adopt import read_estate
from kveik.supervise.messages import ProcessView, StatusAnswer

EPILOG = """\
The router lets running requests finish (router.drain_s), then engines and agent end. What a killed supervisor left
running is ended, too. The shared cache's memory stays, so that the next start finds its blocks; --forget gives it back.

exit codes:
  0  nothing of this node runs any more
  2  the configuration is not valid
  3  it could not be done: the message says why
"""

_POLL_S = 0.1
#: A supervisor that listens no more has only to end itself.
_LAST_WORDS_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("--config", type=Path, default=DEFAULT_CONFIG, metavar="FILE", help="the fleet (kveik.toml)")
    parser.add_argument("--node", default="", metavar="NAME", help="which of its nodes this machine is")
    parser.add_argument("--now", action="store_true", help="end everything at once, running requests too")
    parser.add_argument("--forget", action="store_true", help="give the memory of the shared cache back, too")
    parser.add_argument("--json", action="store_true", help="print each line as a JSON object")


def run(args: argparse.Namespace) -> int:
    """End the node."""
    say = sayer(as_json=args.json)
    try:
        place = Place.find(args.config, args.node, os.environ)
        status = place.status()
        if status is not None:
            _order_down(place, status, say, now=args.now)
        elif read_estate(place.folder.supervisor):
            _end_what_was_left(place, say, now=args.now)
        else:
            say(f"nothing of node {place.node} runs")
        if args.forget:
            _forget(place, say)
    except ConfigError as error:
        print(f"kveik down: {error}", file=sys.stderr)
        return 2
    except KveikError as error:
        print(f"kveik down: {error}", file=sys.stderr)
        return 3
    return 0


def _order_down(place: Place, status: StatusAnswer, say: Say, *, now: bool) -> None:
    supervisor = identity_of(status.pid)
    say(place.control.down(now=now).told)
    seen = {view.name: view.state for view in status.processes}
    while True:
        later = place.status()
        if later is None:
            break
        _tell(later.processes, seen, say)
        time.sleep(_POLL_S)
    ended = Deadline.after(_LAST_WORDS_S)
    while supervisor is not None and supervisor.alive and not ended.passed:
        time.sleep(_POLL_S)
    say(f"all parts of node {place.node} have ended")


def _end_what_was_left(place: Place, say: Say, *, now: bool) -> None:
    say("no supervisor answers; ending what one left running")
    supervisor = place.make_supervisor(lambda *_: (), ignore, tethered=False).open()
    supervisor.down(0.0 if now else None)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    seen: dict[str, str] = {}
    while thread.is_alive():
        _tell(supervisor.views(), seen, say)
        thread.join(_POLL_S)
    say(f"all parts of node {place.node} have ended")


def _forget(place: Place, say: Say) -> None:
    agent = load(AgentSettings, file=place.config, environ=os.environ)
    arena = Path(arena_path(place.spec, agent))
    if arena.exists():
        arena.unlink()
        say(f"the memory of the shared cache is given back: {arena}")


def _tell(views: Sequence[ProcessView], seen: dict[str, str], say: Say) -> None:
    for view in views:
        if seen.get(view.name) != view.state:
            seen[view.name] = view.state
            say(f"{view.name} is {view.state}", part=view.name, state=view.state)
