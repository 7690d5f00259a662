"""Two agents with a real Mooncake between them: what one stores the other finds, whatever happens to whom."""

import mmap
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from kveik.agent.node import NodeAgent
from kveik.clock import Deadline
from kveik.config import AgentSettings, MooncakeSettings, StoreSettings
from kveik.doctor.check import Outcome
from kveik.doctor.store_facts import StoreFacts
from kveik.doctor.store_judge import judge_store
from kveik.doctor.store_trial import stores_of, try_store
from kveik.engine.process import free_port
from kveik.kv.keys import BlockKey
from kveik.store.apart import SharedMemory
from kveik.store.base import BlockResult, Status
from kveik.store.mooncake import MooncakeStore
from kveik.store.mooncake_link import MooncakeLink
from kveik.store.mooncake_master import MasterPage
from kveik.store.probe_verdict import Verdict
from tests.agents import (
    MIB,
    NAMESPACE,
    AgentProcess,
    connected,
    load_blocks,
    settings_in,
    some_keys,
    store_blocks,
    wait_until,
)
from tests.blocks import Block, make_block
from tests.mooncake import Mooncake, open_store, running_mooncake
from tests.roll_calls import wait_until_each_sees_all

PATIENCE_S = 60.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def mooncake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mooncake]:
    with running_mooncake(tmp_path_factory.mktemp("mooncake")) as running:
        yield running


@pytest.fixture
def own_mooncake(tmp_path: Path) -> Iterator[Mooncake]:
    """For tests that kill it."""
    with running_mooncake(tmp_path) as running:
        yield running


class Node:
    """One agent with a folder of its own, started again at will."""

    def __init__(self, folder: Path, mooncake: MooncakeSettings, *, ready: bool = True, **given: float) -> None:
        folder.mkdir()
        self._folder = folder
        self._stores = StoreSettings(mooncake=mooncake)
        self._given = {"tier_deadline_s": 20.0, **given}
        self.agent = self._start()
        if ready:
            wait_until(lambda: self.tier["state"] == "ready", "the tier is open", PATIENCE_S)

    def _start(self) -> NodeAgent:
        return NodeAgent(settings_in(self._folder, **self._given), self._stores).start()

    def restart(self) -> None:
        """Stop the agent and start another one, with an empty arena."""
        self.agent.close()
        (self._folder / "arena").unlink()
        self.agent = self._start()

    @property
    def tier(self) -> dict[str, object]:
        (tier,) = self.agent.lower.stats()
        return tier

    def store(self, keys: Sequence[BlockKey]) -> None:
        """Store a block for each key, and wait until all have gone down."""
        client = connected(self._folder)
        assert store_blocks(client, keys) == ["stored"] * len(keys)
        assert self.agent.lower.drain(PATIENCE_S)
        client.close()

    def keeps_a_block(self) -> bool:
        """Whether a new block is found in the tier once the arena has none of it."""
        keys = some_keys(1)
        self.store(keys)
        self.agent.arena.drop(keys)
        return self.load(keys) == ["hit"]

    def load(self, keys: Sequence[BlockKey], seconds: float = 30) -> list[str]:
        """Read each block and compare every byte."""
        client = connected(self._folder)
        try:
            return load_blocks(client, keys, seconds=seconds)
        finally:
            client.close()

    def close(self) -> None:
        self.agent.close()


