"""Block hashes as vLLM chains them: each covers its block's tokens and, by its parent, all before them."""

import hashlib
import pickle  # written only, as vLLM does before hashing; nothing is ever loaded
from collections.abc import Callable, Sequence
from typing import Any

#: What vLLM derives the hash before the first block from, unless PYTHONHASHSEED is set.
VLLM_SEED = "vllm-none-hash"


class HashChain:
    """Hashes of one engine: ``algorithm`` is ``sha256`` (vLLM's default) or ``sha256_cbor``."""

    def __init__(self, algorithm: str = "sha256", seed: str = VLLM_SEED) -> None:
        self._encode: Callable[[Any], bytes] = {"sha256": _pickled, "sha256_cbor": cbor}[algorithm]
        self.root = self._hash(seed)

    def next(self, parent: bytes, tokens: Sequence[int], salt: str = "") -> bytes:
        """The 32-byte hash of a full block. ``salt``: the request's cache salt, for its first block only."""
        return self._hash((parent, tuple(tokens), (("cache_salt", salt),) if salt else None))

    def _hash(self, value: Any) -> bytes:
        return hashlib.sha256(self._encode(value)).digest()


def _pickled(value: Any) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def short_hash(block_hash: bytes) -> int:
    """The low 64 bits: how vLLM writes block hashes into events by default."""
    return int.from_bytes(block_hash[-8:], "big")


def cbor(value: Any) -> bytes:
    """Canonical CBOR of what block hashes are made of: whole numbers from 0, bytes, text, tuples, None.

    Raises :class:`TypeError` for anything else.
    """
    if value is None:
        return b"\xf6"
    if isinstance(value, bytes):
        return _head(2, len(value)) + value
    if isinstance(value, str):
        data = value.encode()
        return _head(3, len(data)) + data
    if isinstance(value, int) and value >= 0:
        return _head(0, value)
    if isinstance(value, tuple):
        return _head(4, len(value)) + b"".join(map(cbor, value))
    raise TypeError(f"no part of a block hash: {value!r}")


def _head(major: int, count: int) -> bytes:
    """Type and length in the shortest form."""
    if count < 24:
        return bytes([major << 5 | count])
    for extra, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if count < 1 << 8 * size:
            return bytes([major << 5 | extra]) + count.to_bytes(size, "big")
    raise TypeError(f"{count} needs more than 64 bits")
