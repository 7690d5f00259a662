"""A server process that we start, watch and certainly end, with all of its children.

Each server runs in a process group of its own, so a Ctrl-C on our terminal does not hit it first and one
signal reaches the whole group; and under :mod:`kveik.engine.tether`, unless that is not wanted, so nothing
stays behind when we are killed. It stays in our session: where Linux gives each session one share of the
processor (``sched_autogroup_enabled``), an engine that starts beside others on the same cores was seen to
get none for minutes, and what engines yield while they wait in a loop only their own session gets.
"""

import contextlib
import itertools
import os
import random
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

from kveik.engine.group import kill_group, shared_memory_of, signal_group, wait_group_gone
from kveik.errors import EngineStartError

#: Called while waiting, with the seconds waited so far.
Progress = Callable[[float], None]

_KERNELS_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
#: Below it are the ports of many well-known services.
_LOWEST_PORT = 12000
_PORTS_TRIED = 1000
_FIRST_PORT = random.randrange(1 << 20)
_port_numbers = itertools.count()


def ports_listened_at() -> list[tuple[int, int]]:
    """The TCP ports of this machine on which somebody listens, each with a process that does; 0: it cannot be seen.

    Several processes may share a port. Raises ``psutil.Error`` or ``OSError`` where none can be seen.
    """
    return [
        (one.laddr.port, one.pid or 0)
        for one in psutil.net_connections("tcp")
        if one.laddr and one.status == psutil.CONN_LISTEN
    ]


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
    """One server: a command, its environment, its log file. A context manager that ends it.

    ``tethered``: whether it ends with us in any case; else it goes on when we are killed.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        *,
        tethered: bool = True,
    ) -> None:
        self.name = name
        self._tethered = tethered
        self.log = log
        self._command = list(command)
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1
        self._exit_code: int | None = None

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
        return self._process is not None and _end_of(self._process.pid) is None

    @property
    def group(self) -> int:
        """Its process group, which is also the id of the process that leads it; 0 when it does not run."""
        return self._process.pid if self._process is not None else 0

    @property
    def exit_code(self) -> int | None:
        """How the last run ended, negative for a signal; None while it runs."""
        if self._process is None or self._exit_code is not None:
            return self._exit_code
        ended = _end_of(self._process.pid)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def start(self) -> None:
        """Start the server; output is appended to the log. Raises EngineStartError when it can't run."""
        if self.running:
            raise EngineStartError(f"{self.name} is running already")
        self.stop()
        self._exit_code = None
        command, ends = self._command, []
        if self._tethered:
            reading_end, self._lifeline = os.pipe()
            command, ends = [sys.executable, "-m", "kveik.engine.tether", str(reading_end), *command], [reading_end]
        try:
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    command,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=ends,
                    process_group=0,  # not a session of its own: see above
                )
        except OSError as error:
            self._close_lifeline()
            raise EngineStartError(f"cannot start {self.name}: {error}") from error
        finally:
            for end in ends:
                os.close(end)

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
            leader = psutil.Process(self._process.pid)
            children: list[psutil.Process] = leader.children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return children if self._tethered else [leader, *children]

    def processor_s(self) -> float:
        """Seconds of processor time that the server and its children have used; 0 when it does not run."""
        total = 0.0
        with contextlib.suppress(psutil.Error):  # a child ended meanwhile
            for process in self.processes:
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def terminate(self) -> None:
        """Ask the server's first process to end (SIGTERM), and wait for nothing: it ends its children itself."""
        first = self.processes[:1]
        if first:
            with contextlib.suppress(psutil.NoSuchProcess):
                first[0].terminate()
        elif self._process is not None:
            signal_group(self._process.pid, signal.SIGTERM)  # the tether has not started it yet

    def stop(self, grace_s: float = 15.0) -> None:
        """End the group: SIGTERM, and SIGKILL for what is left after ``grace_s``. Safe to repeat."""
        process = self._process
        if process is not None:
            signal_group(process.pid, signal.SIGTERM)
            until_s = time.monotonic() + grace_s
            while _end_of(process.pid) is None and time.monotonic() < until_s:
                time.sleep(0.02)
        self.kill()

    def kill(self) -> None:
        """kill -9 of the whole group, at once and without warning."""
        process, self._process = self._process, None
        if process is not None:
            # Not reaped yet, so nobody else can have this group id.
            orphans = shared_memory_of(process.pid)
            kill_group(process.pid)
            wait_group_gone(process.pid, patience_s=5.0)
            self._exit_code = process.wait()
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


def _end_of(pid: int) -> "os.waitid_result | None":
    """How our child ended, without reaping it: its group id must stay taken. None while it runs."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
