"""Every `vllm serve` line that can be generated is one that vLLM's own parser and configuration take."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser

from kveik.profiles.nodes import nodes
from kveik.profiles.wish import Wish
from tests import ascend_names
from tests.launches import launchable
from tests.processor import HAS_AMX

# The published shape of a model whose config.json the catalogue does not have; the values decide nothing here.
DEEPSEEK = {
    "architectures": ["DeepseekV41ForCausalLM"],
    "model_type": "deepseek_v41",
    "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "deepseek_v41", "hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads": 64,
        "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 1024,
        "max_position_embeddings": 1048576, "vocab_size": 129280, "n_routed_experts": 256, "n_shared_experts": 1,
        "num_experts_per_tok": 6, "moe_intermediate_size": 2048, "sliding_window": 128, "index_topk": 512,
        "engram_layer_ids": [1, 10], "num_nextn_predict_layers": 1, "rope_theta": 10000.0,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def parser() -> Any:
    ascend_names.register()
    found = make_arg_parser(FlexibleArgumentParser(prog="vllm serve", exit_on_error=False))

    def refuse(message: str) -> None:
        raise AssertionError(message)

    found.error = refuse
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def lines(wish: Wish, folders: Path) -> Iterator[list[str]]:
    """The options of each engine, for a folder that has the model's config.json and nothing else."""
    folder = folders / wish.model.name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(wish.model.config or DEEPSEEK))
    for node in nodes(wish):
        for process in node.processes:
            if process.command[:2] == ("vllm", "serve"):
                yield [str(folder), "--skip-tokenizer-init", *process.words[3:]]


def without_reading(line: list[str]) -> list[str]:
    """A line without its reasoning parser, which wants the model's own tokenizer; the parser has taken it by then."""
    if "--reasoning-parser" not in line:
        return line
    at = line.index("--reasoning-parser")
    return [*line[:at], *line[at + 2 :]]


def resolved(parser: Any, line: list[str]) -> VllmConfig:
    validate_parsed_serve_args(parser.parse_args(line))
    args = parser.parse_args(without_reading(line))
    args.model, args.subparser, args.dispatch_function = args.model_tag, "serve", None
    return AsyncEngineArgs.from_cli_args(args).create_engine_config(headless=args.headless)


def test_vllm_takes_every_line_and_means_the_same(parser: Any, folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # DSpark is on vLLM's second model runner, which needs Triton, and Triton an accelerator. (vllm-ascend has it on the
    # first one.) Nothing is run here.
    monkeypatch.setattr("vllm.config.vllm.HAS_TRITON", True)
    seen = set()
    for wish in launchable():
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1" if wish.model.name.startswith("deepseek") else "0")
        for line in lines(wish, folders):
            if (key := json.dumps([line, wish.model.name])) in seen:
                continue
            seen.add(key)
            try:
                config = resolved(parser, line)
            except Exception as error:
                raise AssertionError(f"{wish.hardware.name}, {wish.tier.name}: {' '.join(line)}: {error}") from error
            assert config.parallel_config.tensor_parallel_size == wish.preset.tensor
            ranks = wish.preset.local * wish.nodes if wish.model.group else 1
            assert config.parallel_config.data_parallel_size == ranks
            assert config.model_config.max_model_len == wish.preset.context
            if HAS_AMX or not config.model_config.use_mla:  # without, vLLM itself switches it off for MLA on CPU
                assert config.cache_config.enable_prefix_caching is not False
            connector = config.kv_transfer_config.kv_connector if config.kv_transfer_config else ""
            assert (connector == "") == (wish.tier.name == "none")
    assert len(seen) > 100
