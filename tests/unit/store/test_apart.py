"""A store in processes of its own: what it gives, and what happens when a process hangs, dies or is killed."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kveik.clock import Deadline
from kveik.errors import StoreError
from kveik.records import Record, StateRecord
from kveik.store.apart import ApartStore, Recipe, SharedMemory
from kveik.store.base import BlockResult, Capabilities, Status
from kveik.store.shared_memory import Mapping
from tests.agents import wait_until
from tests.blocks import Block, make_block

PROMISED = Capabilities(durable=False, shared=False, bounded=False, batch_keys=4)
LONG_S = 60.0
ROOT = Path(__file__).resolve().parents[3]


def soon() -> Deadline:
    return Deadline.after(LONG_S)


def put(store: ApartStore, *blocks: Block) -> list[Status]:
    return [result.status for result in store.put([b.key for b in blocks], [b.frame for b in blocks], soon())]


class Apart:
    """Stores of one test in a folder whose files say how they behave."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records: list[Record] = []
        self._opened: list[ApartStore] = []

    def open(self, *, processes: int = 1, patience_s: float = LONG_S, memory: SharedMemory | None = None) -> ApartStore:
        recipe = Recipe("tests.apart_stores:moody", {"folder": str(self.folder)}, LONG_S, patience_s)
        store = ApartStore("moody", PROMISED, recipe, processes=processes, memory=memory, listener=self.records.append)
        self._opened.append(store)
        return store

    def say(self, word: str) -> None:
        (self.folder / word).touch()

    def unsay(self, word: str) -> None:
        (self.folder / word).unlink()

    def said(self, word: str) -> bool:
        return (self.folder / word).exists()

    @property
    def processes(self) -> set[int]:
        """All that ever opened the store."""
        return {int(file.name.removeprefix("process-")) for file in self.folder.glob("process-*")}

    @property
    def alive(self) -> set[int]:
        return {number for number in self.processes if Path(f"/proc/{number}").exists()}

    def close(self) -> None:
        for store in self._opened:
            store.close()


@pytest.fixture(autouse=True)
def _tests_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By processes, which do not look into the folder they are started in."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Apart]:
    made = Apart(tmp_path)
    yield made
    made.close()


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    descriptor = os.memfd_create("arena")
    os.ftruncate(descriptor, 1 << 20)
    mapping = Mapping(descriptor, 1 << 20)
    yield SharedMemory(mapping.view, lambda: os.dup(descriptor))
    os.close(descriptor)


class InBackground:
    """A call on a thread of its own."""

    def __init__(self, call: Callable[[], list[BlockResult]]) -> None:
        self.results: list[BlockResult] = []
        self._thread = threading.Thread(target=lambda: self.results.extend(call()))
        self._thread.start()

    def join(self) -> list[BlockResult]:
        self._thread.join(LONG_S)
        assert not self._thread.is_alive()
        return self.results


def test_blocks_outside_the_shared_memory_are_sent_to_and_fro(apart: Apart) -> None:
    store = apart.open()
    block, absent = make_block(1), make_block(2)
    assert put(store, block, block) == [Status.STORED, Status.EXISTS]
    buffers = [block.buffer(), absent.buffer()]
    results = store.get([block.key, absent.key], buffers, soon())
    assert [(result.status, result.bytes) for result in results] == [(Status.HIT, len(block.frame)), (Status.MISS, 0)]
    assert block.is_in(buffers[0])
    assert store.lookup([absent.key, block.key], soon()) == [False, True]
    assert [result.status for result in store.delete([block.key, absent.key])] == [Status.DELETED, Status.MISS]
    assert len(apart.processes) == 1
    assert apart.processes != {os.getpid()}


def test_blocks_within_the_shared_memory_are_read_and_written_in_place(apart: Apart, memory: SharedMemory) -> None:
    store = apart.open(memory=memory)
    block = make_block(1)
    size = len(block.frame)
    memory.view[4096 : 4096 + size] = block.frame
    assert store.put([block.key], [memory.view[4096 : 4096 + size]], soon())[0].status is Status.STORED
    inside, outside = memory.view[65536 : 65536 + size], block.buffer()
    results = store.get([block.key, block.key], [inside, outside], soon())
    assert [result.status for result in results] == [Status.HIT, Status.HIT]
    assert block.is_in(inside)
    assert block.is_in(outside)
    assert bytes(memory.view[65536 + size : 65536 + size + 100]) == bytes(100)


def test_a_store_that_cannot_be_opened_says_why(apart: Apart) -> None:
    apart.say("refuse")
    with pytest.raises(StoreError, match="does not like to be opened"):
        apart.open()


