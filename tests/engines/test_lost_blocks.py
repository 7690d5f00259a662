"""Blocks that vanish or rot between lookup and load: the answer equals a cold run, nothing loops, nothing fails."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from tests.engines.engine import Engine

Tokens = Callable[[int, int], list[int]]
BLOCK = 128


@pytest.fixture(scope="module", params=["tiny-qwen3", "tiny-gemma3"], ids=["one-group", "six-groups"])
def engine(request: pytest.FixtureRequest, start_engine: Callable[..., Engine], agent: Any) -> Iterator[Engine]:
    engine = start_engine(request.param, extra=agent.extra).wait_ready()
    yield engine
    engine.kill()


@contextmanager
def vanishing(agent: Any, choose: Callable[[Sequence[bytes]], Sequence[bytes]], times: int) -> Iterator[list[int]]:
    """The agent drops some of the asked blocks the moment a load asks for them, ``times`` times."""
    arena = agent.node.arena
    pin = arena.pin
    dropped: list[int] = []

    def pin_after_loss(keys: Sequence[bytes]) -> list[int]:
        if len(dropped) < times:
            dropped.append(len(arena.drop(choose(keys))))
        slots: list[int] = pin(keys)
        return slots

    arena.pin = pin_after_loss
    try:
        yield dropped
    finally:
        arena.pin = pin


def cold_then_lost(engine: Engine, prompt: list[int]) -> dict[str, Any]:
    (cold,) = engine.generate(prompt)
    engine.reset()
    return cold


def assert_equal(answer: dict[str, Any], cold: dict[str, Any]) -> None:
    assert answer["finish"] == "length"
    assert answer["ids"] == cold["ids"]
    assert max(abs(a - b) for a, b in zip(answer["logprobs"], cold["logprobs"], strict=True)) <= 1e-4


def test_half_of_the_blocks_vanish(engine: Engine, agent: Any, tokens: Tokens) -> None:
    prompt = tokens(1300, 1)
    cold = cold_then_lost(engine, prompt)
    with vanishing(agent, lambda keys: keys[len(keys) // 2 :], times=1) as dropped:
        (answer,) = engine.generate(prompt)
    assert dropped
    assert_equal(answer, cold)
    assert engine.settle("kveik_connector_tokens_lost", 1) > 0
    engine.reset()
    (again,) = engine.generate(prompt)
    assert_equal(again, cold)
    assert again["cached"] == 1300 // BLOCK * BLOCK, "what was computed anew was saved anew"


def test_a_load_that_fails_every_time_ends(engine: Engine, agent: Any, tokens: Tokens) -> None:
    """vLLM looks up again after a failed load of several groups: without a memory that goes on for ever."""
    prompt = tokens(1300, 2)
    cold = cold_then_lost(engine, prompt)
    with vanishing(agent, lambda keys: keys[-1:], times=1000):
        (answer,) = engine.generate(prompt)
    assert_equal(answer, cold)


def test_only_what_was_lost_is_computed(engine: Engine, agent: Any, tokens: Tokens) -> None:
    prompt = tokens(1300, 3)
    cold = cold_then_lost(engine, prompt)
    before = engine.counter("kveik_connector_tokens_used")
    with vanishing(agent, lambda keys: keys[-1:], times=1):
        (answer,) = engine.generate(prompt)
    assert_equal(answer, cold)
    engine.settle("kveik_connector_tokens_used", before + 1)
    used = engine.counter("kveik_connector_tokens_used") - before
    assert used >= 1300 // BLOCK * BLOCK - 2 * BLOCK


def test_rotten_bytes_are_never_used(engine: Engine, agent: Any, tokens: Tokens) -> None:
    prompt = tokens(1300, 4)
    cold = cold_then_lost(engine, prompt)
    arena, source = agent.node.arena, random.Random(5)
    for key in arena.keys(b""):
        (slot,) = arena.pin([key])
        frame = arena.view(slot)
        frame[source.randrange(4096, len(frame))] ^= 1
        arena.unpin([slot])
    (answer,) = engine.generate(prompt)
    assert_equal(answer, cold)
    assert engine.settle("kveik_connector_corrupt_blocks", 1) > 0
    assert engine.counter("kveik_connector_read_back_mismatches") == 0


def test_several_requests_that_lose_blocks_at_once(engine: Engine, agent: Any, tokens: Tokens) -> None:
    prompts = [tokens(700, 10 + seed) for seed in range(4)]
    colds = [cold_then_lost(engine, prompt) for prompt in prompts]
    with vanishing(agent, lambda keys: keys[::3], times=6):
        answers = engine.generate(*prompts)
    for answer, cold in zip(answers, colds, strict=True):
        assert_equal(answer, cold)
