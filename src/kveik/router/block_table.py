"""A compact map of 64-bit numbers to 64-bit numbers.

A Python dict of such numbers takes about 130 bytes an entry; this takes 16 bytes a place, and between
27 and 53 an entry. Keys must be well mixed (hashes). It is a table of buckets of eight places: a key
stands in its own bucket, one cache line, which is searched as bytes. What finds its bucket full
goes to a dict beside the table, which stays small since the table doubles in time.
"""

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

WAYS = 8
PLACES_MIN = 256
PLACE_BYTES = 16
_BESIDE_BYTES = 130

_BUCKET_BYTES = 64
#: Part of the places in use from which the table doubles, and part that may be beside it.
_FULL = 0.6
_BESIDE = 1 / 64
_NO_KEY = bytes(8)
_ALL = (1 << 64) - 1


class BlockTable:
    """Unsigned 64-bit keys and values. A value of 0 means that the key isn't there; a key of 0 stands for 1."""

    __slots__ = (
        "_beside", "_bucket_keys", "_key_view", "_keys", "_packed", "_room", "_shift", "_shift_bits", "_value_view",
        "_values",
    )  # fmt: skip

    def __init__(self) -> None:
        self._beside: dict[int, int] = {}
        self._allot(PLACES_MIN)

    def __repr__(self) -> str:
        return f"BlockTable({len(self)} entries, {self.memory_bytes} bytes)"

    def __len__(self) -> int:
        return int(len(self._keys) * _FULL) - self._room + len(self._beside)

    @property
    def memory_bytes(self) -> int:
        """Memory, about."""
        return len(self._keys) * PLACE_BYTES + len(self._beside) * _BESIDE_BYTES

    def get(self, key: int) -> int:
        """The value of a key; 0 if it isn't there."""
        key = key or 1
        place = self._place(key, key.to_bytes(8, "little"))
        return self._value_view[place] if place >= 0 else self._beside.get(key, 0)

    def get_many(self, keys: Words) -> Words:
        """The values of many keys at once."""
        keys = np.maximum(keys, np.uint64(1))
        buckets = (keys >> self._shift).view(np.int64)
        places = (self._bucket_keys.take(buckets, axis=0) == keys[:, None]).argmax(axis=1)
        places += buckets * WAYS
        values: Words = self._values[places]
        strange = self._keys[places] != keys
        values[strange] = 0
        if self._beside:
            for at in np.flatnonzero(strange).tolist():
                values[at] = self._beside.get(int(keys[at]), 0)
        return values

    def put(self, key: int, value: int) -> None:
        """Set a key's value; 0 forgets the key."""
        key = key or 1
        place = self._place(key, key.to_bytes(8, "little"))
        if value == 0:
            self._drop(key, place)
        elif place >= 0:
            self._value_view[place] = value
        elif key in self._beside:
            self._beside[key] = value
        else:
            self._put_new(key, value)

    def add(self, key: int, value: int) -> bool:
        """Set a key's value if it isn't there; whether it wasn't."""
        key = key or 1
        if self._place(key, key.to_bytes(8, "little")) >= 0 or key in self._beside:
            return False
        self._put_new(key, value)
        return True

    def set_bits(self, key: int, bits: int) -> None:
        """Set these bits in a key's value, which was 0 if the key wasn't there."""
        key = key or 1
        place = self._place(key, key.to_bytes(8, "little"))
        if place >= 0:
            self._value_view[place] |= bits
        elif key in self._beside:
            self._beside[key] |= bits
        else:
            self._put_new(key, bits)

    def clear(self) -> None:
        """Forget all."""
        self._beside = {}
        self._allot(PLACES_MIN)

    def clear_bits(self, bits: int) -> None:
        """Take these bits out of all values, and forget the keys whose values are 0 then."""
        self._values &= np.uint64(~bits & _ALL)
        gone = (self._values == 0) & (self._keys != 0)
        self._keys[gone] = 0
        self._room += int(np.count_nonzero(gone))
        self._beside = {key: kept for key, value in self._beside.items() if (kept := value & ~bits)}

    def _put_new(self, key: int, value: int) -> None:
        place = self._place(key, _NO_KEY)
        if place >= 0:
            self._key_view[place] = key
            self._value_view[place] = value
            self._room -= 1
            if self._room < 0:
                self._double()
            return
        self._beside[key] = value
        if len(self._beside) > len(self._keys) * _BESIDE:
            self._double()

    def _drop(self, key: int, place: int) -> None:
        if place >= 0:
            self._key_view[place] = 0
            self._value_view[place] = 0
            self._room += 1
        else:
            self._beside.pop(key, None)

    def _place(self, key: int, wanted: bytes) -> int:
        """Where these eight bytes stand in the key's bucket; negative if they don't."""
        start = key >> self._shift_bits << 6
        end = start + _BUCKET_BYTES
        at = self._packed.find(wanted, start, end)
        while at & 7 and at >= 0:  # parts of two neighbours
            at = self._packed.find(wanted, at + 1, end)
        return at >> 3

    def reserve(self, entries: int) -> None:
        """Make room for so many at once: a table that doubles when it is large holds up everything for a while."""
        places = len(self._keys)
        while places * _FULL < entries:
            places *= 2
        if places > len(self._keys):
            self._resize(places)

    def _double(self) -> None:
        self._resize(2 * len(self._keys))

    def _resize(self, places: int) -> None:
        kept = self._keys != 0
        keys = np.concatenate((self._keys[kept], np.fromiter(self._beside, np.uint64, len(self._beside))))
        values = np.concatenate((self._values[kept], np.fromiter(self._beside.values(), np.uint64, len(self._beside))))
        self._allot(places)
        buckets = (keys >> self._shift).view(np.int64)
        order = np.argsort(buckets, kind="stable")
        buckets, keys, values = buckets[order], keys[order], values[order]
        ranks = np.arange(len(buckets)) - np.searchsorted(buckets, buckets)
        fits = ranks < WAYS
        homes = buckets[fits] * WAYS + ranks[fits]
        self._keys[homes] = keys[fits]
        self._values[homes] = values[fits]
        self._room -= len(homes)
        self._beside = dict(zip(keys[~fits].tolist(), values[~fits].tolist(), strict=True))

    def _allot(self, places: int) -> None:
        self._packed = bytearray(places * 8)
        self._keys: Words = np.frombuffer(self._packed, np.uint64)
        self._values: Words = np.zeros(places, np.uint64)
        self._key_view, self._value_view = self._keys.data, self._values.data
        self._bucket_keys = self._keys.reshape(-1, WAYS)
        self._shift_bits = 64 - (len(self._bucket_keys).bit_length() - 1)
        self._shift = np.uint64(self._shift_bits)
        self._room = int(places * _FULL)
