"""Redis as a tier of real agents: shared by two nodes, and through all that happens to its server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kveik.agent.node import NodeAgent
from kveik.config import AgentSettings, StoreSettings
from kveik.doctor.check import Outcome
from kveik.doctor.store_pairs import calls_of_state, judge_pairs
from kveik.doctor.store_trial import stores_of, try_store
from kveik.kv.keys import BlockKey
from kveik.records import OutageRecord, Record
from kveik.store import opening
from kveik.store.guarded import GuardedStore
from kveik.store.probe_verdict import Verdict
from kveik.store.redis import RedisStore
from kveik.store.roll_call import Roster
from kveik.store.roll_calling import RollCalls
from tests.agents import connected, load_blocks, settings_in, some_keys, store_blocks, wait_until
from tests.redis_server import RedisServer, running_redis
from tests.roll_calls import NODES, wait_until_each_sees_all

#: What may stand between a call and its answer on a machine that is busy.
LONG_S = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with running_redis(tmp_path) as running:
        yield running


class Node:
    """A node's agent. Its arena is new at each start, so that only the tier can have blocks."""

    def __init__(self, folder: Path, server: RedisServer, **given: float) -> None:
        self._folder = folder
        self._stores = StoreSettings(redis=server.settings(connect_s=1.0))
        self._given = {"tier_deadline_s": 2.0, "breaker_open_s": 0.2, "breaker_open_max_s": 1.0, **given}
        self._starts = 0
        self.records: list[Record] = []
        self.agent = self._started()

    def _started(self) -> NodeAgent:
        self._starts += 1
        self._place = self._folder / str(self._starts)
        self._place.mkdir(parents=True)
        settings = settings_in(self._place, **self._given)
        return NodeAgent(settings, self._stores, listener=self.records.append).start()

    def restart(self) -> None:
        self.agent.close()
        self.agent = self._started()

    def hand_down(self, keys: list[BlockKey]) -> None:
        """Store blocks, and wait until nothing waits to be written."""
        client = connected(self._place)
        assert store_blocks(client, keys) == ["stored"] * len(keys)
        client.close()
        assert self.agent.lower.drain(LONG_S)

    def load(self, keys: list[BlockKey], seconds: float = LONG_S) -> list[str]:
        """What became of each key; bytes of hits are compared. What was loaded is forgotten again."""
        client = connected(self._place)
        try:
            return load_blocks(client, keys, seconds=seconds)
        finally:
            client.close()
            self.agent.arena.drop_namespace(b"")

    @property
    def tier(self) -> dict[str, object]:
        (tier,) = self.agent.lower.stats()
        return tier


@pytest.fixture
def nodes(server: RedisServer, tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    pair = Node(tmp_path / "a", server, probe_period_s=3.0), Node(tmp_path / "b", server)
    yield pair
    for node in pair:
        node.agent.close()


def test_what_one_node_stored_the_other_one_hits_also_after_restarts_of_either(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    keys = some_keys(40)
    a.hand_down(keys)

    assert b.load(keys) == ["hit"] * 40

    b.restart()
    assert b.load(keys) == ["hit"] * 40
    a.restart()
    assert a.load(keys) == ["hit"] * 40
    assert a.tier["state"] == "ready"


def test_each_node_sees_in_the_roll_call_that_the_other_is_there(nodes: tuple[Node, Node]) -> None:
    wait_until_each_sees_all([node.agent for node in nodes], "redis")


def test_nodes_that_use_two_databases_of_one_server_have_two_stores(server: RedisServer) -> None:
    stores = [RedisStore.open(server.settings(database=number)) for number in range(2)]
    calls = [
        RollCalls([(store, GuardedStore(store))], Roster("f", node, NODES), period_s=0.1, deadline_s=20.0).start()
        for store, node in zip(stores, NODES, strict=True)
    ]

    def outcomes() -> list[Outcome]:
        states = [{"tiers": [{"name": "redis", "roll_call": call.plain("redis")}]} for call in calls]
        told = [seen for state in states if (seen := calls_of_state(state)) is not None]
        return [point.outcome for point in judge_pairs(told, NODES)]

    try:
        wait_until(lambda: outcomes() == [Outcome.WRONG, Outcome.WRONG], "each is found to be alone", LONG_S)
    finally:
        for call, store in zip(calls, stores, strict=True):
            call.close()
            store.close()


def test_the_doctor_tries_the_store_and_finds_one_that_is_down(server: RedisServer) -> None:
    (tried,) = stores_of(AgentSettings(), StoreSettings(redis=server.settings(connect_s=5.0)))
    assert try_store(tried).found.verdict is Verdict.SOUND
    server.kill()
    assert "refused" in try_store(tried).refused


def test_a_killed_server_costs_misses_and_one_outage_that_tells_what_was_lost(
    server: RedisServer, nodes: tuple[Node, Node]
) -> None:
    a, b = nodes
    keys = some_keys(20)
    a.hand_down(keys)
    a.agent.arena.drop_namespace(b"")
    probe = a.agent._probes._probes[0]
    seen = probe.canaries_put
    wait_until(lambda: probe.canaries_put >= seen + 2, "the tier was probed with all blocks in it", LONG_S)
    server.kill()
    assert "hit" not in a.load(keys, 2.0)
    assert "hit" not in b.load(keys, 2.0)
    wait_until(lambda: "hit" not in a.load(keys[:1], 2.0) and a.tier["breaker"] != "closed", "it is left out", LONG_S)
    a.hand_down(some_keys(3))  # ends although nothing is stored

    server.start()
    wait_until(lambda: a.tier["breaker"] == "closed", "it is used again", LONG_S)
    assert set(a.load(keys)) == {"miss"}
    again = some_keys(10)
    a.hand_down(again)
    wait_until(lambda: b.load(again) == ["hit"] * 10, "the other node uses it again too", LONG_S)
    told = [record for record in a.records if isinstance(record, OutageRecord)]
    assert sum(record.lost_keys for record in told) >= 20
    assert sum(record.not_stored_blocks for record in told) >= 3


def test_an_agent_starts_without_the_server_and_takes_it_in_when_it_answers(
    tmp_path: Path, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "RETRY_S", 0.5)
    server.kill()
    node = Node(tmp_path / "late", server, probe_period_s=0.3)
    try:
        keys = some_keys(3)
        node.hand_down(keys)
        assert node.tier["state"] == "out"
        assert "does not take this client" in str(node.tier["notes"])
        server.start()
        wait_until(lambda: node.tier["state"] == "ready", "the tier is open", LONG_S)
        more = some_keys(3)
        node.hand_down(more)
        assert node.load(more) == ["hit"] * 3
    finally:
        node.agent.close()


def test_a_stopped_server_holds_nobody_longer_than_asked_and_serves_when_it_goes_on(
    server: RedisServer, nodes: tuple[Node, Node]
) -> None:
    _, b = nodes
    keys = some_keys(20)
    b.hand_down(keys)
    b.agent.arena.drop_namespace(b"")
    server.pause()
    try:
        assert set(b.load(keys, 1.0)) == {"failed"}
        wait_until(lambda: "hit" not in b.load(keys[:1], 1.0) and b.tier["breaker"] != "closed", "left out", LONG_S)
    finally:
        server.resume()
    wait_until(lambda: b.load(keys) == ["hit"] * 20, "all hits again", LONG_S)
