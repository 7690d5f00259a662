"""Stores that die, stall and lose blocks while a real engine is under load: hits are lost, requests never are.

One engine serves four clients over HTTP; half of what they ask was asked before and lies in the store only, the other
half is new. Answers equal those of cold runs whatever happens, nobody waits longer than computing and the deadlines
take, and hits return by themselves.
"""

import itertools
import os
import random
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kveik.agent.node import NodeAgent
from kveik.clock import Deadline
from kveik.config import AgentSettings, load
from kveik.engine.client import Completion, CompletionRequest
from kveik.engine.launch import Engine, EngineSpec
from kveik.engine.process import free_port
from kveik.errors import EngineError
from kveik.kv.keys import BlockKey
from kveik.store.base import BlockResult
from kveik.verify.testbed import kv_bytes_per_token, read_model_config
from tests.agents import MIB, wait_until
from tests.engines.engine import core_of
from tests.tier_servers import TierServer, running_tier_server

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
MODEL = "tiny-qwen3"
BLOCK, LENGTH, KNOWN = 128, 700, 12
WHOLE = LENGTH // BLOCK * BLOCK
#: Far fewer than the known prompts have, so that each hit is an external one; enough for four requests and their saves.
ENGINE_TOKENS = 8192
LOOKUP_S, LOAD_S, TIER_S = 1.0, 5.0, 2.0
CLIENTS, STALL_S, PATIENCE_S = 4, 60.0, 300.0
#: What an overloaded machine may add to the slowest answer.
SLACK_S = 5.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def engine(folder: Path, engine_python: str, model: Callable[[str], Path]) -> Iterator[Engine]:
    """One engine for all tests; agents come and go at its socket."""
    path = model(MODEL)
    spec = EngineSpec(
        name="engine",
        python=engine_python,
        model=path,
        port=free_port(),
        max_model_tokens=1024,
        kv_cache_bytes=ENGINE_TOKENS * kv_bytes_per_token(read_model_config(path), "float32"),
        cores=core_of(0),
        connector={
            "socket": str(folder / "agent.sock"),
            "lookup_deadline_s": LOOKUP_S,
            "load_deadline_s": LOAD_S,
            "load_choice": "always",
            "read_back_every": 1,
        },
    )
    with Engine(spec, os.environ, folder) as engine:
        engine.start()
        engine.wait_ready(PATIENCE_S * 2)
        yield engine


