"""A server process that we start, watch and certainly end, with all of its children.

Each server runs under :mod:`kveik.engine.tether` in a session and process group of its own, so a
Ctrl-C on our terminal does not hit it first, one signal reaches the whole group, and nothing
stays behind when we are killed.
"""

import contextlib
import itertools
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from kveik.errors import EngineStartError

#: Called while waiting, with the seconds waited so far.
Progress = Callable[[float], None]

_PYTHON_SEGMENT = re.compile(r"/dev/shm/(?:psm_[0-9a-f]+|sem\.mp-[0-9a-z_]+)")  # noqa: S108 - names, nothing is created
_KERNELS_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
#: Below it are the ports of many well-known services.
_LOWEST_PORT = 12000
_PORTS_TRIED = 1000
_FIRST_PORT = random.randrange(1 << 20)
_port_numbers = itertools.count()


def silent(waited_s: float) -> None:
    """The progress callback that says nothing."""


def free_port() -> int:
    """A TCP port on loopback that nobody listens on now.

    It lies below those that the kernel gives to connections and to servers that ask for any port, so that none
    of them takes it until the server listens, seconds later. Each call gives another one, and each process
    begins elsewhere.
    """
    ports = _ports_to_choose()
    for number in range(_PORTS_TRIED):
        wanted = ports[(_FIRST_PORT + next(_port_numbers)) % len(ports)] if ports and number < _PORTS_TRIED - 1 else 0
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", wanted))
            except OSError:
                continue
            port: int = probe.getsockname()[1]
            return port
    raise EngineStartError("no TCP port of this machine is free")


def _ports_to_choose() -> range:
    """Ports that the kernel does not give away by itself; none where it gives away nearly all."""
    try:
        lowest = int(_KERNELS_PORTS.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):  # another kernel than Linux
        lowest = 0
    return range(_LOWEST_PORT, lowest) if lowest - _LOWEST_PORT >= _PORTS_TRIED else range(0)


class ServerProcess:
    """One server: a command, its environment, its log file. A context manager that ends it."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
    ) -> None:
        self.name = name
        self.log = log
        self._command = list(command)
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1

    def __repr__(self) -> str:
        return f"ServerProcess({self.name}, {'running' if self.running else 'not running'})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """Whether the server's first process lives."""
        return self._process is not None and not _has_ended(self._process.pid)

    def start(self) -> None:
        """Start the server; output is appended to the log. Raises EngineStartError when it can't run."""
        if self.running:
            raise EngineStartError(f"{self.name} is running already")
        self.stop()
        reading_end, self._lifeline = os.pipe()
        command = [
            sys.executable,
            "-m",
            "kveik.engine.tether",
            str(reading_end),
            *self._command,
        ]
        try:
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    command,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(reading_end,),
                    start_new_session=True,
                )
        except OSError as error:
            self._close_lifeline()
            raise EngineStartError(f"cannot start {self.name}: {error}") from error
        finally:
            os.close(reading_end)

    def wait_ready(self, probe: Callable[[], bool], timeout_s: float, progress: Progress = silent) -> float:
        """Call ``probe`` until it is true; the seconds that took.

        Raises :class:`EngineStartError`, with the last lines of the log, as soon as the process
        has ended, or after ``timeout_s``.
        """
        started_s = time.monotonic()
        while True:
            if not self.running:
                raise EngineStartError(f"{self.name} ended while starting; its log ends with\n{self.log_tail()}")
            if probe():
                return time.monotonic() - started_s
            waited_s = time.monotonic() - started_s
            if waited_s > timeout_s:
                raise EngineStartError(
                    f"{self.name} was not ready within {timeout_s:g} s; its log ends with\n{self.log_tail()}"
                )
            progress(waited_s)
            time.sleep(0.25)

    @property
    def processes(self) -> list[psutil.Process]:
        """The server's process and its children, without what we start it under; none when it does not run."""
        if self._process is None:
            return []
        try:
            children: list[psutil.Process] = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return children

    def processor_s(self) -> float:
        """Seconds of processor time that the server and its children have used; 0 when it does not run."""
        total = 0.0
        with contextlib.suppress(psutil.Error):  # a child ended meanwhile
            for process in self.processes:
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def stop(self, grace_s: float = 15.0) -> None:
        """End the group: SIGTERM, and SIGKILL for what is left after ``grace_s``. Safe to repeat."""
        process = self._process
        if process is not None:
            _signal_group(process.pid, signal.SIGTERM)
            until_s = time.monotonic() + grace_s
            while not _has_ended(process.pid) and time.monotonic() < until_s:
                time.sleep(0.02)
        self.kill()

    def kill(self) -> None:
        """kill -9 of the whole group, at once and without warning."""
        process, self._process = self._process, None
        if process is not None:
            # Not reaped yet, so nobody else can have this group id.
            orphans = _shared_memory_of(process.pid)
            _signal_group(process.pid, signal.SIGKILL)
            _wait_group_gone(process.pid, patience_s=5.0)
            process.wait()
            for orphan in orphans:
                orphan.unlink(missing_ok=True)
        self._close_lifeline()

    def log_tail(self, lines: int = 25) -> str:
        """The last lines of the log."""
        try:
            text = self.log.read_bytes()[-20_000:].decode("utf8", "replace")
        except OSError as error:
            return f"({error})"
        return "\n".join(text.splitlines()[-lines:])

    def _close_lifeline(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


def _has_ended(pid: int) -> bool:
    """Whether our child has ended, without reaping it: its group id must stay taken."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _wait_group_gone(group: int, patience_s: float) -> None:
    """Wait until no process of the group runs any more, so that ports and memory are free."""
    until_s = time.monotonic() + patience_s
    while _living_members(group) and time.monotonic() < until_s:
        time.sleep(0.02)


def _shared_memory_of(group: int) -> set[Path]:
    """Python's own shared-memory segments and semaphores that the group maps.

    vLLM's processes talk through some hundred MiB of them, and the process that would remove them
    is killed with the rest.
    """
    found: set[Path] = set()
    for pid in _living_members(group):
        with contextlib.suppress(OSError):
            maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf8", errors="replace")
            found.update(Path(path) for path in _PYTHON_SEGMENT.findall(maps))
    return found


def _living_members(group: int) -> list[int]:
    members = []
    for process in psutil.process_iter(["status"]):
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                members.append(process.pid)
    return members
