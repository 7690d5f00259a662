"""What a model keeps of each token and each request on one device, by kind of cache. Pure.

Beside :mod:`kveik.launch.model_facts`, which counts attention: splitting over devices, the type of the cache, indexes
of sparse attention, states and draft layers. Formulas as vLLM 0.32 has them (``vllm/v1/kv_cache_interface.py``); a test
compares them with its own specifications.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kveik.errors import ConfigError
from kveik.launch.model_facts import ModelFacts, model_facts

#: Bytes of a number by the name that vLLM's --kv-cache-dtype and transformers have for its type.
BYTES_OF = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1}
#: One scale of 4 bytes for so many numbers of an index.
_INDEX_SCALE_EVERY = 128


@dataclass(frozen=True, slots=True)
class Split:
    """Over how many devices a rank is split: heads by ``tensor``, layers by ``pipeline``."""

    tensor: int = 1
    pipeline: int = 1


@dataclass(frozen=True, slots=True)
class KvGroup:
    """One kind of cache on one device: bytes that grow with each token, and bytes of a request whatever its length."""

    name: str
    token_bytes: float
    request_bytes: float
    formula: str
    filled: str


def kv_groups(config: Mapping[str, Any], split: Split, kv_dtype: str = "auto", drafts: int = 0) -> tuple[KvGroup, ...]:
    """All kinds of caches of a model by its ``config.json``; ``drafts``: layers of its own drafter.

    Raises :class:`ConfigError` for an unknown type, or heads that cannot be split so.
    """
    facts = model_facts(config, 0, "model")
    text = _text(config)
    if kv_dtype != "auto" and kv_dtype not in BYTES_OF:
        raise ConfigError(f"--kv-dtype is {kv_dtype!r}, expected auto or one of {', '.join(BYTES_OF)}")
    number_bytes = BYTES_OF[facts.dtype if kv_dtype == "auto" else kv_dtype]
    heads = heads_on_device(facts, split)
    found = [*_attention(facts, text, split, number_bytes, heads), *_index(text, split), *_states(facts, text, split)]
    if drafts:
        layer = _layer_numbers(facts, text, heads) * number_bytes
        found.append(
            KvGroup(
                "drafter",
                drafts * layer,
                0,
                "draft layers x numbers x bytes",
                f"{drafts} x {layer // number_bytes} x {number_bytes}",
            )
        )
    return tuple(group for group in found if group.token_bytes or group.request_bytes)


def heads_on_device(facts: ModelFacts, split: Split) -> int:
    """KV heads that one device holds: at least one, which then several hold. Raises :class:`ConfigError`."""
    if facts.heads % split.tensor and split.tensor % facts.heads:
        raise ConfigError(f"{facts.heads} KV heads cannot be split over --tensor {split.tensor}: take a divisor")
    return max(1, facts.heads // split.tensor)


def _attention(
    facts: ModelFacts, text: Mapping[str, Any], split: Split, number_bytes: int, heads: int
) -> list[KvGroup]:
    layer = _layer_numbers(facts, text, heads) * number_bytes
    whole = _layer_numbers(facts, text, facts.heads) * BYTES_OF[facts.dtype]
    full = facts.kv_bytes_a_token // whole if whole else 0
    windowed = facts.window_bytes // whole if whole else 0  # layers x tokens
    if facts.kind == "latent":
        name, what = "latent", "layers x (kv_lora_rank + qk_rope_head_dim) x bytes; each device has all of it"
    else:
        name, what = "full", "layers x 2 x KV heads on the device x head size x bytes"
    filled = f"{full} x {layer // number_bytes} x {number_bytes}{_over(split)}"
    groups = [KvGroup(name, full * layer / split.pipeline, 0, what, filled)]
    if windowed:
        groups.append(
            KvGroup(
                "window",
                0,
                windowed * layer / split.pipeline,
                "layers x window tokens x 2 x KV heads on the device x head size x bytes",
                f"{windowed} x {layer // number_bytes} x {number_bytes}{_over(split)}",
            )
        )
    return groups


def _index(text: Mapping[str, Any], split: Split) -> list[KvGroup]:
    """The index of sparse attention: one byte a number and its scales, on each device."""
    size = _whole(text, "index_head_dim")
    if not size or not _whole(text, "kv_lora_rank"):
        return []
    layers = _whole(text, "num_hidden_layers")
    row = size + 4 * (size // _INDEX_SCALE_EVERY)
    return [
        KvGroup(
            "index",
            layers * row / split.pipeline,
            0,
            "layers x (index_head_dim + 4 bytes of scale for each 128)",
            f"{layers} x {row}{_over(split)}",
        )
    ]


def _states(facts: ModelFacts, text: Mapping[str, Any], split: Split) -> list[KvGroup]:
    """States of linear attention (gated delta rule): they do not grow with the prompt."""
    kinds = text.get("layer_types")
    layers = sum(kind == "linear_attention" for kind in kinds) if isinstance(kinds, list) else 0
    values, keys = _whole(text, "linear_num_value_heads"), _whole(text, "linear_num_key_heads")
    if not layers or not values:
        return []
    key_size, value_size = _whole(text, "linear_key_head_dim"), _whole(text, "linear_value_head_dim")
    kernel = _whole(text, "linear_conv_kernel_dim")
    channels = (2 * keys * key_size + values * value_size) // split.tensor
    matrix = values // split.tensor * key_size * value_size
    bytes_each = channels * (kernel - 1) * BYTES_OF[facts.dtype] + matrix * 4
    return [
        KvGroup(
            "states",
            0,
            layers * bytes_each / split.pipeline,
            "layers x (channels x (kernel - 1) x bytes + value heads x key size x value size x 4)",
            f"{layers} x ({channels} x {kernel - 1} x {BYTES_OF[facts.dtype]} + {matrix} x 4){_over(split)}",
        )
    ]


def _layer_numbers(facts: ModelFacts, text: Mapping[str, Any], heads: int) -> int:
    """Numbers that one layer keeps of a token with so many heads."""
    if facts.kind == "latent":
        return _whole(text, "kv_lora_rank") + _whole(text, "qk_rope_head_dim")
    attention_heads = _whole(text, "num_attention_heads")
    size = _whole(text, "head_dim") or (_whole(text, "hidden_size") // attention_heads if attention_heads else 0)
    return 2 * heads * size


def _over(split: Split) -> str:
    return f" / {split.pipeline} (pipeline)" if split.pipeline > 1 else ""


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    text = config.get("text_config")
    return text if isinstance(text, Mapping) else config


def _whole(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
