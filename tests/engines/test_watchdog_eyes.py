"""A real engine under the watchdog's eyes, with the default settings: stopped is hung, and busy is not.

Both with one configuration: what is patient enough for twelve long prompts must find a stopped core in three periods.
"""

import json
import os
import shutil
import signal
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from kveik.config_fleet import WatchdogSettings
from kveik.engine.client import CompletionRequest, EngineClient
from kveik.engine.launch import Engine, EngineSpec
from kveik.engine.process import free_port
from kveik.watchdog.decide import history_s, judge
from kveik.watchdog.look import Eyes, look_period_s
from kveik.watchdog.reference import References
from kveik.watchdog.verdict import Condition, Probed, Sample, Verdict
from tests.agents import wait_until

MODEL = "smollm2-135m-instruct"
#: For a machine that does much else. On a quiet one a start takes 20 s, and the prompts two minutes.
PATIENCE_S = 1200.0
SETTINGS = WatchdogSettings()
THREE_PERIODS_S = 3 * SETTINGS.probe_period_s
PROMPTS, PROMPT_TOKENS = 12, 7500

pytestmark = pytest.mark.timeout(2 * PATIENCE_S)


class Watched:
    """An engine and what the watchdog made of it so far. ``seen``: each condition with its reason, as they followed."""

    def __init__(self, engine: Engine, answers: Path) -> None:
        self.engine = engine
        self.eyes = Eyes("a", engine.spec.url, SETTINGS, References(answers))
        self.verdict = Verdict(Condition.STARTING, time.monotonic(), "")
        self.history: deque[Sample] = deque(maxlen=round(history_s(SETTINGS) / look_period_s(SETTINGS)))
        self.seen: list[tuple[Condition, str]] = []

    def look(self) -> Verdict:
        """One look, judged; then the pause to the next."""
        begun_s = time.monotonic()
        pids = [process.pid for process in self.engine.process.processes]
        self.history.append(self.eyes.look(pids))
        self.verdict = judge(self.history, self.verdict, SETTINGS)
        if not self.seen or self.seen[-1][0] is not self.verdict.condition:
            self.seen.append((self.verdict.condition, self.verdict.why))
        time.sleep(max(0.0, begun_s + look_period_s(SETTINGS) - time.monotonic()))
        return self.verdict

    def until(self, condition: Condition, seconds: float) -> float:
        """Look until it is judged to be that; the seconds from now to the look that showed it."""
        begun_s = time.monotonic()
        while self.look().condition is not condition:
            assert time.monotonic() - begun_s < seconds, f"{self.seen}; log ends:\n{self.engine.process.log_tail()}"
        return self.history[-1].at_s - begun_s

    @property
    def conditions(self) -> set[Condition]:
        return {condition for condition, _ in self.seen}

    @property
    def core(self) -> psutil.Process:
        """The process that computes."""
        (core,) = (one for one in self.engine.process.processes if one.cmdline()[:1] == ["VLLM::EngineCore"])
        return core


@contextmanager
def watching(python: str, model: Path, folder: Path, **options: Any) -> Iterator[Watched]:
    """An engine that starts, under watch."""
    spec = EngineSpec(name="engine", python=python, model=model, port=free_port(), cores="0", **options)
    with Engine(spec, os.environ, folder) as engine:
        engine.start()
        wait_until(lambda: bool(engine.process.processes), "it has a process", 30)
        yield Watched(engine, folder / "answers.json")


@pytest.fixture(scope="module")
def watched(
    engine_python: str, model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Watched]:
    options: dict[str, Any] = {"max_model_tokens": 8192, "kv_cache_bytes": 600 << 20}
    with watching(engine_python, model(MODEL), tmp_path_factory.mktemp("watched"), **options) as watched:
        watched.until(Condition.READY, PATIENCE_S)
        yield watched


