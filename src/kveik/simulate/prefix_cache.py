"""The simulated engine's prefix cache: blocks of tokens, found by chained keys, the least used one leaves."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import xxhash

from kveik.simulate.block_hashes import HashChain
from kveik.simulate.tokenizer import TOKEN_BYTES, token_ids


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """Blocks that came into the cache: ``hashes`` of vLLM's kind, ``parent`` of the first one, their tokens."""

    hashes: Sequence[bytes]
    parent: bytes | None
    tokens: Sequence[int]
    salt: str = ""  # only where the first of these blocks is the first of its prompt


@dataclass(frozen=True, slots=True)
class RemovedBlocks:
    """Blocks that left the cache."""

    hashes: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class ClearedBlocks:
    """All blocks left the cache."""


CacheChange = StoredBlocks | RemovedBlocks | ClearedBlocks


@dataclass(slots=True)
class Admission:
    """What one prompt found; ``keys`` name its full blocks.

    ``shared_tokens``: what a cache that is shared with other engines added to ``hit_tokens``.
    """

    hit_tokens: int
    keys: list[bytes] = field(default_factory=list)
    hasher: xxhash.xxh3_128 | None = None  # stands at the end of the last key
    shared_tokens: int = 0


class PrefixCache:
    """At most ``capacity_blocks`` blocks of ``block_tokens`` tokens.

    With a ``chain`` each block has also the hash that vLLM would give it, and ``listener`` is told
    what comes and goes. Without, nothing of that is computed: it would be most of the work.
    """

    def __init__(
        self,
        block_tokens: int,
        capacity_blocks: int,
        chain: HashChain | None = None,
        listener: Callable[[CacheChange], None] | None = None,
    ) -> None:
        self._block_bytes = block_tokens * TOKEN_BYTES
        self._block_tokens = block_tokens
        self._capacity = capacity_blocks
        self._chain = chain
        self._tell = listener or (lambda change: None)
        self._blocks: OrderedDict[bytes, bytes] = OrderedDict()  # key -> vLLM's hash, empty without a chain
        self.queried_tokens = 0
        self.hit_tokens = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def keys(self, packed: bytes, salt: str = "") -> Admission:
        """The keys of a prompt's full blocks, with nothing looked up or stored."""
        return self._continued(Admission(0, [], xxhash.xxh3_128(salt.encode("utf8", "replace") + b"\0")), packed)

    def admit(self, packed: bytes, salt: str = "") -> Admission:
        """Look a prompt's blocks up and store the missing ones. Its last token is never a hit: it is computed."""
        admission = self.keys(packed, salt)
        tokens = len(packed) // TOKEN_BYTES
        hits = self._leading(admission.keys[: (tokens - 1) // self._block_tokens])
        admission.hit_tokens = hits * self._block_tokens
        self.queried_tokens += tokens
        self.hit_tokens += admission.hit_tokens
        self._store(admission.keys, hits, packed, salt)
        return admission

    def extend(self, admission: Admission, packed: bytes, salt: str = "") -> None:
        """Store the blocks that an answer filled. ``packed``: prompt and answer, of which the last has no KV yet."""
        known = len(admission.keys)
        self._continued(admission, packed[: max(0, len(packed) - TOKEN_BYTES)])
        if len(admission.keys) > known:
            # Blocks of the prompt may have left meanwhile: a block without those before it is worth nothing.
            self._store(admission.keys, self._leading(admission.keys), packed, salt)

    def clear(self) -> None:
        """Forget all blocks."""
        self._blocks.clear()
        self._tell(ClearedBlocks())

    def _leading(self, keys: Sequence[bytes]) -> int:
        """How many of the first keys are there without a gap."""
        blocks, present = self._blocks, 0
        for key in keys:
            if key not in blocks:
                break
            present += 1
        return present

    def _continued(self, admission: Admission, packed: bytes) -> Admission:
        size, hasher, keys = self._block_bytes, admission.hasher, admission.keys
        assert hasher is not None
        for start in range(len(keys) * size, len(packed) - size + 1, size):
            hasher.update(packed[start : start + size])
            keys.append(hasher.digest())
        return admission

    def _store(self, keys: Sequence[bytes], present: int, packed: bytes, salt: str) -> None:
        """Store ``keys`` from number ``present`` on, and make all of them the last to leave, the first one last."""
        keys = keys[: self._capacity]  # of a longer prompt the end would push out the start
        blocks = self._blocks
        if self._chain is None:
            for key in keys[present:]:
                blocks[key] = b""
        elif present < len(keys):
            self._tell(self._hashed(self._chain, keys, present, packed, salt))
        for key in reversed(keys):
            blocks.move_to_end(key)
        if len(blocks) > self._capacity:
            self._evict()

    def _hashed(self, chain: HashChain, keys: Sequence[bytes], present: int, packed: bytes, salt: str) -> StoredBlocks:
        """Store with vLLM's hashes; what there is to tell about it."""
        before = self._blocks[keys[present - 1]] if present else None
        parent, hashes = before or chain.root, []
        for number in range(present, len(keys)):
            tokens = token_ids(packed[number * self._block_bytes : (number + 1) * self._block_bytes])
            parent = chain.next(parent, tokens, "" if number else salt)
            self._blocks[keys[number]] = parent
            hashes.append(parent)
        span = packed[present * self._block_bytes : len(keys) * self._block_bytes]
        return StoredBlocks(hashes, before, token_ids(span), "" if present else salt)

    def _evict(self) -> None:
        removed = [self._blocks.popitem(last=False)[1] for _ in range(len(self._blocks) - self._capacity)]
        if self._chain is not None:
            self._tell(RemovedBlocks(removed))
