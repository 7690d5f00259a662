"""Which blocks engines hold, as they say themselves by KV events; and both indexes behind one interface.

Blocks are looked up by keys of our own: a chain of xxh3, one link a block, over its token ids. The
engine's own hashes are only names by which its events refer to each other: from the tokens
and the parent in an event follows the key. So nothing here depends on an engine's hash algorithm or seed,
engines that hash differently are looked up alike, and a request needs no hash but ours.

Two tables: for each engine its names of blocks (name -> key), and for all engines together who
holds a key (key -> one bit an engine).
"""

import secrets
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from kveik.kv.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    in_own_memory,
    objection,
    salt_of,
    short_hash,
)
from kveik.router.block_table import BlockTable, Words
from kveik.router.facts import NO_KEYS, TOKEN_BYTES, RequestFacts, TokenPrompt
from kveik.router.prefix_index import PrefixIndex

#: What an engine was sent counts as held for so long, until its events tell.
SENT_S: Final = 5.0
#: Beginnings of prompts under way that are remembered.
SENT_MAX: Final = 4096
_xxh3: Final = xxhash.xxh3_64_intdigest


@dataclass(slots=True)
class _Held:
    """What one engine holds. ``copies``: how many more of a block than one, where there are.

    ``expected``: how many blocks it has room for, if that is known.
    """

    block_tokens: int
    keys: BlockTable = field(default_factory=BlockTable)
    copies: dict[int, int] = field(default_factory=dict)
    unknown: int = 0
    expected: int = 0


