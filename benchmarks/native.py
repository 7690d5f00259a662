"""Engines that cost nothing and clients that cost little, written in C so that a router is all there is to measure."""

import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from benchmarks.result import BenchmarkError
from kveik.engine.process import ServerProcess, free_port

SOURCES = Path(__file__).with_name("native")
ENGINES_START_S = 5.0
LOOK_S = 0.01
CONTROL_S = 5.0
#: What ``load`` needs beyond the time for which it begins requests.
LOAD_ENDS_S = 60.0


@dataclass(frozen=True)
class Programs:
    """Both programs, compiled. See the text at the top of their sources."""

    engine: Path
    load: Path

    @classmethod
    def compile(cls, folder: Path) -> "Programs":
        """Compile them into ``folder``. Raises :class:`BenchmarkError` without a C compiler."""
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise BenchmarkError("no C compiler (cc): the engines and clients of this benchmark are written in C")
        for name in ("engine", "load"):
            command = [compiler, "-O2", "-o", str(folder / name), str(SOURCES / f"{name}.c")]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise BenchmarkError(f"cannot compile {name}.c: {done.stderr}")
        return cls(folder / "engine", folder / "load")


class LoadReport(msgspec.Struct, frozen=True):
    """What ``load`` measured. Of requests: how many were answered, and how others failed. -1: not measured."""

    answered: int
    refused: int
    status: int
    cut: int
    late: int
    seconds: float
    chunks: int
    first_byte_p50_ms: float
    first_byte_p99_ms: float
    pause_p50_ms: float
    pause_p99_ms: float
    slowest_s: float

    @property
    def failed(self) -> int:
        """Requests without a whole, good answer."""
        return self.refused + self.status + self.cut + self.late


def run_load(programs: Programs, port: int, core: int | None = None, **options: int) -> LoadReport:
    """Load what listens on ``port`` and wait for the end of it."""
    with begin_load(programs, port, core, **options) as running:
        seconds = options.get("seconds", 2) + options.get("timeout_ms", 5000) / 1000 + LOAD_ENDS_S
        return report_of(running, seconds)


def begin_load(programs: Programs, port: int, core: int | None = None, **options: int) -> "subprocess.Popen[bytes]":
    """Begin to load what listens on ``port``; :func:`report_of` waits for the end."""
    arguments = [f"{name}={value}" for name, value in {"port": port, **options}.items()]
    return subprocess.Popen([*on_core(core), str(programs.load), *arguments], stdout=subprocess.PIPE)


def report_of(running: "subprocess.Popen[bytes]", within_s: float) -> LoadReport:
    """Wait for the end of a load; its report. Raises :class:`BenchmarkError`."""
    try:
        output, _ = running.communicate(timeout=within_s)
    except subprocess.TimeoutExpired as error:
        running.kill()
        raise BenchmarkError(f"the load did not end within {within_s:g} s") from error
    if running.returncode:
        raise BenchmarkError(f"the load ended with code {running.returncode}")
    return msgspec.json.decode(output, type=LoadReport)


class Counts(msgspec.Struct, frozen=True):
    """What one engine counted since the last reset. ``extra``: requests of the router's own that compute."""

    chats: int
    extra: int
    groups: int
    most: int
    last_chat_s: float
    now_s: float


class CostlessEngine:
    """One process that is one or several engines. A context manager."""

    def __init__(self, programs: Programs, folder: Path, count: int = 1, core: int | None = None) -> None:
        self.ports = [free_port() for _ in range(count)]
        command = [*on_core(core), str(programs.engine), *map(str, self.ports)]
        self._server = ServerProcess("engines", command, os.environ, folder / f"engines-{self.ports[0]}.log")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    @property
    def urls(self) -> list[str]:
        """Their addresses."""
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    def start(self) -> None:
        """Start, or start again on the same ports."""
        self._server.start()
        wait_ready(self._server, self._answers, ENGINES_START_S)

    def kill(self) -> None:
        """End it at once, in the middle of whatever it does."""
        self._server.kill()

    def set(self, **settings: int) -> None:
        """Change how all of them behave."""
        for url in self.urls:
            query = "&".join(f"{name}={value}" for name, value in settings.items())
            urllib.request.urlopen(f"{url}/set?{query}", data=b"", timeout=CONTROL_S).read()

    def counts(self) -> list[Counts]:
        """What each of them counted."""
        return [
            msgspec.json.decode(urllib.request.urlopen(f"{url}/count", timeout=CONTROL_S).read(), type=Counts)
            for url in self.urls
        ]

    def _answers(self) -> bool:
        try:
            return bool(self.counts())
        except OSError:
            return False


def wait_ready(server: ServerProcess, probe: Callable[[], bool], timeout_s: float) -> float:
    """Like the server's own ``wait_ready``, but looks so often that the time itself can be a result."""
    began_s = time.monotonic()
    while not probe():
        if not server.running or time.monotonic() - began_s > timeout_s:
            return server.wait_ready(probe, 0.0)  # raises with the end of the log
        time.sleep(LOOK_S)
    return time.monotonic() - began_s


def on_core(core: int | None) -> Sequence[str]:
    """The start of a command that shall run on one core only."""
    return () if core is None else ("taskset", "-c", str(core))


def chat_body(text: str = "hello") -> bytes:
    """A small chat request."""
    return json.dumps({"model": "mock", "messages": [{"role": "user", "content": text}]}).encode()
