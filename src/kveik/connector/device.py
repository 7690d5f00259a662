"""Copies between the engine's KV memory and arena slots. The lines that differ between devices.

A *plane* is a stack of layers whose blocks can be addressed by one strided view of bytes,
``[layers, blocks, row_bytes]``. A block's payload is the rows of all planes one after another,
so one copy call a plane moves a block, without holding the GIL.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch


@dataclass(frozen=True)
class Plane:
    """A strided byte view of the KV memory of some layers: ``uint8[layers, blocks, row_bytes]``."""

    view: torch.Tensor

    @property
    def payload_bytes(self) -> int:
        """Bytes that this plane adds to a block's payload."""
        return self.view.shape[0] * self.view.shape[2]


class BlockCopier(Protocol):
    """Moves whole blocks between KV memory and payload buffers."""

    def fence(self) -> object:
        """A token for "everything computed so far"; a later :meth:`wait` orders copies after it."""
        ...

    def wait(self, fence: object) -> None:
        """Block the calling thread until the work before ``fence`` is done."""
        ...

    def to_slot(self, planes: Sequence[Plane], block_id: int, payload: memoryview) -> None:
        """KV memory to payload; returns when the bytes are there."""
        ...

    def from_slot(self, planes: Sequence[Plane], block_id: int, payload: memoryview) -> None:
        """Payload to KV memory; returns when the bytes are there."""
        ...

    def attach(self, arena: memoryview) -> None:
        """An arena was mapped: pin it for device copies where that helps."""
        ...

    def detach(self, arena: memoryview) -> None:
        """The arena is about to be unmapped."""
        ...


class HostCopier:
    """KV memory in host memory (vLLM-CPU): one strided numpy copy a plane.

    numpy and not torch, because torch would start its own OpenMP team for the I/O thread, which on
    cores shared with the model's threads is slower by an order of magnitude.
    """

    def __init__(self) -> None:
        self._arrays: dict[int, np.ndarray] = {}

    def _array(self, plane: Plane) -> np.ndarray:
        array = self._arrays.get(id(plane))
        if array is None:
            array = self._arrays[id(plane)] = plane.view.numpy()
        return array

    def fence(self) -> object:
        """The CPU engine computes before it returns, so there is nothing to wait for."""
        return None

    def wait(self, fence: object) -> None:
        """Nothing to wait for."""

    def to_slot(self, planes: Sequence[Plane], block_id: int, payload: memoryview) -> None:
        """See :class:`BlockCopier`."""
        for array, rows in self._rows(planes, payload):
            np.copyto(rows, array[:, block_id])

    def from_slot(self, planes: Sequence[Plane], block_id: int, payload: memoryview) -> None:
        """See :class:`BlockCopier`."""
        for array, rows in self._rows(planes, payload):
            np.copyto(array[:, block_id], rows)

    def _rows(self, planes: Sequence[Plane], payload: memoryview) -> list[tuple[np.ndarray, np.ndarray]]:
        flat = np.frombuffer(payload, dtype=np.uint8)
        pairs, offset = [], 0
        for plane in planes:
            array = self._array(plane)
            rows = flat[offset : offset + plane.payload_bytes].reshape(array.shape[0], array.shape[2])
            pairs.append((array, rows))
            offset += plane.payload_bytes
        return pairs

    def attach(self, arena: memoryview) -> None:
        """Host memory needs no pinning."""

    def detach(self, arena: memoryview) -> None:
        """Host memory needs no pinning."""


class AcceleratorCopier:
    """KV memory on CUDA, NPU or XPU: copies on an own stream, from and to pinned arena memory.

    Written against torch's device-neutral API (``torch.accelerator``); CUDA additionally pins the
    arena with ``cudaHostRegister``, without which copies are staged by the driver and slower, but
    still right.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module = getattr(torch, device.type)
        self._stream = self._module.Stream(device=device)

    def fence(self) -> object:
        """An event on the engine's current stream."""
        event = self._module.Event()
        event.record(self._module.current_stream(self._device))
        return event

    def wait(self, fence: object) -> None:
        """Let the copy stream wait for the event."""
        if fence is not None:
            self._stream.wait_event(fence)

    def to_slot(self, planes: Sequence[Plane], block_id: int, payload: memoryview) -> None:
        """See :class:`BlockCopier`."""
        self._copy(planes, block_id, payload, to_device=False)

    def from_slot(self, planes: Sequence[Plane], block_id: int, payload: memoryview) -> None:
        """See :class:`BlockCopier`."""
        self._copy(planes, block_id, payload, to_device=True)

    def _copy(self, planes: Sequence[Plane], block_id: int, payload: memoryview, *, to_device: bool) -> None:
        flat = torch.frombuffer(payload, dtype=torch.uint8)
        offset = 0
        with self._module.stream(self._stream):
            for plane in planes:
                rows = flat[offset : offset + plane.payload_bytes].view(plane.view.shape[0], plane.view.shape[2])
                target, source = (plane.view[:, block_id], rows) if to_device else (rows, plane.view[:, block_id])
                target.copy_(source, non_blocking=True)
                offset += plane.payload_bytes
        self._stream.synchronize()

    def attach(self, arena: memoryview) -> None:
        """Pin the arena on CUDA; elsewhere torch stages the copies."""
        if self._device.type == "cuda":
            flat = torch.frombuffer(arena, dtype=torch.uint8)
            torch.cuda.cudart().cudaHostRegister(flat.data_ptr(), flat.numel(), 0)

    def detach(self, arena: memoryview) -> None:
        """Undo :meth:`attach`."""
        if self._device.type == "cuda":
            torch.cuda.cudart().cudaHostUnregister(torch.frombuffer(arena, dtype=torch.uint8).data_ptr())


def copier_for(device: torch.device) -> BlockCopier:
    """The copier for KV memory on ``device``."""
    return HostCopier() if device.type == "cpu" else AcceleratorCopier(device)