def test_a_start_is_starting_until_the_first_answer(watched: Watched) -> None:
    assert [condition for condition, _ in watched.seen][:2] == [Condition.STARTING, Condition.READY]
    assert watched.conditions == {Condition.STARTING, Condition.READY}
    assert watched.history[-1].probe is Probed.RIGHT


def test_probes_leave_the_cache_of_the_engine_alone(watched: Watched) -> None:
    before = watched.history[-1].number
    while watched.history[-1].number < before + 2:
        watched.look()
    watched.until(Condition.READY, 300)
    metrics = watched.engine.client.metrics()
    assert metrics.samples["vllm:prefix_cache_hits_total"].keys()
    assert sum(metrics.samples["vllm:prefix_cache_hits_total"].values()) == 0
    assert max(metrics.samples["vllm:kv_cache_usage_perc"].values()) == 0


def test_a_stopped_core_is_hung_within_three_periods_and_well_when_it_goes_on(watched: Watched) -> None:
    watched.until(Condition.READY, 300)
    watched.core.send_signal(signal.SIGSTOP)
    try:
        found_s = watched.until(Condition.HUNG, 300)
        late_s = 2 * max(0.0, longest_pause_s(watched) - look_period_s(SETTINGS))
        assert found_s <= THREE_PERIODS_S + late_s
        assert watched.engine.client.health()
    finally:
        watched.core.send_signal(signal.SIGCONT)
    watched.until(Condition.READY, 300)


def longest_pause_s(watched: Watched) -> float:
    """The longest time between two looks so far: on a machine without time to spare, looks are late, too."""
    times = [sample.at_s for sample in watched.history]
    return max(after - before for before, after in pairwise(times))


@pytest.mark.long
def test_twelve_long_prompts_at_once_make_it_busy_and_never_sick(watched: Watched) -> None:
    watched.until(Condition.READY, 300)
    watched.seen.clear()
    prompts = [tuple(300 + (seed * 7919 + n * 31) % 40_000 for n in range(PROMPT_TOKENS)) for seed in range(PROMPTS)]
    with ThreadPoolExecutor(PROMPTS) as clients:
        requests = [CompletionRequest(prompt, max_tokens=4) for prompt in prompts]
        client = EngineClient(watched.engine.spec.url, read_timeout_s=PATIENCE_S)
        answers = [clients.submit(client.complete, request, MODEL) for request in requests]
        while not all(answer.done() for answer in answers):
            watched.look()
        assert {len(answer.result().token_ids) for answer in answers} == {4}
    watched.until(Condition.READY, 300)
    assert watched.conditions <= {Condition.BUSY, Condition.READY}, watched.seen
    assert Condition.BUSY in watched.conditions


def damaged(model: Path, copy: Path, tensor: str) -> Path:
    """A copy of a model in which all numbers of one tensor are NaN: ones in every bit."""
    shutil.copytree(model, copy)
    content = bytearray((copy / "model.safetensors").read_bytes())
    (header,) = struct.unpack("<Q", content[:8])
    begin, end = json.loads(content[8 : 8 + header])[tensor]["data_offsets"]
    content[8 + header + begin : 8 + header + end] = b"\xff" * (end - begin)
    (copy / "model.safetensors").write_bytes(content)
    return copy


@pytest.mark.long
def test_an_engine_that_computes_nan_is_half_dead_from_its_first_answers(
    engine_python: str, model: Callable[[str], Path], tmp_path: Path
) -> None:
    broken = damaged(model("tiny-qwen3"), tmp_path / "broken", "model.norm.weight")
    with watching(engine_python, broken, tmp_path, max_model_tokens=1024, kv_cache_bytes=100 << 20) as watched:
        watched.until(Condition.HALF_DEAD, PATIENCE_S)
        assert watched.conditions == {Condition.STARTING, Condition.HALF_DEAD}
        assert "log probabilities are not finite" in watched.verdict.why
        assert watched.engine.client.health()
