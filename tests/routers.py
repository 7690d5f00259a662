"""A whole router for tests: in a thread with a loop of its own, over engines that are listed by address."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import uvloop

from kveik.config import RouterSettings
from kveik.engine.process import free_port
from kveik.router.app import RouterApp, running_router
from tests.agents import wait_until


class RouterThread:
    """A router that serves as long as the block lasts."""

    def __init__(self, folder: Path, engines: Sequence[str], **given: Any) -> None:
        self._config = folder / "kveik.toml"
        self._config.write_text("".join(f'[[engines]]\nurl = "{url}"\n' for url in engines))
        self._engines = len(engines)
        self._settings = RouterSettings(
            **{"port": 0, "registry_file": str(folder / "fleet.json"), "drain_s": 1.0, **given}
        )
        self._ended = threading.Event()
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="router", daemon=True)
        self.app: RouterApp
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(20)
        if self._error is not None:
            raise self._error
        wait_until(lambda: len(self.fleet()["engines"]) == self._engines, "the engines are known")
        wait_until(lambda: all(e["state"] == "ready" for e in self.fleet()["engines"]), "the engines are ready")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 (raised again where the test waits)
            self._error = error
            self._started.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with running_router(self._settings, config=self._config) as app:
            self.app, self.url = app, app.address
            self._started.set()
            await self._stop.wait()

    def fleet(self) -> dict[str, Any]:
        """What /fleet shows."""
        with urllib.request.urlopen(f"{self.url}/fleet", timeout=5) as answer:
            document: dict[str, Any] = json.load(answer)
        return document

    def engine(self, url: str) -> dict[str, Any]:
        """One engine as /fleet shows it."""
        (found,) = (engine for engine in self.fleet()["engines"] if engine["url"] == url)
        return dict(found)


class CommandProcess:
    """A command of ``kveik`` that serves, as its own process on a port that it keeps; to be stopped and killed."""

    def __init__(self, folder: Path, command: str, given: Mapping[str, Any]) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"{command}-{self.port}.log"
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in {"port": self.port, **given}.items()]
        self._command = [sys.executable, "-m", "kveik.cli.main", command, *flags]
        self.start()

    def start(self) -> None:
        """Start it (again) and wait until it answers."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)
        wait_until(self._answers, f"{self._command[3]} answers", 20)

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait(timeout=10)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.kill()


class SimProcess(CommandProcess):
    """``kveik sim-engine``."""

    def __init__(self, folder: Path, **given: Any) -> None:
        super().__init__(folder, "sim-engine", given)


class RouterProcess(CommandProcess):
    """``kveik router``. It keeps its registry file, too."""

    def __init__(self, folder: Path, **given: Any) -> None:
        super().__init__(folder, "router", {"registry_file": folder / "fleet.json", **given})

    def get(self, path: str) -> dict[str, Any]:
        """A page as JSON."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=5) as answer:
            document: dict[str, Any] = json.load(answer)
        return document

    def post(self, path: str, document: dict[str, Any]) -> None:
        """Send JSON."""
        body = json.dumps(document).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}{path}", body), timeout=5):
            pass

    def join(self, *engines: SimProcess) -> None:
        """Have these engines in the fleet, and wait until they are ready."""
        for engine in engines:
            self.post("/fleet/engines", {"url": engine.url, "models": ["simulated"], "lease_s": 300})
        wait_until(lambda: self.states().count("ready") == len(engines), "the engines are ready")

    def states(self) -> list[str]:
        """The state of each engine."""
        return [engine["state"] for engine in self.get("/fleet")["engines"]]


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which that share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def timed(call: Any) -> tuple[float, Any]:
    """Seconds and result of a call."""
    start_s = time.perf_counter()
    result = call()
    return time.perf_counter() - start_s, result
