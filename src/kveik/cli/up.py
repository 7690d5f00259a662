"""``kveik up``: start all parts of this node, or change what differs."""

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kveik.cli.fleet_access import DEFAULT_CONFIG, Say, routers_at, sayer
from kveik.cli.settings_flags import log_to_stderr
from kveik.errors import ConfigError, KveikError
from kveik.launch.printing import KINDS, printed_file
from kveik.launch.progress import Outcome, StartProgress, outcome
from kveik.launch.start_times import StartTimes
from kveik.launch.up import Launch, check, detach, first_answer, join_pool, this_machine, with_log_ends
from kveik.launch.welcome import example, has_chat_template, welcome
from kveik.supervise.client import ControlClient
from kveik.supervise.log_file import last_lines
from kveik.supervise.messages import ProcessView, StatusAnswer
from kveik.supervise.supervisor import Supervisor
from kveik.telemetry.events import EventLog
from kveik.telemetry.webhook import Webhook

EPILOG = """\
  kveik init --model /models/qwen3-8b     write kveik.toml for this machine
  kveik up                                run until Ctrl-C
  kveik up -d                             run in the background; then: kveik status, kveik logs, kveik down

Everything that would keep it from starting is said before anything starts. Each part is ready when it does its work:
an engine when it has computed a token, the whole when the router has given an answer and sends requests to all engines.
A second `kveik up` finds what runs and changes only what differs. The first Ctrl-C lets running requests finish, the
second does not.

exit codes:
  0  all is ready (-d, or a second up), or it was ended by Ctrl-C
  2  the configuration is not valid
  3  something stands against it, or a part did not start: the message says what; with -d the other parts go on
"""

_POLL_S = 0.2
#: So long the supervisor may be silent while everything starts.
_SILENT_S = 120.0
_LOG_LINES = 12

logger = logging.getLogger("kveik.supervise")

