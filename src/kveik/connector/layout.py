"""From vLLM's KV cache configuration and tensors to groups and planes, or a refusal with its reason."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from vllm.config import VllmConfig
from vllm.v1.kv_cache_interface import (
    KVCacheConfig,
    KVCacheSpec,
    KVCacheSpecKind,
    MambaSpec,
    SlidingWindowSpec,
    get_kv_cache_spec_kind,
    group_kernel_blocks,
    iter_layer_specs,
)

from kveik.connector.device import Plane
from kveik.errors import LayoutRefusedError
from kveik.kv.groups import GroupKind, GroupSpec

_KINDS = {
    KVCacheSpecKind.FULL_ATTENTION: GroupKind.FULL,
    KVCacheSpecKind.MLA_ATTENTION: GroupKind.FULL,
    KVCacheSpecKind.SLIDING_WINDOW: GroupKind.SLIDING_WINDOW,
    KVCacheSpecKind.MAMBA: GroupKind.STATE,
}


def group_specs(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> tuple[GroupSpec, ...]:
    """The groups that a hit must restore.

    Raises :class:`LayoutRefusedError`, with the reason, for everything that is not known to work.
    """
    _refuse_unsafe_engine(vllm_config)
    groups = []
    for index, group in enumerate(kv_cache_config.kv_cache_groups):
        if not group.enable_kv_transfer or not group.kv_cache_spec.prefix_cacheable:
            raise LayoutRefusedError(
                f"KV cache group {index} ({type(group.kv_cache_spec).__name__}) keeps state that vLLM does not "
                "share between requests; Kveik has not been shown to restore such models"
            )
        if group.host_resident:
            raise LayoutRefusedError(f"KV cache group {index} lives in host memory (HiSparse)")
        groups.append(_group_spec(index, group.kv_cache_spec))
    if not groups:
        raise LayoutRefusedError("the model has no KV cache")
    return tuple(groups)


def _refuse_unsafe_engine(vllm_config: VllmConfig) -> None:
    parallel = vllm_config.parallel_config
    if not vllm_config.cache_config.enable_prefix_caching:
        raise LayoutRefusedError(
            "prefix caching is off, by --no-enable-prefix-caching or because the platform cannot do it for this "
            "model (MLA on CPU without AMX, for one): there a hit would give other results than a cold run"
        )
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        raise LayoutRefusedError("context parallelism splits blocks over ranks in a way that Kveik does not know")


def _group_spec(index: int, spec: KVCacheSpec) -> GroupSpec:
    kind = _KINDS.get(get_kv_cache_spec_kind(spec))
    if kind is None:
        raise LayoutRefusedError(
            f"KV cache group {index} is of kind {get_kv_cache_spec_kind(spec).value} ({type(spec).__name__}); "
            f"known are {', '.join(known.value for known in _KINDS)}"
        )
    layers = list(iter_layer_specs(spec))
    if any(layer.prefix_replay_tokens for layer in layers):
        raise LayoutRefusedError(f"KV cache group {index} needs a replay of its window after a hit")
    if any(isinstance(layer, MambaSpec) and layer.mamba_cache_mode != "align" for layer in layers):
        raise LayoutRefusedError(
            f"KV cache group {index} keeps states without a checkpoint at block ends; start vLLM with "
            "--mamba-cache-mode align"
        )
    return GroupSpec(index, kind, spec.block_size, _window_tokens(index, layers))


def _window_tokens(index: int, layers: Sequence[KVCacheSpec]) -> int:
    windows = {
        layer.sliding_window + layer.extra_retained_tokens for layer in layers if isinstance(layer, SlidingWindowSpec)
    }
    if len(windows) > 1:
        raise LayoutRefusedError(f"KV cache group {index} mixes windows of {sorted(windows)} tokens")
    return windows.pop() if windows else 0


def describe_groups(groups: Iterable[GroupSpec], kv_cache_config: KVCacheConfig) -> str:
    """The groups as one text for the namespace: kind, block, window, layers and page size."""
    texts = []
    for group in groups:
        spec = kv_cache_config.kv_cache_groups[group.index]
        texts.append(
            f"{group.describe()}, {len(spec.layer_names)} layers, page {spec.kv_cache_spec.page_size_bytes} bytes"
        )
    return "; ".join(texts)


@dataclass(frozen=True)
class BlockLayout:
    """Where the bytes of each group's blocks lie in this worker's memory."""

    planes: Mapping[int, tuple[Plane, ...]]
    device: torch.device

    def payload_bytes(self, group: int) -> int:
        """Bytes of one block of ``group`` on this rank."""
        return sum(plane.payload_bytes for plane in self.planes[group])


LayerCache: TypeAlias = torch.Tensor | Sequence[torch.Tensor]


def block_layout(kv_cache_config: KVCacheConfig, kv_caches: Mapping[str, LayerCache]) -> BlockLayout:
    """Find the planes of every group. A layer may be one tensor or several (Ascend keeps K and V apart).

    Raises :class:`LayoutRefusedError` when a block's bytes are not one contiguous run in a tensor.
    """
    planes: dict[int, tuple[Plane, ...]] = {}
    devices = set()
    for index, group in enumerate(kv_cache_config.kv_cache_groups):
        rows = []
        for layer in group.layer_names:
            if layer not in kv_caches:
                raise LayoutRefusedError(f"layer {layer} of KV cache group {index} has no tensor")
            cache = kv_caches[layer]
            for tensor in [cache] if isinstance(cache, torch.Tensor) else cache:
                devices.add(tensor.device)
                rows.append(_layer_rows(tensor, kv_cache_config.num_blocks, layer))
        planes[index] = tuple(Plane(view) for view in _stack(rows))
    if len(devices) != 1:
        raise LayoutRefusedError(f"KV caches lie on several devices: {sorted(map(str, devices))}")
    return BlockLayout(planes, devices.pop())


def _layer_rows(tensor: torch.Tensor, num_blocks: int, layer: str) -> torch.Tensor:
    """The layer's blocks as ``uint8[blocks, row_bytes]``, without a copy."""
    try:
        blocks = group_kernel_blocks(tensor, num_blocks)
    except AssertionError:
        raise LayoutRefusedError(
            f"layer {layer}: first dimension {tensor.shape[0]} is no multiple of {num_blocks} blocks"
        ) from None
    if not _is_dense(blocks):
        raise LayoutRefusedError(f"layer {layer}: a block of shape {tuple(blocks.shape[1:])} is not one run of bytes")
    size = tensor.element_size()
    row_bytes = blocks[0].numel() * size
    raw = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    return raw.as_strided((num_blocks, row_bytes), (blocks.stride(0) * size, 1), blocks.storage_offset() * size)


