"""How many parameters a model has by its ``config.json``: an estimate for weights that are not there yet. Pure.

Counted are embeddings, attention (grouped-query or latent), plain and expert layers. Norms, biases and routers are less
than a thousandth; indexes of sparse attention are counted, vision towers are not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Parameters:
    """``experts``: of routed experts, which expert parallelism spreads over all ranks; ``rest``: all others."""

    experts: int
    rest: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.experts + self.rest


def parameters(config: Mapping[str, Any]) -> Parameters:
    """The estimate; nothing where the config does not say enough."""
    text = config.get("text_config")
    read = _Sizes(text if isinstance(text, Mapping) else config)
    layers, hidden = read("num_hidden_layers"), read("hidden_size")
    tables = 1 if read.tied else 2
    routed = read("n_routed_experts") or read("num_experts") or read("num_local_experts")
    dense = min(read("first_k_dense_replace"), layers) if routed else layers
    sparse = layers - dense
    wide, expert = read("intermediate_size"), read("moe_intermediate_size") or read("intermediate_size")
    shared = read("n_shared_experts") * expert + read("shared_expert_intermediate_size")
    rest = tables * read("vocab_size") * hidden + layers * _attention(read, hidden)
    rest += 3 * hidden * (dense * wide + sparse * shared)
    return Parameters(experts=3 * hidden * expert * routed * sparse, rest=rest)


class _Sizes:
    """Whole numbers of a config; 0 where there is none."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    def __call__(self, name: str) -> int:
        value = self._config.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else 0

    def __repr__(self) -> str:
        return f"_Sizes({self._config.get('model_type')})"

    @property
    def tied(self) -> bool:
        """Whether input and output share their table."""
        return bool(self._config.get("tie_word_embeddings"))


def _attention(read: _Sizes, hidden: int) -> int:
    heads = read("num_attention_heads")
    if latent := read("kv_lora_rank"):
        rope, nope, value = read("qk_rope_head_dim"), read("qk_nope_head_dim"), read("v_head_dim")
        query = read("q_lora_rank")
        to_queries = hidden * query + query * heads * (nope + rope) if query else hidden * heads * (nope + rope)
        index = read("index_head_dim") * (hidden + (query or hidden) * read("index_n_heads"))
        return to_queries + hidden * (latent + rope) + latent * heads * (nope + value) + heads * value * hidden + index
    size = read("head_dim") or (hidden // heads if heads else 0)
    return hidden * size * (2 * heads + 2 * (read("num_key_value_heads") or heads))
