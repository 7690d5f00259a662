"""Finding every block's bytes in tensors of many layouts, and refusing those that are not understood."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="KV memory is torch tensors")
pytest.importorskip("vllm", reason="layouts are described by vLLM's classes")

from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)

from kveik.connector.device import HostCopier
from kveik.connector.layout import block_layout, group_specs
from kveik.errors import LayoutRefusedError
from kveik.kv.groups import GroupKind, GroupSpec

BLOCKS, HEADS, TOKENS, CONTENT = 5, 2, 16, 8


def config(*groups: KVCacheGroupSpec) -> KVCacheConfig:
    return KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=list(groups))


def full(*layers: str) -> KVCacheGroupSpec:
    return KVCacheGroupSpec(
        list(layers), FullAttentionSpec(TOKENS, num_kv_heads=HEADS, head_size=4, dtype=torch.float32)
    )


def engine(prefix_caching: bool = True, **parallel: int) -> Any:
    sizes = {"decode_context_parallel_size": 1, "prefill_context_parallel_size": 1, **parallel}
    return SimpleNamespace(
        cache_config=SimpleNamespace(enable_prefix_caching=prefix_caching), parallel_config=SimpleNamespace(**sizes)
    )


def numbered(*shape: int) -> Any:
    return torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(shape)


def payload_of(layout: Any, group: int, block: int) -> bytes:
    buffer = bytearray(layout.payload_bytes(group))
    HostCopier().to_slot(layout.planes[group], block, memoryview(buffer))
    return bytes(buffer)


class TestPlanes:
    def test_layers_of_one_buffer_become_one_plane(self) -> None:
        """As vLLM-CPU allocates: all layers in one buffer, layer by layer."""
        backing = numbered(3, BLOCKS, HEADS, TOKENS, CONTENT)
        layout = block_layout(config(full("a", "b", "c")), {name: backing[i] for i, name in enumerate("abc")})
        (plane,) = layout.planes[0]
        assert tuple(plane.view.shape) == (3, BLOCKS, HEADS * TOKENS * CONTENT * 4)
        assert payload_of(layout, 0, 2) == backing[:, 2].contiguous().numpy().tobytes()

    def test_blocks_that_hold_all_layers_become_one_plane(self) -> None:
        """As block-outermost layouts: the layers of one block lie together."""
        backing = numbered(BLOCKS, 3, HEADS, TOKENS, CONTENT)
        layout = block_layout(config(full("a", "b", "c")), {name: backing[:, i] for i, name in enumerate("abc")})
        assert len(layout.planes[0]) == 1
        assert payload_of(layout, 0, 4) == backing[4].numpy().tobytes()

    def test_separate_tensors_become_planes_in_layer_order(self) -> None:
        caches = {name: numbered(BLOCKS, HEADS, TOKENS, CONTENT) + index for index, name in enumerate("ab")}
        layout = block_layout(config(full("a", "b")), caches)
        assert payload_of(layout, 0, 1) == b"".join(caches[name][1].numpy().tobytes() for name in "ab")

    def test_a_layer_may_be_several_tensors(self) -> None:
        """As on Ascend, where K and V are apart."""
        keys, values = numbered(BLOCKS, TOKENS, CONTENT), -numbered(BLOCKS, TOKENS, CONTENT)
        layout = block_layout(config(full("a")), {"a": (keys, values)})
        assert payload_of(layout, 0, 3) == keys[3].numpy().tobytes() + values[3].numpy().tobytes()

    def test_kernel_blocks_are_joined_to_engine_blocks(self) -> None:
        cache = numbered(BLOCKS * 2, HEADS, TOKENS // 2, CONTENT)
        layout = block_layout(config(full("a")), {"a": cache})
        assert payload_of(layout, 0, 1) == cache[2:4].numpy().tobytes()

    def test_padding_behind_a_state_is_not_copied(self) -> None:
        padded = torch.zeros(BLOCKS, 1, 1, 100, dtype=torch.int8)
        layout = block_layout(config(full("a")), {"a": padded[..., :60]})
        assert layout.payload_bytes(0) == 60

    def test_what_goes_out_comes_back(self) -> None:
        backing = numbered(3, BLOCKS, HEADS, TOKENS, CONTENT)
        original = backing.clone()
        layout = block_layout(config(full("a", "b", "c")), {name: backing[i] for i, name in enumerate("abc")})
        payload = payload_of(layout, 0, 2)
        backing[:, 2] = 0
        HostCopier().from_slot(layout.planes[0], 2, memoryview(payload))
        assert torch.equal(backing, original)

    def test_a_scattered_block_is_refused(self) -> None:
        """Heads outside blocks: the bytes of a block are not one run."""
        heads_first = numbered(HEADS, BLOCKS, TOKENS, CONTENT).permute(1, 0, 2, 3)
        with pytest.raises(LayoutRefusedError, match="layer a: a block of shape"):
            block_layout(config(full("a")), {"a": heads_first})

    def test_a_missing_layer_is_refused(self) -> None:
        with pytest.raises(LayoutRefusedError, match=r"layer b .* has no tensor"):
            block_layout(config(full("a", "b")), {"a": numbered(BLOCKS, TOKENS, CONTENT)})


class TestGroups:
    def test_known_kinds_are_accepted(self) -> None:
        window = SlidingWindowSpec(
            TOKENS, num_kv_heads=HEADS, head_size=4, dtype=torch.float32, sliding_window=40, extra_retained_tokens=2
        )
        state = MambaSpec(32, shapes=((4, 4),), dtypes=(torch.float32,), mamba_cache_mode="align")
        specs = group_specs(
            engine(), config(full("a"), KVCacheGroupSpec(["b"], window), KVCacheGroupSpec(["c"], state))
        )
        assert specs == (
            GroupSpec(0, GroupKind.FULL, 16),
            GroupSpec(1, GroupKind.SLIDING_WINDOW, 16, 42),
            GroupSpec(2, GroupKind.STATE, 32),
        )

    def test_prefix_caching_turned_off_is_refused(self) -> None:
        with pytest.raises(LayoutRefusedError, match="prefix caching is off"):
            group_specs(engine(prefix_caching=False), config(full("a")))

    def test_context_parallelism_is_refused(self) -> None:
        with pytest.raises(LayoutRefusedError, match="context parallelism"):
            group_specs(engine(decode_context_parallel_size=2), config(full("a")))

    def test_unknown_attention_is_refused_by_name(self) -> None:
        chunked = ChunkedLocalAttentionSpec(
            TOKENS, num_kv_heads=HEADS, head_size=4, dtype=torch.float32, attention_chunk_size=32
        )
        with pytest.raises(LayoutRefusedError, match="chunked_local_attention"):
            group_specs(engine(), config(KVCacheGroupSpec(["a"], chunked)))

    def test_states_without_checkpoints_are_refused_with_the_remedy(self) -> None:
        state = MambaSpec(32, shapes=((4, 4),), dtypes=(torch.float32,), mamba_cache_mode="none")
        with pytest.raises(LayoutRefusedError, match="--mamba-cache-mode align"):
            group_specs(engine(), config(KVCacheGroupSpec(["a"], state)))
