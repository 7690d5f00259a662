"""Groups: which blocks a hit needs."""

import pytest

from kveik.errors import LayoutRefusedError
from kveik.kv.groups import GroupKind, GroupSpec


def full(block: int) -> GroupSpec:
    return GroupSpec(0, GroupKind.FULL, block)


def sliding(block: int, window: int) -> GroupSpec:
    return GroupSpec(1, GroupKind.SLIDING_WINDOW, block, window)


def state(block: int) -> GroupSpec:
    return GroupSpec(2, GroupKind.STATE, block)


@pytest.mark.parametrize(
    ("group", "hit_tokens", "needed"),
    [
        (full(16), 0, []),
        (full(16), 48, [0, 1, 2]),
        (state(16), 0, []),
        (state(16), 48, [2]),
        # The token at 64 sees itself and 16 before it: 48..63, which is block 3.
        (sliding(16, 17), 64, [3]),
        (sliding(16, 18), 64, [2, 3]),
        (sliding(16, 16), 64, [3]),
        (sliding(16, 2), 64, [3]),
        (sliding(16, 1), 64, []),
        (sliding(16, 1000), 64, [0, 1, 2, 3]),
        (sliding(16, 64), 0, []),
    ],
)
def test_the_blocks_that_a_hit_needs(group: GroupSpec, hit_tokens: int, needed: list[int]) -> None:
    assert list(group.needed_blocks(hit_tokens)) == needed


@pytest.mark.parametrize("window", range(1, 40))
@pytest.mark.parametrize("block", [1, 4, 16])
def test_a_window_needs_exactly_the_blocks_of_the_tokens_it_sees(block: int, window: int) -> None:
    group = sliding(block, window)
    for hit_tokens in range(0, 8 * block + 1, block):
        seen = [token for token in range(hit_tokens) if token > hit_tokens - window]
        assert list(group.needed_blocks(hit_tokens)) == sorted({token // block for token in seen})


@pytest.mark.parametrize(
    ("kind", "block", "window"),
    [(GroupKind.FULL, 0, 0), (GroupKind.SLIDING_WINDOW, 16, 0), (GroupKind.FULL, 16, 5), (GroupKind.STATE, 16, 1)],
)
def test_a_layout_that_makes_no_sense_is_refused(kind: GroupKind, block: int, window: int) -> None:
    with pytest.raises(LayoutRefusedError, match="group 7"):
        GroupSpec(7, kind, block, window)


def test_the_description_names_kind_block_and_window() -> None:
    assert full(16).describe() == "full, block 16"
    assert sliding(16, 512).describe() == "sliding_window, block 16, window 512"
