"""Which of an engine's processes compute, how much, and which one is missing: real processes with vLLM's titles."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from kveik.watchdog.processes import ProcessReader
from tests.agents import wait_until

PATIENCE_S = 60.0
#: Runs other processes, each with a title of its own as vLLM's; titles that begin with "work" burn a processor.
LEADER = """
import subprocess, sys, time
pairs = zip(sys.argv[1::2], sys.argv[2::2])
children = [subprocess.Popen([title, "-c", code], executable=sys.executable) for title, code in pairs]
print(*(child.pid for child in children), flush=True)
time.sleep(600)
"""
REST = "import time; time.sleep(600)"
WORK = "while True: pass"


class Group:
    """A leader and its children."""

    def __init__(self, *children: tuple[str, str]) -> None:
        arguments = [part for child in children for part in child]
        self.leader = subprocess.Popen(
            [sys.executable, "-c", LEADER, *arguments], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.leader.stdout is not None
        self.children = [int(pid) for pid in self.leader.stdout.readline().split()]
        for pid, (title, _) in zip(self.children, children, strict=True):
            wait_until(lambda pid=pid, title=title: psutil.Process(pid).cmdline()[:1] == [title], "it has its title")  # type: ignore[misc]

    @property
    def pids(self) -> list[int]:
        return [self.leader.pid, *self.children]

    def kill(self) -> None:
        os.killpg(self.leader.pid, signal.SIGKILL)
        self.leader.wait(10)
        assert self.leader.stdout is not None
        self.leader.stdout.close()


@pytest.fixture
def group() -> Iterator[Callable[..., Group]]:
    groups: list[Group] = []

    def start(*children: tuple[str, str]) -> Group:
        groups.append(Group(*children))
        return groups[-1]

    yield start
    for one in groups:
        if one.leader.poll() is None:
            one.kill()


def grows(reader: ProcessReader, pids: list[int], by_s: float = 0.2) -> None:
    """Wait until processor time has grown by so much."""
    first = reader.read(pids).processor_s
    wait_until(lambda: reader.read(pids).processor_s >= first + by_s, "processors work", PATIENCE_S)


def test_an_engine_core_that_computes_is_seen_to(group: Callable[..., Group]) -> None:
    running = group(("VLLM::EngineCore", WORK))
    reader = ProcessReader()
    facts = reader.read(running.pids)
    assert facts.processor_s == 0.0
    assert facts.missing == ""
    assert facts.stopped == 0
    assert facts.resident_bytes > 1 << 20
    grows(reader, running.pids)


def test_a_stopped_core_uses_no_processor_whatever_the_server_beside_it_does(group: Callable[..., Group]) -> None:
    running = group(("VLLM::EngineCore", WORK), ("server", WORK))
    reader = ProcessReader()
    grows(reader, running.pids)
    os.kill(running.children[0], signal.SIGSTOP)
    wait_until(lambda: reader.read(running.pids).stopped == 1, "the core has stopped")
    before = reader.read(running.pids)
    server = psutil.Process(running.children[1])
    used = server.cpu_times().user
    wait_until(lambda: server.cpu_times().user > used + 0.1, "the server goes on", PATIENCE_S)
    assert reader.read(running.pids).processor_s == before.processor_s
    os.kill(running.children[0], signal.SIGCONT)
    grows(reader, running.pids)


def test_workers_and_what_a_core_started_count_too(group: Callable[..., Group]) -> None:
    compiler = f"import subprocess\nsubprocess.run([{sys.executable!r}, '-c', {WORK!r}])"
    running = group(("VLLM::Worker", WORK))
    grows(ProcessReader(), running.pids)
    running = group(("VLLM::EngineCore", compiler))
    wait_until(lambda: len(psutil.Process(running.leader.pid).children(recursive=True)) == 2, "it compiles", 30)
    everybody = [running.leader.pid, *(p.pid for p in psutil.Process(running.leader.pid).children(recursive=True))]
    grows(ProcessReader(), everybody)


def test_without_titles_all_processes_count(group: Callable[..., Group]) -> None:
    running = group(("python", WORK))
    grows(ProcessReader(), running.pids)


def test_a_core_that_is_gone_is_missing_even_if_nobody_lists_it_any_more(group: Callable[..., Group]) -> None:
    running = group(("VLLM::EngineCore", REST), ("server", REST))
    reader = ProcessReader()
    assert reader.read(running.pids).missing == ""
    os.kill(running.children[1], signal.SIGKILL)  # a helper may go
    os.kill(running.children[0], signal.SIGKILL)
    wait_until(lambda: bool(reader.read(running.pids).missing), "the core is gone")
    told = f"VLLM::EngineCore (process {running.children[0]}) is gone"
    assert reader.read(running.pids).missing == told
    assert reader.read([running.leader.pid]).missing == told


def test_a_leader_that_is_gone_is_missing_and_a_new_one_is_a_new_engine(group: Callable[..., Group]) -> None:
    first, second = group(("VLLM::EngineCore", WORK)), group(("VLLM::EngineCore", REST))
    reader = ProcessReader()
    grows(reader, first.pids)
    first.kill()
    assert reader.read(first.pids).missing == f"its process {first.leader.pid} is gone"
    facts = reader.read(second.pids)
    assert facts.missing == ""
    assert facts.processor_s == 0.0


def test_no_process_at_all_is_missing() -> None:
    assert ProcessReader().read([]).missing == "it has no process"


def test_ranks_are_told_apart_where_there_are_several(group: Callable[..., Group]) -> None:
    running = group(("VLLM::EngineCore_DP0", WORK), ("VLLM::EngineCore_DP1", REST))
    reader = ProcessReader()
    reader.read(running.pids)

    def told_apart() -> bool:
        ranks = reader.read(running.pids).per_rank_s
        return ranks["0"] > max(0.2, 3 * ranks["1"])

    wait_until(told_apart, "one rank computes and the other rests", PATIENCE_S)
    alone = group(("VLLM::EngineCore_DP0", WORK))
    single = ProcessReader()
    grows(single, alone.pids)
    assert single.read(alone.pids).per_rank_s == {}


def test_waiting_for_a_processor_is_measured_where_the_kernel_tells() -> None:
    """More threads that want to run than processors: all of them wait."""
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this kernel keeps no account of waiting")
    crowd = [subprocess.Popen([sys.executable, "-c", WORK]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        reader = ProcessReader()
        pids = [crowd[0].pid]
        reader.read(pids)
        until_s = time.monotonic() + PATIENCE_S
        while (facts := reader.read(pids)).processor_s < 0.2 and time.monotonic() < until_s:
            pass
        assert facts.starved_s > 0.0
    finally:
        for process in crowd:
            process.kill()
            process.wait(10)


def test_a_process_that_may_not_be_looked_at_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(pid: int) -> Any:
        raise psutil.AccessDenied(pid)

    monkeypatch.setattr(psutil, "Process", denied)
    facts = ProcessReader().read([os.getpid()])
    assert facts.missing == ""
    assert facts.processor_s == 0.0