def _is_dense(blocks: torch.Tensor) -> bool:
    """Whether each block fills one run of bytes, in whatever order of dimensions."""
    expected = 1
    for stride, extent in sorted(zip(blocks.stride()[1:], blocks.shape[1:], strict=True)):
        if extent == 1:
            continue
        if stride != expected:
            return False
        expected *= extent
    return True


def _stack(rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Merge runs of layers at equal distances in one storage into ``[layers, blocks, row_bytes]``."""
    stacks: list[torch.Tensor] = []
    start = 0
    while start < len(rows):
        end, step = _run(rows, start)
        first = rows[start]
        stacks.append(first.as_strided((end - start, *first.shape), (step, *first.stride()), first.storage_offset()))
        start = end
    return stacks


def _run(rows: Sequence[torch.Tensor], start: int) -> tuple[int, int]:
    """The end of the run of stackable layers that begins at ``start``, and their distance in bytes."""
    first, step, end = rows[start], 0, start + 1
    while end < len(rows):
        row = rows[end]
        same = row.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        distance = row.storage_offset() - rows[end - 1].storage_offset()
        if not same or row.shape != first.shape or row.stride() != first.stride() or distance <= 0:
            break
        if step and distance != step:
            break
        step, end = distance, end + 1
    return end, step or first.numel()
