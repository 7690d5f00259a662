"""Which engines share blocks and which never may; and engines that Kveik refuses to cache for."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.agents import wait_until
from tests.engines.engine import Engine, EngineDiedError
from tests.processor import HAS_AMX

Tokens = Callable[[int, int], list[int]]

WITHOUT_AMX = pytest.mark.skipif(HAS_AMX, reason="with AMX, vLLM on CPU keeps prefix caching on for MLA")


def save_adapter(folder: Path, model: Path, seed: int) -> Path:
    """A LoRA adapter of random numbers, in the PEFT layout (safetensors written by hand)."""
    config = json.loads((model / "config.json").read_text())
    hidden, out = config["hidden_size"], config["num_attention_heads"] * config["head_dim"]
    source = np.random.default_rng(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{name}.lora_A.weight"] = source.normal(0, 0.3, (8, hidden)).astype(np.float32)
        tensors[f"{name}.lora_B.weight"] = source.normal(0, 0.3, (out, 8)).astype(np.float32)
    header, data = {}, b""
    for name, tensor in tensors.items():
        span = [len(data), len(data) + tensor.nbytes]
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": span}
        data += tensor.tobytes()
    text = json.dumps(header).encode()
    folder.mkdir(exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    settings = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def writer(start_engine: Callable[..., Engine], agent: Any) -> Engine:
    return start_engine("tiny-qwen3", extra=agent.extra, enable_lora=True, max_lora_rank=8).wait_ready()


def test_salts_are_kept_apart(writer: Engine, tokens: Tokens) -> None:
    prompt = tokens(400, 1)
    writer.generate(prompt, salt="a")
    writer.reset()
    assert [writer.generate(prompt, salt=salt)[0]["cached"] for salt in ("b", "a")] == [0, 384]


def test_adapters_are_kept_apart_by_content(
    writer: Engine,
    start_engine: Callable[..., Engine],
    agent: Any,
    model: Callable[[str], Path],
    tokens: Tokens,
    tmp_path: Path,
) -> None:
    """Another training run saved to the same path must not hit blocks of the one before."""
    prompt, folder = tokens(400, 2), tmp_path / "adapter"
    save_adapter(folder, model("tiny-qwen3"), seed=1)
    (plain,) = writer.generate(prompt)
    writer.generate(tokens(200, 3), lora=str(folder))  # the adapter is identified in the background
    (first,) = writer.generate(prompt, lora=str(folder))
    assert first["cached"] == 0
    assert first["logprobs"] != plain["logprobs"]
    writer.reset()
    (again,) = writer.generate(prompt, lora=str(folder))
    assert (again["cached"], again["ids"]) == (384, first["ids"])
    save_adapter(folder, model("tiny-qwen3"), seed=2)
    retrained = start_engine("tiny-qwen3", extra=agent.extra, core=1, enable_lora=True, max_lora_rank=8).wait_ready()
    retrained.generate(tokens(200, 4), lora=str(folder))
    (other,) = retrained.generate(prompt, lora=str(folder))
    assert other["cached"] == 0
    assert other["logprobs"] != first["logprobs"]
    retrained.kill()


def test_a_renamed_model_folder_hits_and_other_weights_under_its_name_never(
    writer: Engine,
    start_engine: Callable[..., Engine],
    engine_python: str,
    agent: Any,
    model: Callable[[str], Path],
    tokens: Tokens,
    tmp_path: Path,
) -> None:
    prompt = tokens(400, 5)
    (cold,) = writer.generate(prompt)
    renamed = tmp_path / "renamed"
    shutil.copytree(model("tiny-qwen3"), renamed)
    with Engine(engine_python, renamed, tmp_path / "renamed.log", extra=agent.extra, core=1) as engine:
        (hit,) = engine.generate(prompt)
        assert (hit["cached"], hit["ids"]) == (384, cold["ids"])
        engine.kill()
    weights = bytearray((renamed / "model.safetensors").read_bytes())
    weights[-4:] = struct.pack("<f", 0.5)
    (renamed / "model.safetensors").write_bytes(weights)
    with Engine(engine_python, renamed, tmp_path / "changed.log", extra=agent.extra, core=1) as engine:
        assert engine.generate(prompt)[0]["cached"] == 0
        # Said once the agent was greeted, which on a busy machine is after the first answer.
        told = (tmp_path / "changed.log").read_text
        wait_until(lambda: "namespace differs: weights_digest" in told(), "the difference is told", 60)
        engine.kill()


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        pytest.param("tiny-deepseekv2", {}, "prefix caching is off", marks=WITHOUT_AMX),
        ("tiny-qwen3", {"enable_prefix_caching": False}, "prefix caching is off"),
        pytest.param(
            "tiny-qwen3",
            {"prefix_caching_hash_algo": "xxhash"},
            "set PYTHONHASHSEED to one value",
            marks=pytest.mark.long,  # the same way out, for a reason that unit tests have, too
        ),
    ],
    ids=["mla-on-cpu", "no-prefix-caching", "random-hash-seed"],
)
def test_what_cannot_be_served_safely_is_refused_and_the_engine_serves(
    start_engine: Callable[..., Engine], agent: Any, tokens: Tokens, name: str, options: dict[str, Any], reason: str
) -> None:
    engine = start_engine(name, extra=agent.extra, core=1, **options).wait_ready()
    prompt = tokens(400, 6)
    first, again = engine.generate(prompt)[0], engine.generate(prompt)[0]
    assert first["ids"] == again["ids"]
    assert engine.counter("vllm:external_prefix_cache_hits") == 0
    assert engine.counter("kveik_connector_serving") == 0
    assert "Kveik does not cache for this engine" in engine.log.read_text()
    assert reason in engine.log.read_text()
    engine.kill()


@pytest.mark.long
def test_a_strict_engine_refuses_to_start_instead(start_engine: Callable[..., Engine], agent: Any) -> None:
    with pytest.raises(EngineDiedError, match="prefix caching is off"):
        start_engine("tiny-qwen3", extra={**agent.extra, "strict": True}, enable_prefix_caching=False).wait_ready()


@pytest.mark.long
def test_a_policy_that_fails_requests_is_refused(
    engine_python: str, model: Callable[[str], Path], agent: Any, tmp_path: Path
) -> None:
    transfer = {"kv_connector": "KveikConnector", "kv_role": "kv_both", "kv_connector_extra_config": agent.extra}
    engine = Engine(engine_python, model("tiny-qwen3"), tmp_path / "log", extra=None, kv_transfer_config=transfer)
    with pytest.raises(EngineDiedError, match="expected 'recompute'"):
        engine.wait_ready()


@pytest.mark.long
def test_it_works_inside_multi_connector(
    engine_python: str, model: Callable[[str], Path], agent: Any, tokens: Tokens, tmp_path: Path
) -> None:
    child = {
        "kv_connector": "KveikConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": agent.extra,
    }
    transfer = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"connectors": [child]},
    }
    with Engine(
        engine_python, model("tiny-qwen3"), tmp_path / "log", extra=None, kv_transfer_config=transfer
    ) as engine:
        prompt = tokens(400, 7)
        (cold,) = engine.generate(prompt)
        engine.reset()
        (hit,) = engine.generate(prompt)
        assert (hit["cached"], hit["ids"]) == (384, cold["ids"])
        engine.kill()
