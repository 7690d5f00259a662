"""The stored form of a block: one header page, then the payload.

Every tier stores the same frame, so a block moves between tiers as one buffer::

    offset 0      header (fixed struct, little-endian, protected by its own xxh3_64)
    offset 4096   payload, ``payload_bytes`` long

The payload digest is xxh3_128. On the measured machines it runs at twice the speed of a memory
copy, so it is checked on every read: no existing store protects its bytes from end to end.
Buffers are anything with the buffer protocol, contiguous and at least ``frame_bytes`` long.
"""

import struct
from dataclasses import dataclass

import xxhash

from kveik.errors import FrameCorruptError, FrameForeignError, KeyFormatError
from kveik.kv.keys import BlockKey

FRAME_VERSION = 1
HEADER_BYTES = 4096
MAGIC = b"KVEIKBLK"
# magic, version, key length, key (52 bytes at most), payload bytes, payload digest, written at
_FIELDS = struct.Struct("<8sHH52sQ16sd")
_DIGEST = struct.Struct("<Q")
HEADER_USED_BYTES = _FIELDS.size + _DIGEST.size


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """What a frame says about itself. ``written_at_s`` is Unix time, for people and fsck."""

    key: BlockKey
    payload_bytes: int
    payload_digest: bytes
    written_at_s: float

    @property
    def frame_bytes(self) -> int:
        """Length of header page and payload."""
        return HEADER_BYTES + self.payload_bytes

    def pack(self) -> bytes:
        """The header's used bytes; the rest of the page is not part of the format."""
        fields = _FIELDS.pack(
            MAGIC,
            FRAME_VERSION,
            len(self.key),
            bytes(self.key),
            self.payload_bytes,
            self.payload_digest,
            self.written_at_s,
        )
        return fields + _DIGEST.pack(xxhash.xxh3_64_intdigest(fields))


def payload_digest(payload: memoryview | bytes) -> bytes:
    """The xxh3_128 of a payload, 16 bytes. Releases the GIL on large payloads."""
    return xxhash.xxh3_128_digest(payload)


def frame_bytes(payload_bytes: int) -> int:
    """Length of a frame with that payload."""
    return HEADER_BYTES + payload_bytes


def seal(buffer: memoryview, key: BlockKey, payload_bytes: int, written_at_s: float) -> FrameHeader:
    """Digest the payload that lies in ``buffer`` and write the header page before it."""
    payload = buffer[HEADER_BYTES : HEADER_BYTES + payload_bytes]
    header = FrameHeader(key, payload_bytes, payload_digest(payload), written_at_s)
    buffer[:HEADER_USED_BYTES] = header.pack()
    return header


def read_header(buffer: memoryview) -> FrameHeader:
    """Parse and check the header page.

    Raises :class:`FrameCorruptError` when magic, length or header checksum are wrong and
    :class:`FrameForeignError` for a frame of another version, whose header may have another
    layout: the version is therefore looked at before the checksum.
    """
    if len(buffer) < HEADER_USED_BYTES:
        raise FrameCorruptError("too short for a frame header")
    raw = bytes(buffer[:HEADER_USED_BYTES])
    fields = raw[: _FIELDS.size]
    magic, version, key_length, key, payload_bytes, digest, written_at_s = _FIELDS.unpack(fields)
    if magic != MAGIC:
        raise FrameCorruptError("no frame magic")
    if version != FRAME_VERSION:
        raise FrameForeignError(f"frame version {version}, expected {FRAME_VERSION}")
    if _DIGEST.unpack(raw[_FIELDS.size :])[0] != xxhash.xxh3_64_intdigest(fields):
        raise FrameCorruptError("header checksum differs")
    try:
        return FrameHeader(BlockKey.from_packed(key[:key_length]), payload_bytes, digest, written_at_s)
    except KeyFormatError as error:
        raise FrameForeignError(f"frame without a block key: {error}") from error


def verify_header(buffer: memoryview, key: BlockKey, payload_bytes: int | None = None) -> FrameHeader:
    """Check that ``buffer`` starts with the header of exactly this block; return it.

    The payload is not read. Raises as :func:`verify` does.
    """
    header = read_header(buffer)
    if header.key != key:
        raise FrameForeignError(f"frame of {header.key}, expected {key}")
    if payload_bytes is not None and header.payload_bytes != payload_bytes:
        raise FrameForeignError(f"payload of {header.payload_bytes} bytes, expected {payload_bytes}")
    if len(buffer) < header.frame_bytes:
        raise FrameCorruptError(f"{len(buffer)} bytes present, the header says {header.frame_bytes}")
    return header


def verify(buffer: memoryview, key: BlockKey, payload_bytes: int | None = None) -> FrameHeader:
    """Check that ``buffer`` holds a sound frame of exactly this block; return its header.

    Raises :class:`FrameForeignError` for another block or length and
    :class:`FrameCorruptError` for anything damaged.
    """
    header = verify_header(buffer, key, payload_bytes)
    if payload_digest(buffer[HEADER_BYTES : header.frame_bytes]) != header.payload_digest:
        raise FrameCorruptError("payload checksum differs")
    return header
