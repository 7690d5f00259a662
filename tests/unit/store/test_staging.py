"""Shared memory for buffers that another process cannot reach."""

import mmap

import pytest

from kveik.store.staging import Piece, Staging, address_of, offset_within

PAGE = 4096


def taken(staging: Staging, size: int) -> Piece:
    piece = staging.take(size)
    assert piece is not None
    return piece


@pytest.fixture
def staging() -> Staging:
    return Staging(8 * PAGE)


def test_a_buffer_inside_the_memory_is_found_by_its_offset_and_any_other_is_not() -> None:
    memory = memoryview(bytearray(10 * PAGE))

    assert offset_within(memory, memory[PAGE : 3 * PAGE]) == PAGE
    assert offset_within(memory, memory) == 0
    assert offset_within(memory, memoryview(bytearray(PAGE))) is None
    assert offset_within(memory[:PAGE], memory[PAGE - 1 : PAGE + 1]) is None
    assert offset_within(memory, memory[PAGE:PAGE]) is None


def test_nothing_has_no_address() -> None:
    assert address_of(memoryview(b"")) == 0


def test_what_is_written_into_a_piece_is_seen_by_whoever_maps_the_same_memory(staging: Staging) -> None:
    first, second = taken(staging, 100), taken(staging, 100)
    second.view[:] = b"x" * 100

    other = mmap.mmap(staging.fd, staging.size)

    assert other[second.offset : second.offset + 100] == b"x" * 100
    assert other[first.offset : first.offset + 100] == bytes(100)


def test_pieces_never_overlap_and_there_is_no_more_than_there_is(staging: Staging) -> None:
    pieces = [taken(staging, PAGE + 1) for _ in range(4)]

    assert sorted(piece.offset for piece in pieces) == [0, 2 * PAGE, 4 * PAGE, 6 * PAGE]
    assert staging.take(1) is None
    assert staging.free_bytes == 0


def test_what_was_given_back_is_one_piece_again_in_whatever_order(staging: Staging) -> None:
    pieces = [taken(staging, 2 * PAGE) for _ in range(4)]
    for piece in (pieces[2], pieces[0], pieces[3], pieces[1]):
        staging.give(piece)

    assert len(taken(staging, 8 * PAGE).view) == 8 * PAGE


def test_a_piece_that_may_still_be_written_is_not_given_to_another(staging: Staging) -> None:
    running = True
    staging.give(taken(staging, 8 * PAGE), lambda: running)

    assert staging.take(1) is None
    running = False
    assert staging.take(8 * PAGE) is not None


def test_a_piece_outlives_its_staging(staging: Staging) -> None:
    piece = taken(staging, 10)
    staging.close()

    piece.view[:] = b"0123456789"

    assert staging.take(1) is None
