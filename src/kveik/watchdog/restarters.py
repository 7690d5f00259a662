"""Three ways to restart an engine: by its supervisor, by a command of whoever runs it, and not at all.

All restart every process of the engine. What an order changes is seen by the probes, not here.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from typing import IO, Protocol

from kveik.errors import RestartError, SuperviseError
from kveik.supervise.client import ControlClient
from kveik.telemetry.redaction import redacted

#: Of a command's output the end is kept.
OUTPUT_BYTES_MAX = 64 << 10


class Restarter(Protocol):
    """Restarts one engine."""

    @property
    def no_restart(self) -> str:
        """Why it cannot; empty if it can."""
        ...

    def restart(self, why: str) -> str:
        """Give the order; what was told, for people. Raises :class:`RestartError` if it was not taken."""
        ...


class NoRestarter:
    """For engines that somebody else looks after: they are isolated and reported."""

    def __init__(self, reason: str) -> None:
        self.no_restart = reason

    def __repr__(self) -> str:
        return f"NoRestarter({self.no_restart})"

    def restart(self, why: str) -> str:
        """Refused."""
        raise RestartError(self.no_restart)


class ControlRestarter:
    """By the control socket of the node's supervisor, which kills the group at once and starts it.

    ``names``: the engine, and ranks of its group that the same supervisor keeps. Groups of several nodes have a
    restarter of their own (:class:`kveik.watchdog.groups.GroupRestarter`).
    """

    no_restart = ""

    def __init__(self, client: ControlClient, names: Sequence[str]) -> None:
        self._client = client
        self._names = tuple(names)

    def __repr__(self) -> str:
        return f"ControlRestarter({', '.join(self._names)})"

    def restart(self, why: str) -> str:
        """Have all parts of the group killed and started."""
        try:
            told = [self._client.restart(name, why, grace_s=0.0).told for name in reversed(self._names)]
        except SuperviseError as error:
            raise RestartError(f"the supervisor did not restart {', '.join(self._names)}: {error}") from error
        return "; ".join(filter(None, told)) or f"the supervisor restarts {', '.join(self._names)}"


class CommandRestarter:
    """By a command: docker, systemctl, kubectl, a script. No shell; it learns the engine and why from its environment.

    A command that takes longer than ``deadline_s`` seconds is ended with all that it started.
    """

    no_restart = ""

    def __init__(self, name: str, command: Sequence[str], *, deadline_s: float) -> None:
        self._name = name
        self._command = tuple(command)
        self._deadline_s = deadline_s

    def __repr__(self) -> str:
        return f"CommandRestarter({self._name}: {redacted(' '.join(self._command))})"

    def restart(self, why: str) -> str:
        """Run it, and wait for its end."""
        shown = redacted(" ".join(self._command))
        environment = {**os.environ, "KVEIK_ENGINE": self._name, "KVEIK_WHY": why}
        with tempfile.TemporaryFile() as output:
            try:
                # A session of its own: a watchdog that dies takes no restart with it.
                process = subprocess.Popen(
                    self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment,
                    start_new_session=True,
                )  # fmt: skip
            except (OSError, ValueError) as error:
                raise RestartError(f"cannot run {shown}: {error}") from error
            code = self._wait(process)
            said = _end_of(output)
        if code is None:
            raise RestartError(f"{shown} did not end within {self._deadline_s:g} s; it said: {said or 'nothing'}")
        if code != 0:
            raise RestartError(f"{shown} ended with code {code}; it said: {said or 'nothing'}")
        return f"{shown} ended well" + (f"; it said: {said}" if said else "")

    def _wait(self, process: "subprocess.Popen[bytes]") -> int | None:
        try:
            return process.wait(self._deadline_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _end_of(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - OUTPUT_BYTES_MAX))
    return redacted(output.read().decode("utf8", "replace").strip())
