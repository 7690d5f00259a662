"""The checks ``start`` and ``ports``: whether this node would start as configured, and who listens at its ports."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import psutil

from kveik.doctor.check import Context, Outcome, Point, Verdict, fleet_of
from kveik.doctor.fleet_view import listeners
from kveik.errors import SuperviseError
from kveik.launch.preflight import Problem
from kveik.launch.up import Launch, check
from kveik.supervise.messages import ProcessView, StatusAnswer

_UNSEEN = Point(
    Outcome.UNKNOWN, "node", "no configuration was given, so what should run here is not known", "--config FILE"
)


def check_start(context: Context) -> Verdict:
    """What `kveik up` would say, without starting anything. Raises :class:`kveik.errors.KveikError`."""
    launch = launch_of(context)
    if launch is None:
        return Verdict([], [_UNSEEN])
    status = _status(launch)
    running = [view.name for view in status.processes if view.pid] if status else []
    told = f"{len(running)} parts run" if running else "nothing runs"
    evidence = [f"node {launch.node} of {launch.config}: {told}; models, Pythons, memory, sockets, folders, registry"]
    points = [
        Point(Outcome.WRONG, problem.about, problem.told, "kveik up says the same")
        for problem in _without_a_trace(launch, status)
    ]
    return Verdict(evidence, points or [Point(Outcome.WELL, f"node {launch.node}", "nothing stands against a start")])


def check_ports(context: Context) -> Verdict:
    """Who listens at the ports of parts that run. Raises :class:`kveik.errors.KveikError`."""
    launch = launch_of(context)
    if launch is None:
        return Verdict([], [_UNSEEN])
    status = _status(launch)
    if status is None:
        text = "no supervisor runs here; whether ports are free, the check `start` says"
        return Verdict([], [Point(Outcome.UNKNOWN, "ports", text, "kveik up")])
    views = [view for view in status.processes if view.pid and view.kind in {"engine", "router"}]
    points = list(judge_ports([_with_children(view) for view in views], listeners()))
    return Verdict([f"the supervisor's list of {len(views)} parts, and who listens"], points)


def judge_ports(views: list[ProcessView], listening: Mapping[int, int]) -> Iterator[Point]:
    """Of each part with an address: whether one of its own processes listens there. ``listening``: process by port."""
    for view in views:
        port = _port(view.url)
        if not port:
            continue
        about = f"port {port} of {view.name}"
        pid = listening.get(port, 0)
        if pid in view.pids:
            yield Point(Outcome.WELL, about, f"held by its process {pid}")
        elif pid:
            told = f"process {pid} ({_name(pid)}) listens there, which is not {view.name}'s"
            yield Point(Outcome.WRONG, about, told, "stop that process, or set another port; then kveik up")
        elif view.state == "ready":
            yield Point(Outcome.UNKNOWN, about, "who listens there cannot be seen", "run it as the user of the fleet")
        else:
            yield Point(Outcome.UNKNOWN, about, f"nobody listens yet: {view.name} is {view.state}")


def _with_children(view: ProcessView) -> ProcessView:
    """The view with processes that came since the supervisor looked."""
    try:
        children = [child.pid for child in psutil.Process(view.pid).children(recursive=True)]
    except psutil.Error:
        return view
    return msgspec.structs.replace(view, pids=tuple(dict.fromkeys((*view.pids, *children))))


def launch_of(context: Context) -> Launch | None:
    """This node as its file describes it; None without a file. Raises :class:`kveik.errors.KveikError`."""
    described = fleet_of(context).described
    if described.config is None:
        return None
    return Launch.read(described.config, described.node, context.environ)


def _without_a_trace(launch: Launch, status: StatusAnswer | None) -> tuple[Problem, ...]:
    """What stands against a start. To see whether the node's folder can be made it is made: not by a doctor."""
    was_there = launch.folder.root.exists()
    try:
        return check(launch, status)
    finally:
        if not was_there:
            with contextlib.suppress(OSError):
                launch.folder.root.rmdir()


def _status(launch: Launch) -> StatusAnswer | None:
    try:
        return launch.status()
    except SuperviseError:
        return None


def _port(url: str) -> int:
    text = url.rpartition(":")[2]
    return int(text) if url.startswith("http") and text.isdigit() else 0


def _name(pid: int) -> str:
    try:
        words: list[str] = psutil.Process(pid).cmdline()
    except psutil.Error:
        return "its name cannot be seen"
    return " ".join([Path(words[0]).name, *words[1:]])[:100] if words else "it has no command line"
