"""Digests of a prompt's tokens by position, to see where two prompts differ. Pure.

vLLM's block hashes are chained and seeded: behind the first token that differs, or on an engine with another seed, they
tell nothing any more. These are neither: two prompts that differ in one place have equal digests everywhere else. They
hold no tokens, but who guesses a text can find it confirmed, as with block hashes.
"""

from array import array
from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

#: A digest covers so many tokens,
FINE_TOKENS = 16
#: up to here;
FINE_END_TOKENS = 4096
#: beyond that so many, up to the end of what is looked at.
COARSE_TOKENS = 512
COARSE_END_TOKENS = 262_144
DIGEST_BYTES = 4

_FINE_CHUNKS = FINE_END_TOKENS // FINE_TOKENS


def prompt_print(tokens: Sequence[int]) -> bytes:
    """One digest of ``DIGEST_BYTES`` for each chunk of a prompt; the last chunk may be shorter than the others."""
    packed = array("q", tokens[:COARSE_END_TOKENS])
    view, width, digest = memoryview(packed).cast("B"), packed.itemsize, xxhash.xxh3_64_digest
    return b"".join(digest(view[start * width : end * width])[:DIGEST_BYTES] for start, end in _spans(len(packed)))


def _spans(tokens: int) -> list[tuple[int, int]]:
    fine = [(start, start + FINE_TOKENS) for start in range(0, min(tokens, FINE_END_TOKENS), FINE_TOKENS)]
    coarse = [(start, start + COARSE_TOKENS) for start in range(FINE_END_TOKENS, tokens, COARSE_TOKENS)]
    return [(start, min(end, tokens)) for start, end in [*fine, *coarse]]


def chunk_span(chunk: int) -> tuple[int, int]:
    """The tokens of a chunk: the first, and the one after the last where the prompt is long enough."""
    if chunk < _FINE_CHUNKS:
        return chunk * FINE_TOKENS, (chunk + 1) * FINE_TOKENS
    start = FINE_END_TOKENS + (chunk - _FINE_CHUNKS) * COARSE_TOKENS
    return start, start + COARSE_TOKENS


def equal_chunks(one: bytes, other: bytes) -> NDArray[np.bool_]:
    """For each chunk that both prompts have: whether it is the same in both."""
    chunks = min(len(one), len(other)) // DIGEST_BYTES
    size = chunks * DIGEST_BYTES
    equal: NDArray[np.bool_] = np.frombuffer(one[:size], np.uint32) == np.frombuffer(other[:size], np.uint32)
    return equal


def leading_tokens(one: bytes, one_tokens: int, other: bytes, other_tokens: int) -> int:
    """How many tokens from the start two prompts have in common at least: whole chunks, or all of the shorter one."""
    equal = equal_chunks(one, other)
    differing = np.flatnonzero(~equal)
    common = int(differing[0]) if len(differing) else len(equal)
    return min(chunk_span(common)[0], one_tokens, other_tokens)
