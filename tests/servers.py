"""What all real servers of tests have in common: a process that is started, killed, paused and resumed at will."""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


class Server:
    """One process whose output is appended to a log."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, words: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log, env=environment)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """kill -9, also of one that is paused; its files stay."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
