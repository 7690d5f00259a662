"""Simulated engines under a real supervisor, a real router and the watchdog, for tests of healing."""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from kveik.config_fleet import WatchdogSettings
from kveik.engine.process import free_port
from kveik.errors import FleetError
from kveik.fleet.announcement import EngineAnnouncement
from kveik.fleet.client import FleetClient
from kveik.supervise.backoff import Pauses
from kveik.supervise.client import ControlClient
from kveik.supervise.keeper import Surroundings
from kveik.supervise.messages import ProcessView
from kveik.supervise.node_folder import NodeFolder
from kveik.supervise.part import Part, Readiness, Variant
from kveik.supervise.supervisor import NodeIdentity, Supervisor
from kveik.telemetry.events import EventLog, read_events
from kveik.watchdog.evidence import EvidenceFolder
from kveik.watchdog.node import NodePlace, NodeWatchdog
from kveik.watchdog.patients import Care, Census, Listed, patients
from kveik.watchdog.state_file import StateFile
from kveik.watchdog.ward import Patient
from tests.agents import wait_until

#: Quick, so that a test takes seconds; in everything else as by default.
QUICK: Mapping[str, Any] = {
    "probe_period_s": 0.4,
    "probe_deadline_s": 1.0,
    "restart_grace_s": 0.6,
    "good_probes": 2,
    "restart_pause_s": 0.1,
    "report_period_s": 0.3,
    "hung_unseen_s": 1.5,
}
#: The machine may be slow; nothing waits this long on a quiet one.
PATIENCE_S = 60.0


class SupervisedNode:
    """A supervisor on a thread that keeps simulated engines as its own processes, on ports that they keep."""

    def __init__(self, folder: Path, engines: int, **given: Any) -> None:
        self.folder = NodeFolder(folder / "state" / "local")
        self.refuse = folder / "refuse-to-start"
        self.ports = {f"engine-{number}": free_port() for number in range(1, engines + 1)}
        self.urls = {name: f"http://127.0.0.1:{port}" for name, port in self.ports.items()}
        self.control = ControlClient(str(self.folder.control_socket))
        self._given = given
        identity = NodeIdentity("kveik", "local", folder / "kveik.toml", self.folder)
        around = Surroundings(Pauses(0.05, 0.2), tethered=False)
        self._supervisor = Supervisor(identity, lambda *_: [self._part(name) for name in self.ports], around)
        self._thread = threading.Thread(target=self._supervisor.run, name="supervisor")

    def _part(self, name: str) -> Part:
        flags = {"port": self.ports[name], **self._given}
        engine = [sys.executable, "-m", "kveik.cli.main", "sim-engine"]
        engine += [f"--{flag.replace('_', '-')}={value}" for flag, value in flags.items()]
        guard = 'if test -e "$0"; then echo refused; exit 1; fi; exec "$@"'
        return Part(
            name=name,
            kind="engine",
            variants=(Variant(("/bin/sh", "-c", guard, str(self.refuse), *engine)),),
            log=self.folder.log(name),
            readiness=Readiness("inference", self.urls[name], "simulated"),
            url=self.urls[name],
            start_s=30.0,
        )

    def __enter__(self) -> Self:
        self._supervisor.open()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._supervisor.down(0)
        self._thread.join(30)
        assert not self._thread.is_alive()

    def as_new(self, router: FleetClient) -> Self:
        """All engines run and are well, and neither router nor watchdog remembers anything of them."""
        self.refuse.unlink(missing_ok=True)
        for name in self.ports:
            self.signal(signal.SIGCONT, name)
            self.control.release(name)
            self.control.start(name)
        wait(lambda: all(self.view(name).state == "ready" for name in self.ports), "all engines run")
        for name in self.ports:
            self.fault(name, reset=True)
            for forget in (lambda name=name: router.hold(name, "readmit", ""), lambda name=name: router.withdraw(name)):
                with contextlib.suppress(FleetError):  # it is not there
                    forget()
        for file in self.folder.root.glob("events.jsonl*"):
            file.unlink()
        self.folder.watchdog.unlink(missing_ok=True)
        shutil.rmtree(self.folder.evidence, ignore_errors=True)
        return self

    def view(self, name: str = "engine-1") -> ProcessView:
        """One engine's process as the supervisor sees it."""
        return self.control.view(name)

    def engine_processes(self, name: str = "engine-1") -> list[psutil.Process]:
        """Processes of an engine that are Python."""
        found = [psutil.Process(pid) for pid in self.view(name).pids]
        return [process for process in found if "sim-engine" in process.cmdline()]

    def signal(self, number: signal.Signals, name: str = "engine-1") -> None:
        """Send a signal to an engine, not to what it was started under."""
        for process in self.engine_processes(name):
            process.send_signal(number)

    def fault(self, name: str = "engine-1", **switches: Any) -> None:
        """Switch faults of an engine."""
        set_fault(self.urls[name], **switches)

    @property
    def words(self) -> tuple[EngineAnnouncement, ...]:
        """What is known of the engines before they are asked."""
        return tuple(EngineAnnouncement(url=url, engine_id=name) for name, url in self.urls.items())


