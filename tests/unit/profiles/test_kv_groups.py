"""What a model keeps of a token and of a request follows from its config.json, by kind of cache."""

from typing import Any

import pytest

from kveik.errors import ConfigError
from kveik.launch.model_facts import model_facts
from kveik.profiles import catalog
from kveik.profiles.kv_groups import KvGroup, Split, kv_groups

PLAIN = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 512,
         "torch_dtype": "bfloat16"}  # fmt: skip
SLIDING = PLAIN | {"layer_types": ["sliding_attention"] * 3 + ["full_attention"], "sliding_window": 128}
LATENT = {"num_hidden_layers": 10, "num_attention_heads": 16, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
          "torch_dtype": "bfloat16"}  # fmt: skip
STATES = PLAIN | {
    "layer_types": ["linear_attention"] * 3 + ["full_attention"], "linear_num_value_heads": 4,
    "linear_num_key_heads": 2, "linear_key_head_dim": 64, "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4,
}  # fmt: skip


def groups(config: dict[str, Any], split: Split = Split(), **more: Any) -> dict[str, KvGroup]:  # noqa: B008
    return {group.name: group for group in kv_groups(config, split, **more)}


def test_full_attention_keeps_keys_and_values_of_its_heads() -> None:
    assert groups(PLAIN)["full"].token_bytes == 4 * 2 * 4 * 64 * 2
    assert groups(PLAIN)["full"].filled == "4 x 512 x 2"


@pytest.mark.parametrize(("tensor", "heads"), [(1, 4), (2, 2), (4, 1), (8, 1)])
def test_heads_are_split_until_there_is_one_and_then_repeated(tensor: int, heads: int) -> None:
    assert groups(PLAIN, Split(tensor))["full"].token_bytes == 4 * 2 * heads * 64 * 2


def test_heads_that_cannot_be_split_so_are_told() -> None:
    with pytest.raises(ConfigError, match="4 KV heads cannot be split over --tensor 3"):
        groups(PLAIN, Split(3))


def test_layers_are_split_by_the_pipeline() -> None:
    assert groups(PLAIN, Split(pipeline=2))["full"].token_bytes == 4 * 512 * 2 / 2


@pytest.mark.parametrize(("kv_dtype", "number"), [("auto", 2), ("bfloat16", 2), ("fp8", 1), ("float32", 4)])
def test_the_type_of_the_cache_counts(kv_dtype: str, number: int) -> None:
    assert groups(PLAIN, kv_dtype=kv_dtype)["full"].token_bytes == 4 * 512 * number


def test_a_type_that_there_is_not_is_told() -> None:
    with pytest.raises(ConfigError, match="--kv-dtype is 'fp7', expected auto or one of"):
        groups(PLAIN, kv_dtype="fp7")


def test_windows_do_not_grow_with_the_prompt() -> None:
    found = groups(SLIDING)
    assert found["full"].token_bytes == 1 * 512 * 2
    assert found["window"].token_bytes == 0
    assert found["window"].request_bytes == 3 * 128 * 512 * 2


def test_latent_caches_are_whole_on_each_device() -> None:
    for tensor in (1, 8):
        assert groups(LATENT, Split(tensor))["latent"].token_bytes == 10 * (512 + 64) * 2


def test_an_index_of_sparse_attention_has_its_scales() -> None:
    assert groups(LATENT | {"index_head_dim": 128})["index"].token_bytes == 10 * (128 + 4)
    assert "index" not in groups(PLAIN | {"index_head_dim": 128})


def test_states_are_there_once_a_request() -> None:
    found = groups(STATES)["states"]
    assert found.token_bytes == 0
    assert found.request_bytes == 3 * ((2 * 2 * 64 + 4 * 64) * 3 * 2 + 4 * 64 * 64 * 4)
    assert groups(STATES, Split(2))["states"].request_bytes == found.request_bytes / 2


def test_a_drafter_keeps_a_layer_more() -> None:
    assert groups(LATENT, drafts=1)["drafter"].token_bytes == 576 * 2


def test_a_nested_text_config_is_read() -> None:
    assert groups({"text_config": PLAIN, "torch_dtype": "bfloat16"}) == groups(PLAIN)


def test_the_sum_is_what_the_launcher_counts() -> None:
    for config in (PLAIN, SLIDING, LATENT):
        facts = model_facts(config, 0, "m")
        found = kv_groups(config, Split())
        assert sum(group.token_bytes for group in found) == facts.kv_bytes_a_token
        assert sum(group.request_bytes for group in found) == facts.window_bytes


def test_presets_have_what_is_known_of_them() -> None:
    assert groups(dict(catalog.model("qwen3-32b").config or {}))["full"].token_bytes == 262_144
    assert groups(dict(catalog.model("glm-5").config or {}))["latent"].token_bytes == 89_856