class ExactIndex:
    """What engines hold, by slot."""

    def __init__(self, blocks_max: int, secret: int | None = None) -> None:
        """``blocks_max``: of one engine."""
        self._blocks_max = blocks_max
        self._secret = secrets.randbits(64) if secret is None else secret
        self._engines: dict[int, _Held] = {}
        self._holders = BlockTable()
        self._bits_by_size: dict[int, int] = {}
        # Prompts under way, by their first key and slot; and their first keys by their last ones.
        self._sent: dict[int, dict[int, tuple[float, Words]]] = {}
        self._awaited: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"ExactIndex({len(self._engines)} engines, {len(self._holders)} blocks, {self.memory_bytes} bytes)"

    @property
    def size(self) -> int:
        """Different blocks."""
        return len(self._holders)

    @property
    def memory_bytes(self) -> int:
        """Memory of the tables."""
        return self._holders.memory_bytes + sum(held.keys.memory_bytes for held in self._engines.values())

    def document(self, slot: int) -> dict[str, int]:
        """One engine's part in figures."""
        held = self._engines.get(slot)
        if held is None:
            return {}
        return {
            "blocks": len(held.keys),
            "block_tokens": held.block_tokens,
            "unknown_blocks": held.unknown,
            "bytes": held.keys.memory_bytes,
        }

    def block_tokens(self, slot: int) -> int:
        """The block size of an engine; 0 while it is unknown."""
        held = self._engines.get(slot)
        return held.block_tokens if held is not None else 0

    # -- events ---------------------------------------------------------------------------------

    def open(self, slot: int, block_tokens: int) -> None:
        """Follow an engine, which holds nothing yet. ``block_tokens``: 0 if the first event is to tell."""
        self.close(slot)
        self._engines[slot] = _Held(block_tokens)
        self._sort_sizes()

    def clear(self, slot: int) -> None:
        """The engine holds nothing any more."""
        held = self._engines.get(slot)
        if held is not None:
            self.open(slot, held.block_tokens)
            self.reserve(slot, held.expected)

    def reserve(self, slot: int, blocks: int) -> None:
        """The engine has room for so many blocks: the tables need not grow as they fill."""
        held = self._engines.get(slot)
        if held is not None:
            held.expected = min(blocks, self._blocks_max)
            held.keys.reserve(held.expected)
            self._holders.reserve(held.expected)

    def close(self, slot: int) -> None:
        """Follow it no longer."""
        if self._engines.pop(slot, None) is None:
            return
        self._holders.clear_bits(1 << slot)
        for recent in self._sent.values():
            recent.pop(slot, None)
        self._sort_sizes()

    def apply(self, slot: int, batch: EventBatch) -> str:
        """Take a batch of an engine's events. Why they can't be followed; empty if they can."""
        held = self._engines[slot]
        if batch.data_parallel_rank:
            return "several data-parallel ranks at one address, each with a cache of its own"
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self.clear(slot)
                held = self._engines[slot]
                continue
            if not in_own_memory(event):
                continue
            if isinstance(event, BlockRemoved):
                self._remove(held, slot, event)
                continue
            why = objection(event, held.block_tokens)
            if why:
                return why
            self._store(held, slot, event)
        if len(held.keys) > self._blocks_max:
            return f"more than {self._blocks_max} blocks (router.exact_blocks_max)"
        return ""

    def _store(self, held: _Held, slot: int, event: BlockStored) -> None:
        if not held.block_tokens:
            held.block_tokens = event.block_size
            self._sort_sizes()
        salt = salt_of(event)
        if salt is None:
            key = 0
        elif event.parent_block_hash is None:
            key = self._root(salt)
        else:
            key = held.keys.get(short_hash(event.parent_block_hash))
        if not key:
            held.unknown += len(event.block_hashes)
            return
        packed = array("I", event.token_ids).tobytes()
        size = event.block_size * TOKEN_BYTES
        bit = 1 << slot
        for number, wire_hash in enumerate(event.block_hashes):
            name = short_hash(wire_hash)
            key = _xxh3(packed[number * size : (number + 1) * size], key) or 1
            if not held.keys.add(name, key):
                held.copies[name] = held.copies.get(name, 0) + 1
                continue
            self._holders.set_bits(key, bit)
            if key in self._awaited:
                self._sent.get(self._awaited[key], {}).pop(slot, None)

    def _remove(self, held: _Held, slot: int, event: BlockRemoved) -> None:
        for wire_hash in event.block_hashes:
            name = short_hash(wire_hash)
            more = held.copies.get(name, 0)
            if more:
                held.copies[name] = more - 1
                if more == 1:
                    del held.copies[name]
                continue
            key = held.keys.get(name)
            if key:
                held.keys.put(name, 0)
                self._holders.put(key, self._holders.get(key) & ~(1 << slot))

    def _sort_sizes(self) -> None:
        self._bits_by_size = {}
        for slot, held in self._engines.items():
            if held.block_tokens:
                self._bits_by_size[held.block_tokens] = self._bits_by_size.get(held.block_tokens, 0) | 1 << slot

    # -- prompts --------------------------------------------------------------------------------

    def match(self, prompt: TokenPrompt, now_s: float) -> dict[int, int]:
        """How many leading tokens of the prompt each engine can use; those that hold none are left out.

        As engines do: whole blocks only, and never the prompt's last token, which has to be computed.
        """
        found: dict[int, int] = {}
        prompt.guessed = 0
        for size, bits in self._bits_by_size.items():
            keys = self._chain(prompt, size)
            if not len(keys):
                continue
            masks = self._holders.get_many(keys)
            np.bitwise_and.accumulate(masks, out=masks)
            deepest, first = int(masks[-1]) & bits, int(masks[0]) & bits
            for slot in _slots(first):
                whole = deepest >> slot & 1
                depth = len(keys) if whole else int(np.count_nonzero(masks & np.uint64(1 << slot)))
                found[slot] = depth * size
            recent = self._sent.get(int(keys[0]))
            if recent:
                self._add_sent(prompt, keys, size, recent, found, now_s)
        return found

    def sent(self, prompt: TokenPrompt, slot: int, now_s: float) -> None:
        """The prompt is sent to this engine, whose events tell of it a little later."""
        held = self._engines.get(slot)
        if held is None or not held.block_tokens:
            return
        keys = self._chain(prompt, held.block_tokens)
        if not len(keys):
            return
        first, last = int(keys[0]), int(keys[-1])
        if self._holders.get(last) >> slot & 1:
            return
        if len(self._awaited) >= SENT_MAX:
            self._sent.clear()
            self._awaited.clear()
        self._awaited[last] = first
        self._sent.setdefault(first, {})[slot] = now_s + SENT_S, keys

    def unsent(self, prompt: TokenPrompt, slot: int) -> None:
        """It turned out that the engine doesn't hold what it was sent."""
        held = self._engines.get(slot)
        keys = self._chain(prompt, held.block_tokens) if held is not None and held.block_tokens else NO_KEYS
        if len(keys):
            self._sent.get(int(keys[0]), {}).pop(slot, None)

    def _add_sent(
        self,
        prompt: TokenPrompt,
        keys: Words,
        size: int,
        recent: dict[int, tuple[float, Words]],
        found: dict[int, int],
        now_s: float,
    ) -> None:
        for slot, (until_s, others) in list(recent.items()):
            if until_s < now_s:
                del recent[slot]
                continue
            tokens = _common(keys, others) * size
            if tokens > found.get(slot, 0):
                found[slot] = tokens
                prompt.guessed |= 1 << slot

    def _chain(self, prompt: TokenPrompt, block_tokens: int) -> Words:
        keys = prompt.chains.get(block_tokens)
        if keys is None:
            keys = prompt.chains[block_tokens] = self._keys(prompt, block_tokens)
        return keys

    def _keys(self, prompt: TokenPrompt, block_tokens: int) -> Words:
        size, packed = block_tokens * TOKEN_BYTES, prompt.packed
        key = self._root(prompt.salt)
        keys = []
        for start in range(0, len(packed) - size, size):  # the block of the last token is left out
            key = _xxh3(packed[start : start + size], key) or 1
            keys.append(key)
        return np.array(keys, np.uint64) if keys else NO_KEYS

    def _root(self, salt: str) -> int:
        return _xxh3(salt.encode("utf8", "replace"), self._secret)