class Node:
    """The engine's agent over one store, and prompts whose answers are known.

    ``down``: the store is away at first, and what is known lies nowhere but in the arena.
    """

    def __init__(self, folder: Path, engine: Engine, store: TierServer, *, down: bool = False) -> None:
        (folder / "arena").unlink(missing_ok=True)
        self.store = store
        self._engine = engine
        self._seeds = itertools.count(random.getrandbits(40))
        given: dict[str, Any] = {
            "socket": str(folder / "agent.sock"),
            "arena": str(folder / "arena"),
            "arena_bytes": 256 * MIB,
            "tier_deadline_s": TIER_S,
            "breaker_open_max_s": 2.0,
            "probe_period_s": 5.0,
            **store.agent,
        }
        settings = load(AgentSettings, given=given)
        self.agent = NodeAgent(settings, store.stores).start()
        if not down:
            self.wait_open()
        wait_until(self._saves, "the engine has found the agent", PATIENCE_S)
        self.known = [self.computed() for _ in range(KNOWN)]
        self.write_down()

    def wait_open(self) -> None:
        wait_until(lambda: self.tier["state"] == "ready", "the tier is open", PATIENCE_S)

    @property
    def tier(self) -> dict[str, object]:
        (tier,) = self.agent.lower.stats()
        return tier

    def _saves(self) -> bool:
        self.ask(self.new_prompt())
        return self.agent.arena.stats().blocks > 0

    def new_prompt(self) -> tuple[int, ...]:
        source = random.Random(next(self._seeds))
        return tuple(source.randrange(10, 500) for _ in range(LENGTH))

    def ask(self, prompt: tuple[int, ...]) -> Completion:
        return self._engine.client.complete(CompletionRequest(prompt, 8, 1), self._engine.model_name)

    def computed(self) -> tuple[tuple[int, ...], Completion]:
        prompt = self.new_prompt()
        return prompt, self.ask(prompt)

    def write_down(self) -> None:
        """Until all that was saved lies in the store."""
        wait_until(lambda: self.engine_counter("kveik_connector_pinned_blocks") == 0, "all is saved", PATIENCE_S)
        assert self.agent.lower.drain(PATIENCE_S)

    def only_below(self) -> None:
        """Leave blocks to the store, but for those that somebody reads now."""
        self.agent.arena.drop(self.agent.arena.keys())

    def from_store(self) -> int:
        """How many blocks came up from the store so far."""
        return sum(count for name, count in self.agent.tally.counts().items() if name.endswith(".get_blocks"))

    def engine_counter(self, name: str) -> float:
        with urllib.request.urlopen(f"{self._engine.client.url}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        return sum(sample.value for sample in samples if sample.name in (name, f"{name}_total"))

    def close(self) -> None:
        self.agent.close()


@contextmanager
def running_node(kind: str, folder: Path, engine: Engine) -> Iterator[Node]:
    with running_tier_server(kind) as store:
        node = Node(folder, engine, store)
        try:
            yield node
        finally:
            if kind != "filesystem":
                with suppress(ProcessLookupError, AssertionError):
                    store.resume()
            node.close()


class Load:
    """Four clients that ask for known and new prompts in turn until they are stopped. A context manager."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self.failures: list[str] = []
        self.wrong: list[str] = []
        self.ttft_s: dict[str, list[float]] = {"known": [], "new": []}
        self.counts: Counter[str] = Counter()
        self._threads = [threading.Thread(target=self._ask_on) for _ in range(CLIENTS)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def answers(self) -> int:
        return self.counts.total()

    def _ask_on(self) -> None:
        while not self._stop.is_set():
            number = next(self._numbers)
            known = number % 2 == 0
            prompt, cold = self._node.known[number // 2 % KNOWN] if known else (self._node.new_prompt(), None)
            self._node.only_below()
            try:
                answer = self._node.ask(prompt)
            except EngineError as error:
                self.failures.append(str(error))
                continue
            with self._lock:
                self.counts["known" if known else "new"] += 1
                self.ttft_s["known" if known else "new"].append(answer.ttft_s)
            if len(answer.token_ids) != 8 or (cold is not None and not equal(answer, cold)):
                self.wrong.append(f"{number}: {answer}, cold {cold}")

    def wait_answers(self, count: int) -> None:
        """Until so many more came."""
        before = self.answers
        wait_until(lambda: self.answers >= before + count, f"{count} more answers", PATIENCE_S)

    def wait_store_hits(self, blocks: int) -> None:
        """Until so many more blocks came out of the store."""
        before = self._node.from_store()
        wait_until(lambda: self._node.from_store() >= before + blocks, "hits out of the store", PATIENCE_S)

    def judge(self) -> None:
        """0 failed, 0 wrong, and nobody waited longer than computing and the deadlines take."""
        assert self.failures == []
        assert self.wrong == []
        assert self._node.engine_counter("kveik_connector_read_back_mismatches") == 0
        slowest = {what: max(values) for what, values in self.ttft_s.items()}
        print(f"answers {dict(self.counts)}, slowest first token {slowest}")
        assert slowest["known"] <= slowest["new"] + LOOKUP_S + LOAD_S + SLACK_S, slowest


def equal(one: Completion, other: Completion) -> bool:
    """The same tokens, with the same probabilities but for rounding."""
    return (
        one.token_ids == other.token_ids
        and max(abs(a - b) for a, b in zip(one.logprobs, other.logprobs, strict=True)) <= 1e-3
    )


def check_outage(node: Node) -> None:
    """It is told with begin, end and cost."""
    wait_until(lambda: node.tier["breaker"] == "closed" and not node.tier["fence"], "the tier is used", PATIENCE_S)
    outages = node.tier["outages"]
    assert isinstance(outages, list)
    assert outages, "nobody was told"
    assert all(outage["end_s"] for outage in outages)
    print("; ".join(outage["text"] for outage in outages))


@pytest.mark.parametrize("kind", ["mooncake", "yuanrong", "redis"])
def test_a_store_that_is_killed_under_load_costs_hits_only_and_they_return(
    kind: str, folder: Path, engine: Engine
) -> None:
    with running_node(kind, folder, engine) as node, Load(node) as load:
        load.wait_store_hits(10)
        node.store.kill()
        load.wait_answers(40)
        wait_until(lambda: bool(node.tier["outages"]), "the outage is seen", PATIENCE_S)
        node.store.start()
        load.wait_store_hits(20)
        load.wait_answers(10)
        load.__exit__()
        load.judge()
        check_outage(node)


@pytest.mark.parametrize("kind", ["mooncake", "yuanrong", "redis"])
def test_a_store_that_is_away_when_its_node_starts_is_used_when_it_comes(
    kind: str, folder: Path, engine: Engine
) -> None:
    with running_tier_server(kind) as store:
        store.kill()
        node = Node(folder, engine, store, down=True)
        try:
            with Load(node) as load:
                load.wait_answers(20)
                assert node.from_store() == 0
                store.start()
                node.wait_open()
                node.known[:] = [node.computed() for _ in range(KNOWN)]
                node.write_down()
                load.wait_store_hits(20)
            load.judge()
        finally:
            node.close()


@pytest.mark.parametrize("kind", ["mooncake", "yuanrong", "redis"])
def test_a_holder_that_stands_still_for_a_minute_under_load_costs_hits_only_and_they_return(
    kind: str, folder: Path, engine: Engine
) -> None:
    with running_node(kind, folder, engine) as node, Load(node) as load:
        load.wait_store_hits(10)
        node.store.pause()
        stalled = Deadline.after(STALL_S)
        wait_until(lambda: bool(node.tier["outages"]), "the outage is seen", PATIENCE_S)
        load.wait_answers(40)
        wait_until(lambda: stalled.passed, "the minute is over", 2 * STALL_S)
        node.store.resume()
        load.wait_store_hits(20)
        load.wait_answers(10)
        load.__exit__()
        load.judge()
        check_outage(node)


@pytest.mark.parametrize("kind", ["filesystem", "mooncake", "yuanrong", "redis"])
def test_blocks_that_vanish_between_lookup_and_load_are_computed_and_saved_anew(
    kind: str, folder: Path, engine: Engine
) -> None:
    with running_node(kind, folder, engine) as node:
        for prompt, cold in node.known[:3]:
            with vanishing(node) as vanished:
                ask_from_store(node, prompt, cold, lambda _: bool(vanished), "something is loaded")
            before = node.from_store()
            ask_from_store(node, prompt, cold, lambda answer: answer.cached_tokens == WHOLE, "all was saved anew")
            assert node.from_store() >= before + LENGTH // BLOCK
        assert node.engine_counter("kveik_connector_tokens_lost") > 0
        assert node.engine_counter("kveik_connector_read_back_mismatches") == 0


def ask_from_store(
    node: Node, prompt: tuple[int, ...], cold: Completion, done: Callable[[Completion], bool], what: str
) -> None:
    """Ask for what lies in the store only, again where a busy machine let a lookup or a write pass its deadline.

    Each answer is that of the cold run.
    """

    def asked() -> bool:
        flush(node)
        node.only_below()
        answer = node.ask(prompt)
        assert equal(answer, cold)
        return done(answer)

    wait_until(asked, what, PATIENCE_S)


def flush(node: Node) -> None:
    """Fill the engine's own cache with other prompts."""
    for _ in range(ENGINE_TOKENS // LENGTH + 4):
        node.ask(node.new_prompt())
    node.write_down()


@contextmanager
def vanishing(node: Node) -> Iterator[list[BlockKey]]:
    """Every second block that a load asks for is taken out of the store right before it is read."""
    fetch, store = node.agent.lower.fetch, node.agent.lower.guards[0][0]
    vanished: list[BlockKey] = []

    def fetch_after_loss(
        keys: Sequence[BlockKey], tiers: Sequence[int] | None, buffers: Sequence[memoryview], deadline: Deadline
    ) -> list[tuple[int, BlockResult]]:
        if not vanished:
            vanished.extend(keys[::2])
            store.delete(vanished)
        return fetch(keys, tiers, buffers, deadline)

    node.agent.lower.fetch = fetch_after_loss  # type: ignore[method-assign]
    try:
        yield vanished
    finally:
        node.agent.lower.fetch = fetch  # type: ignore[method-assign]
