"""One copy between two buffers, at memory speed and without the GIL."""

import numpy as np
import xxhash

#: A copied piece is digested while it is still in the core's own cache. Measured where that has 2 MiB: pieces of
#: 256 KiB cost a quarter more than the copy alone, pieces of 2 MiB half more.
PIECE_BYTES = 256 << 10


def copy_bytes(target: memoryview, source: memoryview) -> None:
    """Copy ``source`` over ``target``; both contiguous and equally long."""
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


def copy_and_digest(target: memoryview, source: memoryview) -> bytes:
    """Copy ``source`` over ``target`` and return the xxh3_128 of what lies in ``target`` then."""
    digest = xxhash.xxh3_128()
    for start in range(0, len(source), PIECE_BYTES):
        piece = target[start : start + PIECE_BYTES]
        copy_bytes(piece, source[start : start + PIECE_BYTES])
        digest.update(piece)
    return digest.digest()
