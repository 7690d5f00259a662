"""Processes of a store for a trial: started in order, proved, watched and ended together."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from kveik.clock import FakeClock
from kveik.engine.process import free_port
from kveik.errors import EngineStartError, StoreError
from kveik.launch.store_processes import PROOF_BYTES, StoreProcess, StoreProcesses, listening, prove
from kveik.store.faulty import Faults, FaultyStore
from kveik.store.memory import MemoryStore

SERVE = "import socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); "


def server(name: str, port: int, then: str = "[s.accept() for _ in iter(int, 1)]") -> StoreProcess:
    """A process that listens, and then does that."""
    command = [sys.executable, "-c", SERVE + then, str(port)]
    return StoreProcess(name, command, listening(port))


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def processes(tmp_path: Path, told: list[str]) -> Iterator[StoreProcesses]:
    with StoreProcesses(tmp_path, told.append) as processes:
        yield processes


def test_each_process_is_waited_for_and_all_end_in_reverse_order(
    processes: StoreProcesses, told: Sequence[str]
) -> None:
    first, second = free_port(), free_port()
    processes.start(server("first", first))
    processes.start(server("second", second))

    assert listening(first)()
    assert listening(second)()
    assert processes.watch(lambda: True) == ""
    assert repr(processes) == "StoreProcesses(first, second)"

    processes.stop()

    assert not listening(first)()
    assert list(told)[-2:] == ["second has ended", "first has ended"]


def test_a_process_that_ends_while_it_starts_is_said_with_the_end_of_its_log(processes: StoreProcesses) -> None:
    command = [sys.executable, "-c", "print('no such device'); raise SystemExit(3)"]

    with pytest.raises(EngineStartError, match="no such device"):
        processes.start(StoreProcess("broken", command, lambda: False))


def test_a_process_that_is_never_ready_is_given_up(processes: StoreProcesses) -> None:
    command = [sys.executable, "-c", "import signal; signal.pause()"]

    with pytest.raises(EngineStartError):
        processes.start(StoreProcess("idle", command, lambda: False, patience_s=0.1))


def test_a_process_that_ends_later_ends_the_watch_with_its_name(processes: StoreProcesses) -> None:
    processes.start(server("short", free_port(), "s.accept(); raise SystemExit('had enough')"))

    ended = processes.watch(lambda: False)

    assert ended.startswith("short has ended")
    assert "had enough" in ended


def test_nobody_listens_on_a_free_port() -> None:
    assert not listening(free_port())()


def test_a_store_that_keeps_a_block_is_proved_and_left_empty() -> None:
    store = MemoryStore()

    prove(store, 60.0)

    assert store.stats().blocks == 0


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        (Faults(fail="no_room"), "was not stored: injected"),
        (Faults(lose=True), "did not come back: miss"),
        (Faults(corrupt=True), "did not come back: payload checksum differs"),
    ],
)
def test_a_store_that_does_not_is_refused_with_what_it_did(faults: Faults, words: str) -> None:
    with pytest.raises(StoreError, match=words):
        prove(FaultyStore(MemoryStore(), faults), 0.0, FakeClock())


def test_the_proof_is_large_enough_to_go_where_blocks_go() -> None:
    assert PROOF_BYTES >= 1 << 20