def _slots(mask: int) -> list[int]:
    return [slot for slot in range(mask.bit_length()) if mask >> slot & 1]


def _common(keys: Words, others: Words) -> int:
    """How many leading keys two chains share, neither of which is empty."""
    count = min(len(keys), len(others))
    same: NDArray[np.bool_] = keys[:count] == others[:count]
    return count if same[-1] else int(same.argmin())


class CombinedIndex(PrefixIndex):
    """Exact answers for engines whose events and renderings can be trusted, approximate ones for the others."""

    def __init__(self, approximate: PrefixIndex, exact: ExactIndex) -> None:
        self.approximate = approximate
        self.exact = exact
        self._trusted: dict[int, frozenset[str]] = {}

    def __repr__(self) -> str:
        return f"CombinedIndex({self.exact!r}, {self.approximate!r}, exact for slots {sorted(self._trusted)})"

    def trust(self, slot: int, renderings: frozenset[str]) -> None:
        """Answer exactly for this engine where a prompt was rendered by one of these; for none: never."""
        if renderings:
            self._trusted[slot] = renderings
        else:
            self._trusted.pop(slot, None)

    def is_exact(self, slot: int, prompt: TokenPrompt | None) -> bool:
        """Whether the answer for this engine and prompt is exact."""
        return prompt is not None and prompt.rendering in self._trusted.get(slot, ())

    def match(self, facts: RequestFacts, now_s: float) -> Mapping[int, int]:
        """How many leading prompt tokens each engine (by slot) holds; engines that hold none are left out."""
        found = self.approximate.match(facts, now_s)
        prompt = facts.prompt
        if prompt is None or not self._trusted:
            return found
        exact = self.exact.match(prompt, now_s)
        found = dict(found)
        for slot, renderings in self._trusted.items():
            if prompt.rendering not in renderings:
                continue
            tokens = exact.get(slot)
            if tokens:
                found[slot] = tokens
            else:
                found.pop(slot, None)
        return found

    def learn(self, facts: RequestFacts, slot: int, now_s: float) -> None:
        """The engine in this slot gets this prompt now."""
        self.approximate.learn(facts, slot, now_s)
        if facts.prompt is not None and slot in self._trusted:
            self.exact.sent(facts.prompt, slot, now_s)

    def correct(self, facts: RequestFacts, slot: int, cached_tokens: int) -> None:
        """The engine in this slot said how many leading tokens of the prompt it had, which is less than expected."""
        self.approximate.correct(facts, slot, cached_tokens)
        if facts.prompt is not None:
            self.exact.unsent(facts.prompt, slot)

    def forget_engine(self, slot: int) -> None:
        """The engine in this slot holds nothing any more: it restarted, was reset or is gone."""
        self.approximate.forget_engine(slot)
        self.exact.clear(slot)

    @property
    def size(self) -> int:
        """Entries in use."""
        return self.approximate.size + self.exact.size

    @property
    def memory_bytes(self) -> int:
        """Memory of the tables."""
        return self.approximate.memory_bytes + self.exact.memory_bytes
