"""Whole fleets of simulated engines for tests: a configuration on free ports, and ``kveik`` commands over it."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kveik.engine.group import living_members_of
from kveik.engine.process import free_port
from kveik.errors import SuperviseError
from kveik.launch.up import Launch
from kveik.supervise.messages import ProcessView, StatusAnswer
from tests.agents import wait_until

MIB = 1 << 20


class SimFleet:
    """A fleet in ``folder``: its file can be changed, commands run on it, and all of it ends with the block."""

    def __init__(self, folder: Path, *, engines: int = 2, tables: str = "", engine: str = "simulated = true") -> None:
        self.folder = folder
        self.config = folder / "kveik.toml"
        self.router_port = free_port()
        self.engine_ports = [free_port() for _ in range(4)]
        self.write(engines=engines, tables=tables, engine=engine)

    def write(self, *, engines: int = 2, tables: str = "", engine: str = "simulated = true") -> None:
        """Write the configuration (anew)."""
        launch = "".join(
            f'[[launch]]\nname = "engine-{number}"\nport = {port}\n'
            for number, port in enumerate(self.engine_ports[:engines], 1)
        )
        self.config.write_text(
            f'[fleet]\nname = "{self.folder.name}"\nstate_folder = "{self.folder}/s"\ndrain_s = 2\n'
            f'restart_pause_s = 0.1\nhung_s = 10\n[engine]\nserved_name = "simulated"\n{engine}\n'
            f'[agent]\narena = "{self.folder}/arena"\narena_bytes = {16 * MIB}\n'
            f"[router]\nport = {self.router_port}\ndrain_s = 1\n"
            f"[watchdog]\nprobe_period_s = 0.5\ngood_probes = 1\nrestart_pause_s = 0.1\n{tables}\n{launch}"
        )

    @property
    def url(self) -> str:
        """The router's address."""
        return f"http://127.0.0.1:{self.router_port}"

    @property
    def launch(self) -> Launch:
        """The fleet as the file describes it."""
        return Launch.read(self.config, "", os.environ)

    def command(self, *words: str) -> list[str]:
        """A command line over this fleet."""
        return [sys.executable, "-m", "kveik.cli.main", words[0], "--config", str(self.config), *words[1:]]

    def run(self, *words: str, timeout_s: float = 100.0) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end."""
        return subprocess.run(self.command(*words), capture_output=True, text=True, timeout=timeout_s, check=False)

    def up(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """``kveik up -d``, which must succeed."""
        done = self.run("up", "-d", *words)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{self.logs()}"
        return done

    def status(self) -> StatusAnswer:
        """What the supervisor says."""
        return self.launch.control.status()

    def views(self) -> Mapping[str, ProcessView]:
        """All parts."""
        return {view.name: view for view in self.status().processes}

    def pids(self) -> dict[str, int]:
        """The leader of each part."""
        return {name: view.pid for name, view in self.views().items()}

    def wait_ready(self, *names: str) -> None:
        """Wait until these parts, or all, are ready."""

        def ready() -> bool:
            return all(view.state == "ready" for name, view in self.views().items() if not names or name in names)

        wait_until(ready, f"{names or 'all'} ready: {self.logs()[-3000:]}", 90)

    def ask(self, **fields: Any) -> dict[str, Any]:
        """One completion through the router."""
        body = json.dumps({"model": "simulated", "prompt": "Once upon a time", "max_tokens": 4, **fields}).encode()
        request = urllib.request.Request(f"{self.url}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            document: dict[str, Any] = json.load(answer)
        return document

    def logs(self) -> str:
        """The ends of all logs."""
        logs = sorted((self.folder / "s").glob("*/logs/*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in logs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            supervisor = self.status()
        except SuperviseError:
            self.run("down", "--now")
            return
        left = [view.pid for view in supervisor.processes if view.pid]
        self.run("down", "--now")
        for group in left:
            if living_members_of(group):
                os.killpg(group, signal.SIGKILL)
