"""The agent is late, stopped, killed and started again: no request fails or waits long, answers equal cold runs."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agents import AgentProcess, wait_until
from tests.engines.engine import Engine

Tokens = Callable[[int, int], list[int]]
ARENA_BYTES = 128 << 20
LOOKUP_DEADLINE_S = 0.5


#: What computing may take longer on cores on which other engines start meanwhile.
BUSY_S = 15.0


def extra(folder: Path) -> dict[str, Any]:
    return {"socket": str(folder / "agent.sock"), "lookup_deadline_s": LOOKUP_DEADLINE_S}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("agent")


@pytest.fixture(scope="module")
def engine(start_engine: Callable[..., Engine], folder: Path) -> Engine:
    """An engine that is up before any agent is."""
    return start_engine("tiny-qwen3", extra=extra(folder)).wait_ready()


@pytest.fixture(scope="module")
def agent(engine: Engine, folder: Path, tokens: Tokens) -> Iterator[AgentProcess]:
    (without,) = engine.generate(tokens(300, 1))
    assert without["finish"] == "length"
    assert engine.counter("kveik_connector_attached") == 0
    process = AgentProcess(folder, arena_bytes=ARENA_BYTES)
    engine.settle("kveik_connector_attached", 1)
    yield process
    process.signal(signal.SIGCONT)
    process.kill()


def assert_equal(answer: dict[str, Any], cold: dict[str, Any]) -> None:
    assert answer["finish"] == "length"
    assert answer["ids"] == cold["ids"]
    assert max(abs(a - b) for a, b in zip(answer["logprobs"], cold["logprobs"], strict=True)) <= 1e-4


def saved_prompt(engine: Engine, prompt: list[int]) -> tuple[dict[str, Any], float]:
    """A cold answer whose blocks are in the cache now, and the seconds it took."""
    saved = engine.counter("kveik_connector_saved_blocks")
    started = time.monotonic()
    (cold,) = engine.generate(prompt)
    seconds = time.monotonic() - started
    engine.settle("kveik_connector_saved_blocks", saved + len(prompt) // 128)
    engine.reset()
    return cold, seconds


def test_an_engine_serves_without_an_agent_and_attaches_when_it_appears(
    engine: Engine, agent: AgentProcess, tokens: Tokens
) -> None:
    prompt = tokens(700, 2)
    cold, _ = saved_prompt(engine, prompt)
    (hit,) = engine.generate(prompt)
    assert hit["cached"] == 640
    assert_equal(hit, cold)


def test_a_stopped_agent_makes_nobody_wait_long(engine: Engine, agent: AgentProcess, tokens: Tokens) -> None:
    prompts = [tokens(700, 20 + seed) for seed in range(3)]
    colds = [saved_prompt(engine, prompt) for prompt in prompts]
    slowest = max(seconds for _, seconds in colds)
    agent.signal(signal.SIGSTOP)
    try:
        for prompt, (cold, _) in zip(prompts, colds, strict=True):
            started = time.monotonic()
            (answer,) = engine.generate(prompt)
            assert_equal(answer, cold)
            assert time.monotonic() - started < 2 * slowest + LOOKUP_DEADLINE_S + BUSY_S
            engine.reset()
    finally:
        agent.signal(signal.SIGCONT)
    assert engine.counter("kveik_connector_lookups", outcome="deadline") >= 1

    def hits_again() -> bool:
        engine.reset()
        (answer,) = engine.generate(prompts[0])
        assert_equal(answer, colds[0][0])
        return bool(answer["cached"])

    wait_until(hits_again, "the breaker closes by itself", 60)


def test_a_killed_agent_loses_no_block(engine: Engine, agent: AgentProcess, tokens: Tokens) -> None:
    prompt = tokens(900, 30)
    cold, _ = saved_prompt(engine, prompt)
    agent.kill()
    (without,) = engine.generate(prompt)
    assert_equal(without, cold)
    agent.restart()
    engine.settle("kveik_connector_attached", 1)

    def hits_again() -> bool:
        engine.reset()
        (answer,) = engine.generate(prompt)
        assert_equal(answer, cold)
        return bool(answer["cached"] == 896)

    wait_until(hits_again, "hits what was there before the kill", 60)


def test_an_agent_restarted_under_load_fails_no_request(engine: Engine, agent: AgentProcess, tokens: Tokens) -> None:
    prompts = [tokens(500, 40 + seed) for seed in range(6)]
    colds = [saved_prompt(engine, prompt)[0] for prompt in prompts]
    stop = threading.Event()

    def torment() -> None:
        while not stop.is_set():
            agent.kill()
            agent.restart()
            stop.wait(0.5)

    tormentor = threading.Thread(target=torment)
    tormentor.start()
    try:
        for _ in range(5):
            for answer, cold in zip(engine.generate(*prompts), colds, strict=True):
                assert_equal(answer, cold)
            engine.reset()
    finally:
        stop.set()
        tormentor.join()


@pytest.mark.long
def test_a_stopped_engine_holds_up_nobody(
    engine: Engine, agent: AgentProcess, start_engine: Callable[..., Engine], folder: Path, tokens: Tokens
) -> None:
    prompt = tokens(800, 50)
    engine.generate(tokens(3, 1), tokens=2)  # so that the gauge is of now
    engine.settle("kveik_connector_attached", 1)
    cold, _ = saved_prompt(engine, prompt)
    other = start_engine("tiny-qwen3", extra=extra(folder), core=1).wait_ready()
    engine.process.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: other.generate(prompt)[0]["cached"] == 768, "the other engine hits", 120)
        other.reset()
        (answer,) = other.generate(prompt)
        assert_equal(answer, cold)
    finally:
        engine.process.send_signal(signal.SIGCONT)
        other.kill()