def set_fault(url: str, **switches: Any) -> None:
    """Switch faults of a simulated engine."""
    with urllib.request.urlopen(urllib.request.Request(f"{url}/sim", json.dumps(switches).encode()), timeout=20):
        pass


class Watched:
    """A watchdog in this process, and what can be seen of it."""

    def __init__(
        self,
        folder: Path,
        router_url: str,
        *,
        node: SupervisedNode | None = None,
        listed: Sequence[Listed] = (),
        given: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        self.folder = node.folder if node is not None else NodeFolder(folder / "state" / "local")
        self.settings = WatchdogSettings(**{**QUICK, **settings})
        self.router = FleetClient(router_url)
        self._node = node
        self._census = Census(own=node.words if node else (), listed=tuple(listed), given=tuple(given))
        self._stop = threading.Event()
        self.watchdog: NodeWatchdog
        self._thread: threading.Thread
        self._state: StateFile

    def __enter__(self) -> Self:
        control = ControlClient(str(self.folder.control_socket))
        care = Care(control, lease_s=60.0, start_s=30.0, command_s=20.0)

        def found(processes: Mapping[str, ProcessView]) -> Sequence[Patient]:
            return patients(self._census, processes, care)

        self._state = StateFile(self.folder.watchdog)
        self.events_log = EventLog(self.folder.events, bytes_max=1 << 20, node="local")
        self.watchdog = NodeWatchdog(
            NodePlace("kveik", "local", control.path if self._node is not None else ""),
            self.settings,
            found,
            routers=[self.router],
            state=self._state,
            evidence=EvidenceFolder(self.folder.evidence, bundles_max=5, py_spy=""),
            events=self.events_log,
        )
        self._thread = threading.Thread(target=self.watchdog.run, args=(self._stop,), name="watchdog")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(30)
        self._state.close()
        if error is not None:
            print("\n".join(self.told()))

    def told(self) -> list[str]:
        """All events, as people read them."""
        return [f"{event.kind}: {event.line}" for event in read_events(self.folder.events)]

    def kinds(self, part: str = "engine-1") -> list[str]:
        """The kinds of events about one engine, in order."""
        return [event.kind for event in read_events(self.folder.events) if event.part == part]

    def wait_kind(self, kind: str, part: str = "engine-1", times: int = 1) -> None:
        """Wait for an event."""
        wait(lambda: self.kinds(part).count(kind) >= times, f"{times} x {kind} for {part}: {self.told()}")

    def state(self, name: str = "engine-1") -> str:
        """An engine's state at the router."""
        engines = self.router.engines()["data"]
        return next((str(engine["state"]) for engine in engines if engine["engine_id"] == name), "unknown")

    def wait_state(self, state: str, name: str = "engine-1") -> None:
        """Wait until the router shows that state."""
        wait(
            lambda: self.state(name) == state,
            lambda: f"{name} is {state} at the router: {self.router.engines()['data']}\n{self.told()}",
        )


class WatchdogProcess:
    """``kveik watchdog`` as its own process, to be killed and started again."""

    def __init__(self, folder: Path, node: SupervisedNode, router_url: str, **settings: Any) -> None:
        self.log = folder / "watchdog.log"
        config = folder / "kveik.toml"
        launches = "".join(f'[[launch]]\nname = "{name}"\nport = {port}\n' for name, port in node.ports.items())
        quick = "".join(f"{name} = {json.dumps(value)}\n" for name, value in {**QUICK, **settings}.items())
        config.write_text(
            f'[fleet]\nstate_folder = "{node.folder.root.parent}"\n\n'
            f'[watchdog]\nrouters = "{router_url}"\n{quick}\n{launches}'
        )
        self._command = [sys.executable, "-m", "kveik.cli.main", "watchdog", f"--config={config}"]
        self.start()

    def start(self) -> None:
        """Start it (again)."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait(10)

    def end(self) -> int:
        """SIGTERM; its exit code."""
        self.process.terminate()
        return self.process.wait(30)


def wait(condition: Callable[[], bool], what: str | Callable[[], str]) -> None:
    """Wait for a condition, looking twenty times a second: the machine has other things to do."""

    def slowly() -> bool:
        time.sleep(0.05)
        return condition()

    wait_until(slowly, what, PATIENCE_S)
