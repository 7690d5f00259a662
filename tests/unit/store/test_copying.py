"""Copies with their digest, in pieces."""

import os

import pytest

from kveik.kv.frame import payload_digest
from kveik.store.copying import PIECE_BYTES, copy_and_digest, copy_bytes


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 7])
def test_a_copy_in_pieces_has_all_bytes_and_the_digest_of_the_whole(size: int) -> None:
    source, target = os.urandom(size), bytearray(size)
    assert copy_and_digest(memoryview(target), memoryview(source)) == payload_digest(source)
    assert target == source


def test_buffers_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="broadcast"):
        copy_bytes(memoryview(bytearray(2)), memoryview(b"abc"))