def test_a_maker_that_fails_is_told_by_the_code_of_its_process(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="ended with code 1"):
        ApartStore("wrong", PROMISED, Recipe("tests.apart_stores:nobody", {}, LONG_S, LONG_S))


def test_a_process_that_was_killed_is_replaced_at_the_next_call(apart: Apart) -> None:
    store = apart.open()
    block = make_block(1)
    put(store, block)
    (first,) = apart.processes
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not store.lookup([block.key], soon())[0], "the process is gone, and what it held")
    assert put(store, block) == [Status.STORED]
    assert len(apart.processes) == 2
    assert apart.alive == apart.processes - {first}


def test_a_process_that_dies_within_a_call_fails_that_call_alone(apart: Apart) -> None:
    store = apart.open()
    block = make_block(1)
    apart.say("die")
    (result,) = store.get([block.key], [block.buffer()], soon())
    assert (result.status, result.reason) == (Status.FAILED, "unavailable")
    assert result.detail == "get: its process ended with code 3"
    apart.unsay("die")
    assert store.get([block.key], [block.buffer()], soon()) == [BlockResult(Status.MISS)]
    told = [record.why for record in apart.records if isinstance(record, StateRecord)]
    assert told == ["get: its process ended with code 3"]


def test_a_silent_process_is_killed_so_that_the_buffer_is_free_when_the_call_ends(apart: Apart) -> None:
    store = apart.open(patience_s=0.2)
    block = make_block(1)
    (first,) = apart.processes
    apart.say("hold")
    (result,) = store.get([block.key], [block.buffer()], Deadline.after(0.1))
    assert (result.status, result.reason) == (Status.FAILED, "timeout")
    assert not result.buffer_busy
    assert first not in apart.alive
    apart.unsay("hold")
    assert store.get([block.key], [block.buffer()], soon()) == [BlockResult(Status.MISS)]


def test_a_stopped_process_is_killed_even_if_it_takes_no_message(apart: Apart) -> None:
    store = apart.open(patience_s=1.0)
    (first,) = apart.processes
    os.kill(first, signal.SIGSTOP)
    block = make_block(1, payload_bytes=2 << 20)
    (result,) = store.put([block.key], [block.frame], Deadline.after(0.1))
    assert result.status is Status.FAILED
    assert first not in apart.alive


def test_one_held_call_does_not_hold_another_while_there_are_processes(apart: Apart) -> None:
    store = apart.open(processes=2)
    block = make_block(1)
    apart.say("hold")
    held = InBackground(lambda: store.get([block.key], [block.buffer()], soon()))
    wait_until(lambda: apart.said("held"), "the get is held")
    assert store.lookup([block.key], soon()) == [False]
    assert len(apart.processes) == 2
    apart.unsay("hold")
    assert held.join() == [BlockResult(Status.MISS)]


def test_a_call_that_finds_all_processes_busy_waits_no_longer_than_its_deadline(apart: Apart) -> None:
    store = apart.open()
    block = make_block(1)
    apart.say("hold")
    held = InBackground(lambda: store.get([block.key], [block.buffer()], soon()))
    wait_until(lambda: apart.said("held"), "the get is held")
    (result,) = store.put([block.key], [block.frame], Deadline.after(0.05))
    assert (result.status, result.reason) == (Status.FAILED, "timeout")
    assert store.lookup([block.key], Deadline.after(0.05)) == [False]
    apart.unsay("hold")
    held.join()
    assert put(store, block) == [Status.STORED]


def test_closing_ends_all_processes_also_one_within_a_call(apart: Apart) -> None:
    store = apart.open(processes=2)
    block = make_block(1)
    apart.say("hold")
    held = InBackground(lambda: store.get([block.key], [block.buffer()], soon()))
    wait_until(lambda: apart.said("held"), "the get is held")
    store.lookup([block.key], soon())
    store.close()
    assert [result.reason for result in held.join()] == ["closed"]
    assert apart.alive == set()
    assert apart.records == []


PARENT = """
import sys, time
from kveik.store.apart import ApartStore, Recipe
from tests.unit.store.test_apart import PROMISED
store = ApartStore("moody", PROMISED, Recipe("tests.apart_stores:moody", {"folder": sys.argv[1]}, 60.0, 60.0))
time.sleep(600)
"""


def test_a_process_ends_with_its_agent_however_that_ends(apart: Apart) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, str(apart.folder)]) as parent:
        wait_until(lambda: bool(apart.alive), "the process runs", 60)
        parent.kill()
    wait_until(lambda: not apart.alive, "the process is gone")
