"""The worker's side against a real agent: blocks travel between tensors and the arena, or fail one by one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="KV memory is torch tensors")
pytest.importorskip("vllm", reason="the connector's worker side needs vLLM's classes")

from kveik.agent.link import AgentLink
from kveik.config import ConnectorSettings
from kveik.connector.device import HostCopier, Plane
from kveik.connector.jobs import LoadJob, SaveJob
from kveik.connector.layout import BlockLayout
from kveik.connector.metrics import StatsBox
from kveik.connector.plan import BlockRef
from kveik.connector.worker import WorkerSide

NAMESPACE = b"n" * 16
LAYERS, BLOCKS, ROW = 3, 12, 8192
ATTACH_S = 30.0


class AgentProcess:
    """A real agent in its own process."""

    def __init__(self, folder: Path) -> None:
        self.socket, self.arena = folder / "agent.sock", folder / "arena"
        self._command = [sys.executable, "-m", "kveik.cli.main", "agent"]
        self._command += ["--socket", str(self.socket), "--arena", str(self.arena), "--arena-bytes", "64 MiB"]
        self._log = folder / "agent.log"
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)


class Worker:
    """A worker side over random KV memory of one or two groups that share it."""

    def __init__(self, agent: AgentProcess, groups: int = 1, **settings: Any) -> None:
        self.memory = torch.randint(0, 255, (LAYERS, BLOCKS, ROW), dtype=torch.uint8)
        self.stats = StatsBox()
        self.link = AgentLink(str(agent.socket), role="worker test").start()
        layout = BlockLayout({group: (Plane(self.memory),) for group in range(groups)}, torch.device("cpu"))
        options = ConnectorSettings(batch_bytes=3 * LAYERS * ROW, **settings)
        self.side = WorkerSide(layout, HostCopier(), 0, options, self.stats, self.link)
        assert self.link.wait_attached(ATTACH_S)
        self.counts: dict[str, float] = {}
        self._jobs = 0

    def save(self, refs: list[BlockRef]) -> None:
        self._jobs += 1
        self.side.queue_save(SaveJob(self._jobs, refs), NAMESPACE)
        wait_until(lambda: (metadata := self.side.take_metadata()) is not None and self._jobs in metadata.saved)

    def load(self, refs: list[BlockRef], deadline_s: float = 20.0, complete: bool = True) -> set[int]:
        """Load and return the engine blocks that failed."""
        self.side.queue_load(LoadJob("request", refs, deadline_s, complete), NAMESPACE)
        wait_until(lambda: "request" in self.side.take_received()[0])
        return self.side.take_failed_blocks()

    def count(self, key: str) -> float:
        taken = self.stats.take()
        for name, amount in taken.data["add"].items() if taken else ():
            self.counts[name] = self.counts.get(name, 0) + amount
        return self.counts.get(key, 0)


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.005)


def refs(*block_ids: int, group: int = 0, shift: int = 0) -> list[BlockRef]:
    """Engine blocks whose content is named by the id of the block that was saved."""
    return [BlockRef(group, block_id, bytes([block_id - shift]) * 32) for block_id in block_ids]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    process = AgentProcess(tmp_path)
    yield process
    process.kill()


def test_saved_blocks_load_into_other_blocks_byte_for_byte(agent: AgentProcess) -> None:
    worker = Worker(agent, read_back_every=1)
    worker.save(refs(1, 2, 3, 4))
    saved = worker.memory[:, 1:5].clone()
    worker.memory[:, 7:11] = 0
    assert worker.load(refs(7, 8, 9, 10, shift=6)) == set()
    assert torch.equal(worker.memory[:, 7:11], saved)
    assert (worker.count("saved_blocks"), worker.count("loaded_blocks|tier=arena")) == (4, 4)
    assert (worker.count("read_back_blocks"), worker.count("read_back_mismatches")) == (4, 0)


def test_saving_what_is_there_copies_nothing(agent: AgentProcess) -> None:
    worker = Worker(agent)
    worker.save(refs(1, 2))
    worker.save(refs(1, 2, 3))
    assert (worker.count("saved_blocks"), worker.count("save_skipped_blocks")) == (3, 2)


def test_each_missing_block_fails_alone(agent: AgentProcess) -> None:
    worker = Worker(agent)
    worker.save(refs(1, 3))
    assert worker.load(refs(1, 2, 3)) == {2}


def test_with_several_groups_the_request_fails_as_a_whole(agent: AgentProcess) -> None:
    worker = Worker(agent, groups=2)
    worker.save(refs(1) + refs(2, group=1))
    worker.side.queue_load(LoadJob("request", refs(1) + refs(3, group=1), 20.0), NAMESPACE)
    received: tuple[set[str], set[str]] = (set(), set())

    def ended() -> bool:
        nonlocal received
        received = self_received if (self_received := worker.side.take_received())[0] else received
        return bool(received[0])

    wait_until(ended)
    assert received == ({"request"}, {"request"})
    assert worker.side.take_failed_blocks() == set()
    metadata = worker.side.take_metadata()
    assert metadata is not None
    assert metadata.loaded == {"request": {(1, bytes([3]) * 32)}}


def test_a_flipped_bit_is_refused_reported_and_gone(agent: AgentProcess) -> None:
    worker = Worker(agent)
    worker.save(refs(1, 2))
    arena = agent.arena.read_bytes()
    payload = worker.memory[:, 2].contiguous().numpy().tobytes()
    with agent.arena.open("r+b") as file:
        file.seek(arena.index(payload) + len(payload) // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    assert worker.load(refs(1, 2)) == {2}
    assert worker.count("corrupt_blocks") == 1
    assert worker.load(refs(1, 2)) == {2}
    assert worker.count("corrupt_blocks") == 1, "a corrupt block is found once and a miss afterwards"
    worker.save(refs(2))
    assert worker.load(refs(1, 2)) == set()


def test_an_incomplete_job_fails_without_touching_memory(agent: AgentProcess) -> None:
    worker = Worker(agent)
    worker.save(refs(1))
    before = worker.memory.clone()
    assert worker.load(refs(1), complete=False) == {1}
    assert torch.equal(worker.memory, before)


def test_a_stopped_agent_costs_no_more_than_the_deadline(agent: AgentProcess) -> None:
    worker = Worker(agent)
    worker.save(refs(1, 2, 3))
    agent.pause()
    started = time.monotonic()
    assert worker.load(refs(1, 2, 3), deadline_s=0.5) == {1, 2, 3}
    assert time.monotonic() - started < 0.5 + 1.0  # the deadline, and room for a busy machine
    agent.resume()
    assert worker.count("load_failures|reason=timeout") == 3
    assert worker.load(refs(1, 2, 3)) == set()


def test_a_killed_agent_fails_loads_at_once_and_its_successor_serves_them(agent: AgentProcess) -> None:
    worker = Worker(agent)
    worker.save(refs(1, 2, 3))
    agent.kill()
    assert worker.load(refs(1, 2, 3)) == {1, 2, 3}
    agent.start()
    wait_until(lambda: worker.link.client is not None)
    worker.memory[:, 1:4] = 0
    assert worker.load(refs(1, 2, 3)) == set()
    assert worker.memory[:, 1:4].any()


def test_saves_without_an_agent_are_dropped_and_release_their_blocks(agent: AgentProcess) -> None:
    worker = Worker(agent)
    agent.kill()
    wait_until(lambda: worker.link.client is None)
    worker.save(refs(1, 2))
    assert worker.count("save_dropped_blocks|reason=unavailable") == 2


@pytest.mark.parametrize("fault", ["swap_layers", "shift_block"])
def test_a_planted_fault_passes_every_checksum(agent: AgentProcess, fault: str) -> None:
    worker = Worker(agent, plant_fault=fault, read_back_every=1)
    worker.save(refs(1))
    original = worker.memory[:, 1].clone()
    assert worker.load(refs(7, shift=6)) == set()
    assert (worker.count("corrupt_blocks"), worker.count("read_back_mismatches")) == (0, 0)
    assert not torch.equal(worker.memory[:, 7], original)
    assert sorted(worker.memory[:, 7].flatten().tolist()) == sorted(original.flatten().tolist())


def test_a_copy_that_went_astray_is_found_by_reading_back(agent: AgentProcess) -> None:
    worker = Worker(agent, read_back_every=1)
    worker.save(refs(1))
    copier = worker.side._copier
    astray = SimpleNamespace(
        to_slot=copier.to_slot,
        from_slot=lambda planes, block_id, payload: copier.from_slot(planes, block_id - 1, payload),
    )
    worker.side._copier = astray  # type: ignore[assignment]
    assert worker.load(refs(7, shift=6)) == {7}
    assert worker.count("read_back_mismatches") == 1