@pytest.fixture
def nodes(mooncake: Mooncake, tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    settings = mooncake.settings
    a, b = Node(tmp_path / "a", settings), Node(tmp_path / "b", settings)
    yield a, b
    a.close()
    b.close()


def test_what_one_node_stored_the_other_one_hits_also_after_restarts_of_either(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    keys = some_keys(24)
    a.store(keys)

    assert b.load(keys) == ["hit"] * 24

    b.restart()
    assert b.load(keys) == ["hit"] * 24
    a.restart()
    b.restart()
    assert b.load(keys) == ["hit"] * 24
    assert a.load(keys) == ["hit"] * 24


def test_each_node_sees_in_the_roll_call_that_the_other_is_there(nodes: tuple[Node, Node]) -> None:
    wait_until_each_sees_all([node.agent for node in nodes], "mooncake")


def tried(settings: MooncakeSettings, open_s: float = 30.0) -> StoreFacts:
    (one,) = stores_of(AgentSettings(), StoreSettings(mooncake=settings))
    return try_store(one, open_s)


def test_the_doctor_tries_the_store_and_finds_a_wrong_address(mooncake: Mooncake) -> None:
    right = mooncake.settings
    well = tried(right)
    assert well.found.verdict is Verdict.SOUND
    assert {point.outcome for point in judge_store(well, ())} == {Outcome.WELL}

    nobody = tried(replace(right, master=f"127.0.0.1:{free_port()}"))
    assert "refused" in nobody.refused
    another = tried(replace(right, master=right.master_http), open_s=3.0)  # somebody answers there, but no master
    assert another.closed
    for facts in (nobody, another):
        assert Outcome.WRONG in {point.outcome for point in judge_store(facts, ())}


def test_a_namespace_is_dropped_from_the_store_and_others_stay(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    dropped, kept = some_keys(5), some_keys(3, namespace=b"k" * 16)
    a.store([*dropped, *kept])

    (drop,) = a.agent.lower.drop_namespace(NAMESPACE)

    assert (drop.tier, drop.blocks, drop.left) == ("mooncake", 5, "")
    assert b.load(dropped) == ["miss"] * 5
    assert b.load(kept) == ["hit"] * 3


def test_bytes_that_somebody_changed_are_corrupt_and_removed_and_the_next_put_stores(mooncake: Mooncake) -> None:
    store = open_store(mooncake.settings)
    try:
        block = make_block(7)
        assert store.put([block.key], [block.damaged()], soon())[0].status is Status.STORED
        assert get(store, block)[0].status is Status.CORRUPT
        assert get(store, block)[0].status is Status.MISS
        assert put(store, block).status is Status.STORED
        assert get(store, block) == (BlockResult(Status.HIT, len(block.frame)), True)
    finally:
        store.close()


def test_the_death_of_an_owner_during_reads_gives_no_wrong_byte_and_nobody_waits(own_mooncake: Mooncake) -> None:
    store = open_store(own_mooncake.settings)
    blocks = [make_block(number, payload_bytes=MIB) for number in range(24)]
    try:
        assert all(put(store, block).ok for block in blocks)
        own_mooncake.lenders[0].kill()

        for block in blocks:
            result, right = get(store, block, seconds=5)
            assert right
            assert result.status in (Status.FAILED, Status.MISS)
        assert not any(get(store, block)[0].ok for block in blocks)

        own_mooncake.add_lender()
        wait_until(lambda: put(store, make_block(os.getpid())).ok, "another owner takes blocks", PATIENCE_S)
    finally:
        store.close()


def test_a_stopped_owner_costs_the_deadline_and_its_late_bytes_go_where_nobody_looks(own_mooncake: Mooncake) -> None:
    """The buffers stay with the store until the process that would write them is gone."""
    memory = Arena()
    link = MooncakeLink(own_mooncake.settings, memory.shared, wait_s=PATIENCE_S, hang_s=3.0)
    store = MooncakeStore(link)
    blocks = [make_block(number, payload_bytes=MIB) for number in range(8)]
    try:
        assert all(put(store, block).ok for block in blocks)
        first = link.host_pid
        own_mooncake.lenders[0].pause()

        buffers = [memory.take(len(block.frame)) for block in blocks]
        results = store.get([block.key for block in blocks], buffers, Deadline.after(1.0))

        assert {(result.status, result.reason) for result in results} == {(Status.FAILED, "timeout")}
        assert all(result.buffer_busy for result in results)
        wait_until(lambda: not any(result.buffer_busy for result in results), "the buffers are free", PATIENCE_S)
        assert not Path(f"/proc/{first}").exists()

        for buffer in buffers:
            buffer[:] = bytes(len(buffer))
        own_mooncake.lenders[0].resume()
        own_mooncake.wait_usable()
        assert all(bytes(buffer) == bytes(len(buffer)) for buffer in buffers), "late bytes arrived"
        wait_until(lambda: put(store, make_block(os.getpid())).ok, "it is back by itself", PATIENCE_S)
    finally:
        own_mooncake.lenders[0].resume()
        store.close()


def test_an_agent_waits_for_no_stopped_owner_and_reuses_no_slot_that_may_still_be_written(
    own_mooncake: Mooncake, tmp_path: Path
) -> None:
    node = Node(tmp_path / "n", own_mooncake.settings, tier_deadline_s=2.0, breaker_open_max_s=1.0)
    try:
        keys = some_keys(8)
        node.store(keys)
        wait_until(lambda: "busy" not in node.agent.arena.drop(keys), "nobody holds them", PATIENCE_S)
        own_mooncake.lenders[0].pause()

        assert set(node.load(keys, seconds=1.0)) == {"failed"}

        assert node.agent.arena.stats().quarantined == 8
        wait_until(lambda: node.agent.arena.sweep() == 8, "the slots are free again", PATIENCE_S)
        own_mooncake.lenders[0].resume()
        wait_until(node.keeps_a_block, "it is back by itself", PATIENCE_S)
    finally:
        own_mooncake.lenders[0].resume()
        node.close()


def test_the_librarys_process_ends_with_an_agent_that_is_killed_and_blocks_stay_in_the_store(
    mooncake: Mooncake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = mooncake.settings
    for name in ("master", "master_http", "host", "prefix"):
        monkeypatch.setenv(f"KVEIK_MOONCAKE_{name.upper()}", getattr(settings, name))
    agent = AgentProcess(tmp_path)
    store = open_store(settings)
    try:
        client = connected(tmp_path)
        keys = some_keys(4)
        assert store_blocks(client, keys) == ["stored"] * 4
        wait_until(lambda: all(store.lookup(keys, soon())), "the blocks have gone down", PATIENCE_S)
        hosts = [child.pid for child in psutil.Process(agent.process.pid).children()]
        assert hosts

        agent.kill()

        wait_until(lambda: not any(map(psutil.pid_exists, hosts)), "nobody maps the arena any more", PATIENCE_S)
        assert all(store.lookup(keys, soon()))
    finally:
        store.close()
        agent.close()


def test_a_trial_of_one_command_takes_blocks_and_ends_with_a_signal(tmp_path: Path) -> None:
    port = free_port()
    words = ["store", "mooncake", "up", "--memory", "64MiB", "--port", str(port), "--logs", str(tmp_path)]
    told = tmp_path / "told"
    with told.open("wb") as out:
        trial = subprocess.Popen([sys.executable, "-m", "kveik.cli.main", *words], stdout=out, stderr=out)
    try:
        wait_until(lambda: "Ctrl-C ends it" in told.read_text() or trial.poll() is not None, "it runs", PATIENCE_S)
        section = told.read_text().partition("[mooncake]\n")[2].partition("\n\n")[0]
        settings = MooncakeSettings(**tomllib.loads(section))
        store = open_store(settings)
        assert put(store, make_block(1)).ok
        store.close()

        trial.send_signal(signal.SIGINT)

        assert trial.wait(PATIENCE_S) == 0
        assert "mooncake-master has ended" in told.read_text()
    finally:
        trial.kill()
        trial.wait()


def test_a_master_that_dies_and_comes_back_empty_is_used_again_by_itself(
    own_mooncake: Mooncake, tmp_path: Path
) -> None:
    node = Node(tmp_path / "n", own_mooncake.settings, breaker_open_max_s=1.0)
    try:
        before = some_keys(4)
        node.store(before)
        own_mooncake.master.kill()
        node.agent.arena.drop(before)
        assert set(node.load(before, seconds=8)) <= {"failed", "miss"}

        own_mooncake.start()

        wait_until(node.keeps_a_block, "blocks go down and come up again", 2 * PATIENCE_S)
        assert node.load(before) == ["miss"] * 4
    finally:
        node.close()


def test_an_agent_starts_without_the_master_and_has_the_tier_when_it_is_there(tmp_path: Path) -> None:
    mooncake = Mooncake(tmp_path)
    node = Node(tmp_path / "n", mooncake.settings, ready=False, tier_deadline_s=1.0)
    try:
        assert node.tier["state"] == "opening"
        mooncake.start()
        mooncake.add_lender()
        wait_until(lambda: node.tier["state"] == "ready", "the tier has joined", PATIENCE_S)
        wait_until(node.keeps_a_block, "blocks go down and come up again", PATIENCE_S)
    finally:
        node.close()
        mooncake.stop()


def test_a_full_store_refuses_blocks_in_words_and_drops_old_ones_in_time(tmp_path: Path) -> None:
    with running_mooncake(tmp_path, lender_bytes=64 * MIB) as small:
        store = open_store(small.settings)
        try:
            blocks = [make_block(number, payload_bytes=MIB) for number in range(100)]
            results = [put(store, block) for block in blocks]
            refused = [result for result in results if not result.ok]
            assert all(result.reason == "no_room" and not result.buffer_busy for result in refused)
            assert sum(result.ok for result in results) > 30
            wait_until(lambda: put(store, make_block(1000, payload_bytes=MIB)).ok, "there is room again", PATIENCE_S)
            wait_until(lambda: store.stats().bytes > 16 * MIB, "the master's sizes are known", PATIENCE_S)
            assert store.stats().bytes <= store.stats().capacity_bytes == 64 * MIB
        finally:
            store.close()


def test_with_two_copies_the_death_of_one_owner_loses_no_block(tmp_path: Path) -> None:
    with running_mooncake(tmp_path, lenders=2, patience_s=2) as two:
        segments = MasterPage(two.settings.master_http)
        wait_until(lambda: len(segments.text("/get_all_segments").split()) == 2, "both lend", PATIENCE_S)
        store = open_store(replace(two.settings, replicas=2, soft_pin=True))
        blocks = [make_block(number, payload_bytes=256 << 10) for number in range(8)]
        try:
            assert all(put(store, block).ok for block in blocks)
            two.lenders[0].kill()
            wait_until(lambda: all(get(store, block)[0].ok for block in blocks), "all are there", PATIENCE_S)
        finally:
            store.close()


def test_an_empty_node_does_not_draw_puts_that_have_room_on_their_own(own_mooncake: Mooncake) -> None:
    store = open_store(replace(own_mooncake.settings, segment_bytes=64 * MIB))
    try:
        for number in range(16):
            assert put(store, make_block(number, payload_bytes=MIB)).ok
        own_mooncake.lenders[0].kill()
        assert all(get(store, make_block(number, payload_bytes=MIB))[0].ok for number in range(16))
    finally:
        store.close()


def soon() -> Deadline:
    return Deadline.after(PATIENCE_S)


def put(store: MooncakeStore, block: Block) -> BlockResult:
    return store.put([block.key], [block.frame], soon())[0]


def get(store: MooncakeStore, block: Block, seconds: float = PATIENCE_S) -> tuple[BlockResult, bool]:
    """The result, and whether the bytes are right if it is a hit."""
    buffer = block.buffer()
    (result,) = store.get([block.key], [buffer], Deadline.after(seconds))
    return result, result.status is not Status.HIT or block.is_in(buffer)


class Arena:
    """Shared memory in an arena's place."""

    def __init__(self, size: int = 64 * MIB) -> None:
        self._fd = os.memfd_create("arena")
        os.ftruncate(self._fd, size)
        self._view = memoryview(mmap.mmap(self._fd, size))
        self._taken = 0

    @property
    def shared(self) -> SharedMemory:
        return SharedMemory(self._view, lambda: os.dup(self._fd))

    def take(self, size: int) -> memoryview:
        start, self._taken = self._taken, self._taken + size
        return self._view[start : start + size]
