"""What a plan counts is what vLLM would keep: bytes of its own cache specifications, blocks of its own manager."""

import json
import socket
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm.config import set_current_vllm_config
from vllm.distributed import (
    cleanup_dist_env_and_memory,
    destroy_model_parallel,
    ensure_model_parallel_initialized,
    init_distributed_environment,
)
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.v1.kv_cache_interface import MambaSpec, SlidingWindowSpec

from kveik.connector.vllm_blocks import blocks_used
from kveik.profiles.kv_groups import Split, kv_groups
from kveik.profiles.lengths import blocks_alone, blocks_sharing, mix
from tests.processor import HAS_AMX


@pytest.fixture(scope="module")
def distributed() -> Iterator[int]:
    """The port of a group of one rank, which models want to be in."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    yield port
    cleanup_dist_env_and_memory()


def specifications(folder: Path, port: int) -> dict[str, Any]:
    """The cache specification of each layer, from the model itself without its weights' values."""
    config = EngineArgs(
        model=str(folder), dtype="bfloat16", enforce_eager=True, skip_tokenizer_init=True, max_model_len=2048
    ).create_engine_config()
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"tcp://127.0.0.1:{port}", 0, "gloo")
        destroy_model_parallel()  # the last model's: one without experts has no group for them
        ensure_model_parallel_initialized(1, 1)
        torch.set_default_dtype(torch.bfloat16)
        try:
            initialize_model(vllm_config=config)
        finally:
            torch.set_default_dtype(torch.float32)
        found = {
            name: layer.get_kv_cache_spec(config)
            for name, layer in config.compilation_config.static_forward_context.items()
            if hasattr(layer, "get_kv_cache_spec")
        }
    return {name: spec for name, spec in found.items() if spec is not None}


@pytest.mark.parametrize(
    "name", ["smollm2-135m-instruct", "tiny-qwen3", "tiny-qwen3moe", "tiny-gemma3", "tiny-gptoss", "tiny-deepseekv2",
             pytest.param("tiny-qwen3next", marks=pytest.mark.skipif(not HAS_AMX, reason="other states"))]
)  # fmt: skip
def test_bytes_are_those_of_vllms_specifications(models: Path, distributed: int, name: str) -> None:
    folder = models / name
    kept: dict[str, float] = defaultdict(float)
    for spec in specifications(folder, distributed).values():
        if isinstance(spec, MambaSpec):
            kept["states"] += sum(
                torch.Size(shape).numel() * dtype.itemsize
                for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True)
            )
        elif isinstance(spec, SlidingWindowSpec):
            kept["window"] += spec.page_size_bytes / spec.block_size * spec.sliding_window
        else:
            kept["token"] += spec.page_size_bytes / spec.block_size
    config = json.loads((folder / "config.json").read_text()) | {"dtype": "bfloat16"}
    planned: dict[str, float] = defaultdict(float)
    for group in kv_groups(config, Split()):
        planned["token"] += group.token_bytes
        planned[group.name if group.request_bytes else "token"] += group.request_bytes
    assert dict(planned) == dict(kept)


@pytest.mark.parametrize("lengths", ["uniform:10-1000", "exponential:10-1000:180"])
@pytest.mark.parametrize("block", [16, 128])
def test_blocks_are_those_of_vllms_manager(lengths: str, block: int) -> None:
    found = mix(lengths)
    assert blocks_used(found, 0, block, caching=False) == blocks_alone(found, block)


@pytest.mark.parametrize(
    ("lengths", "shared", "block"),
    [([1000] * 50, 304, 16), ([64, 64, 64], 64, 16), ([40, 1000, 300], 200, 16), ([1000] * 10, 420, 128)],
)
def test_shared_blocks_are_those_of_vllms_manager(lengths: list[int], shared: int, block: int) -> None:
    assert blocks_used(lengths, shared, block, caching=True) == blocks_sharing(lengths, shared, block)
