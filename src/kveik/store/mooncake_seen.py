"""Which keys this node knows to be in Mooncake, so that it need not ask again. Pure.

To ask whether a key exists, or to read it, makes the store keep it for :data:`LEASE_S`. Between
lookup and load that is what one wants; to ask again within that time tells nothing new and makes
the store keep it longer, so that a small one finds no room. An answer is therefore believed for
half of the lease. What was only put is not leased, and that a key is absent is not remembered:
another node may store it at any moment.
"""

from collections import OrderedDict

from kveik.kv.keys import BlockKey

#: For so long the store keeps what it was asked for (``default_kv_lease_ttl`` of the master).
LEASE_S = 10.0
BELIEVED_S = LEASE_S / 2
#: Keys that are remembered at most; about 20 MB.
MOST_KEYS = 100_000


class SeenKeys:
    """Keys that were there when last heard of, with their size where it is known. Not for several threads."""

    def __init__(self, most_keys: int = MOST_KEYS) -> None:
        self._most_keys = most_keys
        self._keys: OrderedDict[BlockKey, tuple[int, float]] = OrderedDict()
        self._bytes = 0

    def __repr__(self) -> str:
        return f"SeenKeys({len(self)} keys, {self.bytes} bytes)"

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def bytes(self) -> int:
        """Bytes of the keys whose size is known."""
        return self._bytes

    def stored(self, key: BlockKey, size: int) -> None:
        """It was put there; whether it stays is not known."""
        self.saw(key, size, float("-inf"))

    def saw(self, key: BlockKey, size: int, now_s: float) -> None:
        """It was asked for or read, and is there, with ``size`` bytes, or 0 where that was not told."""
        known, _ = self._keys.pop(key, (0, 0.0))
        self._keys[key] = (size or known, now_s)
        self._bytes += (size or known) - known
        while len(self._keys) > self._most_keys:
            _, (forgotten, _) = self._keys.popitem(last=False)
            self._bytes -= forgotten

    def gone(self, key: BlockKey) -> int:
        """It is not there; the size that was known of it."""
        size, _ = self._keys.pop(key, (0, 0.0))
        self._bytes -= size
        return size

    def forget_all(self) -> None:
        """The store may be empty now."""
        self._keys.clear()
        self._bytes = 0

    def believed(self, key: BlockKey, now_s: float) -> bool:
        """Whether it was heard of so lately that asking would tell nothing new."""
        known = self._keys.get(key)
        return known is not None and now_s - known[1] < BELIEVED_S
