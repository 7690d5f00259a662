"""The doctor and two real engines of one model that do not go together: another hash seed, another chat template."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from kveik.agent.node import NodeAgent
from kveik.doctor.check import Context, Outcome, Point
from kveik.doctor.fleet_answers import check_answers
from kveik.doctor.fleet_clocks import check_clocks
from kveik.doctor.fleet_connector import check_connector, check_prefix_caching
from kveik.doctor.fleet_counters import check_counters
from kveik.doctor.fleet_described import DescribedEngine, DescribedFleet
from kveik.doctor.fleet_hash_check import check_hashes
from kveik.doctor.fleet_rendering import check_rendering
from kveik.doctor.fleet_view import Fleet
from kveik.engine.launch import Engine, EngineSpec
from kveik.engine.process import free_port
from tests.agents import wait_until
from tests.engines.engine import BOOT_S, core_of
from tests.meddling_proxy import MeddlingProxy
from tests.model_folders import CHATML

MODEL = "tiny-qwen3"
TEMPLATE = CHATML.replace("<|im_start|>", "<|im_start|>dear ")


def spec(name: str, python: str, model: Path, **given: Any) -> EngineSpec:
    return EngineSpec(
        name=name,
        python=python,
        model=model,
        port=free_port(),
        max_model_tokens=2048,
        kv_cache_bytes=64 << 20,
        events=f"tcp://127.0.0.1:{free_port()}",
        **given,
    )


@pytest.fixture(scope="module")
def fleet(
    engine_python: str, model: Callable[[str], Path], agent: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """Engine ``b`` differs from ``a`` in its seed and its template, and in nothing that it says of itself."""
    folder = tmp_path_factory.mktemp("doctor")
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    connector = {"socket": agent.settings.socket}
    specs = [
        spec("a", engine_python, model(MODEL), cores=core_of(0), connector=connector),
        spec(
            "b", engine_python, model(MODEL), cores=core_of(1), connector=connector,
            extra_arguments=["--chat-template", str(template)], extra_environment={"PYTHONHASHSEED": "1"},
        ),
    ]  # fmt: skip
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(one, os.environ, folder)) for one in specs]
        for engine in engines:
            engine.start()
        for engine in engines:
            engine.wait_ready(BOOT_S)
        described = tuple(DescribedEngine(one.name, one.url, events=one.events, shared_cache=True) for one in specs)
        yield Fleet(DescribedFleet("the test", described, agent_socket=agent.settings.socket))


@pytest.fixture
def context(fleet: Fleet) -> Context:
    return Context("python", {}, fleet=fleet)


def looking_at(*engines: DescribedEngine) -> Context:
    """A fleet of these engines, read anew."""
    return Context("python", {}, fleet=Fleet(DescribedFleet("the test", engines)))


def by_name(points: Any) -> dict[str, Point]:
    return {point.about: point for point in points}


def test_engines_with_different_seeds_are_found_by_what_they_do_and_by_what_they_were_started_with(
    context: Context,
) -> None:
    verdict = check_hashes(context)
    points = by_name(verdict.points)
    seed, hashes = points[f"hash seed of {MODEL}"], points[f"block hashes of {MODEL}"]
    assert (seed.outcome, hashes.outcome) == (Outcome.WRONG, Outcome.WRONG)
    assert "b has PYTHONHASHSEED=1; a has PYTHONHASHSEED=0" in seed.told
    assert "PYTHONHASHSEED" in hashes.remedy
    assert "KV events of 2 engines about one prompt" in verdict.evidence


def test_what_is_equal_is_well_and_the_namespace_keeps_the_two_apart(context: Context) -> None:
    points = by_name(check_hashes(context).points)
    assert points[f"hash algorithm of {MODEL}"].outcome is Outcome.WELL
    assert points[f"block size of {MODEL}"].outcome is Outcome.WELL
    assert points[f"namespace of {MODEL}"].outcome is Outcome.WRONG


def test_an_engine_with_an_edited_template_is_found_and_the_first_token_named(context: Context) -> None:
    (point,) = check_rendering(context).points
    assert (point.outcome, point.about) == (Outcome.WRONG, f"prompts of {MODEL} at b")
    assert "token " in point.told
    assert "chat: " in point.told


def test_engines_that_answer_with_connector_and_prefix_caching_are_well(context: Context) -> None:
    for check in (check_answers, check_connector, check_prefix_caching):
        verdict = check(context)
        assert verdict.outcome is Outcome.WELL, verdict


def test_the_counters_of_real_engines_contradict_nothing(context: Context) -> None:
    verdict = check_counters(context)
    assert [point for point in verdict.points if point.outcome is Outcome.WRONG] == []
    assert len(verdict.evidence) == 2


def test_a_hit_of_a_real_engine_that_nobody_feels_is_found(fleet: Fleet) -> None:
    with MeddlingProxy(fleet.described.engines[0].url, hidden=(), least_s=3.0) as proxy:
        verdict = check_counters(looking_at(DescribedEngine("slowed", proxy.url)))
    (point,) = verdict.points
    assert point.outcome is Outcome.WRONG, point
    assert "are told as hits, and the answer is not faster" in point.told


def test_a_clock_that_is_a_minute_ahead_is_found_beside_one_that_is_right(fleet: Fleet) -> None:
    one = fleet.described.engines[0]
    with MeddlingProxy(one.url, hidden=(), clock_s=60.0) as proxy:
        points = by_name(check_clocks(looking_at(one, DescribedEngine("ahead", proxy.url))).points)
    assert points["a"].outcome is Outcome.WELL
    assert points["ahead"].outcome is Outcome.WRONG
    assert "ahead of ours" in points["ahead"].told


def test_an_engine_whose_core_stands_still_is_found_though_its_server_answers(fleet: Fleet) -> None:
    one = fleet.described.engines[0]
    pid = {engine.name: engine for engine in fleet.view().engines}["a"].pid
    (core,) = [child for child in psutil.Process(pid).children() if "EngineCore" in child.name()]
    core.suspend()
    try:
        points = by_name(check_answers(looking_at(one)).points)
    finally:
        core.resume()
    assert points["a"].outcome is Outcome.WRONG
    wait_until(lambda: check_answers(looking_at(one)).outcome is Outcome.WELL, "it answers again", BOOT_S)


def test_engines_that_are_alike_are_well(fleet: Fleet) -> None:
    one = fleet.described.engines[0]
    twice = (one, DescribedEngine("again", one.url, events=one.events))
    context = looking_at(*twice)
    for check in (check_hashes, check_rendering):
        verdict = check(context)
        assert verdict.outcome is Outcome.WELL, verdict


@pytest.mark.long
def test_an_engine_without_connector_and_prefix_caching_is_found_among_others(
    fleet: Fleet, engine_python: str, model: Callable[[str], Path], tmp_path: Path
) -> None:
    otherwise = ["--no-enable-prefix-caching", "--prefix-caching-hash-algo", "sha256_cbor"]
    bare = spec("bare", engine_python, model(MODEL), extra_arguments=otherwise)
    with Engine(bare, os.environ, tmp_path) as engine:
        engine.start()
        engine.wait_ready(BOOT_S)
        engines = (fleet.described.engines[0], DescribedEngine("bare", bare.url))
        context = looking_at(*engines)
        for check in (check_connector, check_prefix_caching):
            points = by_name(check(context).points)
            assert (points["a"].outcome, points["bare"].outcome) == (Outcome.WELL, Outcome.WRONG)
        algorithm = by_name(check_hashes(context).points)[f"hash algorithm of {MODEL}"]
        assert (algorithm.outcome, algorithm.told) == (Outcome.WRONG, "bare has sha256_cbor; a has sha256")


def test_engines_whose_agent_ended_are_found(fleet: Fleet, agent: Any) -> None:
    agent.node.close()
    try:

        def seen() -> dict[str, Point]:
            return by_name(check_connector(Context("python", {}, fleet=Fleet(fleet.described))).points)

        wait_until(lambda: seen()["a"].outcome is Outcome.WRONG, "the connector has noticed", 120)
        told = seen()["a"].told
        assert "the connector has no agent (" in told
        assert "everything is computed" in told
    finally:
        agent.node = NodeAgent(agent.settings).start()
