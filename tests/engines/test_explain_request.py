"""A miss that should have been a hit is explained: the stage that ate it and why, on real engines.

The eighth way to lose a hit, a unit of hits that is longer than what is there, needs a model whose groups have blocks
of different sizes: see ``tests/unit/connector/test_scheduler.py``.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from kveik.agent.client import AgentClient
from kveik.agent.funnel import RequestFunnel
from kveik.agent.protocol import FoundRequests, Located, TierRate
from kveik.clock import Deadline
from kveik.diagnose.funnel import used_tokens
from kveik.diagnose.funnel_report import Explained, explain
from kveik.diagnose.funnel_sums import EXTERNAL_HITS, EXTERNAL_QUERIES, difference, expected_counters
from kveik.diagnose.request_ids import client_id
from kveik.kv.frame import payload_digest
from kveik.store.arena import Reservation
from tests.agents import some_keys, wait_until
from tests.engines.engine import Engine

MODEL, LENGTH, BLOCK = "tiny-qwen3", 700, 128
WHOLE = LENGTH // BLOCK * BLOCK


@dataclass
class Fleet:
    """Two engines of one model with one agent, which hash with different seeds."""

    agent: Any
    here: Engine
    there: Engine
    client: AgentClient
    answered_cached: int = 0  # what the engine reported of the last request

    def remembered(self) -> FoundRequests:
        return self.client.find_requests(Deadline.after(30))

    def ask(self, engine: Engine, prompt: list[int]) -> RequestFunnel:
        """One request, and what is known of it once its blocks are saved."""
        (answer,) = engine.generate(prompt, tokens=2)
        self.answered_cached = answer["cached"]
        engine.wait_saved()
        found: list[RequestFunnel] = []

        def is_told() -> bool:
            found[:] = [
                record
                for record in self.remembered().requests
                if record.engine_pid == engine.process.pid and client_id(record.request_id) == answer["request"]
            ]
            return bool(found) and found[0].ended and not found[0].saving and found[0].computed_from >= 0

        wait_until(is_told, f"the agent is told of request {answer['request']}", 60)
        assert found[0].prompt_tokens == len(prompt)
        return found[0]

    def explained(self, engine: Engine, prompt: list[int]) -> Explained:
        """One request, explained by all that the agent knows."""
        record = self.ask(engine, prompt)
        known = self.remembered()
        return explain(record, known.requests, known.namespaces)

    def evict_all(self) -> None:
        """Other blocks fill the arena until none of the engines' is left."""
        arena = self.agent.node.arena
        keys = arena.keys(b"")
        sizes = {arena.payload_bytes(slot) for slot in arena.locate(keys)}
        theirs = {key.namespace for key in keys}
        while any(arena.keys(namespace) for namespace in theirs):
            for size in sizes:
                reserved = self.client.reserve(some_keys(8), size, Deadline.after(30))
                digests = [
                    (index, payload_digest(self.client.payload(grant, size)))
                    for index, grant in enumerate(reserved.grants)
                    if grant.status == "stored"
                ]
                assert digests, "the arena has room for new blocks, since it evicts old ones"
                self.client.commit(reserved.lease, digests, Deadline.after(30))


@pytest.fixture(scope="module")
def fleet(start_engine: Callable[..., Engine], agent: Any) -> Iterator[Fleet]:
    extra = {**agent.extra, "load_choice": "measured"}
    here = start_engine(MODEL, extra=extra, core=0)
    there = start_engine(MODEL, extra=extra, core=1, environment={"PYTHONHASHSEED": "7"})
    client = AgentClient.connect(agent.settings.socket, role="test", prefault=False)
    yield Fleet(agent, here.wait_ready(), there.wait_ready(), client)
    client.close()


def test_the_same_prompt_on_an_engine_with_another_seed(fleet: Fleet, tokens: Any) -> None:
    fleet.ask(fleet.here, tokens(LENGTH, 1))
    found = fleet.explained(fleet.there, tokens(LENGTH, 1))
    assert (found.ate, found.cause.code) == ("known", "namespace")
    assert "hash_seed" in found.cause.sentence
    assert "PYTHONHASHSEED" in found.cause.sentence


def test_a_prompt_whose_first_token_differs(fleet: Fleet, tokens: Any) -> None:
    prompt = tokens(LENGTH, 2)
    fleet.ask(fleet.here, prompt)
    found = fleet.explained(fleet.here, [prompt[0] + 1, *prompt[1:]])
    assert (found.ate, found.cause.code) == ("known", "first_tokens_differ")
    assert "(tokens 0 to 15), though 98% of the prompt is the same" in found.cause.sentence


def test_a_prompt_that_differs_at_token_300(fleet: Fleet, tokens: Any) -> None:
    prompt = tokens(LENGTH, 3)
    fleet.ask(fleet.here, prompt)
    found = fleet.explained(fleet.here, [*prompt[:300], prompt[300] + 1, *prompt[301:]])
    assert (found.ate, found.cause.code) == ("known", "prompt_differs")
    assert "differs within tokens 288 to 303" in found.cause.sentence
    assert found.record.local_tokens == 2 * BLOCK, "the blocks before it were in the engine's own cache"


