"""Which engine is expected to hold which prefix: the interface of the indexes, and the approximate one.

The approximate index remembers what was sent where. It is a table of buckets of eight entries;
an entry is a key (8 bytes), the engines that got it (one bit each, 8 bytes) and when it was last
used (4 bytes). A key can stand in its own bucket only, so that a look-up reads one cache line;
a new key takes the place of the bucket's oldest entry. So there is nothing to sweep, the bound on
entries is the size of the table, and when it is full the oldest go first (within their bucket).
The table starts small and doubles until it reaches its bound: a bucket's entries then go to two
new ones according to one more bit of their keys, which can't overflow.

The keys of a prompt are a chain: whoever holds a block holds all before it, and was sent them at
the same time or later. So the end of an engine's prefix is found by bisection, and a prompt that was
sent to the same engine a moment ago needs no write at all.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kveik.router.facts import NO_KEYS, RequestFacts
from kveik.router.prefix_keys import PREFIX_BLOCK_BYTES, SEED_BYTES

WAYS: Final = 8
ENTRY_BYTES: Final = 8 + 8 + 4
ENTRIES_MIN: Final = 1024

_KEY_BYTES: Final = 8
_BUCKET_BYTES: Final = WAYS * _KEY_BYTES
_BUCKET_SHIFT: Final = 6  # log2 of _BUCKET_BYTES
_TICKS_S: Final = 16  # ticks of the coarse clock in a second: 32 bits last for eight years
_FULL: Final = 0.45  # part of the entries in use from which the table doubles
_REFRESH: Final = 32  # an entry's time is written again after this part of its life
_FEW: Final = 6  # keys up to which a loop beats numpy
_LONGEST: Final = 4  # part of the table, as a fraction, that one prompt may take
_NEVER: Final = 1 << 62
_PIECE: Final = 1 << 14  # entries that are copied at once, in less than a millisecond


class Entries(NamedTuple):
    """Entries of an index: key, engines (bits) and seconds since its last use, of each."""

    keys: NDArray[np.uint64]
    masks: NDArray[np.uint64]
    ages_s: NDArray[np.float32]


class PrefixIndex:
    """What is expected to be cached where. Exact and approximate indexes are used through this.

    A base for the reason that :class:`.upstream.Answered` is one.
    """

    def match(self, facts: RequestFacts, now_s: float) -> Mapping[int, int]:
        """How many leading prompt tokens each engine (by slot) holds; engines that hold none are left out."""
        raise NotImplementedError

    def learn(self, facts: RequestFacts, slot: int, now_s: float) -> None:
        """The engine in this slot gets this prompt now."""
        raise NotImplementedError

    def correct(self, facts: RequestFacts, slot: int, cached_tokens: int) -> None:
        """The engine in this slot answered, and had only so many leading tokens of the prompt: fewer than expected."""
        raise NotImplementedError

    def forget_engine(self, slot: int) -> None:
        """The engine in this slot holds nothing any more: it restarted, was reset or is gone."""
        raise NotImplementedError

    @property
    def size(self) -> int:
        """Entries in use."""
        raise NotImplementedError

    @property
    def memory_bytes(self) -> int:
        """Memory of the tables."""
        raise NotImplementedError


class ApproximateIndex(PrefixIndex):
    """Remembers for each prefix block which engines were sent it. See the module's text."""

    def __init__(self, entries_max: int, expire_s: float, start_s: float = 0.0) -> None:
        """``entries_max`` is rounded down to a power of two, but not below ``ENTRIES_MIN``."""
        self._entries_max = 1 << (max(entries_max, ENTRIES_MIN).bit_length() - 1)
        self.changes = 0
        self._life = max(1, int(expire_s * _TICKS_S))
        self._refresh = self._life // _REFRESH
        # 0 is the time of an empty entry, and 1 the oldest that one can have now: entries may be restored.
        self._oldest, self._tick = 1, 1 + self._life
        self._start_s = start_s - self._tick / _TICKS_S
        # What was matched last: most prompts that are matched are learned next.
        self._matched = NO_KEYS
        self._depths: Mapping[int, int] = {}
        self._end = -1
        self._unseen = True
        self._room = 0
        self._use(
            bytearray(ENTRIES_MIN * _KEY_BYTES), np.zeros(ENTRIES_MIN, np.uint64), np.zeros(ENTRIES_MIN, np.uint32)
        )

    def __repr__(self) -> str:
        return f"ApproximateIndex({self.size} of at most {self._entries_max} entries, {self.memory_bytes} bytes)"

    @property
    def size(self) -> int:
        """Entries that have not expired; counts them."""
        return int(np.count_nonzero(self._times >= self._oldest))

    @property
    def memory_bytes(self) -> int:
        """Memory of the table."""
        return self.capacity * ENTRY_BYTES

    @property
    def capacity(self) -> int:
        """Entries that the table has now; it grows up to the bound."""
        return len(self._times)

    # -- by facts -------------------------------------------------------------------------------

    def match(self, facts: RequestFacts, now_s: float) -> Mapping[int, int]:
        """How many leading prompt tokens each engine (by slot) is expected to hold."""
        depths = self.depths(facts.keys, now_s)
        if not depths:
            return depths
        # The last block, which isn't full and has no key, counts as not held.
        tokens_a_block = facts.prompt_tokens * PREFIX_BLOCK_BYTES / (facts.prompt_bytes + SEED_BYTES)
        return {slot: int(depth * tokens_a_block) for slot, depth in depths.items()}

    def learn(self, facts: RequestFacts, slot: int, now_s: float) -> None:
        """The engine in this slot gets this prompt now."""
        self.add(facts.keys, slot, now_s)

    def correct(self, facts: RequestFacts, slot: int, cached_tokens: int) -> None:
        """Changes nothing: now that the engine has answered, it holds the prompt.

        What else it may have lost is best computed where it was, since forgetting it scatters the
        prompts that share it over all engines (tried in simulation: fewer hits, longer waits).
        """

    def forget_engine(self, slot: int) -> None:
        """Forget all that this engine was sent."""
        self._matched = NO_KEYS
        self._masks &= np.uint64(~(1 << slot) & (1 << 64) - 1)
        self._times[self._masks == 0] = 0

    # -- by keys --------------------------------------------------------------------------------

    def depths(self, keys: NDArray[np.uint64], now_s: float) -> Mapping[int, int]:
        """How many of the chain's leading keys each engine (by slot) was sent; those without any are left out."""
        oldest = self._set_clock(now_s)
        count = len(keys)
        values, packed = keys.data, keys.tobytes()
        self._matched, self._depths = keys, {}
        first = self._entry(values[0], packed[:_KEY_BYTES]) if count else -1
        self._unseen = first < 0
        if first < 0 or self._time_view[first] < oldest:
            return self._depths
        holders = self._mask_view[first]
        # Most prompts are known to their end, or not at all beyond some block.
        end = first if count == 1 else self._entry(values[count - 1], packed[-_KEY_BYTES:])
        whole = 0
        if end >= 0 and self._time_view[end] >= oldest:
            whole = holders & self._mask_view[end]
            self._end = end
        self._depths = found = dict.fromkeys(_slots(whole), count) if whole else {}
        if holders != whole:
            self._bisect(found, values, packed, (1, count, holders & ~whole))
        return found

    def _bisect(self, found: dict[int, int], values: memoryview, packed: bytes, span: tuple[int, int, int]) -> None:
        """Find the depths of engines (bits) that hold the first ``low`` keys, and not the first ``high``."""
        spans = [span]
        while spans:
            low, high, engines = spans.pop()
            if high - low == 1:
                found.update(dict.fromkeys(_slots(engines), low))
                continue
            middle = (low + high) // 2
            at = (middle - 1) * _KEY_BYTES
            entry = self._entry(values[middle - 1], packed[at : at + _KEY_BYTES])
            known = entry >= 0 and self._time_view[entry] >= self._oldest
            deeper = engines & self._mask_view[entry] if known else 0
            if deeper:
                spans.append((middle, high, deeper))
            if deeper != engines:
                spans.append((low, middle, engines & ~deeper))

    def add(self, keys: NDArray[np.uint64], slot: int, now_s: float) -> None:
        """The engine in this slot was sent this chain of keys."""
        if keys is not self._matched:
            self.depths(keys, now_s)
        depth = self._depths.get(slot, 0)
        fresh_from = self._tick - self._refresh
        if depth == len(keys):
            if not depth or self._time_view[self._end] >= fresh_from:
                return
            depth = 0
        elif depth:
            entry = self._entry(keys.data[depth - 1], keys[depth - 1 : depth].tobytes())
            if entry < 0 or self._time_view[entry] < fresh_from:
                depth = 0
        self._matched = NO_KEYS
        self.changes += 1
        self._put(keys[depth : self._entries_max // _LONGEST], slot)

    def pieces(self) -> Iterator[Entries]:
        """A copy of all that has not expired, in pieces.

        May run on another thread while the index is in use, which gets its turns between the pieces; an
        entry that changes meanwhile may come out mixed up, which costs a miss.
        """
        keys, masks, times, tick, oldest = self._keys, self._masks, self._times, self._tick, self._oldest
        for start in range(0, len(times), _PIECE):
            part = slice(start, start + _PIECE)
            live = np.flatnonzero(times[part] >= oldest) + start
            yield Entries(keys[live], masks[live], ((tick - times[live].astype(np.float64)) / _TICKS_S).astype("f4"))

    def adopt(self, keys: NDArray[np.uint64], ages_s: NDArray[np.float32], slot: int) -> None:
        """The engine in this slot was sent these keys so long ago: entries of another index with the same secret."""
        ticks = (self._tick - ages_s * _TICKS_S).astype(np.int64)
        alive = ticks >= self._oldest
        newest_first = np.argsort(-ticks[alive], kind="stable")[: self._entries_max]
        keys, ticks = keys[alive][newest_first], ticks[alive][newest_first]
        if not len(keys):
            return
        self._matched = NO_KEYS
        if len(keys) > self._room:
            self._make_room(len(keys))
        self._put_many(keys, slot, ticks.astype(np.uint32))

    # -- the table ------------------------------------------------------------------------------

    def _use(self, packed: bytearray, masks: NDArray[np.uint64], times: NDArray[np.uint32]) -> None:
        """Work on these from now on. ``packed`` holds the keys as bytes too, since only bytes have a fast search."""
        self._packed, self._masks, self._times = packed, masks, times
        self._keys: NDArray[np.uint64] = np.frombuffer(packed, np.uint64)
        self._keys_by_bucket = self._keys.reshape(-1, WAYS)
        self._times_by_bucket = times.reshape(-1, WAYS)
        self._key_view, self._mask_view, self._time_view = self._keys.data, masks.data, times.data
        self._shift = 64 - (len(self._keys_by_bucket).bit_length() - 1)
        self._shift_word = np.uint64(self._shift)

    def _set_clock(self, now_s: float) -> int:
        """Set the clock, which never goes back; the tick of the oldest entry that still counts."""
        tick = int((now_s - self._start_s) * _TICKS_S)
        if tick > self._tick:
            self._tick = tick
            self._oldest = max(1, tick - self._life)
        return self._oldest

    def _entry(self, key: int, packed: bytes) -> int:
        """Where a key is in the table; negative if it isn't."""
        start = (key >> self._shift) << _BUCKET_SHIFT
        at = self._packed.find(packed, start, start + _BUCKET_BYTES)
        return at >> 3 if not at & 7 else -1  # the bytes of two neighbours are no key

    def _put(self, keys: NDArray[np.uint64], slot: int) -> None:
        count = len(keys)
        if count > self._room:
            self._make_room(count)
        if count <= _FEW:
            packed = keys.tobytes()
            for at, key in enumerate(keys.tolist()):
                self._put_one(key, packed[at * _KEY_BYTES : (at + 1) * _KEY_BYTES], slot)
        elif self._unseen:
            self._put_new(keys, slot)
        else:
            self._put_many(keys, slot)

    def _put_one(self, key: int, packed: bytes, slot: int) -> None:
        entry = self._entry(key, packed)
        if entry >= 0:
            kept = self._mask_view[entry] if self._time_view[entry] >= self._oldest else 0
        else:
            first = (key >> self._shift) * WAYS
            times = self._time_view[first : first + WAYS].tolist()
            entry = first + times.index(min(times))
            self._key_view[entry] = key
            self._room -= 1
            kept = 0
        self._mask_view[entry] = kept | 1 << slot
        self._time_view[entry] = self._tick

    def _put_new(self, keys: NDArray[np.uint64], slot: int) -> None:
        """The same for many keys of which none is in the table."""
        buckets = (keys >> self._shift_word).view(np.int64)
        entries = self._times_by_bucket.take(buckets, axis=0).argmin(axis=1)
        entries += buckets * WAYS
        self._keys[entries] = keys
        self._masks[entries] = 1 << slot
        self._times[entries] = self._tick
        self._room -= len(keys)
        if self._keys[entries].tobytes() != keys.tobytes():  # two wanted the same entry
            self._put_many(keys, slot)

    def _put_many(self, keys: NDArray[np.uint64], slot: int, ticks: NDArray[np.uint32] | None = None) -> None:
        """The same for many keys, of which some are in the table; ``ticks`` are their times if not now."""
        bit = np.uint64(1 << slot)
        if ticks is None:
            ticks = np.full(len(keys), self._tick, np.uint32)
        for _ in range(WAYS):
            buckets = (keys >> self._shift_word).view(np.int64)
            ranks = self._times_by_bucket.take(buckets, axis=0) + np.uint32(1)
            ranks *= self._keys_by_bucket.take(buckets, axis=0) != keys[:, None]  # its own entry comes first
            entries = buckets * WAYS + ranks.argmin(axis=1)
            new = self._keys[entries] != keys
            gone = new | (self._times[entries] < self._oldest)
            kept = np.where(gone, 0, self._masks[entries])
            times = np.where(gone, ticks, np.maximum(ticks, self._times[entries]))
            self._keys[entries] = keys
            self._masks[entries] = kept | bit
            self._times[entries] = times
            self._room -= int(np.count_nonzero(new))
            lost = self._keys[entries] != keys
            if not lost.any():
                return
            keys, ticks = keys[lost], ticks[lost]  # two wanted the same entry

    def _make_room(self, count: int) -> None:
        """Many new keys have come since the last look: double the table while most entries are in use."""
        used = self.size
        while used + count > len(self._times) * _FULL and len(self._times) < self._entries_max:
            self._double()
        if len(self._times) >= self._entries_max:
            self._room = _NEVER
        else:
            self._room = int(len(self._times) * _FULL) - used

    def _double(self) -> None:
        bit = (self._keys_by_bucket >> np.uint64(self._shift - 1)) & np.uint64(1)
        packed = bytearray(2 * len(self._packed))
        keys = np.frombuffer(packed, np.uint64).reshape(-1, 2, WAYS)
        masks = np.zeros((len(bit), 2, WAYS), np.uint64)
        times = np.zeros((len(bit), 2, WAYS), np.uint32)
        for half in (0, 1):
            mine = bit == half
            keys[:, half] = np.where(mine, self._keys_by_bucket, 0)
            masks[:, half] = np.where(mine, self._masks.reshape(-1, WAYS), 0)
            times[:, half] = np.where(mine, self._times_by_bucket, 0)
        self._use(packed, masks.reshape(-1), times.reshape(-1))


def _slots(engines: int) -> list[int]:
    """The numbers of the bits that are set."""
    if not engines & (engines - 1):  # one, mostly
        return [engines.bit_length() - 1]
    slots = []
    while engines:
        lowest = engines & -engines
        slots.append(lowest.bit_length() - 1)
        engines ^= lowest
    return slots
