"""Which slots make room for new blocks. Pure: plain arrays in, slot positions out.

Least recently used goes first. *Use* is a counter that grows with every lookup, read and
commit; within one request it is higher for earlier blocks, because a prefix without its first
block is worth nothing while one without its last block still serves.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Evict at least this many slots at a time, and this share of a size class, so that the search
#: through all slots is paid once for many blocks.
BATCH_MIN = 8
BATCH_SHARE = 256


def batch_size(needed: int, slots: int) -> int:
    """How many slots to evict when ``needed`` are missing in a size class of ``slots``."""
    return max(needed, min(BATCH_MIN, slots // 16), slots // BATCH_SHARE)


def oldest(last_use: NDArray[np.int64], evictable: NDArray[np.bool_], count: int) -> NDArray[np.intp]:
    """Positions of the ``count`` least recently used evictable slots, oldest first; fewer if there are fewer."""
    candidates = np.flatnonzero(evictable)
    if count < len(candidates):
        nearest = np.argpartition(last_use[candidates], count)[:count]
        candidates = candidates[nearest]
    order = np.argsort(last_use[candidates], kind="stable")
    return candidates[order]


@dataclass(frozen=True, slots=True)
class SlabUse:
    """One slab of another size class. ``mean_use`` is over its blocks; lower is older."""

    slab: int
    mean_use: float
    evictable: bool


def slab_to_reclaim(others: Sequence[SlabUse], own_oldest_use: float | None) -> int | None:
    """The slab that a starving size class takes from another one, or None to evict its own blocks.

    ``own_oldest_use`` is the mean use of the blocks it would evict otherwise; None if it has
    none to evict. A slab goes only when all of its blocks may go, and only when they are on
    average older than the blocks that would go instead.
    """
    free = [slab for slab in others if slab.evictable]
    if not free:
        return None
    oldest_slab = min(free, key=lambda slab: slab.mean_use)
    if own_oldest_use is not None and oldest_slab.mean_use >= own_oldest_use:
        return None
    return oldest_slab.slab
