"""How many KV blocks the installed vLLM's own block manager gives to some prompts: no model, no engine.

Run as a script by the Python that has vLLM, which need not have Kveik: it reads ``{"lengths": [...], "shared": N,
"block": N}`` from stdin and writes ``{"blocks": N, "blocks_without_sharing": N}``. So it imports nothing of Kveik.
"""

import json
import random
import sys
from collections.abc import Sequence

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

_VOCABULARY = 32_000


def blocks_used(lengths: Sequence[int], shared: int, block: int, *, caching: bool) -> int:
    """Blocks that prompts of these lengths hold at once, all beginning with the same ``shared`` tokens."""
    init_none_hash(sha256)
    most = sum(-(-length // block) for length in lengths) + len(lengths) + 1
    spec = FullAttentionSpec(block_size=block, num_kv_heads=1, head_size=64, dtype=torch.bfloat16)
    config = KVCacheConfig(num_blocks=most, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    manager = KVCacheManager(
        config,
        max_model_len=max(lengths) + block,
        scheduler_block_size=block,
        hash_block_size=block,
        enable_caching=caching,
    )
    free = manager.block_pool.get_num_free_blocks()
    hasher = get_request_block_hasher(block, sha256) if caching else None
    for number, prompt in enumerate(_prompts(lengths, shared)):
        request = Request(str(number), prompt, SamplingParams(max_tokens=1), None, block_hasher=hasher)
        if caching:
            held, computed, *_ = manager.get_computed_blocks(request)
        else:
            held, computed = manager.empty_kv_cache_blocks, 0
        manager.allocate_slots(request, len(prompt) - computed, computed, held)
        request.num_computed_tokens = len(prompt)
    return int(free - manager.block_pool.get_num_free_blocks())


def _prompts(lengths: Sequence[int], shared: int) -> list[list[int]]:
    source = random.Random(0)
    common = [source.randrange(_VOCABULARY) for _ in range(shared)]
    return [
        [*common[:length], *(source.randrange(_VOCABULARY) for _ in range(length - min(shared, length)))]
        for length in lengths
    ]


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    found = {
        name: blocks_used(asked["lengths"], asked["shared"], asked["block"], caching=caching)
        for name, caching in (("blocks", True), ("blocks_without_sharing", False))
    }
    sys.stdout.write(json.dumps(found))
