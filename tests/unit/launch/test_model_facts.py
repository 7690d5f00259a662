"""What a model's config says about the memory that it needs."""

import json
from pathlib import Path
from typing import Any

import pytest

from kveik.errors import ConfigError
from kveik.launch.model_facts import model_facts, read_model

SMOLLM2: dict[str, Any] = {
    "dtype": "bfloat16",
    "head_dim": 64,
    "hidden_size": 576,
    "max_position_embeddings": 8192,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
}


def test_full_attention_keeps_keys_and_values_of_every_layer() -> None:
    facts = model_facts(SMOLLM2, 269_060_552, "smollm2")
    assert facts.kv_bytes_a_token == 2 * 30 * 3 * 64 * 2
    assert facts.kv_bytes(1000) == 1000 * 23_040
    assert (facts.weights_bytes, facts.dtype, facts.context_tokens) == (269_060_552, "bfloat16", 8192)
    assert (facts.heads, facts.kind) == (3, "attention")


def test_a_config_without_head_size_or_kv_heads_means_those_of_attention() -> None:
    config = {name: value for name, value in SMOLLM2.items() if name not in {"head_dim", "num_key_value_heads"}}
    assert model_facts(config, 1, "m").kv_bytes_a_token == 2 * 30 * 9 * 64 * 2


def test_sliding_layers_keep_a_window_and_no_more() -> None:
    kinds = ["sliding_attention"] * 15 + ["full_attention"] * 3
    facts = model_facts({**SMOLLM2, "num_hidden_layers": 18, "layer_types": kinds, "sliding_window": 512}, 1, "m")
    assert facts.kv_bytes_a_token == 2 * 3 * 3 * 64 * 2
    assert facts.window_bytes == 2 * 15 * 3 * 64 * 2 * 512
    assert facts.kv_bytes(10_000) == 10_000 * facts.kv_bytes_a_token + facts.window_bytes
    assert facts.kind == "sliding"


def test_latent_attention_keeps_one_vector_for_all_heads() -> None:
    facts = model_facts({**SMOLLM2, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, 1, "m")
    assert facts.kv_bytes_a_token == 30 * (512 + 64) * 2
    assert (facts.kind, facts.heads) == ("latent", 1)


def test_layers_with_states_keep_nothing_for_each_token() -> None:
    kinds = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
    facts = model_facts({**SMOLLM2, "num_hidden_layers": 4, "layer_types": kinds}, 1, "m")
    assert facts.kv_bytes_a_token == 2 * 3 * 64 * 2
    assert facts.kind == "states"


def test_the_text_part_of_a_multimodal_model_counts() -> None:
    facts = model_facts({"dtype": "float16", "text_config": SMOLLM2, "vision_config": {}}, 1, "m")
    assert (facts.kv_bytes_a_token, facts.dtype, facts.context_tokens) == (23_040, "float16", 8192)


def test_weights_stored_as_float32_are_loaded_as_half_as_many_bytes() -> None:
    facts = model_facts({**SMOLLM2, "dtype": "float32"}, 1000, "m")
    assert (facts.weights_bytes, facts.dtype) == (500, "bfloat16")


def test_a_config_that_says_nothing_gives_zeros_and_no_error() -> None:
    facts = model_facts({"num_hidden_layers": "many", "layer_types": 3}, 7, "m")
    assert (facts.kv_bytes_a_token, facts.context_tokens, facts.weights_bytes) == (0, 0, 7)


def test_a_folder_is_read_with_the_size_of_its_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMOLLM2))
    for number in range(2):
        (tmp_path / f"model-{number}.safetensors").write_bytes(bytes(1000))
    (tmp_path / "pytorch_model.bin").write_bytes(bytes(5000))
    facts = read_model(tmp_path)
    assert (facts.weights_bytes, facts.name) == (2000, tmp_path.name)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (None, "is no model folder: cannot read its config.json"),
        ("{", "config.json is no valid JSON"),
        ("[]", "config.json is no JSON object"),
        ("{}", "has no weights: no file like"),
    ],
)
def test_a_folder_without_a_model_is_refused_with_the_reason(tmp_path: Path, config: str | None, told: str) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(ConfigError, match=told):
        read_model(tmp_path)
