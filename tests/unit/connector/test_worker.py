"""The worker's side against a real agent: blocks travel between tensors and the arena, or fail one by one."""

import signal
import time
from collections.abc import Iterator
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
from tests.agents import AgentProcess, wait_until

NAMESPACE = b"n" * 16
LAYERS, BLOCKS, ROW = 3, 12, 8192
ATTACH_S = 30.0


class Worker:
    """A worker side over random KV memory of one or two groups that share it."""

    def __init__(self, agent: AgentProcess, groups: int = 1, **settings: Any) -> None:
        self.memory = torch.randint(0, 255, (LAYERS, BLOCKS, ROW), dtype=torch.uint8)
        self.stats = StatsBox()
        self.link = AgentLink(str(agent.folder / "agent.sock"), role="worker test").start()
        layout = BlockLayout({group: (Plane(self.memory),) for group in range(groups)}, torch.device("cpu"))
        options = ConnectorSettings(batch_bytes=3 * LAYERS * ROW, **settings)
        self.side = WorkerSide(layout, HostCopier(), 0, options, self.stats, self.link)
        assert self.link.wait_attached(ATTACH_S)
        self.counts: dict[str, float] = {}
        self._jobs = 0

    def save(self, refs: list[BlockRef]) -> None:
        self._jobs += 1
        self.side.queue_save(SaveJob(self._jobs, NAMESPACE, refs))
        wait_until(
            lambda: (metadata := self.side.take_metadata()) is not None and self._jobs in metadata.saved,
            "the save ended",
            30,
        )

    def load(self, refs: list[BlockRef], deadline_s: float = 20.0, complete: bool = True) -> set[int]:
        """Load and return the engine blocks that failed."""
        self.side.queue_load(LoadJob("request", NAMESPACE, refs, deadline_s, complete))
        wait_until(lambda: "request" in self.side.take_received()[0], "the load ended", 30)
        return self.side.take_failed_blocks()

    def count(self, key: str) -> float:
        taken = self.stats.take()
        for name, amount in taken.data["add"].items() if taken else ():
            self.counts[name] = self.counts.get(name, 0) + amount
        return self.counts.get(key, 0)


def refs(*block_ids: int, group: int = 0, shift: int = 0) -> list[BlockRef]:
    """Engine blocks whose content is named by the id of the block that was saved."""
    return [BlockRef(group, block_id, bytes([block_id - shift]) * 32) for block_id in block_ids]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    process = AgentProcess(tmp_path, arena_bytes=64 << 20)
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
    worker.side.queue_load(LoadJob("request", NAMESPACE, refs(1) + refs(3, group=1), 20.0))
    received: tuple[set[str], set[str]] = (set(), set())

    def ended() -> bool:
        nonlocal received
        received = self_received if (self_received := worker.side.take_received())[0] else received
        return bool(received[0])

    wait_until(ended, "the load ended", 30)
    assert received == ({"request"}, {"request"})
    assert worker.side.take_failed_blocks() == set()
    metadata = worker.side.take_metadata()
    assert metadata is not None
    assert metadata.loaded == {"request": {(1, bytes([3]) * 32)}}


def test_a_flipped_bit_is_refused_reported_and_gone(agent: AgentProcess) -> None:
    worker = Worker(agent)
    worker.save(refs(1, 2))
    arena = (agent.folder / "arena").read_bytes()
    payload = worker.memory[:, 2].contiguous().numpy().tobytes()
    with (agent.folder / "arena").open("r+b") as file:
        file.seek(arena.index(payload) + len(payload) // 2)
        byte = file.read(1)
        file.seek(-1, 1)
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
    agent.signal(signal.SIGSTOP)
    started = time.monotonic()
    assert worker.load(refs(1, 2, 3), deadline_s=0.5) == {1, 2, 3}
    assert time.monotonic() - started < 0.5 + 1.0  # the deadline, and room for a busy machine
    agent.signal(signal.SIGCONT)
    assert worker.count("load_failures|reason=timeout") == 3
    assert worker.load(refs(1, 2, 3)) == set()


def test_a_killed_agent_fails_loads_at_once_and_its_successor_serves_them(agent: AgentProcess) -> None:
    worker = Worker(agent)
    worker.save(refs(1, 2, 3))
    agent.kill()
    assert worker.load(refs(1, 2, 3)) == {1, 2, 3}
    agent.restart()
    wait_until(lambda: worker.link.client is not None, "attached again", 30)
    worker.memory[:, 1:4] = 0
    assert worker.load(refs(1, 2, 3)) == set()
    assert worker.memory[:, 1:4].any()


def test_saves_without_an_agent_are_dropped_and_release_their_blocks(agent: AgentProcess) -> None:
    worker = Worker(agent)
    agent.kill()
    wait_until(lambda: worker.link.client is None, "detached", 30)
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


def test_a_save_of_many_steps_stores_each_block(agent: AgentProcess) -> None:
    worker = Worker(agent)  # three blocks a step
    worker.save(refs(2))
    worker.save(refs(*range(1, 12)))
    assert (worker.count("saved_blocks"), worker.count("save_skipped_blocks")) == (11, 1)
    saved = worker.memory.clone()
    worker.memory.zero_()
    assert worker.load(refs(*range(1, 12))) == set()
    assert torch.equal(worker.memory[:, 1:12], saved[:, 1:12])


def test_a_save_that_breaks_in_the_middle_counts_each_block_once(agent: AgentProcess) -> None:
    worker = Worker(agent, save_deadline_s=3.0)
    copier, copied = worker.side._copier, []

    def stop_the_agent_after_four(planes: Any, block_id: int, payload: memoryview) -> None:
        copied.append(block_id)
        if len(copied) == 4:
            agent.signal(signal.SIGSTOP)
        copier.to_slot(planes, block_id, payload)

    worker.side._copier = SimpleNamespace(to_slot=stop_the_agent_after_four, wait=copier.wait, fence=copier.fence)  # type: ignore[assignment]
    worker.save(refs(*range(1, 12)))
    agent.signal(signal.SIGCONT)
    saved, dropped = worker.count("saved_blocks"), worker.count("save_dropped_blocks|reason=timeout")
    assert saved + dropped == 11
    assert dropped >= 5  # what was not reserved when the agent stopped


def test_what_failed_and_what_was_dropped_is_told_to_the_scheduler_with_the_reasons(agent: AgentProcess) -> None:
    worker = Worker(agent)
    worker.side.queue_load(LoadJob("request", NAMESPACE, refs(1, 2), 20.0))
    wait_until(lambda: "request" in worker.side.take_received()[0], "the load ended", 30)
    metadata = worker.side.take_metadata()
    assert metadata is not None
    assert metadata.failures == {"request": {"miss": 2}}
    agent.kill()
    wait_until(lambda: worker.link.client is None, "the link is down", 30)
    worker.side.queue_save(SaveJob(9, NAMESPACE, refs(1, 2, 3)))
    told: dict[int, dict[str, int]] = {}

    def is_told() -> bool:
        metadata = worker.side.take_metadata()
        told.update(metadata.dropped if metadata is not None else {})
        return 9 in told

    wait_until(is_told, "the save ended", 30)
    assert told == {9: {"unavailable": 3}}
