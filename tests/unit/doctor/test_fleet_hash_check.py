"""What is gathered of each engine before hashes are compared, and when an engine is asked for one."""

import hashlib
from pathlib import Path

import pytest

from kveik.doctor.check import Outcome, Point
from kveik.doctor.fleet_described import DescribedEngine
from kveik.doctor.fleet_hash_check import check_hashes
from kveik.doctor.fleet_view import SeenAgent, SeenEngine
from kveik.engine.client import ServedModel
from kveik.engine.metrics import parse_metrics
from kveik.engine.process import free_port
from tests.routers import SimProcess
from tests.unit.doctor.paper_fleet import context_of

CONFIG = 'vllm:cache_config_info{{block_size="{block}",hash_block_size="{hash}",prefix_caching_hash_algo="sha256"}} 1\n'
NAMESPACE = 'kveik_connector_namespace{digest="%s"} 1\n'


def metrics(block: int = 16, hash_tokens: str = "16", namespace: str = "") -> str:
    return CONFIG.format(block=block, hash=hash_tokens) + (NAMESPACE % namespace if namespace else "")


def seen(name: str, text: str, **given: object) -> SeenEngine:
    usual: dict[str, object] = {"models": (ServedModel("m", 4096),), "metrics": parse_metrics(text)}
    return SeenEngine(DescribedEngine(name, f"http://127.0.0.1:1/{name}"), **{**usual, **given})  # type: ignore[arg-type]


def points(*engines: SeenEngine, agent: SeenAgent | None = None) -> dict[str, Point]:
    return {point.about: point for point in check_hashes(context_of(engines, agent)).points}


def test_what_metrics_and_processes_tell_is_compared() -> None:
    one = seen("a", metrics(), environ={"PYTHONHASHSEED": "0"})
    other = seen("b", metrics(block=32), environ={"PYTHONHASHSEED": "0"})
    found = points(one, other)
    assert found["block size of m"].outcome is Outcome.WRONG
    assert found["hash algorithm of m"].outcome is Outcome.WELL
    assert found["hash seed of m"].outcome is Outcome.WELL


def test_the_seed_of_an_engine_elsewhere_is_known_by_what_the_agent_knows_of_its_namespace() -> None:
    digest = hashlib.sha256(b"0").hexdigest()[:16]
    agent = SeenAgent("s", {"namespaces": [{"digest": "ab", "facts": {"hash_seed": digest}}]})
    found = points(
        seen("a", metrics(namespace="ab")), seen("b", metrics(), environ={"PYTHONHASHSEED": "1"}), agent=agent
    )
    assert found["hash seed of m"].outcome is Outcome.WRONG
    assert "b has PYTHONHASHSEED=1" in found["hash seed of m"].told


def test_a_size_that_vllm_does_not_know_is_not_compared() -> None:
    assert "hash block size of m" not in points(
        seen("a", metrics(hash_tokens="None")), seen("b", metrics(hash_tokens="None"))
    )


def test_engines_of_different_models_are_never_compared() -> None:
    other = seen("b", metrics(block=64), models=(ServedModel("n", 4096),))
    assert {point.outcome for point in points(seen("a", metrics()), other).values()} <= {Outcome.WELL, Outcome.UNKNOWN}


def test_without_metrics_only_the_process_tells() -> None:
    found = points(seen("a", "", metrics=None, environ={"PYTHONHASHSEED": "3"}))
    assert (found["hash seed of m"].outcome, found["hash seed of m"].told) == (
        Outcome.WELL,
        "PYTHONHASHSEED=3 everywhere",
    )


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({}, 1),
        ({"no_token": "it hangs"}, 0),
        ({"models": (ServedModel("simulated", 20),)}, 0),  # two blocks do not fit into its longest prompt
    ],
    ids=["asked", "makes no token", "too short"],
)
def test_an_engine_is_asked_for_a_hash_only_where_it_can_answer(
    tmp_path: Path, given: dict[str, object], asked: int
) -> None:
    events = f"tcp://127.0.0.1:{free_port()}"
    with SimProcess(tmp_path, events=events) as sim:
        described = DescribedEngine("a", sim.url, events=events)
        usual: dict[str, object] = {"models": (ServedModel("simulated", 4096),), "metrics": parse_metrics(metrics())}
        engine = SeenEngine(described, **{**usual, **given})  # type: ignore[arg-type]
        verdict = check_hashes(context_of([engine]))
    assert verdict.evidence[-1] == f"KV events of {asked} engines about one prompt"
