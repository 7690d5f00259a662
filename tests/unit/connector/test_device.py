"""Copies between KV memory of several planes and payloads, and the faults that tests plant in them."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="KV memory is torch tensors")
pytest.importorskip("vllm", reason="layouts are described by vLLM's classes")

from kveik.connector.device import HostCopier, Plane, copier_for
from kveik.connector.faults import FaultPlanter, ShiftBlock, SwapLayers
from kveik.connector.layout import BlockLayout

BLOCKS = 6
#: Layers and row bytes of each plane: a model whose layers differ has several.
STACKS = ((3, 64), (1, 256), (2, 32))
PAYLOAD_BYTES = sum(layers * row for layers, row in STACKS)


def random_planes(*stacks: tuple[int, int]) -> tuple[Plane, ...]:
    return tuple(Plane(torch.randint(0, 256, (layers, BLOCKS, row), dtype=torch.uint8)) for layers, row in stacks)


def rows_of(planes: tuple[Plane, ...], block: int) -> bytes:
    """A block's payload, row by row."""
    return b"".join(bytes(layer[block].tolist()) for plane in planes for layer in plane.view)


def saved(planes: tuple[Plane, ...], block: int) -> bytearray:
    payload = bytearray(sum(plane.payload_bytes for plane in planes))
    HostCopier().to_slot(planes, block, memoryview(payload))
    return payload


@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_payload_is_the_rows_of_all_planes_one_after_another(block: int) -> None:
    planes = random_planes(*STACKS)
    assert len(saved(planes, block)) == PAYLOAD_BYTES
    assert saved(planes, block) == rows_of(planes, block)


def test_a_block_comes_back_into_another_place_and_no_other_block_changes() -> None:
    source, target = random_planes(*STACKS), random_planes(*STACKS)
    before = [rows_of(target, block) for block in range(BLOCKS)]
    HostCopier().from_slot(target, 4, memoryview(saved(source, 1)))
    after = [rows_of(target, block) for block in range(BLOCKS)]
    assert after[4] == rows_of(source, 1)
    assert after[:4] + after[5:] == before[:4] + before[5:]


def test_memory_with_gaps_between_rows_keeps_what_lies_in_the_gaps() -> None:
    """Layers of other groups may lie between the layers of one."""
    backing = torch.randint(0, 256, (4, BLOCKS, 96), dtype=torch.uint8)
    copy = backing.clone()
    (source,) = random_planes((2, 64))
    HostCopier().from_slot((Plane(backing[::2, :, :64]),), 2, memoryview(saved((source,), 5)))
    assert torch.equal(backing[::2, 2, :64], source.view[:, 5])
    copy[::2, 2, :64] = source.view[:, 5]
    assert torch.equal(backing, copy)


def test_one_copier_serves_planes_that_look_alike_without_mixing_them_up() -> None:
    copier = HostCopier()
    for planes in (random_planes((2, 64)), random_planes((2, 64))):
        payload = bytearray(128)
        copier.to_slot(planes, 3, memoryview(payload))
        assert payload == rows_of(planes, 3)


def test_a_payload_shorter_than_the_block_is_an_error_and_not_half_a_block() -> None:
    planes = random_planes((2, 64))
    with pytest.raises(ValueError, match="reshape"):
        HostCopier().to_slot(planes, 0, memoryview(bytearray(127)))


def test_memory_of_the_host_is_copied_without_a_stream() -> None:
    copier = copier_for(torch.device("cpu"))
    assert isinstance(copier, HostCopier)
    copier.wait(copier.fence())


class TestPlantedFaults:
    def planter(self, name: str, *stacks: tuple[int, int]) -> tuple[FaultPlanter, tuple[Plane, ...]]:
        planes = random_planes(*stacks)
        return FaultPlanter.named(name, BlockLayout({0: planes}, torch.device("cpu"))), planes

    def test_nothing_is_planted_unless_asked_for(self) -> None:
        planter, planes = self.planter("", *STACKS)
        payload = saved(planes, 1)
        planter.damage(0, memoryview(payload))
        assert payload == rows_of(planes, 1)

    def test_swapped_layers_are_the_first_two_and_nothing_else(self) -> None:
        planter, planes = self.planter("swap_layers", (3, 64))
        payload = saved(planes, 1)
        planter.damage(0, memoryview(payload))
        whole = rows_of(planes, 1)
        assert payload == whole[64:128] + whole[:64] + whole[128:]

    @pytest.mark.parametrize("stacks", [((1, 64),), ((1, 64), (1, 32))], ids=["one layer", "layers of unequal size"])
    def test_layers_that_cannot_be_swapped_stay(self, stacks: Any) -> None:
        planter, planes = self.planter("swap_layers", *stacks)
        payload = saved(planes, 1)
        planter.damage(0, memoryview(payload))
        assert payload == rows_of(planes, 1)

    def test_a_shifted_block_has_the_same_bytes_in_another_order(self) -> None:
        planter, planes = self.planter("shift_block", *STACKS)
        payload = saved(planes, 1)
        planter.damage(0, memoryview(payload))
        whole, cut = rows_of(planes, 1), PAYLOAD_BYTES // 8
        assert payload == whole[cut:] + whole[:cut]
        assert payload != whole

    @pytest.mark.parametrize(("name", "kind"), [("swap_layers", SwapLayers), ("shift_block", ShiftBlock)])
    def test_each_name_of_the_setting_has_its_fault(self, name: str, kind: type[FaultPlanter]) -> None:
        assert type(self.planter(name, *STACKS)[0]) is kind
