"""Chained keys of a text's prefix blocks: equal keys mean equal text from the start to that block.

Of both ways to compute them each serves where it is quickest. The first two blocks have one call of
xxh3 each, seeded with the key before: nothing beats that for short prompts. All further keys come at
once from numpy, whatever their number: sums over all 64-bit words of the text, each times a secret
random number of its place (multilinear hashing), so that the key of a block is the sum up to its end.
Before that the upper half of a word is folded into the lower one, without which differences in
upper bits would be lost in the modulus; two given texts then have the same key with a probability
of at most 2^-33, and for ordinary text about 2^-57. A wrong match costs a cache miss, never a wrong answer.
"""

import secrets
import sys
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from kveik.router.facts import NO_KEYS

#: Text that one key stands for, about 64 tokens.
PREFIX_BLOCK_BYTES: Final = 256
#: Keys that one prompt has at most: what comes after the first MiB does not change the choice.
BLOCKS_MAX: Final = 4096

_WORDS: Final = PREFIX_BLOCK_BYTES // 8
#: The seed stands before the text and counts as its beginning.
SEED_BYTES: Final = 8
_HALF_WORD: Final = np.uint64(32)
_xxh3: Final = xxhash.xxh3_64_intdigest

assert sys.byteorder == "little", "keys are computed from the text as little-endian words"


class PrefixHasher:
    """Computes keys. Two with the same secret give the same keys; by default the secret is random."""

    __slots__ = ("_factors", "_secret", "_starts")

    def __init__(self, secret: int | None = None) -> None:
        self._secret = (secrets.randbits(64) if secret is None else secret) & 0xFFFF_FFFF_FFFF_FFFF
        numbers = np.random.Generator(np.random.Philox(self._secret))
        self._factors = numbers.integers(0, 1 << 64, size=BLOCKS_MAX * _WORDS, dtype=np.uint64)
        self._starts = np.arange(0, BLOCKS_MAX * _WORDS, _WORDS)

    def seed(self, context: bytes) -> bytes:
        """What stands before the text: it stands for all that decides what a prefix is worth, such as the model."""
        return _xxh3(context, self._secret).to_bytes(SEED_BYTES, "little")

    def keys(self, seeded: bytes) -> NDArray[np.uint64]:
        """The keys of a seed and the text after it, in one value.

        The seed counts as the first 8 bytes of the first block. A last block that isn't full has no key.
        """
        count = min(len(seeded) // PREFIX_BLOCK_BYTES, BLOCKS_MAX)
        if count == 0:
            return NO_KEYS
        first = _xxh3(seeded[:PREFIX_BLOCK_BYTES], self._secret)
        if count == 1:
            return np.frombuffer(first.to_bytes(8, "little"), np.uint64)
        second = _xxh3(seeded[PREFIX_BLOCK_BYTES : 2 * PREFIX_BLOCK_BYTES], first)
        if count == 2:
            return np.frombuffer((first | second << 64).to_bytes(16, "little"), np.uint64)
        words = np.frombuffer(seeded, np.uint64, count * _WORDS)
        products = words >> _HALF_WORD
        np.bitwise_xor(products, words, products)
        np.multiply(products, self._factors[: count * _WORDS], products)
        keys: NDArray[np.uint64] = np.add.reduceat(products, self._starts[:count])
        np.add.accumulate(keys, out=keys)
        keys[0] = first
        keys[1] = second
        return keys
