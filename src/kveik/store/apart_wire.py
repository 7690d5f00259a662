"""What an agent and the processes of a store apart say to each other: one call, one answer.

Blocks that lie in the memory that both map are named by their place in it; others travel within the message.
"""

from collections.abc import Sequence

import msgspec

from kveik.store.base import BlockResult, Status
from kveik.store.staging import offset_within

#: Place of a block that travels within the message.
INLINE = -1


class Opening(msgspec.Struct, frozen=True, array_like=True):
    """The first message. ``maker`` is ``module:function``; it is called with ``options`` and returns the store."""

    maker: str
    options: dict[str, str | int | float | bool]
    memory_bytes: int


class Opened(msgspec.Struct, frozen=True, array_like=True):
    """The answer to it: empty, or why the store could not be opened."""

    trouble: str = ""


class Call(msgspec.Struct, frozen=True, array_like=True):
    """One call of a store. ``places``: offset and length of each buffer; ``frames``: those that are INLINE, to put."""

    operation: str
    keys: list[bytes]
    seconds: float = 0.0
    places: list[tuple[int, int]] = []
    frames: list[bytes] = []


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """What came of it: ``present`` of a lookup, else ``results``; ``frames``: hits whose buffers are INLINE."""

    present: list[bool] = []
    results: list[tuple[str, int, str, str]] = []
    frames: list[bytes] = []


_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
decode_opening = msgspec.msgpack.Decoder(Opening).decode
decode_opened = msgspec.msgpack.Decoder(Opened).decode
decode_call = msgspec.msgpack.Decoder(Call).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode


def place_in(memory: memoryview, buffer: memoryview) -> tuple[int, int]:
    """Offset and length of a buffer in the memory; INLINE for one that does not wholly lie there."""
    offset = offset_within(memory, buffer)
    return (INLINE if offset is None else offset), len(buffer)


def packed(results: Sequence[BlockResult]) -> list[tuple[str, int, str, str]]:
    """Results as they are sent."""
    return [(result.status.value, result.bytes, result.reason, result.detail) for result in results]


def unpacked(results: Sequence[tuple[str, int, str, str]]) -> list[BlockResult]:
    """Results as they were sent."""
    return [BlockResult(Status(status), size, reason, detail) for status, size, reason, detail in results]
