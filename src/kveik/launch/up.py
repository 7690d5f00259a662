"""Starts a node: reads its description, checks it, starts or asks its supervisor, waits for a first answer."""

import dataclasses
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from kveik.engine.client import CompletionRequest, EngineClient, EngineStatusError
from kveik.engine.group import living_members_of
from kveik.errors import EngineError, FleetError, SuperviseError
from kveik.launch.addresses import router_url, runs_router
from kveik.launch.data_parallel import is_headless
from kveik.launch.fleet_spec import read_fleet
from kveik.launch.machine import look as look_at_machine
from kveik.launch.parts import Here, Tables, describe_node, read_tables
from kveik.launch.place import Place
from kveik.launch.pool import Pool
from kveik.launch.preflight import Problem, needs_of, problems
from kveik.launch.preflight_look import look
from kveik.records import Listener
from kveik.supervise.adopt import read_estate
from kveik.supervise.messages import ProcessView, StatusAnswer
from kveik.supervise.node_folder import node_folder
from kveik.supervise.part import Part
from kveik.supervise.supervisor import Supervisor

#: How long a router may take to send a request to engines that are ready: they are announced and admitted meanwhile.
ROUTE_S = 180.0
#: How long a supervisor in the background may take until it listens.
LISTEN_S = 60.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Launch(Place):
    """One node as a file describes it, on this machine."""

    tables: Tables
    here: Here
    parts: tuple[Part, ...]

    @classmethod
    def read(cls, config: Path, node: str, environ: Mapping[str, str], here: Here | None = None) -> "Launch":
        """Read the file. Raises :class:`~kveik.errors.ConfigError`."""
        spec = read_fleet(config.absolute(), environ, {"node": node} if node else None)
        tables = read_tables(config, environ)
        here = here or this_machine(environ)
        folder = node_folder(spec.settings, spec.node.name, environ)
        return cls(config.absolute(), spec, folder, tables, here, describe_node(spec, tables, here))

    @property
    def router_url(self) -> str:
        """Where this node's router is; empty if it has none."""
        router = self.tables.router
        return router_url(self.spec, self.node, router) if runs_router(self.spec, self.node, router) else ""

    @property
    def model(self) -> str:
        """A model that this node serves; empty if it serves none."""
        served = [part.readiness.model for part in self.parts if part.readiness.model]
        return served[0] if served else ""

    @property
    def model_folder(self) -> Path:
        """The folder of that model."""
        engines = [engine for engine in self.spec.engines_of(self.node) if not is_headless(engine)]
        return Path(engines[0].settings.model) if engines else Path()

    def describe(self, config: Path, overrides: Mapping[str, Mapping[str, Any]]) -> Sequence[Part]:
        """The parts by another state of the file. Raises :class:`~kveik.errors.ConfigError`."""
        spec = read_fleet(config, self.here.environ, {"node": self.node}).with_settings(overrides)
        return describe_node(spec, read_tables(config, self.here.environ), self.here)

    def supervisor(self, listener: Listener, *, tethered: bool) -> Supervisor:
        """A supervisor for these parts, not open yet."""
        return self.make_supervisor(self.describe, listener, tethered=tethered)


def this_machine(environ: Mapping[str, str]) -> Here:
    """What the descriptions of parts depend on."""
    machine = look_at_machine()
    return Here(device=machine.device, cores=machine.cores, environ=dict(environ))


def check(launch: Launch, status: StatusAnswer | None) -> tuple[Problem, ...]:
    """All that stands against starting what does not run yet."""
    present = _present(launch, status)
    needs = needs_of(launch.spec, launch.tables, launch.folder, launch.parts, present.kept, launch.here.environ)
    found = look(needs, present.processes, launch.tables.router.registry_deadline_s)
    # Parts that are replaced give their memory back first.
    available = found.available_bytes + sum(map(_own_bytes, present.replaced))
    return problems(needs, dataclasses.replace(found, available_bytes=available))


