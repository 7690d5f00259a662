"""``kveik probe cache`` on real engines: a cache that works, and each fault that it must name."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kveik.agent.node import NodeAgent
from kveik.cli.main import main
from kveik.engine.launch import Engine, EngineSpec
from kveik.engine.process import free_port
from tests.engines.conftest import RunningAgent
from tests.engines.engine import BOOT_S, core_of

MODEL = "smollm2-135m-instruct"
#: Small, so that the engine's own cache is soon turned over: a thousand tokens and a half.
KV_BYTES, PROMPT_TOKENS = 70 << 20, 700
EMPTIED = ("--push-out", "reset")
Probe = Callable[..., dict[str, Any]]
Starter = Callable[..., Engine]

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def probe(capsys: pytest.CaptureFixture[str]) -> Probe:
    """Probe engines; the JSON document, with the exit code as ``code``."""

    def run(*engines: Engine, arguments: tuple[str, ...] = ()) -> dict[str, Any]:
        where = [part for engine in engines for part in ("--engine", engine.spec.url)]
        code = main(["probe", "cache", *where, "--prompt-tokens", str(PROMPT_TOKENS), "--json", *arguments])
        told = capsys.readouterr()
        assert told.out, told.err
        return {**json.loads(told.out), "code": code}

    return run


@pytest.fixture
def start(engine_python: str, model: Callable[[str], Path], tmp_path: Path) -> Iterator[Starter]:
    """Start an engine with these connector settings, or None for one without; all are stopped at the end."""
    with contextlib.ExitStack() as stack:
        count = 0

        def begin(extra: dict[str, Any] | None, *arguments: str, **given: Any) -> Engine:
            nonlocal count
            count += 1
            spec = EngineSpec(
                name=f"probed-{count}",
                python=engine_python,
                model=model(MODEL),
                port=free_port(),
                max_model_tokens=1024,
                kv_cache_bytes=KV_BYTES,
                cores=core_of(count),
                connector=extra,
                extra_arguments=arguments,
                **given,
            )
            engine = stack.enter_context(Engine(spec, os.environ, tmp_path))
            engine.start()
            return engine

        yield begin


def ready(*engines: Engine) -> None:
    """Wait until they answer; they may start side by side."""
    for engine in engines:
        engine.wait_ready(BOOT_S)


@pytest.mark.long
def test_a_cache_that_works_a_wrong_one_and_an_agent_that_stopped_are_told_apart(
    start: Starter, agent: RunningAgent, probe: Probe
) -> None:
    good, planted = start(agent.extra), start({**agent.extra, "plant_fault": "swap_layers"})
    ready(good, planted)

    found = probe(good)
    assert (found["result"], found["code"]) == ("works", 0), found
    assert found["used_tokens"] >= PROMPT_TOKENS - found["unit_tokens"]
    assert found["hit_s"] < found["cold_s"]
    assert found["pushed_prompts"] > 0
    assert found["again"]["own_cache"] == 0
    assert found["foreign_tokens"] == 0
    assert found["answer"]["complaint"] == ""
    assert found["again"]["kveik"]["asked"] >= found["again"]["kveik"]["found"] >= found["used_tokens"]

    found = probe(planted, arguments=EMPTIED)
    assert (found["result"], found["code"]) == ("wrong", 1), found
    assert found["again"]["kveik"]["failures"] == {}, "all is well for who only counts"

    agent.node.close()
    try:
        found = probe(good, arguments=EMPTIED)
    finally:
        agent.node = NodeAgent(agent.settings).start()
    assert (found["result"], found["code"]) == ("not_connected", 1), found
    assert "has no agent" in found["told"]


@pytest.mark.long
def test_a_connector_that_does_not_save_takes_what_another_engine_saved(
    start: Starter, agent: RunningAgent, probe: Probe
) -> None:
    good, reads_only = start(agent.extra), start({**agent.extra, "save": False})
    ready(good, reads_only)

    found = probe(reads_only, arguments=EMPTIED)
    assert (found["result"], found["code"]) == ("not_stored", 1), found
    assert "saves nothing" in found["told"]

    found = probe(good, reads_only)
    assert (found["result"], found["code"]) == ("works", 0), found
    assert found["across"]


@pytest.mark.long
def test_two_engines_with_other_hash_seeds_share_nothing(start: Starter, agent: RunningAgent, probe: Probe) -> None:
    first = start(agent.extra)
    second = start(agent.extra, extra_environment={"PYTHONHASHSEED": "7"})
    ready(first, second)

    found = probe(first, second)
    assert (found["result"], found["code"]) == ("not_found", 1), found
    assert "namespace" in found["told"]


@pytest.mark.long
def test_an_engine_without_a_connector_is_not_connected(start: Starter, probe: Probe) -> None:
    ready(engine := start(None))
    found = probe(engine, arguments=EMPTIED)
    assert (found["result"], found["code"]) == ("not_connected", 1), found
    assert "asked no connector" in found["told"]


@pytest.mark.long
def test_a_connector_of_vllms_own_is_judged_by_vllms_counters(start: Starter, probe: Probe, tmp_path: Path) -> None:
    # Of vLLM's own, those that offload need another device than a CPU; this one writes files, of a prompt's blocks at
    # its end only, and does not distinguish salts.
    config = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path / "kv")},
    }
    ready(engine := start(None, "--kv-transfer-config", json.dumps(config)))
    found = probe(engine, arguments=EMPTIED)
    assert found["connector"] == "silent"
    assert found["result"] in {"works", "slow"}, found
    assert found["again"]["queried"] > 0
    assert found["used_tokens"] > 0
