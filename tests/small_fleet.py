"""A small fleet for tests: simulated engines under a real supervisor, a router, and the file that describes them."""

import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kveik.engine.process import free_port
from kveik.fleet.announcement import EngineAnnouncement
from kveik.fleet.client import FleetClient
from kveik.supervise.backoff import Pauses
from kveik.supervise.client import ControlClient
from kveik.supervise.keeper import Surroundings
from kveik.supervise.node_folder import NodeFolder
from kveik.supervise.part import Part, Readiness, Variant
from kveik.supervise.supervisor import NodeIdentity, Supervisor
from tests.agents import wait_until
from tests.routers import RouterThread


class SmallFleet:
    """``names`` are simulated engines with these ``settings``. A context manager; all serve when it begins.

    ``facts`` is a part of what describes an engine: another one makes it another version. ``broken`` engines do not
    start any more. Announcements last as long as tests, as those of a watchdog do.
    """

    def __init__(self, folder: Path, names: Sequence[str] = ("engine-1", "engine-2"), **settings: object) -> None:
        self.folder, self.names = folder, tuple(names)
        self.ports = {name: free_port() for name in names}
        self.config = folder / "kveik.toml"
        self.node = NodeFolder(folder / "state" / "local")
        self.control = ControlClient(str(self.node.control_socket))
        self.facts = "v1"
        self.broken: set[str] = set()
        self._settings = {"decode_s": 0.002, **settings}
        self._router_folder = folder / "router"
        self._router_folder.mkdir()
        self.router = RouterThread(self._router_folder, [], slow_start_s=0.0)
        identity = NodeIdentity("kveik", "local", self.config, self.node)
        self._supervisor = Supervisor(identity, self._describe, Surroundings(Pauses(0.01, 0.02)))
        self._thread = threading.Thread(target=self._supervisor.run)

    def __enter__(self) -> Self:
        self.router.__enter__()
        self.fleet = FleetClient(self.router.url)
        self.config.write_text(self.text())
        self._supervisor.open()
        self._thread.start()
        wait_until(lambda: set(self.states().values()) == {"ready"}, "the engines run", 60)
        for name in self.names:
            self.fleet.announce(EngineAnnouncement(url=self.url(name), engine_id=name, lease_s=3600))
        self.wait_serving(*self.names)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._supervisor.down(0)
        self._thread.join(60)
        self.router.__exit__(kind, error, trace)

    def text(self) -> str:
        """The configuration, which may be written anew with more at its end."""
        launched = "".join(f'[[launch]]\nname = "{name}"\nport = {port}\n' for name, port in self.ports.items())
        return (
            f'[fleet]\nstate_folder = "{self.folder / "state"}"\nready_min = 1\ndrain_s = 20\n'
            f"[router]\nport = {self.router.url.rpartition(':')[2]}\n{launched}"
        )

    def url(self, name: str) -> str:
        """Where an engine listens."""
        return f"http://127.0.0.1:{self.ports[name]}"

    def states(self) -> dict[str, str]:
        """What the supervisor says."""
        return {view.name: view.state for view in self.control.status().processes}

    def pids(self) -> dict[str, int]:
        """The engines' processes."""
        return {view.name: view.pid for view in self.control.status().processes}

    def held(self) -> dict[str, str]:
        """Who is held, and why."""
        return {view.name: view.held for view in self.control.status().processes if view.held}

    def at_router(self) -> dict[str, str]:
        """The fleet's states of the engines."""
        return {engine["id"]: engine["fleet_state"] for engine in self.fleet.traffic()["engines"]}

    def wait_serving(self, *names: str) -> None:
        """Wait until these engines get requests."""
        wait_until(lambda: all(self.at_router().get(name) == "ready" for name in names), f"{names} serve", 60)

    def _describe(self, config: Path, overrides: Mapping[str, Mapping[str, Any]]) -> list[Part]:
        return [self._part(name) for name in self.names]

    def _part(self, name: str) -> Part:
        flags = {"port": self.ports[name], **self._settings}
        command = [sys.executable, "-m", "kveik.cli.main", "sim-engine"]
        command += [f"--{flag.replace('_', '-')}={value}" for flag, value in flags.items()]
        if name in self.broken:
            command = [sys.executable, "-c", "raise SystemExit('no memory for weights')"]
        return Part(
            name=name,
            kind="engine",
            variants=(Variant(tuple(command)),),
            log=self.folder / f"{name}.log",
            readiness=Readiness("inference", self.url(name), "simulated"),
            facts=self.facts,
            url=self.url(name),
        )
