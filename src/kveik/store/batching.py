"""How many blocks one call moves: pure arithmetic."""

from collections.abc import Sequence

#: One call moves no more than this, unless the store says otherwise.
BATCH_BYTES = 32 << 20


def batches(sizes: Sequence[int], batch_keys: int, threads: int, batch_bytes: int = BATCH_BYTES) -> list[range]:
    """Cut a list of blocks, in order, into what one call moves each.

    ``sizes`` are bytes a block. No batch has more than ``batch_keys`` blocks, nor more than ``batch_bytes`` unless
    it is a single block. Where there is enough for all ``threads``, every one gets a batch, and as many as the others:
    who waits for all of them waits for the thread with the most.
    """
    threads = max(1, threads)
    most = max(1, min(batch_keys, _ceil(len(sizes), threads)))
    found = _cut(sizes, most, batch_bytes)
    if len(found) % threads == 0 or len(found) < threads:
        return found
    turns = _ceil(len(found), threads)
    return _cut(sizes, _ceil(len(sizes), turns * threads), batch_bytes)


def _cut(sizes: Sequence[int], most: int, batch_bytes: int) -> list[range]:
    found: list[range] = []
    start = 0
    while start < len(sizes):
        stop = start + take(sizes[start : start + most], most, batch_bytes)
        found.append(range(start, stop))
        start = stop
    return found


def _ceil(whole: int, part: int) -> int:
    return -(-whole // part)


def take(sizes: Sequence[int], batch_keys: int, batch_bytes: int = BATCH_BYTES) -> int:
    """How many blocks from the front of a queue make up one batch; at least one, if there is one."""
    total = 0
    for count, size in enumerate(sizes):
        total += size
        if count == batch_keys or (count and total > batch_bytes):
            return count
    return len(sizes)
