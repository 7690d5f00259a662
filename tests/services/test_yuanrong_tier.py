"""openYuanrong datasystem as a tier of real agents: shared by two nodes, and through all that happens to it.

Each node has an arena, a socket and a worker of its own; one etcd makes the workers one cluster.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kveik.agent.node import NodeAgent
from kveik.config import AgentSettings, StoreSettings, YuanrongSettings
from kveik.doctor.store_trial import stores_of, try_store
from kveik.engine.process import free_port
from kveik.errors import AgentTimeoutError
from kveik.kv.keys import BlockKey
from kveik.records import Record, StateRecord
from kveik.store.probe_verdict import Verdict
from tests.agents import connected, load_blocks, settings_in, some_keys, store_blocks, wait_until
from tests.roll_calls import wait_until_each_sees_all
from tests.yuanrong import Cluster, Worker, running_cluster

#: What may stand between a call and its answer on a machine that is busy.
LONG_S = 60.0
#: Longest wait for a request where workers are killed or hang, which costs it each time.
HASTY_S = 0.5


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as running:
        yield running


@pytest.fixture(scope="module")
def workers(cluster: Cluster) -> tuple[Worker, Worker]:
    """Two that stay alive."""
    return cluster.worker(), cluster.worker()


class Node:
    """A node's agent on one worker. Its arena is new at each start, so that only the tier can have blocks."""

    def __init__(self, folder: Path, worker: Worker, request_s: float) -> None:
        self._folder = folder
        self._stores = worker.stores_with(request_s)
        self._starts = 0
        self.records: list[Record] = []
        self.agent = self._started()

    def _started(self) -> NodeAgent:
        self._starts += 1
        folder = self._folder / str(self._starts)
        folder.mkdir(parents=True)
        patience_s = 2 * self._stores.yuanrong.request_s
        settings = settings_in(folder, tier_deadline_s=patience_s, breaker_open_s=0.2, breaker_open_max_s=1.0)
        self._place = folder
        return NodeAgent(settings, self._stores, listener=self.records.append).start()

    def restart(self) -> None:
        self.agent.close()
        self.agent = self._started()
        self.wait_open()

    def wait_open(self) -> None:
        """On a busy machine its processes may be there later than the agent."""
        wait_until(lambda: self.tier["state"] == "ready", "the tier is open", LONG_S)

    def store(self, keys: list[BlockKey]) -> list[str]:
        client = connected(self._place)
        try:
            return store_blocks(client, keys)
        finally:
            client.close()

    def load(self, keys: list[BlockKey], seconds: float = LONG_S) -> list[str]:
        """What became of each key; bytes of hits are compared. What is not there in time would be computed."""
        client = connected(self._place)
        try:
            return load_blocks(client, keys, seconds=seconds)
        except AgentTimeoutError:
            return ["failed"] * len(keys)
        finally:
            client.close()

    def hand_down(self, keys: list[BlockKey]) -> None:
        """Store blocks, and wait until all are in the tier."""
        self.wait_open()
        assert self.store(keys) == ["stored"] * len(keys)
        assert self.agent.lower.drain(LONG_S)

    @property
    def tier(self) -> dict[str, object]:
        (tier,) = self.agent.lower.stats()
        return tier

    def states(self, part: str) -> list[str]:
        return [record.after for record in self.records if isinstance(record, StateRecord) and record.part == part]


@contextmanager
def running_node(folder: Path, worker: Worker, request_s: float = HASTY_S) -> Iterator[Node]:
    node = Node(folder, worker, request_s)
    try:
        yield node
    finally:
        node.agent.close()


@pytest.fixture
def nodes(tmp_path: Path, workers: tuple[Worker, Worker]) -> Iterator[tuple[Node, Node]]:
    with running_node(tmp_path / "a", workers[0], 10) as a, running_node(tmp_path / "b", workers[1], 10) as b:
        b.wait_open()
        yield a, b


def test_each_node_sees_in_the_roll_call_that_the_other_is_there(nodes: tuple[Node, Node]) -> None:
    wait_until_each_sees_all([node.agent for node in nodes], "yuanrong")


def test_the_doctor_tries_the_worker_and_finds_an_address_where_there_is_none(workers: tuple[Worker, Worker]) -> None:
    right, wrong = workers[0].stores, StoreSettings(yuanrong=YuanrongSettings(worker=f"127.0.0.1:{free_port()}"))
    found = [try_store(tried) for stores in (right, wrong) for tried in stores_of(AgentSettings(), stores)]
    assert found[0].found.verdict is Verdict.SOUND
    assert "refused" in found[1].refused


