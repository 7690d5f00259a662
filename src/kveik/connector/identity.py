"""The facts of this engine's namespace, read from vLLM's configuration.

Facts that only a worker knows (device, attention kernels, byte strides) come from the workers'
handshake; the digest of the weights takes time and is made on a thread of its own.
"""

import hashlib
import json
import os
from pathlib import Path

import huggingface_hub
from vllm.config import VllmConfig
from vllm.v1.attention.backends.cpu_attn import _get_attn_isa
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import KVCacheConfig

from kveik.connector.layout import BlockLayout, describe_groups
from kveik.connector.weights import Progress, default_cache, weights_digest
from kveik.errors import KveikError, LayoutRefusedError
from kveik.kv.frame import FRAME_VERSION
from kveik.kv.groups import GroupSpec


def engine_facts(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, groups: tuple[GroupSpec, ...], hash_tokens: int
) -> dict[str, str]:
    """Everything that the configuration alone says; quick, no I/O."""
    model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, vllm_config.parallel_config
    dtype = str(model.dtype).removeprefix("torch.")
    facts = {
        "config_digest": config_digest(vllm_config),
        "dtype": dtype,
        "kv_cache_dtype": dtype if cache.cache_dtype == "auto" else str(cache.cache_dtype),
        "kv_layout": str(kv_cache_config.kv_cache_layout),
        "hash_block_size_tokens": str(hash_tokens),
        "hash_algorithm": str(cache.prefix_caching_hash_algo),
        "hash_seed": hash_seed(vllm_config),
        "kv_cache_groups": describe_groups(groups, kv_cache_config),
        "tensor_parallel_size": str(parallel.tensor_parallel_size),
        "pipeline_parallel_size": str(parallel.pipeline_parallel_size),
        "frame_version": str(FRAME_VERSION),
        "quantization": str(model.quantization),
        "state_dtype": f"{cache.mamba_cache_dtype}/{cache.mamba_ssm_cache_dtype}",
        "state_layout": os.environ.get("VLLM_SSM_CONV_STATE_LAYOUT", ""),
    }
    if vllm_config.speculative_config is not None:
        facts["speculative"] = str(vllm_config.speculative_config.method)
    return {name: value for name, value in facts.items() if value}


def worker_facts(vllm_config: VllmConfig, layout: BlockLayout) -> dict[str, str]:
    """What decides the bytes inside a block on this worker: device, kernels, sizes."""
    planes = {
        index: [[plane.view.shape[0], plane.view.shape[2]] for plane in planes]
        for index, planes in layout.planes.items()
    }
    facts = {"device": layout.device.type, "block_bytes": json.dumps(planes, separators=(",", ":"))}
    if layout.device.type == "cpu":
        facts["cpu_kernels"] = _cpu_kernels(vllm_config)
    backend = vllm_config.attention_config.backend
    if backend is not None:
        facts["attention_backend"] = backend.name
    return facts


def _cpu_kernels(vllm_config: VllmConfig) -> str:
    """The instruction set that the CPU attention kernels pack the cache for.

    vLLM packs K and V differently for AMX, vector and NEON kernels
    (``v1/attention/backends/cpu_attn.py``), so such blocks are not portable between them.
    """
    model, cache = vllm_config.model_config, vllm_config.cache_config
    return str(_get_attn_isa(model.dtype, cache.block_size, model.get_head_size(), cache.cache_dtype))


def config_digest(vllm_config: VllmConfig) -> str:
    """Digest of the model's configuration after all overrides, without names and paths."""
    config = vllm_config.model_config.hf_config.to_dict()
    for name in ("_name_or_path", "name_or_path", "transformers_version", "torch_dtype", "dtype"):
        config.pop(name, None)
    text = json.dumps(config, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def hash_seed(vllm_config: VllmConfig) -> str:
    """Digest of the seed that vLLM's block hashes start from (``init_none_hash``).

    vLLM takes ``PYTHONHASHSEED`` or, for cryptographic hashes, a fixed text; engines that differ in
    it share no block hash. Raises :class:`LayoutRefusedError` where the seed is random.
    """
    seed = os.environ.get("PYTHONHASHSEED")
    if seed is None and str(vllm_config.cache_config.prefix_caching_hash_algo).startswith("xxhash"):
        raise LayoutRefusedError(
            "block hashes start from a random seed in each process (xxhash without PYTHONHASHSEED), so no other "
            "engine could ever hit; set PYTHONHASHSEED to one value on all engines or use "
            "--prefix-caching-hash-algo sha256"
        )
    return hashlib.sha256((seed or kv_cache_utils.DEFAULT_NONE_HASH_SEED).encode()).hexdigest()[:16]


def model_digest(vllm_config: VllmConfig, *, sampled: bool, progress: Progress | None = None) -> str:
    """Digest of the weights of the model and, if there is one, of the draft model.

    Raises :class:`KveikError` when no weights can be found to identify the model by.
    """
    parts = [_checkpoint_digest(vllm_config, vllm_config.model_config, sampled, progress)]
    speculative = vllm_config.speculative_config
    draft = getattr(speculative, "draft_model_config", None)
    if draft is not None and draft.model != vllm_config.model_config.model:
        parts.append(_checkpoint_digest(vllm_config, draft, sampled, progress))
    return "+".join(parts)


def _checkpoint_digest(vllm_config: VllmConfig, model_config: object, sampled: bool, progress: Progress | None) -> str:
    if str(vllm_config.load_config.load_format) == "dummy":
        return f"dummy-seed-{vllm_config.model_config.seed}"
    return weights_digest(_checkpoint_path(model_config), sampled=sampled, cache=default_cache(), progress=progress)


def _checkpoint_path(model_config: object) -> Path:
    """The folder or file that vLLM loads: a local path, or the snapshot of a hub model in the local cache."""
    name = str(getattr(model_config, "model", ""))
    path = Path(getattr(model_config, "model_weights", None) or name)
    if path.exists():
        return path
    try:
        revision = getattr(model_config, "revision", None)
        return Path(huggingface_hub.snapshot_download(name, revision=revision, local_files_only=True))
    except (OSError, ValueError) as error:
        raise KveikError(f"cannot find the weights of {name!r} on this machine: {error}") from error
