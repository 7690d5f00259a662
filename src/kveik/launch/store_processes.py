"""The processes of a distributed store on one machine, for a trial: started, proved, watched and ended together."""

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from kveik.clock import SYSTEM_CLOCK, Clock, Deadline
from kveik.engine.process import ServerProcess
from kveik.errors import StoreError
from kveik.kv import frame
from kveik.kv.keys import NAMESPACE_BYTES, BlockKey
from kveik.store.base import BlockResult, BlockStore, Status

#: Size of the block that proves a store.
PROOF_BYTES = 1 << 20
_POLL_S = 0.1
_PROOF_CALL_S = 5.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StoreProcess:
    """One process. ``ready`` is asked until it is true, for ``patience_s`` at most; it must not wait long."""

    name: str
    command: Sequence[str]
    ready: Callable[[], bool]
    environment: Mapping[str, str] = field(default_factory=dict)
    patience_s: float = 60.0


class StoreProcesses:
    """Processes that end with this one, in whatever way it ends. Their logs lie in ``folder``."""

    def __init__(self, folder: Path, say: Say) -> None:
        self._folder = folder
        self._say = say
        self._running: list[ServerProcess] = []

    def __repr__(self) -> str:
        return f"StoreProcesses({', '.join(server.name for server in self._running)})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, process: StoreProcess) -> None:
        """Start a process and wait until it is ready.

        Raises :class:`~kveik.errors.EngineStartError`, with the end of its log, if it ends or takes too long.
        """
        environment = {**os.environ, **process.environment}
        server = ServerProcess(process.name, process.command, environment, self._folder / f"{process.name}.log")
        self._say(f"starting {process.name}: {' '.join(process.command)}")
        server.start()
        self._running.append(server)
        seconds = server.wait_ready(process.ready, process.patience_s)
        self._say(f"{process.name} is ready after {seconds:.1f} s; its log: {server.log}")

    def watch(self, stopped: Callable[[], bool]) -> str:
        """Wait until ``stopped``, then empty; or the name of a process that ended before, with the end of its log."""
        while not stopped():
            for server in self._running:
                if not server.running:
                    return f"{server.name} has ended; its log ends with\n{server.log_tail()}"
            time.sleep(_POLL_S)
        return ""

    def stop(self) -> None:
        """End all of them, the last one first. Safe to repeat."""
        while self._running:
            server = self._running.pop()
            server.stop(grace_s=5.0)
            self._say(f"{server.name} has ended")


def prove(store: BlockStore, patience_s: float, clock: Clock = SYSTEM_CLOCK) -> float:
    """Put a block into a store, read it back and remove it, as often as it takes; the seconds that took.

    Raises :class:`StoreError` that says what the store answered last, after ``patience_s``.
    """
    started_s = clock.monotonic()
    give_up = Deadline.after(patience_s, clock)
    while True:
        problem = _proof(store, clock)
        if not problem:
            return clock.monotonic() - started_s
        if give_up.passed:
            raise StoreError(f"the {store.name} store did not keep a block within {patience_s:g} s: {problem}")
        time.sleep(_POLL_S)


def _proof(store: BlockStore, clock: Clock) -> str:
    """What was wrong with one round; empty if nothing was."""
    key = BlockKey.of(b"\0" * NAMESPACE_BYTES, os.urandom(32))
    sealed = memoryview(bytearray(frame.frame_bytes(PROOF_BYTES)))
    sealed[frame.HEADER_BYTES :] = os.urandom(PROOF_BYTES)
    frame.seal(sealed, key, PROOF_BYTES, clock.wall())
    buffer = memoryview(bytearray(len(sealed)))
    put = store.put([key], [sealed], Deadline.after(_PROOF_CALL_S, clock))[0]
    if put.status is not Status.STORED:
        return f"it was not stored: {_words(put)}"
    got = store.get([key], [buffer], Deadline.after(_PROOF_CALL_S, clock))[0]
    store.delete([key])
    return "" if got.status is Status.HIT and buffer == sealed else f"it did not come back: {_words(got)}"


def _words(result: BlockResult) -> str:
    return result.detail or result.reason or result.status.value


def listening(port: int) -> Callable[[], bool]:
    """Whether somebody listens on this TCP port of loopback."""

    def ready() -> bool:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1.0):
                return True
        except OSError:
            return False

    return ready
