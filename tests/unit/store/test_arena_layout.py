import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.errors import ArenaError
from kveik.store.arena_layout import (
    HEADER_USED_BYTES,
    MIN_SLOT_BYTES,
    PAGE_BYTES,
    RECORD,
    ArenaLayout,
    default_slab_bytes,
    read_header,
    round_up,
    slot_bytes_for,
)

MIB = 1 << 20
pages = st.integers(3, 4096).map(lambda count: count * PAGE_BYTES)


@given(pages, st.integers(1, 64), st.integers(1, 1 << 22))
def test_slots_of_a_slab_lie_behind_its_records_and_within_the_slab(slab_bytes: int, slabs: int, payload: int) -> None:
    layout = ArenaLayout(slab_bytes * slabs + 4 * PAGE_BYTES, slab_bytes)
    slot_bytes = slot_bytes_for(payload)
    count = layout.slots_in_slab(slot_bytes)
    first = layout.first_slot_offset(0, slot_bytes)
    assert first % PAGE_BYTES == 0
    assert first >= layout.slab_offset(0) + count * RECORD.itemsize
    assert first + count * slot_bytes <= layout.slab_offset(0) + slab_bytes
    assert count <= layout.stride


@given(pages, st.integers(1, 64), st.integers(0, PAGE_BYTES))
def test_all_slabs_fit_into_the_file_behind_the_table(slab_bytes: int, slabs: int, rest: int) -> None:
    layout = ArenaLayout(slab_bytes * slabs + 2 * PAGE_BYTES + rest, slab_bytes)
    assert layout.data_offset >= PAGE_BYTES + 8 * layout.slab_count
    assert layout.slab_offset(layout.slab_count - 1) + slab_bytes <= layout.arena_bytes


@given(st.integers(1, 1 << 40))
def test_a_slot_holds_the_whole_frame_in_whole_pages(payload: int) -> None:
    slot_bytes = slot_bytes_for(payload)
    assert slot_bytes >= max(MIN_SLOT_BYTES, payload + 4096)
    assert slot_bytes % PAGE_BYTES == 0


@pytest.mark.parametrize("arena_mib", [1, 16, 64, 512, 1024, 10_000, 100_000, 1_000_000])
def test_the_default_slab_leaves_several_slabs_of_bounded_size(arena_mib: int) -> None:
    slab = default_slab_bytes(arena_mib * MIB)
    assert 2 <= ArenaLayout(arena_mib * MIB, slab).slab_count <= 1024
    assert slab <= 1056 * MIB


@pytest.mark.parametrize("payload_mib", [0.25, 1, 2, 4])
def test_the_default_slab_loses_little_room_to_payloads_that_are_powers_of_two(payload_mib: float) -> None:
    payload = int(payload_mib * MIB)
    layout = ArenaLayout(1024 * MIB, default_slab_bytes(1024 * MIB))
    used = layout.slots_in_slab(slot_bytes_for(payload)) * payload * layout.slab_count
    assert used / layout.arena_bytes > 0.93


def test_a_header_is_read_back_as_the_same_layout() -> None:
    layout = ArenaLayout(64 * MIB, 4 * MIB)
    found = read_header(layout.pack_header() + bytes(100))
    assert (found.ours, found.layout) == (True, layout)


def test_a_header_of_something_else_is_not_ours() -> None:
    assert not read_header(b"SQLite format 3\0" * 4).ours


@pytest.mark.parametrize("position", range(8, HEADER_USED_BYTES))
def test_a_damaged_header_is_ours_but_unusable(position: int) -> None:
    raw = bytearray(ArenaLayout(64 * MIB, 4 * MIB).pack_header())
    raw[position] ^= 0x40
    found = read_header(bytes(raw))
    assert found.ours
    assert found.layout is None
    assert found.problem


def test_a_header_that_is_cut_off_is_unusable() -> None:
    assert "cut off" in read_header(ArenaLayout(64 * MIB, 4 * MIB).pack_header()[:20]).problem


@pytest.mark.parametrize(("arena", "slab"), [(64 * MIB, 5000), (64 * MIB, PAGE_BYTES), (MIB, 2 * MIB), (0, MIB)])
def test_sizes_that_make_no_sense_are_refused(arena: int, slab: int) -> None:
    with pytest.raises(ArenaError):
        ArenaLayout(arena, slab)


def test_round_up_goes_to_the_next_multiple() -> None:
    assert [round_up(value, 8) for value in (0, 1, 8, 9)] == [0, 8, 8, 16]
