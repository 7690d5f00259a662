"""Real agents for tests: in this process, or in their own; and blocks to fill them with."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kveik.agent.client import AgentClient
from kveik.agent.node import NodeAgent
from kveik.clock import Deadline
from kveik.config import AgentSettings
from kveik.errors import AgentError
from kveik.kv.frame import payload_digest
from kveik.kv.keys import BlockKey
from kveik.records import Listener, ignore

MIB = 1 << 20
NAMESPACE = b"n" * 16
PAYLOAD_BYTES = 64 << 10


def wait_until(condition: Callable[[], bool], what: str | Callable[[], str], seconds: float = 10.0) -> None:
    """Poll until ``condition`` holds; fail with ``what``, asked for then if it is a call, if it does not in time."""
    until_s = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= until_s:
            raise AssertionError(f"waited {seconds} s in vain: {what if isinstance(what, str) else what()}")
        time.sleep(0.005)


def some_keys(count: int, namespace: bytes = NAMESPACE, group: int = 0, rank: int = 0) -> list[BlockKey]:
    """Keys of blocks that nobody stored yet."""
    return [BlockKey.of(namespace, os.urandom(32), group, rank) for _ in range(count)]


def payload_of(key: BlockKey, size: int = PAYLOAD_BYTES) -> bytes:
    """The bytes that tests store under a key: different for each key."""
    return (key.block_hash * (size // len(key.block_hash) + 1))[:size]


def store_blocks(client: AgentClient, keys: Sequence[BlockKey], size: int = PAYLOAD_BYTES) -> list[str]:
    """Write a block for each key; what became of each."""
    reserved = client.reserve(keys, size, Deadline.after(10))
    digests = []
    for index, grant in enumerate(reserved.grants):
        if grant.status == "stored":
            client.payload(grant, size)[:] = payload_of(keys[index], size)
            digests.append((index, payload_digest(payload_of(keys[index], size))))
    statuses = client.commit(reserved.lease, digests, Deadline.after(10)).statuses
    committed = {index: status for (index, _), status in zip(digests, statuses, strict=True)}
    return [committed.get(index, grant.status) for index, grant in enumerate(reserved.grants)]


def load_blocks(
    client: AgentClient, keys: Sequence[BlockKey], size: int = PAYLOAD_BYTES, seconds: float = 10
) -> list[str]:
    """Read each block and compare every byte; what became of each."""
    granted = client.read(keys, size, Deadline.after(seconds))
    for key, grant in zip(keys, granted.grants, strict=True):
        if grant.status == "hit":
            slot = client.slot(grant)
            copy = bytearray(size)
            slot.copy_to(key, memoryview(copy))
            assert copy == payload_of(key, size)
    if granted.lease:
        client.release(granted.lease)
    return [grant.status for grant in granted.grants]


def settings_in(folder: Path, **given: int | str | float | bool) -> AgentSettings:
    """Settings of an agent that keeps everything in ``folder``."""
    defaults: dict[str, int | str | float | bool] = {
        "socket": str(folder / "agent.sock"),
        "arena": str(folder / "arena"),
        "arena_bytes": 16 * MIB,
        "probe_period_s": 0.0,  # so that only what a test stores is in its tiers
    }
    return AgentSettings(**(defaults | given))  # type: ignore[arg-type]


@contextmanager
def running_agent(folder: Path, listener: Listener = ignore, **given: int | str | float | bool) -> Iterator[NodeAgent]:
    """An agent in this process."""
    agent = NodeAgent(settings_in(folder, **given), listener=listener).start()
    try:
        yield agent
    finally:
        agent.close()


def connected(folder: Path, role: str = "test", **given: object) -> AgentClient:
    """A client of the agent in ``folder``."""
    return AgentClient.connect(str(folder / "agent.sock"), role=role, prefault=False, **given)  # type: ignore[arg-type]


class AgentProcess:
    """``kveik agent`` as its own process, to be killed, stopped and started again."""

    def __init__(self, folder: Path, **given: int | str) -> None:
        settings = settings_in(folder, **given)
        self.folder = folder
        self._flags = [
            f"--socket={settings.socket}",
            f"--arena={settings.arena}",
            f"--arena-bytes={settings.arena_bytes}",
        ]
        self._flags += [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if name != "arena_bytes"]
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "kveik.cli.main", "agent", *self._flags]
        with (self.folder / "agent.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until(lambda: process.poll() is not None or self._answers(), "the agent answers", 20)
        assert process.poll() is None, self.log
        return process

    def _answers(self) -> bool:
        try:
            connected(self.folder, "probe").close()
        except AgentError:
            return False
        return True

    @property
    def log(self) -> str:
        """What the agent wrote so far."""
        return (self.folder / "agent.log").read_text()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the agent; after SIGSTOP every thread of it has stopped."""
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            wait_until(self._has_stopped, "the agent has stopped")

    def _has_stopped(self) -> bool:
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/stat")
        return all(task.read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)

    def kill(self) -> None:
        """``kill -9``, and wait until the process is gone."""
        self.process.kill()
        self.process.wait(timeout=10)

    def restart(self) -> None:
        """Kill it and start another one on the same files."""
        self.kill()
        self.process = self._start()

    def close(self) -> None:
        """End the process, whatever state it is in."""
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait(timeout=10)
