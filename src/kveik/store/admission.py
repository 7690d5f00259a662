"""Which blocks go down to the lower tiers, which of them first, and how fast. Pure: the time is an argument."""

from dataclasses import dataclass, replace

import numpy as np
import xxhash

from kveik.kv.keys import BlockKey

ALL, SECOND_TOUCH = "all", "second_touch"
#: How much a bucket may save up, in seconds of its rate.
SAVED_UP_S = 0.5
#: Keys that :class:`Remembered` takes up before it forgets the older half.
REMEMBERED_KEYS = 1 << 17
_BITS = 1 << 20


@dataclass(frozen=True, slots=True)
class Bucket:
    """A token bucket. ``bytes_per_s`` 0: no limit. It may go below zero once: no block is too large for it."""

    bytes_per_s: int = 0
    level_bytes: float = 0.0
    at_s: float = 0.0

    def refilled(self, now_s: float) -> "Bucket":
        """The bucket at that time."""
        room = self.bytes_per_s * SAVED_UP_S
        level = min(room, self.level_bytes + self.bytes_per_s * max(0.0, now_s - self.at_s))
        return replace(self, level_bytes=level, at_s=now_s)

    @property
    def open(self) -> bool:
        """Whether something may go now."""
        return self.bytes_per_s == 0 or self.level_bytes > 0

    def after(self, size: int) -> "Bucket":
        """The bucket after so many bytes went."""
        return self if self.bytes_per_s == 0 else replace(self, level_bytes=self.level_bytes - size)


def full_bucket(bytes_per_s: int, now_s: float) -> Bucket:
    """A bucket that nobody took from yet."""
    return Bucket(bytes_per_s, bytes_per_s * SAVED_UP_S, now_s)


class Remembered:
    """Which blocks were here before, in 256 KiB whatever their number; the oldest are forgotten.

    Two bit fields by turns: when the younger one has taken up its share it becomes the older one. A key that was never
    here is taken for one that was in less than one case of fifty. Not locked.
    """

    def __init__(self, keys: int = REMEMBERED_KEYS, bits: int = _BITS) -> None:
        self._share = max(1, keys // 2)
        self._bits = bits
        self._younger, self._older = (np.zeros(bits // 8, np.uint8) for _ in range(2))
        self._count = 0

    def __repr__(self) -> str:
        return f"Remembered({self._count} keys since the last turn)"

    def seen(self, key: BlockKey) -> bool:
        """Whether this block was noted before."""
        places = self._places(key)
        return any(all(bits[at >> 3] >> (at & 7) & 1 for at in places) for bits in (self._younger, self._older))

    def note(self, key: BlockKey) -> None:
        """This block is here."""
        if self._count >= self._share:
            self._older, self._younger, self._count = self._younger, self._older, 0
            self._younger[:] = 0
        for at in self._places(key):
            self._younger[at >> 3] |= np.uint8(1 << (at & 7))
        self._count += 1

    def _places(self, key: BlockKey) -> list[int]:
        digest = xxhash.xxh3_128_intdigest(key)
        return [(digest >> shift) % self._bits for shift in (0, 32, 64)]


def goes_down(admission: str, *, touches: int) -> bool:
    """Whether a block that was asked for so often beyond its first time belongs in a lower tier."""
    return admission == ALL or touches > 0
