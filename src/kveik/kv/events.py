"""vLLM's KV events: what an engine tells about the blocks in its own prefix cache. Bytes in, values out.

A publisher numbers its batches from 0. A batch is msgpack of ``[time, events, data parallel rank]``;
an event is a map whose ``type`` names it. Some batches are kept by the engine and sent again when asked for.

Events may change in what they mean without a word: another block size, a second cache group, adapters.
So whoever follows them asks :func:`objection` for each stored block; what it objects to must
not be taken for cached.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Annotated

import msgspec
import xxhash

from kveik.errors import EventFormatError

#: How engines write a block hash: the low 64 bits as a number (by default), or all bytes.
WireHash = int | bytes
#: Four bytes are enough for any vocabulary.
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]

_LOW_64 = (1 << 64) - 1
#: The engine's own memory. Events of other media (host memory, storage) are no part of what it can use at once.
_OWN_MEDIA = (None, "GPU")


class BlockStored(msgspec.Struct, tag=True, gc=False):
    """Blocks that follow each other in one prompt have been cached.

    ``token_ids``: of all of them, ``block_size`` each. ``extra_keys``: for each block, what else its hash covers.
    """

    block_hashes: list[WireHash]
    parent_block_hash: WireHash | None
    token_ids: list[TokenId]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: Sequence[Sequence[object] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(msgspec.Struct, tag=True, gc=False):
    """One copy of each of these blocks is gone."""

    block_hashes: list[WireHash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, gc=False):
    """The engine has emptied its prefix cache."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True, gc=False):
    """One message of a publisher. ``ts`` is its wall clock, in seconds."""

    ts: float
    events: list[KvEvent]
    data_parallel_rank: int | None = None


_decode = msgspec.msgpack.Decoder(EventBatch).decode


def decode_batch(payload: bytes) -> EventBatch:
    """The batch in a message. Raises :class:`EventFormatError`."""
    try:
        return _decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise EventFormatError(f"no batch of KV events that this version knows: {error}") from error


def short_hash(block_hash: WireHash) -> int:
    """64 bits that stand for a block hash, however it was written."""
    if isinstance(block_hash, bytes):
        return int.from_bytes(block_hash[-8:], "big")
    return block_hash & _LOW_64


def in_own_memory(event: BlockStored | BlockRemoved) -> bool:
    """Whether it speaks of blocks that the engine can use at once."""
    return event.medium in _OWN_MEDIA


def objection(event: BlockStored, block_tokens: int) -> str:
    """Why these blocks can't tell which prompts are cached; empty if they can. ``block_tokens``: 0 for any."""
    if event.block_size <= 0 or (block_tokens and event.block_size != block_tokens):
        return f"blocks of {event.block_size} tokens, expected {block_tokens or 'some'}"
    if event.group_idx:
        return "several KV cache groups, and a hit needs the blocks of all of them"
    if event.kv_cache_spec_sliding_window:
        return f"a sliding window of {event.kv_cache_spec_sliding_window} tokens: blocks before it aren't needed"
    if len(event.token_ids) != len(event.block_hashes) * event.block_size:
        return f"{len(event.block_hashes)} blocks with {len(event.token_ids)} tokens, not {event.block_size} each"
    return ""


def salt_of(event: BlockStored) -> str | None:
    """The cache salt that the first block was stored under; empty for none, None if more than a salt was hashed.

    Adapters, images and embeddings are hashed by things that a request's text doesn't tell (such as the
    adapter's path). Blocks of such prompts belong to nothing that could be looked up.
    """
    if event.lora_name or event.lora_id is not None:
        return None
    salt = ""
    for number, keys in enumerate(event.extra_keys or ()):
        if not keys:
            continue
        first = keys[0]
        if number or event.parent_block_hash is not None or len(keys) != 1 or not isinstance(first, str):
            return None
        salt = first
    return salt


class Standing(Enum):
    """Where a batch stands in the sequence."""

    NEXT = "next"
    REPEATED = "repeated"  # taken before
    GAP = "gap"  # batches before it are missing
    ANEW = "anew"  # its number was used before for something else: the publisher began anew


class Course:
    """Which batches of one publisher have been taken. Remembers the last ones to know them again."""

    __slots__ = ("_recent", "next_number")

    #: Batches that are known again.
    REMEMBERED = 1024

    def __init__(self, next_number: int = 0) -> None:
        self.next_number = next_number
        self._recent: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"Course(next {self.next_number})"

    def standing(self, number: int, payload: bytes) -> Standing:
        """Where this batch stands."""
        if number == self.next_number:
            return Standing.NEXT
        if number > self.next_number:
            return Standing.GAP
        return Standing.REPEATED if self._recent.get(number) == _digest(payload) else Standing.ANEW

    def take(self, number: int, payload: bytes) -> None:
        """It has been taken; the one after it is the next."""
        self.next_number = number + 1
        self._recent[number] = _digest(payload)
        if len(self._recent) > self.REMEMBERED:
            del self._recent[next(iter(self._recent))]


def _digest(payload: bytes) -> int:
    return xxhash.xxh3_64_intdigest(payload)
