"""Frames: whatever is damaged, swapped or cut is noticed."""

import struct

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kveik.errors import FrameCorruptError, FrameError, FrameForeignError
from kveik.kv import frame
from kveik.kv.keys import BlockKey

KEY = BlockKey.of(b"N" * 16, b"H" * 32, 1, 2)
SHORT_KEY = BlockKey.of(b"N" * 16, b"H" * 16)


def sealed(key: BlockKey = KEY, payload: bytes = b"some payload of a block" * 10) -> bytearray:
    buffer = bytearray(frame.frame_bytes(len(payload)))
    buffer[frame.HEADER_BYTES :] = payload
    frame.seal(memoryview(buffer), key, len(payload), written_at_s=12.5)
    return buffer


@given(st.binary(min_size=16, max_size=16) | st.binary(min_size=32, max_size=32), st.binary(max_size=5000))
def test_a_sealed_frame_verifies_and_says_what_it_is(block_hash: bytes, payload: bytes) -> None:
    key = BlockKey.of(b"N" * 16, block_hash)
    buffer = sealed(key, payload)

    header = frame.verify(memoryview(buffer), key, len(payload))

    assert header == frame.FrameHeader(key, len(payload), frame.payload_digest(payload), 12.5)
    assert header.frame_bytes == len(buffer) == frame.HEADER_BYTES + len(payload)


@given(st.integers(0, 8 * frame.HEADER_USED_BYTES - 1))
def test_any_flipped_bit_of_the_header_is_noticed(bit: int) -> None:
    buffer = sealed()
    buffer[bit // 8] ^= 1 << bit % 8

    with pytest.raises(FrameError):
        frame.verify(memoryview(buffer), KEY)


@given(st.integers(0, 8 * 230 - 1))
def test_any_flipped_bit_of_the_payload_is_noticed(bit: int) -> None:
    buffer = sealed()
    buffer[frame.HEADER_BYTES + bit // 8] ^= 1 << bit % 8

    with pytest.raises(FrameCorruptError, match="payload"):
        frame.verify(memoryview(buffer), KEY)


@given(st.integers(0, frame.HEADER_BYTES + 229))
def test_any_truncation_is_noticed(length: int) -> None:
    with pytest.raises(FrameCorruptError):
        frame.verify(memoryview(sealed())[:length], KEY)


@given(st.binary(max_size=300))
def test_other_bytes_are_no_frame(content: bytes) -> None:
    with pytest.raises(FrameError):
        frame.read_header(memoryview(content))


def test_a_page_of_zeros_is_no_frame() -> None:
    with pytest.raises(FrameCorruptError, match="magic"):
        frame.read_header(memoryview(bytes(frame.HEADER_BYTES)))


def test_bytes_after_the_frame_do_not_matter() -> None:
    assert frame.verify(memoryview(sealed() + b"tail"), KEY).key == KEY


@pytest.mark.parametrize(
    "other",
    [
        BlockKey.of(b"n" * 16, b"H" * 32, 1, 2),
        BlockKey.of(b"N" * 16, b"h" * 32, 1, 2),
        BlockKey.of(b"N" * 16, b"H" * 32, 0, 2),
        BlockKey.of(b"N" * 16, b"H" * 32, 1, 0),
        SHORT_KEY,
    ],
)
def test_a_sound_frame_of_another_block_is_foreign(other: BlockKey) -> None:
    with pytest.raises(FrameForeignError, match=KEY.text):
        frame.verify(memoryview(sealed()), other)


def test_a_sound_frame_of_another_length_is_foreign() -> None:
    with pytest.raises(FrameForeignError, match="payload of 230 bytes, expected 231"):
        frame.verify(memoryview(sealed()), KEY, 231)


def test_a_frame_of_a_later_version_is_foreign_whatever_its_header_holds() -> None:
    buffer = sealed()
    struct.pack_into("<H", buffer, len(frame.MAGIC), frame.FRAME_VERSION + 1)

    with pytest.raises(FrameForeignError, match="version 2"):
        frame.read_header(memoryview(buffer))


def test_a_sound_header_without_a_block_key_is_foreign() -> None:
    fields = bytearray(sealed()[: frame.HEADER_USED_BYTES - 8])
    struct.pack_into("<H", fields, len(frame.MAGIC) + 2, 7)
    header = bytes(fields) + struct.pack("<Q", xxhash.xxh3_64_intdigest(bytes(fields)))

    with pytest.raises(FrameForeignError, match="without a block key"):
        frame.read_header(memoryview(header))


def test_the_header_alone_can_be_checked_without_reading_the_payload() -> None:
    buffer = sealed()
    buffer[-1] ^= 1

    assert frame.verify_header(memoryview(buffer), KEY).key == KEY
    with pytest.raises(FrameCorruptError, match="bytes present"):
        frame.verify_header(memoryview(buffer)[:-1], KEY)


def test_the_stored_form_never_changes_within_a_version() -> None:
    digest = xxhash.xxh3_64_hexdigest(bytes(sealed()))

    assert (frame.FRAME_VERSION, frame.HEADER_USED_BYTES, digest) == (1, 104, "25be89ed1baff5e6")