def test_a_prompt_shorter_than_a_block(fleet: Fleet, tokens: Any) -> None:
    found = fleet.explained(fleet.here, tokens(60, 4))
    assert (found.ate, found.cause.code) == ("hashed", "short_prompt")


def test_a_prompt_whose_blocks_were_evicted(fleet: Fleet, tokens: Any) -> None:
    fleet.ask(fleet.here, tokens(LENGTH, 5))
    fleet.evict_all()
    fleet.here.reset()
    found = fleet.explained(fleet.here, tokens(LENGTH, 5))
    assert (found.ate, found.cause.code) == ("known", "evicted")
    assert "Evicted: the block of tokens 0 to 127" in found.cause.sentence


def test_a_prompt_whose_blocks_were_refused_when_they_were_to_be_saved(
    fleet: Fleet, tokens: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        full.setattr(fleet.agent.node.arena, "reserve", lambda keys, *_: [Reservation(reason="no_room") for _ in keys])
        first = fleet.ask(fleet.here, tokens(LENGTH, 6))
    assert first.dropped_blocks == {"no_room": WHOLE // BLOCK}
    fleet.here.reset()
    found = fleet.explained(fleet.here, tokens(LENGTH, 6))
    assert (found.ate, found.cause.code) == ("known", "put_rejected")
    assert "no_room" in found.cause.sentence


def test_a_prompt_that_is_there_and_would_take_longer_to_load(
    fleet: Fleet, tokens: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.ask(fleet.here, tokens(LENGTH, 7))
    fleet.here.reset()

    def in_a_slow_tier(request: Any, places: Any, rates: Any = ()) -> Located:
        there = [bytes(2 for _ in hashes) for _, hashes in request.parts]
        return Located(request.id, there, [TierRate(2, 100.0, 1e-6, 0.1, 9)])

    with monkeypatch.context() as slow:
        slow.setattr("kveik.agent.service.located", in_a_slow_tier)
        found = fleet.explained(fleet.here, tokens(LENGTH, 7))
    assert (found.ate, found.cause.code) == ("allowed", "break_even")
    assert (found.record.known_tokens, found.record.load_tokens) == (WHOLE, 0)
    assert "loading is no faster than computing" in found.cause.sentence


def test_a_hit_is_explained_too(fleet: Fleet, tokens: Any) -> None:
    fleet.ask(fleet.here, tokens(LENGTH, 8))
    fleet.here.reset()
    found = fleet.explained(fleet.here, tokens(LENGTH, 8))
    assert (found.ate, found.cause.code) == ("", "nothing_lost")
    assert [stage.tokens for stage in found.stages] == [LENGTH, *[WHOLE] * 8]


def test_a_prompt_whose_blocks_have_wrong_bytes(fleet: Fleet, tokens: Any) -> None:
    arena = fleet.agent.node.arena
    before = set(arena.keys(b""))
    fleet.ask(fleet.here, tokens(LENGTH, 9))
    fleet.here.reset()
    mine = [key for key in arena.keys(b"") if key not in before]
    for key in mine[2:]:
        (slot,) = arena.pin([key])
        arena.view(slot)[5000] ^= 1
        arena.unpin([slot])
    found = fleet.explained(fleet.here, tokens(LENGTH, 9))
    assert (found.ate, found.cause.code) == ("verified", "wrong_bytes")
    assert found.record.failed_blocks == {"checksum": 3}
    assert (used_tokens(found.record), fleet.answered_cached) == (2 * BLOCK, WHOLE)
    assert "what was promised when the load began" in difference(found.record, fleet.answered_cached)


def test_an_agent_that_was_restarted_is_told_of_all_requests_again(fleet: Fleet) -> None:
    before = {(one.engine_pid, one.request_id) for one in fleet.remembered().requests}
    fleet.client.close()
    fleet.agent.restart()
    fleet.client = AgentClient.connect(fleet.agent.settings.socket, role="test", prefault=False)

    def is_told() -> bool:
        return before <= {(one.engine_pid, one.request_id) for one in fleet.remembered().requests}

    wait_until(is_told, "both engines tell the new agent of their requests", 60)


def test_the_sums_of_all_requests_are_what_vllm_counted(fleet: Fleet) -> None:
    """The last of this file: all requests of both engines since their start."""

    def expected(engine: Engine) -> Mapping[str, int]:
        pid = engine.process.pid
        return expected_counters(one for one in fleet.remembered().requests if one.engine_pid == pid)

    def is_expected(engine: Engine, counted: Mapping[str, float]) -> bool:
        return expected(engine) == counted

    for engine in (fleet.here, fleet.there):
        counted = {name: engine.counter(name) for name in expected(engine)}
        assert counted[EXTERNAL_QUERIES] > counted[EXTERNAL_HITS] >= (WHOLE if engine is fleet.here else 0)
        wait_until(partial(is_expected, engine, counted), f"the sums become {counted}", 30)
