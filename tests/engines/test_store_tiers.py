"""Two nodes share a prefix over each kind of store: a hit on the other node equals a cold run, whoever was restarted.

Two agents with an arena each, which have nothing in common but the store; one real engine each. The engines are the
same for all stores: agents are exchanged behind their sockets. Needs the packages of the stores, so all but the folder
is skipped where vLLM's environment has none of them; ``make test-long`` runs this file in both.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kveik.agent.node import NodeAgent
from kveik.config import AgentSettings, load
from tests.agents import MIB, wait_until
from tests.engines.engine import Engine
from tests.tier_servers import KINDS, TierServer, running_tier_server

Tokens = Callable[[int, int], list[int]]
BLOCK, LENGTH = 128, 1400
PATIENCE_S = 120.0
#: Patient as a busy machine needs it, and without the choice to compute what would be faster computed.
EXTRA = {"lookup_deadline_s": 5.0, "load_deadline_s": 60.0, "load_choice": "always", "read_back_every": 1}
pytestmark = pytest.mark.long
PARTS = list(KINDS)


class Node:
    """An agent that comes and goes at one socket, and an engine that stays; the agent may be exchanged."""

    def __init__(self, folder: Path, start_engine: Callable[..., Engine], core: int) -> None:
        self._folder = folder
        self._start_engine = start_engine
        self._core = core
        self._agent: NodeAgent | None = None
        self.engine = self._new_engine()

    def _new_engine(self) -> Engine:
        return self._start_engine("tiny-qwen3", extra={**EXTRA, "socket": str(self._folder / "sock")}, core=self._core)

    def serve(self, store: TierServer) -> None:
        """Start an agent with an empty arena over this store, in place of the one before, and wait for its tier."""
        self.stop()
        (self._folder / "arena").unlink(missing_ok=True)
        given: dict[str, Any] = {
            "socket": str(self._folder / "sock"),
            "arena": str(self._folder / "arena"),
            "arena_bytes": 256 * MIB,
            "tier_deadline_s": 30.0,
            **store.agent,
        }
        settings = load(AgentSettings, given=given)
        self._agent = NodeAgent(settings, store.stores).start()
        wait_until(lambda: self.agent.lower.stats()[0]["state"] == "ready", "the tier is open", PATIENCE_S)
        wait_until(self._attached, "the engine has found the new agent", PATIENCE_S)
        self.engine.reset()

    @property
    def agent(self) -> NodeAgent:
        assert self._agent is not None
        return self._agent

    def _attached(self) -> bool:
        self.engine.generate([1, 2, 3], tokens=2)
        roles = {session.role.split()[0] for session in list(self.agent.service._sessions.values())}
        return {"scheduler", "worker"} <= roles

    def write_down(self) -> None:
        """Wait until what the engine computed lies in the store."""
        self.engine.wait_saved()
        assert self.agent.lower.drain(PATIENCE_S)

    def restart_engine(self) -> None:
        self.engine.kill()
        self.engine = self._new_engine().wait_ready()

    def stop(self) -> None:
        if self._agent is not None:
            self._agent.close()
            self._agent = None


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, start_engine: Callable[..., Engine]) -> Iterator[tuple[Node, Node]]:
    one, other = (Node(tmp_path_factory.mktemp(name), start_engine, core) for core, name in enumerate("ab"))
    one.engine.wait_ready()
    other.engine.wait_ready()
    yield one, other
    one.stop()
    other.stop()


@pytest.fixture(scope="module")
def store_of() -> Iterator[Callable[[str], TierServer]]:
    """Each kind of store, started when it is first asked for, and kept until the last test."""
    running: dict[str, TierServer] = {}
    with ExitStack() as ending:

        def find(kind: str) -> TierServer:
            if kind not in running:
                running[kind] = ending.enter_context(running_tier_server(kind))
            return running[kind]

        yield find


@pytest.fixture(scope="module")
def colds() -> dict[str, tuple[list[int], dict[str, Any]]]:
    """The prompt that was stored in each kind of store, and its cold answer."""
    return {}


@pytest.fixture(scope="module")
def restarted(nodes: tuple[Node, Node]) -> Node:
    """The other node, after kill -9 of its engine; once for all stores."""
    nodes[1].restart_engine()
    return nodes[1]


def assert_external_hit(node: Node, prompt: list[int], cold: dict[str, Any]) -> None:
    """All whole blocks come from the store, and the answer is that of the cold run."""
    arena_before = node.agent.arena.stats().blocks
    assert arena_before == 0, "nothing may come from this node's own arena"
    (answer,) = node.engine.generate(prompt)
    assert answer["cached"] == len(prompt) // BLOCK * BLOCK, node.engine.connector_counters()
    assert answer["finish"] == "length"
    assert answer["ids"] == cold["ids"]
    assert max(abs(a - b) for a, b in zip(answer["logprobs"], cold["logprobs"], strict=True)) <= 1e-4


@pytest.mark.parametrize("kind", PARTS)
def test_what_one_node_computed_the_other_one_hits(
    nodes: tuple[Node, Node], store_of: Callable[[str], TierServer], tokens: Tokens, colds: dict[str, Any], kind: str
) -> None:
    writer, reader = nodes
    store = store_of(kind)
    writer.serve(store)
    prompt = tokens(LENGTH, 100 + list(KINDS).index(kind))
    (cold,) = writer.engine.generate(prompt)
    assert cold["cached"] == 0
    writer.write_down()
    writer.stop()
    colds[kind] = prompt, cold

    reader.serve(store)
    assert_external_hit(reader, prompt, cold)


@pytest.mark.parametrize("kind", PARTS)
def test_it_hits_again_after_the_end_of_all_agents(
    nodes: tuple[Node, Node], store_of: Callable[[str], TierServer], colds: dict[str, Any], kind: str
) -> None:
    if kind not in colds:
        pytest.skip("nothing was stored there")
    for node in nodes:
        node.serve(store_of(kind))
        assert_external_hit(node, *colds[kind])


@pytest.mark.parametrize("kind", PARTS)
def test_it_hits_again_after_the_engine_was_killed(
    restarted: Node, store_of: Callable[[str], TierServer], colds: dict[str, Any], kind: str
) -> None:
    if kind not in colds:
        pytest.skip("nothing was stored there")
    restarted.serve(store_of(kind))
    assert_external_hit(restarted, *colds[kind])
    assert restarted.engine.settle("kveik_connector_read_back_blocks", 1) > 0
    assert restarted.engine.counter("kveik_connector_read_back_mismatches") == 0
