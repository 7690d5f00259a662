"""``kveik bench`` on real engines: on against off, and the same figures as vLLM's own benchmark."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kveik.cli.main import main
from kveik.engine.launch import Engine, EngineSpec
from kveik.engine.process import free_port
from tests.engines.engine import BOOT_S, core_of

MODEL = "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def start(
    engine_python: str, model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Engine]]:
    """Start an engine that serves over HTTP; all are stopped at the end of the module."""
    folder = tmp_path_factory.mktemp("bench")
    engines: list[Engine] = []

    def start(**changed: Any) -> Engine:
        spec = EngineSpec(
            name=f"engine-{len(engines)}",
            python=engine_python,
            model=model(MODEL),
            port=free_port(),
            max_model_tokens=2048,
            kv_cache_bytes=512 << 20,
            cores=core_of(len(engines)),
            **changed,
        )
        engines.append(engine := Engine(spec, os.environ, folder))
        engine.start()
        engine.wait_ready(BOOT_S)
        return engine

    yield start
    for engine in engines:
        engine.process.stop()


@pytest.fixture(scope="module")
def engine(start: Callable[..., Engine]) -> Engine:
    """An engine without Kveik's connector: its own prefix cache is the cache that is measured."""
    return start()


def bench(folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    file = folder / "result.json"
    code = main(["bench", *words, f"--json={file}"])
    document: dict[str, Any] = json.loads(file.read_text())
    return code, document


def side(document: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (one for one in document["sides"] if one["side"] == name)
    return dict(found)


@pytest.mark.long
def test_a_real_engine_s_cache_saves_what_was_computed_before_and_changes_no_answer(
    engine: Engine, tmp_path: Path
) -> None:
    lengths = ["--requests=6", "--prefixes=2", "--prefix-tokens=384", "--suffix-tokens=128", "--answer-tokens=4"]
    code, document = bench(
        tmp_path, "prefix", "--url", engine.client.url, "--compare", "--rounds=2", "--concurrency=1", *lengths
    )
    assert code == 0, document["findings"]
    on, off = side(document, "on"), side(document, "off")
    assert document["simulated"] is False
    assert (off["cached_tokens"], off["local_tokens"], off["external_tokens"]) == (0, 0, 0)
    assert on["cached_tokens"] == on["local_tokens"] == on["reusable_tokens"] == 2 * 4 * 384
    assert on["computed_tokens"] + on["local_tokens"] == on["prompt_tokens"] == 2 * 6 * 512
    assert document["gains"]["ttft"]["value"] > 1


@pytest.mark.long
def test_vllm_s_own_benchmark_gives_the_same_figures(engine: Engine, engine_python: str, tmp_path: Path) -> None:
    """Both cold by a salt, one request at a time: medians within a third, which is what a busy machine varies by."""
    lengths = ["--requests=20", "--prefixes=5", "--prefix-tokens=256", "--suffix-tokens=128", "--answer-tokens=8"]
    theirs = ["--also-vllm", "--vllm-python", engine_python, "--tokenizer", str(engine.spec.model)]
    code, document = bench(tmp_path, "prefix", "--url", engine.client.url, "--concurrency=1", *lengths, *theirs)
    assert code == 0, document["findings"]
    ours, vllm = side(document, "on"), document["vllm_bench_serve"]
    assert (vllm["completed"], vllm["failed"]) == (20, 0)
    assert vllm["ttft_s"] == pytest.approx(ours["sent_ttft_s"]["value"], rel=0.34)
    assert vllm["answer_tokens_per_s"] == pytest.approx(ours["answer_tokens_per_s"]["value"], rel=0.34)
    assert vllm["requests_per_s"] == pytest.approx(ours["requests_per_s"]["value"], rel=0.34)


@pytest.mark.long
def test_an_engine_with_kveik_is_compared_with_one_without(
    start: Callable[..., Engine], engine: Engine, agent: Any, tmp_path: Path
) -> None:
    """The first one's own cache holds little, so most of what it saves comes from the shared one."""
    kveik = start(connector=agent.extra)
    lengths = ["--documents=2", "--questions=3", "--document-tokens=768", "--question-tokens=32", "--answer-tokens=4"]
    code, document = bench(
        tmp_path,
        "documents",
        "--url",
        kveik.client.url,
        "--off-url",
        engine.client.url,
        "--rounds=2",
        "--concurrency=1",
        *lengths,
    )
    assert code == 0, document["findings"]
    on = side(document, "on")
    assert on["cached_tokens"] == on["local_tokens"] + on["external_tokens"] > 0
