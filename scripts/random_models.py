"""Tiny models with random weights: one for every layout of the KV cache, built in seconds.

What they say is noise, but it is the same noise everywhere: weights come from a fixed seed by exact
arithmetic, so their digest is the same on every machine. Every model has the same byte-level
tokenizer. Runs in the vLLM environment (torch, transformers).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    DeepseekV2Config,
    Gemma3TextConfig,
    GptOssConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

Report = Callable[[str], None]

VOCABULARY = 512
SEED = 20240501
SPREAD = 0.14
"""Weights are uniform in +-SPREAD: wide enough that the answer depends on every block of the prompt."""


@dataclass(frozen=True, kw_only=True)
class RandomModel:
    """A model made from its config alone."""

    kv_layout: str
    config: Callable[..., PreTrainedConfig]
    settings: dict[str, Any]
    dtype: torch.dtype = torch.float32


def make(model: RandomModel, folder: Path, report: Report) -> None:
    """Write ``model`` as a Hugging Face folder: config, weights, tokenizer."""
    report(f"drawing random weights ({model.kv_layout})")
    built = AutoModelForCausalLM.from_config(model.config(**_SIZES | model.settings))
    _draw_weights(built)
    built.to(model.dtype).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)


def _draw_weights(model: PreTrainedModel) -> None:
    """Give every weight its value in the order of names; norms and biases keep their constants.

    Uniform integers scaled by one factor, since normal variates may differ in the last bit
    between processors.
    """
    random = np.random.default_rng(SEED)
    for name, weight in sorted(model.named_parameters()):
        if name.endswith("A_log"):  # decay rates of a state model: spread them from slow to fast
            drawn = np.linspace(0.0, 2.0, weight.numel(), dtype=np.float32)
        elif weight.dim() > 1 or name.endswith(("sinks", "router.bias")):
            drawn = random.integers(-32767, 32768, weight.numel(), dtype=np.int32).astype(np.float32) * (SPREAD / 32768)
        else:
            continue
        weight.data = torch.from_numpy(drawn.astype(np.float32).reshape(weight.shape))
    if model.config.tie_word_embeddings:
        _stop_echo(model)


def _stop_echo(model: PreTrainedModel) -> None:
    """Keep a model whose output layer is its embedding from repeating the last token for ever.

    Smaller embeddings leave the residual stream to the layers, which read the KV cache; the last
    norm (Gemma's factor is one plus its weight) makes the logits as wide as before.
    """
    model.get_input_embeddings().weight.data /= 4
    model.model.norm.weight.data.fill_(3.0)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, so that any text has an encoding; the rest of the ids are named fillers."""
    special = ["<|start|>", "<|end|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fillers = [f"<|filler{number}|>" for number in range(VOCABULARY - len(letters) - len(special))]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens([AddedToken(filler, normalized=False) for filler in fillers])
    template = "{% for message in messages %}{{ message.role + ': ' + message.content + '\n' }}{% endfor %}"
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=special[0],
        eos_token=special[1],
        pad_token=special[1],
        chat_template=template + "{% if add_generation_prompt %}assistant: {% endif %}",
    )


_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "max_position_embeddings": 8192,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 257,
}
_GROUPED_QUERY = {"num_key_value_heads": 2, "head_dim": 64}
_EXPERTS = {"moe_intermediate_size": 128, "num_experts": 8, "num_experts_per_tok": 2, "decoder_sparse_step": 1}

RANDOM_MODELS = {
    "tiny-qwen3": RandomModel(
        kv_layout="one group, full attention",
        config=Qwen3Config,
        settings=_GROUPED_QUERY | {"num_hidden_layers": 4, "intermediate_size": 512},
    ),
    "tiny-qwen3moe": RandomModel(
        kv_layout="one group, full attention, experts",
        config=Qwen3MoeConfig,
        settings=_GROUPED_QUERY | _EXPERTS | {"num_hidden_layers": 4, "intermediate_size": 512, "mlp_only_layers": []},
    ),
    "tiny-gemma3": RandomModel(
        kv_layout="sliding window with full attention, 5 to 1",
        config=Gemma3TextConfig,
        settings=_GROUPED_QUERY
        | {"num_hidden_layers": 12, "intermediate_size": 512, "sliding_window": 512, "query_pre_attn_scalar": 64},
    ),
    "tiny-gptoss": RandomModel(
        kv_layout="sliding window with full attention, alternating, with sinks",
        config=GptOssConfig,
        settings=_GROUPED_QUERY
        | {
            "num_hidden_layers": 4,
            "intermediate_size": 256,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 128,
            "max_position_embeddings": 131072,  # what its rotary scaling is made for
        },
        dtype=torch.bfloat16,
    ),
    "tiny-qwen3next": RandomModel(
        kv_layout="linear attention state with full attention, 3 to 1",
        config=Qwen3NextConfig,
        settings=_GROUPED_QUERY
        | _EXPERTS
        | {
            "num_hidden_layers": 4,
            "intermediate_size": 512,
            "shared_expert_intermediate_size": 128,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
        },
        dtype=torch.bfloat16,
    ),
    "tiny-deepseekv2": RandomModel(
        kv_layout="latent attention (MLA), refused on CPU",
        config=DeepseekV2Config,
        settings={
            "num_key_value_heads": 4,
            "num_hidden_layers": 4,
            "intermediate_size": 512,
            "moe_intermediate_size": 128,
            "kv_lora_rank": 512,
            "q_lora_rank": None,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "greedy",
            "norm_topk_prob": False,
        },
    ),
}