def detach(launch: Launch) -> int:
    """Start a supervisor that outlives this process and wait until it listens; its process id.

    Raises :class:`SuperviseError`, with what it said, if it ends before.
    """
    log = launch.folder.log("supervisor")
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    command = [launch.here.python, "-m", "kveik.cli.main", "up", "--supervise", "--config", str(launch.config)]
    with log.open("ab") as output:
        offset = output.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            [*command, "--node", launch.node], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    until_s = time.monotonic() + LISTEN_S
    while time.monotonic() < until_s:
        if process.poll() is not None:
            with log.open("rb") as said:
                said.seek(offset)
                raise SuperviseError(f"the supervisor ended: {said.read()[-2000:].decode('utf8', 'replace').strip()}")
        if _listens(launch, process.pid):
            return process.pid
        time.sleep(_POLL_S)
    raise SuperviseError(f"the supervisor (process {process.pid}) does not listen after {LISTEN_S:g} s; see {log}")


def _listens(launch: Launch, pid: int) -> bool:
    try:
        status = launch.status()
    except SuperviseError:
        return False
    return status is not None and status.pid == pid


def first_answer(launch: Launch, alive: Callable[[], bool], timeout_s: float = ROUTE_S) -> str:
    """One real token through the router; what is to be said about it, empty if nothing.

    ``alive`` says whether to go on trying. Raises :class:`SuperviseError` if none came within ``timeout_s``.
    """
    client = EngineClient(launch.router_url, api_key=launch.here.environ.get("KVEIK_API_KEY", ""))
    until_s = time.monotonic() + timeout_s
    while True:
        try:
            client.complete(CompletionRequest((1, 2, 3), max_tokens=1), launch.model)
        except EngineStatusError as error:
            if error.status in (401, 403):
                return "the router asks for an API key, so no request was tried (set KVEIK_API_KEY to have one)"
            trouble: EngineError = error
        except EngineError as error:
            trouble = error
        else:
            return ""
        if time.monotonic() > until_s or not alive():
            raise SuperviseError(f"engines are ready, but the router gives no answer: {trouble}")
        time.sleep(_POLL_S)


def join_pool(launch: Launch, pool: Callable[[], Pool], alive: Callable[[], bool], timeout_s: float = ROUTE_S) -> str:
    """Wait until the router sends requests to all of this node's engines; what is to be said otherwise.

    ``pool`` shows what the router sees, ``alive`` says whether to go on waiting. An engine on hold is not waited for:
    somebody wants it so.
    """
    wanted = [engine.name for engine in launch.spec.engines_of(launch.node) if not is_headless(engine)]
    until_s = time.monotonic() + timeout_s
    while True:
        try:
            seen = pool()
        except FleetError as error:
            return f"whether all engines get requests is not known: {error}"
        out = [name for name in wanted if name not in seen or not (seen[name].takes or seen[name].out)]
        if not out:
            held = [f"{name} ({seen[name].state}: {seen[name].why})" for name in wanted if seen[name].out]
            return f"these get no requests: {', '.join(held)}" if held else ""
        if time.monotonic() > until_s or not alive():
            return f"the router does not send to these yet: {', '.join(out)}; kveik status says why"
        time.sleep(_POLL_S)


@dataclass(frozen=True, slots=True)
class _Present:
    """What of this node is there: parts that stay as they are, all processes, and those that will be replaced."""

    kept: frozenset[str]
    processes: frozenset[int]
    replaced: frozenset[int]


def _present(launch: Launch, status: StatusAnswer | None) -> _Present:
    digests = {part.name: part.digest for part in launch.parts}
    if status is not None:
        there = [(view.name, view.digest, view.pids) for view in status.processes if view.pid]
    else:
        there = [
            (record.name, record.digest, tuple(living_members_of(record.process.pid)))
            for record in read_estate(launch.folder.supervisor)
            if record.process.alive and not record.tethered
        ]
    kept = frozenset(name for name, digest, _ in there if digest == digests.get(name))
    processes = frozenset(pid for _, _, pids in there for pid in pids)
    return _Present(kept, processes, frozenset(pid for name, _, pids in there if name not in kept for pid in pids))


def _own_bytes(pid: int) -> int:
    """Memory that comes free when a process ends: without what it shares, such as the arena."""
    try:
        memory = psutil.Process(pid).memory_info()
    except psutil.Error:
        return 0
    return max(0, int(memory.rss) - int(memory.shared))


def with_log_ends(views: Sequence[ProcessView], tail: Callable[[Path], str]) -> list[str]:
    """For each part that failed: why, and how its log ends."""
    told = []
    for view in views:
        told.append(f"{view.name} {view.state}: {view.why}")
        told += [f"  | {line}" for line in tail(Path(view.log)).splitlines()]
        told.append(f"  its whole log: {view.log}")
    return told