def test_what_one_node_stored_hits_on_the_other_also_after_restarts_of_either(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    keys = some_keys(6)
    a.hand_down(keys)
    assert b.load(keys) == ["hit"] * 6
    b.restart()
    assert b.load(keys) == ["hit"] * 6
    a.restart()
    assert a.load(keys) == ["hit"] * 6
    assert a.load(some_keys(2)) == ["miss", "miss"]


def test_the_tier_shows_what_this_agent_stored(nodes: tuple[Node, Node]) -> None:
    a, _ = nodes
    a.hand_down(some_keys(3))
    assert (a.tier["name"], a.tier["blocks"], a.tier["state"], a.tier["shared"]) == ("yuanrong", 3, "ready", True)


def test_without_etcd_blocks_go_on_to_be_shared(nodes: tuple[Node, Node], cluster: Cluster) -> None:
    a, b = nodes
    cluster.etcd.kill()
    try:
        keys = some_keys(3)
        a.hand_down(keys)
        assert b.load(keys) == ["hit"] * 3
    finally:
        cluster.etcd.start()


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_its_blocks_and_comes_back_by_itself(tmp_path: Path, cluster: Cluster) -> None:
    worker = cluster.worker()
    with running_node(tmp_path, worker) as node:
        keys = some_keys(4)
        node.hand_down(keys)
        node.restart()
        worker.kill()
        assert "hit" not in node.load(keys)
        assert node.store(some_keys(2)) == ["stored", "stored"]
        worker.start()
        wait_until(lambda: _goes_through(node), "the tier takes and gives blocks again", LONG_S)


@pytest.mark.slow
def test_a_hung_worker_holds_no_reader_and_its_restart_is_noticed(tmp_path: Path, cluster: Cluster) -> None:
    worker = cluster.worker()
    with running_node(tmp_path, worker) as node:
        keys = some_keys(4)
        node.hand_down(keys)
        node.restart()
        worker.pause()
        # Each of these is answered while the worker is stopped.
        assert node.load(keys, seconds=1.0) == ["failed"] * 4
        assert node.store(some_keys(2)) == ["stored", "stored"]
        wait_until(lambda: _is_left_out(node, keys), "the tier is left out", LONG_S)
        worker.kill()
        worker.start()
        wait_until(lambda: _goes_through(node), "the tier takes and gives blocks again", LONG_S)


@pytest.mark.slow
def test_an_agent_starts_without_its_worker_and_takes_it_in_later(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kveik.store.opening.RETRY_S", 0.5)
    worker = cluster.future_worker()
    with running_node(tmp_path, worker) as node:
        keys = some_keys(2)
        assert node.store(keys) == ["stored", "stored"]
        assert node.load(keys) == ["hit", "hit"]
        wait_until(lambda: node.tier["state"] == "out", "the tier is out", LONG_S)
        worker.start()
        wait_until(lambda: _goes_through(node), "the tier takes and gives blocks", LONG_S)


@pytest.mark.slow
@pytest.mark.long
def test_a_dead_holder_is_a_miss_for_the_others_in_the_end_and_never_wrong_bytes(
    tmp_path: Path, cluster: Cluster, workers: tuple[Worker, Worker]
) -> None:
    doomed = cluster.worker()
    with running_node(tmp_path / "a", workers[0]) as a, running_node(tmp_path / "c", doomed) as c:
        lost, kept = some_keys(3), some_keys(3)
        c.hand_down(lost)
        a.hand_down(kept)
        doomed.kill()
        a.restart()
        assert "hit" not in a.load(lost, seconds=5.0)
        wait_until(lambda: a.load(kept) == ["hit"] * 3, "what lives is found", LONG_S)
        wait_until(lambda: a.load(lost) == ["miss"] * 3, "the cluster has given the dead worker up", LONG_S)


def _is_left_out(node: Node, keys: list[BlockKey]) -> bool:
    assert "hit" not in node.load(keys, seconds=0.2)
    return "open" in node.states("yuanrong.breaker")


def _goes_through(node: Node) -> bool:
    """Whether a new block reaches the tier and is found there by an agent with an empty arena."""
    keys = some_keys(1)
    before = node.tier["blocks"]
    node.store(keys)
    node.agent.lower.drain(LONG_S)
    if node.tier["blocks"] == before:
        return False
    node.restart()
    return node.load(keys) == ["hit"]