Views = Callable[[], Sequence[ProcessView]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("--config", type=Path, default=DEFAULT_CONFIG, metavar="FILE", help="the fleet (kveik.toml)")
    parser.add_argument("--node", default="", metavar="NAME", help="which of its nodes this machine is")
    parser.add_argument("-d", "--detach", action="store_true", help="run in the background")
    parser.add_argument("--force", action="store_true", help="start in spite of what stands against it")
    parser.add_argument("--json", action="store_true", help="print each line as a JSON object")
    parser.add_argument("--print", choices=KINDS, help="start nothing; print files for these that run the same")
    parser.add_argument("--supervise", action="store_true", help=argparse.SUPPRESS)  # the process behind -d


def run(args: argparse.Namespace) -> int:
    """Start or change the node."""
    if not args.config.exists():
        print(f"kveik up: there is no {args.config}: write one with `kveik init`, or name another", file=sys.stderr)
        return 2
    try:
        if args.print:
            print(printed_file(args.print, args.config, args.node, this_machine(os.environ)))
            return 0
        launch = Launch.read(args.config, args.node, os.environ)
        if args.supervise:
            return _supervise(launch)
        status = launch.status()
        if not _is_clear(launch, status, force=args.force):
            return 3
        start = Start(launch, sayer(as_json=args.json), as_json=args.json, detached=args.detach or status is not None)
        if status is not None:
            return _change(start)
        return _in_background(start) if args.detach else _in_foreground(start)
    except ConfigError as error:
        print(f"kveik up: {error}", file=sys.stderr)
        return 2
    except KveikError as error:
        print(f"kveik up: {error}", file=sys.stderr)
        return 3


@dataclass(frozen=True, slots=True)
class Start:
    """One start, and how it is told."""

    launch: Launch
    say: Say
    as_json: bool
    detached: bool

    def until_ready(self, look: Views, alive: Callable[[], bool] = lambda: True) -> int:
        """Say how far parts are until all are ready and a request was served; the exit code."""
        times = StartTimes(self.launch.folder.starts)
        progress = StartProgress(times.estimate, time.monotonic())
        while alive():
            views = look()
            for line in progress.look(views, time.monotonic()):
                self.say(line.told, **line.fields)
            now = outcome(views)
            if now.over:
                for part, seconds in progress.took_s.items():
                    times.add(part, seconds)
                return self._failed(now) if now.failed else self._served(alive)
            time.sleep(_POLL_S)
        return 3

    def _failed(self, now: Outcome) -> int:
        for line in with_log_ends(now.failed, lambda log: last_lines(log, _LOG_LINES)):
            print(f"kveik up: {line}", file=sys.stderr)
        if self.detached:
            print("kveik up: the other parts go on; after a change run kveik up again, or kveik down", file=sys.stderr)
        return 3

    def _served(self, alive: Callable[[], bool]) -> int:
        launch = self.launch
        if not launch.router_url:
            self.say(f"node {launch.node} is ready; the fleet's routers run elsewhere")
            return 0
        if launch.model:
            self.say(f"asking for a first answer at {launch.router_url}")
            if told := first_answer(launch, alive):
                self.say(told)
        routers = routers_at([launch.router_url], launch.tables.router.admission_token_file, launch.here.environ)
        if told := join_pool(launch, routers.look, alive):
            self.say(told)
        chat = has_chat_template(launch.model_folder)
        key = bool(launch.tables.router.keys_file)
        request = example(launch.router_url, launch.model or "MODEL", chat=chat, key=key)
        logs = launch.folder.logs
        lines = welcome(launch.router_url, request, logs, config=launch.config, detached=self.detached)
        self.say(lines[0], url=launch.router_url, example=request, logs=str(logs), model=launch.model)
        if not self.as_json:
            print("\n".join(lines[1:]), flush=True)
        return 0


def _is_clear(launch: Launch, status: StatusAnswer | None, *, force: bool) -> bool:
    found = check(launch, status)
    for problem in found:
        print(f"kveik up: {problem}", file=sys.stderr)
    if found and not force:
        many = "these stand" if len(found) > 1 else "this stands"
        print(f"kveik up: nothing was started: {many} against it (--force starts nevertheless)", file=sys.stderr)
    return not found or force


def _supervise(launch: Launch) -> int:
    """Be the supervisor in the background, until it has been told to end."""
    log_to_stderr()
    events, webhook = _events(launch)
    supervisor = launch.supervisor(events, tethered=False).open()
    for number in (signal.SIGTERM, signal.SIGINT):
        # Not in the handler itself: the lock may be held by the very thread that it runs on.
        signal.signal(number, lambda *_: threading.Thread(target=supervisor.down).start())
    logger.info("supervising node %s of fleet %s", launch.node, launch.spec.settings.name)
    supervisor.run()
    if webhook is not None:
        webhook.close()
    return 0


def _events(launch: Launch) -> tuple[EventLog, Webhook | None]:
    fleet = launch.spec.settings
    webhook = Webhook(fleet.webhook) if fleet.webhook else None
    log = EventLog(launch.folder.events, bytes_max=fleet.events_bytes_max, node=launch.node, listener=webhook)
    return log, webhook


def _change(start: Start) -> int:
    """Another supervisor runs: have it change what differs."""
    control = start.launch.control
    start.say(control.apply(str(start.launch.config)).told)
    return start.until_ready(views_of(control))


def _in_background(start: Start) -> int:
    pid = detach(start.launch)
    start.say(f"process {pid} supervises this node in the background", pid=pid)
    try:
        return start.until_ready(views_of(start.launch.control))
    except KeyboardInterrupt:
        start.say("it goes on starting in the background: kveik status, kveik logs, kveik down")
        return 130


def views_of(control: ControlClient) -> Views:
    """What the supervisor says; it may take its time where engines that start leave it no core."""
    patient = ControlClient(control.path, deadline_s=_SILENT_S)
    return lambda: patient.status().processes


def _in_foreground(start: Start) -> int:
    events, webhook = _events(start.launch)
    supervisor = start.launch.supervisor(events, tethered=True).open()
    thread = threading.Thread(target=supervisor.run, name="kveik-supervisor")
    thread.start()
    signals = _Signals(supervisor)
    code = 3
    try:
        with signals:
            try:
                code = start.until_ready(supervisor.views, alive=lambda: not signals.told)
            finally:
                if code != 0 and not signals.told:
                    supervisor.down()
                _tell_changes(supervisor, thread, start.say)
    finally:
        thread.join()
        if webhook is not None:
            webhook.close()
    start.say("all parts have ended")
    return 0 if signals.told else code


class _Signals:
    """Ctrl-C, SIGTERM, or a terminal that is closed: the first ends everything in order, the second at once."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self.told = 0

    def __enter__(self) -> None:
        heard = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        self._before = {number: signal.signal(number, self._hear) for number in heard}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, *_: object) -> None:
        self.told += 1
        grace_s = None if self.told == 1 else 0.0
        # Not here: the lock may be held by the very thread that this runs on.
        threading.Thread(target=self._supervisor.down, args=(grace_s,)).start()


def _tell_changes(supervisor: Supervisor, thread: threading.Thread, say: Say) -> None:
    """Say what happens, until everything has ended."""
    seen = {view.name: view.state for view in supervisor.views()}
    while thread.is_alive():
        for view in supervisor.views():
            if seen.get(view.name) != view.state:
                seen[view.name] = view.state
                say(
                    f"{view.name} is {view.state}{f': {view.why}' if view.why else ''}",
                    part=view.name,
                    state=view.state,
                )
        thread.join(_POLL_S)
