"""Blocks that tests store: any number gives one key and one payload that belongs to it."""

import random
from dataclasses import dataclass

from kveik.errors import FrameError
from kveik.kv import frame
from kveik.kv.frame import HEADER_BYTES
from kveik.kv.keys import BlockKey


@dataclass(frozen=True)
class Block:
    """A key with its sealed frame."""

    key: BlockKey
    frame: memoryview

    def buffer(self) -> memoryview:
        """An empty buffer into which the frame fits exactly."""
        return memoryview(bytearray(len(self.frame)))

    def is_in(self, buffer: memoryview | bytes) -> bool:
        """Whether the buffer begins with this very block; only the time in the header may differ."""
        try:
            header = frame.verify(memoryview(buffer), self.key)
        except FrameError:
            return False
        return bytes(buffer[HEADER_BYTES : header.frame_bytes]) == bytes(self.frame[HEADER_BYTES:])

    def damaged(self, offset: int = HEADER_BYTES) -> memoryview:
        """The frame with one bit wrong."""
        wrong = bytearray(self.frame)
        wrong[offset] ^= 1
        return memoryview(wrong)


def make_block(number: int, *, payload_bytes: int = 8192, namespace: bytes = b"N" * 16, group: int = 0) -> Block:
    """Block ``number``; equal arguments give equal blocks, in any process."""
    source = random.Random(number)
    key = BlockKey.of(namespace, source.randbytes(32), group)
    buffer = memoryview(bytearray(frame.frame_bytes(payload_bytes)))
    buffer[HEADER_BYTES:] = source.randbytes(payload_bytes)
    frame.seal(buffer, key, payload_bytes, written_at_s=1_700_000_000.0)
    return Block(key, buffer)
