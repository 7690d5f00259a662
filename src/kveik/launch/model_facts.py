"""What a model's folder says about the memory it needs: weights, KV bytes a token, longest context.

Estimates, for choosing sizes; what an engine really allocates it says itself. Pure but for reading the folder.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kveik.errors import ConfigError

_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf", "*.pt")
_BYTES_OF = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model. ``kv_bytes_a_token``: of layers that keep all tokens; ``window_bytes``: of those that keep a window.

    ``heads``: KV heads, which a tensor-parallel size should divide. ``kind``: ``attention``, ``sliding``,
    ``latent`` (MLA), or ``states`` (linear attention beside it). 0 where the config does not tell.
    """

    name: str
    weights_bytes: int
    dtype: str
    context_tokens: int
    kv_bytes_a_token: int
    window_bytes: int
    heads: int
    kind: str

    def kv_bytes(self, tokens: int) -> int:
        """KV cache of one request with so many tokens."""
        return self.kv_bytes_a_token * tokens + self.window_bytes


def read_model(folder: Path) -> ModelFacts:
    """The facts of a model folder. Raises :class:`ConfigError` if it is none."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf8"))
    except OSError as error:
        raise ConfigError(f"{folder} is no model folder: cannot read its config.json: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{folder}/config.json is no valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{folder}/config.json is no JSON object")
    sizes = {kind: sum(file.stat().st_size for file in folder.glob(kind)) for kind in _WEIGHTS}
    weights = next((size for size in sizes.values() if size), 0)
    if not weights:
        raise ConfigError(f"{folder} has no weights: no file like {', '.join(_WEIGHTS)}")
    return model_facts(config, weights, folder.resolve().name)


def model_facts(config: Mapping[str, Any], file_bytes: int, name: str) -> ModelFacts:
    """The facts in a ``config.json`` of transformers and the size of the weights' files."""
    stored = str(config.get("dtype") or config.get("torch_dtype") or "")
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    assert isinstance(text, Mapping)
    stored = stored or str(text.get("dtype") or text.get("torch_dtype") or "bfloat16")
    dtype = stored if stored in {"float16", "bfloat16"} else "bfloat16"  # vLLM's auto makes float32 smaller, too
    weights = file_bytes // 2 if stored == "float32" else file_bytes
    layers = _whole(text, "num_hidden_layers")
    heads = _whole(text, "num_key_value_heads") or _whole(text, "num_attention_heads")
    kinds = text.get("layer_types")
    kinds = [str(kind) for kind in kinds] if isinstance(kinds, list) else ["full_attention"] * layers
    windows = sum(kind in {"sliding_attention", "chunked_attention"} for kind in kinds)
    full = sum(kind == "full_attention" for kind in kinds)
    a_layer = _kv_numbers(text, heads) * _BYTES_OF[dtype]
    window_tokens = _whole(text, "sliding_window") or _whole(text, "attention_chunk_size")
    latent = _whole(text, "kv_lora_rank") > 0
    kind = "latent" if latent else "sliding" if windows else "states" if full < len(kinds) else "attention"
    return ModelFacts(
        name=name,
        weights_bytes=weights,
        dtype=dtype,
        context_tokens=_whole(text, "max_position_embeddings"),
        kv_bytes_a_token=a_layer * full,
        window_bytes=a_layer * windows * window_tokens,
        heads=1 if latent else heads,
        kind=kind,
    )


def _kv_numbers(text: Mapping[str, Any], heads: int) -> int:
    """How many numbers one layer keeps of one token."""
    if latent := _whole(text, "kv_lora_rank"):
        return latent + _whole(text, "qk_rope_head_dim")
    attention_heads = _whole(text, "num_attention_heads")
    size = _whole(text, "head_dim") or (_whole(text, "hidden_size") // attention_heads if attention_heads else 0)
    return 2 * heads * size


def _whole(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
