"""Two tensor-parallel ranks: each has its own blocks, and a hit needs both."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.engine import Engine

Tokens = Callable[[int, int], list[int]]


@pytest.fixture(scope="module")
def engine(start_engine: Callable[..., Engine], agent: Any) -> Engine:
    return start_engine(
        "tiny-qwen3", extra=agent.extra, tensor_parallel_size=2, environment={"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    ).wait_ready()


def test_both_ranks_save_and_load_their_own_blocks(engine: Engine, agent: Any, tokens: Tokens) -> None:
    prompt = tokens(700, 1)
    (cold,) = engine.generate(prompt)
    engine.settle("kveik_connector_saved_blocks", 2 * 5)
    assert {key.rank for key in agent.node.arena.keys(b"")} == {0, 1}
    engine.reset()
    (hit,) = engine.generate(prompt)
    assert (hit["cached"], hit["ids"]) == (640, cold["ids"])
    assert max(abs(a - b) for a, b in zip(hit["logprobs"], cold["logprobs"], strict=True)) <= 1e-4
    engine.settle("kveik_connector_tokens_used", 640)
    assert engine.counter("kveik_connector_loaded_blocks") == 10


def test_a_block_that_one_rank_lacks_is_a_miss_for_all(engine: Engine, agent: Any, tokens: Tokens) -> None:
    prompt = tokens(700, 2)
    before = engine.counter("kveik_connector_saved_blocks")
    known = set(agent.node.arena.keys(b""))
    (cold,) = engine.generate(prompt)
    engine.settle("kveik_connector_saved_blocks", before + 10)
    engine.reset()
    of_one_rank = [key for key in agent.node.arena.keys(b"") if key not in known and key.rank == 1]
    assert len(of_one_rank) == 5
    agent.node.arena.drop(of_one_rank[2:])
    (hit,) = engine.generate(prompt)
    assert hit["ids"] == cold["ids"]
    assert hit["cached"] < 640
    assert hit["cached"] % 128 == 0
