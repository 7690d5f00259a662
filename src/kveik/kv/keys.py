"""The identity of a stored block: namespace + block hash + KV cache group + rank.

A key is one immutable ``bytes`` value, so that an index of millions of keys hashes and
compares at C speed and costs little memory. Layout (big-endian)::

    16 bytes namespace digest | 2 bytes group | 2 bytes rank | 16 or 32 bytes block hash

The block hash is vLLM's own (``Request.block_hashes``: sha256 gives 32 bytes, xxhash 16);
it covers all tokens from the start of the prompt up to the end of the block, and the
adapter, multimodal and salt extras (vLLM ``v1/core/kv_cache_utils.py``).
"""

import re
from typing import Self

from kveik.errors import KeyFormatError

NAMESPACE_BYTES = 16
HASH_SIZES = (16, 32)
_PREFIX_BYTES = NAMESPACE_BYTES + 4
_TEXT = re.compile(r"([0-9a-f]{32})-g(\d{1,5})-r(\d{1,5})-([0-9a-f]{32}(?:[0-9a-f]{32})?)")


def key_prefix(namespace: bytes, group: int, rank: int) -> bytes:
    """The part of a key that all blocks of one namespace, group and rank share.

    ``key_prefix(...) + block_hash`` is the packed key; lookups of many blocks use it to build
    keys in one pass. Raises :class:`KeyFormatError` for a digest or number out of range.
    """
    if len(namespace) != NAMESPACE_BYTES:
        raise KeyFormatError(f"namespace digest has {len(namespace)} bytes, expected {NAMESPACE_BYTES}")
    if not (0 <= group <= 0xFFFF and 0 <= rank <= 0xFFFF):
        raise KeyFormatError(f"group {group} and rank {rank} must lie in 0..65535")
    return namespace + group.to_bytes(2, "big") + rank.to_bytes(2, "big")


class BlockKey(bytes):
    """One block of one KV cache group of one rank in one namespace."""

    __slots__ = ()

    @classmethod
    def of(cls, namespace: bytes, block_hash: bytes, group: int = 0, rank: int = 0) -> Self:
        """The key with these parts. Raises :class:`KeyFormatError` for parts of the wrong size."""
        return cls.from_packed(key_prefix(namespace, group, rank) + block_hash)

    @classmethod
    def from_packed(cls, packed: bytes) -> Self:
        """The key in its packed form, as it is sent and stored. Raises :class:`KeyFormatError`."""
        if len(packed) - _PREFIX_BYTES not in HASH_SIZES:
            raise KeyFormatError(
                f"packed key has {len(packed)} bytes, expected {_PREFIX_BYTES} + a hash of 16 or 32 bytes"
            )
        return cls(packed)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The key in its text form. Raises :class:`KeyFormatError`."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise KeyFormatError(f"{text!r} is no block key, expected NAMESPACE-gGROUP-rRANK-HASH")
        namespace, group, rank, block_hash = match.groups()
        key = cls.of(bytes.fromhex(namespace), bytes.fromhex(block_hash), int(group), int(rank))
        if key.text != text:
            raise KeyFormatError(f"{text!r} is not in the one text form of its key, {key.text!r}")
        return key

    @property
    def namespace(self) -> bytes:
        """The 16-byte namespace digest."""
        return bytes(self[:NAMESPACE_BYTES])

    @property
    def group(self) -> int:
        """Index of the KV cache group."""
        return int.from_bytes(self[16:18], "big")

    @property
    def rank(self) -> int:
        """Rank of the worker that holds these bytes (tensor and pipeline parallel)."""
        return int.from_bytes(self[18:20], "big")

    @property
    def block_hash(self) -> bytes:
        """vLLM's chained block hash, 16 or 32 bytes."""
        return bytes(self[_PREFIX_BYTES:])

    @property
    def text(self) -> str:
        """The one text form; letters, digits and ``-`` only, at most 111 characters."""
        return f"{self.namespace.hex()}-g{self.group}-r{self.rank}-{self.block_hash.hex()}"

    def __repr__(self) -> str:
        return f"BlockKey({self.text})"

    def __str__(self) -> str:
        return self.text
