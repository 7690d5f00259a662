"""vLLM's own benchmark: its command line and its result."""

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kveik.bench.made_workloads import PrefixRepetition, SharedDocuments
from kveik.bench.planned import TokenPool
from kveik.bench.vllm_serve import VllmServe, read_result
from kveik.errors import ConfigError, EngineError

POOL = TokenPool(range(100), seed=1)
WORKLOAD = PrefixRepetition(requests=10, prefixes=5, prefix_tokens=64, suffix_tokens=32).workload(POOL, seed=1)
RESULT = {
    "completed": 10,
    "failed": 0,
    "median_ttft_ms": 250.0,
    "p90_ttft_ms": 400.0,
    "p99_ttft_ms": 500.0,
    "median_tpot_ms": 20.0,
    "request_throughput": 2.0,
    "output_throughput": 256.0,
    "total_token_throughput": 448.0,
}


def serve(**changed: Any) -> VllmServe:
    values: dict[str, Any] = {
        "python": sys.executable,
        "tokenizer": "/models/m",
        "url": "http://127.0.0.1:8000",
        "model": "m",
        "salt": "fresh",
        "seed": 7,
    }
    return VllmServe(**{**values, **changed})


def flags(command: list[str]) -> dict[str, str]:
    pairs = dict(pairwise(command))
    return {name: value for name, value in pairs.items() if name.startswith("--")}


def test_the_command_line_has_the_guide_s_parameters_and_a_salt_that_makes_it_cold() -> None:
    given = flags(serve(per_s=1.0, places=4).command(WORKLOAD, "/tmp/x", "r.json"))
    assert given["--dataset-name"] == "prefix_repetition"
    assert given["--prefix-repetition-prefix-len"] == "64"
    assert given["--prefix-repetition-suffix-len"] == "32"
    assert given["--prefix-repetition-num-prefixes"] == "5"
    assert given["--prefix-repetition-output-len"] == "128"
    assert (given["--num-prompts"], given["--seed"]) == ("10", "7")
    assert json.loads(given["--extra-body"]) == {"cache_salt": "fresh"}
    assert given["--ready-check-timeout-sec"] == "0"
    assert (given["--request-rate"], given["--max-concurrency"]) == ("1.0", "4")


def test_without_a_rate_or_a_limit_there_is_no_flag_for_it() -> None:
    given = flags(serve().command(WORKLOAD, "/tmp/x", "r.json"))
    assert {"--request-rate", "--max-concurrency"}.isdisjoint(given)


def test_workloads_that_vllm_does_not_have_are_refused() -> None:
    with pytest.raises(ConfigError, match="no workload like documents"):
        serve().command(SharedDocuments(documents=1, questions=1).workload(POOL, seed=1), "/tmp/x", "r.json")


def test_a_result_is_read_in_seconds(tmp_path: Path) -> None:
    (file := tmp_path / "r.json").write_text(json.dumps(RESULT))
    found = read_result(file)
    assert (found.ttft_s, found.ttft_p90_s, found.token_s) == (0.25, 0.4, 0.02)
    assert found.document()["answer_tokens_per_s"] == 256.0


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"completed": "x"}', "null"])
def test_what_is_no_result_is_refused(text: str, tmp_path: Path) -> None:
    (file := tmp_path / "r.json").write_text(text)
    with pytest.raises(EngineError, match="no result that is understood here"):
        read_result(file)


def test_a_result_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="left no result"):
        read_result(tmp_path / "none.json")


def test_an_environment_without_vllm_is_told_with_what_it_says(tmp_path: Path) -> None:
    (python := tmp_path / "python").write_text("#!/bin/sh\necho No module named vllm >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(EngineError, match="ended with 1: No module named vllm"):
        serve(python=str(python)).run(WORKLOAD)
    with pytest.raises(EngineError, match="could not be started"):
        serve(python=str(tmp_path / "none")).run(WORKLOAD)


def test_what_it_writes_is_what_is_read(tmp_path: Path) -> None:
    script = "import json, sys; d = dict(zip(sys.argv, sys.argv[1:])); "
    script += "open(d['--result-dir'] + '/' + d['--result-filename'], 'w').write(sys.stdin.read() or RESULT)"
    (body := tmp_path / "fake.py").write_text(f"RESULT = {json.dumps(json.dumps(RESULT))}\n{script}\n")
    (python := tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} {body} "$@"\n')
    python.chmod(0o755)
    assert serve(python=str(python)).run(WORKLOAD).completed == 10


def test_the_key_is_not_shown() -> None:
    assert "secret" not in repr(serve(api_key="secret"))
