"""Remembers what prompts were made of, by hashes alone, and finds where a new one breaks from those like it.

Earlier prompts like a new one are found by what both begin with, by equal parts wherever they stand, and by marks in
their texts. A prompt that goes on from an earlier one takes its place. Within :data:`BYTES_MAX` and so
many prompts a model the oldest go first. Made for one thread.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from heapq import nlargest
from typing import Final, NamedTuple

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from kveik.router.break_kinds import OPTIONS_DIFFER, TEMPLATE
from kveik.router.facts import TOKEN_BYTES, TokenPrompt
from kveik.router.prefix_breaks import LOST_BYTES_MIN, Break, Comparison, KnownPart, Placed, Texts
from kveik.router.prompt import TOKEN_BYTES as TEXT_TOKEN_BYTES
from kveik.router.prompt_parts import CALLS, MEDIA, OPTIONS, RESULT, TOOL, Part, parts_of
from kveik.router.prompt_sketch import TEXT_BYTES_MAX, Sketcher

#: Memory of all that is remembered, of all models.
BYTES_MAX = 32 << 20
MODELS_MAX = 64
#: Fewer lost tokens of one request are not told.
LOST_TOKENS_MIN = 64
#: Earlier prompts that a new one is laid beside.
CANDIDATES_MAX = 6
#: By what prompts are found: so many of their largest parts, and marks in the texts of so many.
PARTS_MAX, MARKED_MAX = 32, 8
#: How much of a very long text's end is compared.
TAIL_BYTES = 1 << 16
#: A break that explains so much of what no earlier prompt began with is the one: other prompts aren't looked at.
EXPLAINED = 0.7
#: Latest prompts that are kept for each part and mark.
LATEST_KEPT = 4

#: Tokens of a prompt of which one hash is kept.
TOKENS_A_HASH = 32
#: Tokens at the end of a prompt that the next turn may replace: what asks for an answer.
TURN_TOKENS = 96

_PART_BYTES, _ENTRY_BYTES, _MARK_BYTES, _WHAT_BYTES = 300, 500, 40, 300
_KEEP_LABEL: Final = frozenset((CALLS, RESULT, TOOL, OPTIONS, MEDIA))
_MASK = 0xFFFF_FFFF_FFFF_FFFF


class Seen(NamedTuple):
    """A request that ended. ``prompt``: its tokens, where they are known. Tokens are -1 where they are not."""

    target: bytes
    body: bytes
    model: str
    client: str
    request_id: str
    prompt_tokens: int
    cached_tokens: int
    prompt: TokenPrompt | None


class Found(msgspec.Struct, frozen=True):
    """Where a request's prompt broke from an earlier one; tokens are those of the engine, in proportion to bytes."""

    kind: str
    label: str
    index: int
    at_token: int
    lost_tokens: int
    excerpt: str = ""


class Looked(msgspec.Struct, frozen=True):
    """What became of looking at one request."""

    model: str
    client: str
    request_id: str
    prompt_tokens: int
    found: Found | None


class _Entry:
    """A part that prompts share, and how many have it."""

    __slots__ = ("known", "users")

    def __init__(self, known: KnownPart) -> None:
        self.known = known
        self.users = 0

    @property
    def size_bytes(self) -> int:
        return _ENTRY_BYTES + self.known.units.nbytes + _MARK_BYTES * len(self.known.marks)


class _Prompt(NamedTuple):
    """A prompt that is remembered.

    ``chain``: a key for its first part, its first two, and so on. ``what``: by what it is found, with weights.
    ``blocks``: hashes of its tokens.
    """

    client: str
    placed: tuple[Placed, ...]
    keys: tuple[int, ...]
    chain: tuple[int, ...]
    what: dict[int, int]
    blocks: NDArray[np.uint64] | None
    tokens: int

    @property
    def size_bytes(self) -> int:
        blocks_bytes = 0 if self.blocks is None else self.blocks.nbytes
        return _PART_BYTES * len(self.placed) + _WHAT_BYTES * len(self.what) + blocks_bytes


class PromptMemory:
    """All models' prompts."""

    def __init__(self, prompts_max: int, secret: int, *, bytes_max: int = BYTES_MAX, excerpts: bool = False) -> None:
        """``prompts_max``: of one model. ``excerpts``: results have a little of the text, which is not kept here."""
        self._prompts_max, self._bytes_max, self._excerpts = prompts_max, bytes_max, excerpts
        self._secret = secret & _MASK
        self._sketcher = Sketcher(secret)
        self._seeds: dict[str, int] = {}
        numbers = np.random.Generator(np.random.Philox(self._secret))
        self._of_place = numbers.integers(0, 1 << 63, TOKENS_A_HASH, np.uint64) * np.uint64(2) + np.uint64(1)
        self._entries: dict[int, _Entry] = {}
        self._prompts: OrderedDict[int, tuple[str, _Prompt]] = OrderedDict()
        self._models: dict[str, _Model] = {}
        self._number = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._prompts)

    def __repr__(self) -> str:
        return f"PromptMemory({len(self)} prompts, {len(self._entries)} parts, {self.size_bytes} bytes)"

    def look(self, seen: Seen) -> Looked:
        """Find where a prompt broke, and remember it."""
        parts = parts_of(seen.target, seen.body)
        size = sum(part.size_bytes for part in parts)
        tokens = seen.prompt_tokens
        if tokens < 0:
            tokens = len(seen.prompt) if seen.prompt is not None else size // TEXT_TOKEN_BYTES
        if not parts:
            return Looked(seen.model, seen.client, seen.request_id, max(0, tokens), None)
        texts = Texts(parts, self._sketcher)
        prompt = self._prompt_of(parts, texts, seen, tokens)
        model = self._models.get(seen.model)
        if model is None:
            if len(self._models) >= MODELS_MAX:
                self._forget_model(next(iter(self._models)))
            model = self._models[seen.model] = _Model()
        deepest, depth = model.deepest(prompt)
        found = self._template(prompt, self._of(deepest), depth) or self._found(texts, prompt, model, deepest, seen)
        self._remember(seen.model, model, prompt)
        if deepest and depth == len(self._prompts[deepest][1].placed):
            self._forget(deepest)  # the new one goes on from it
        self._shrink(model)
        return Looked(seen.model, seen.client, seen.request_id, tokens, found)

    # -- finding --------------------------------------------------------------------------------

    def _found(self, texts: Texts, prompt: _Prompt, model: "_Model", deepest: int, seen: Seen) -> Found | None:
        others = [old for number in model.candidates(prompt, deepest) if (old := self._of(number)) is not None]
        laid = [Comparison(prompt.placed, old.placed, texts, self._sketcher) for old in others]
        reach = max((comparison.prefix_bytes for comparison in laid), default=0)
        left = sum(part.size_bytes for part in prompt.placed) - reach
        if left < LOST_BYTES_MIN:
            return None
        best: Break | None = None
        for old, comparison in zip(others, laid, strict=True):
            if best is not None and best.lost_bytes >= EXPLAINED * left:
                break
            found = comparison.result(reach, excerpts=self._excerpts)
            if found is None or (found.kind == OPTIONS_DIFFER and old.client != prompt.client):
                continue
            if best is None or (found.lost_bytes, found.at_bytes) > (best.lost_bytes, best.at_bytes):
                best = found
        return None if best is None else _in_tokens(best, prompt, seen)

    def _template(self, prompt: _Prompt, old: _Prompt | None, depth: int) -> Found | None:
        """Whether the same messages became other tokens, where the tokens of both prompts are known."""
        if old is None or prompt.blocks is None or old.blocks is None or depth < len(old.placed):
            return None
        least = min(len(prompt.blocks), len(old.blocks))
        differing = prompt.blocks[:least] != old.blocks[:least]
        at = TOKENS_A_HASH * (int(differing.argmax()) if differing.any() else least)
        lost = old.tokens - TURN_TOKENS - at
        return Found(TEMPLATE, "conversation", -1, at, lost) if lost >= LOST_TOKENS_MIN else None

    def _of(self, number: int) -> _Prompt | None:
        known = self._prompts.get(number)
        return None if known is None else known[1]

    # -- remembering ----------------------------------------------------------------------------

    def _prompt_of(self, parts: Sequence[Part], texts: Texts, seen: Seen, tokens: int) -> _Prompt:
        keys = tuple(self._key(part) for part in parts)
        placed = []
        for number, (key, part) in enumerate(zip(keys, parts, strict=True)):
            entry = self._entries.get(key)
            known = entry.known if entry is not None else self._known(part, number, texts)
            if entry is None:
                self._entries[key] = _Entry(known)
            placed.append(Placed(part.label, part.index, part.size_bytes, known))
        return _Prompt(
            seen.client, tuple(placed), keys, _chain(placed), _what(placed), self._blocks(seen.prompt), tokens
        )

    def _key(self, part: Part) -> int:
        """One for equal JSON; parts whose JSON is read in another way have another."""
        how = part.label if part.label in _KEEP_LABEL else "text" if part.encoded else "json"
        seed = self._seeds.get(how)
        if seed is None:
            seed = self._seeds[how] = self._secret ^ xxhash.xxh3_64_intdigest(how.encode())
        return xxhash.xxh3_64_intdigest(part.raw, seed)

    def _known(self, part: Part, number: int, texts: Texts) -> KnownPart:
        if part.label in (OPTIONS, MEDIA):
            same = xxhash.xxh3_64_intdigest(part.raw, self._secret)
            return KnownPart(same, same, False, np.empty(0, np.uint16), ())
        text, units, _ = texts.cut(number)
        same = xxhash.xxh3_64_intdigest(text, self._secret)
        any_order = xxhash.xxh3_64_intdigest(part.any_order(), self._secret) if part.label == TOOL else same
        is_long = len(text) > TEXT_BYTES_MAX
        tail = xxhash.xxh3_64_intdigest(text[-TAIL_BYTES:], self._secret) if is_long else 0
        return KnownPart(same, any_order, part.thinks, units, self._sketcher.marks(units), tail)

    def _blocks(self, prompt: TokenPrompt | None) -> NDArray[np.uint64] | None:
        """A hash of each block of tokens."""
        if prompt is None:
            return None
        tokens = np.frombuffer(prompt.packed, np.uint32, len(prompt.packed) // TOKEN_BYTES)
        whole = len(tokens) // TOKENS_A_HASH
        rows = tokens[: whole * TOKENS_A_HASH].reshape(whole, TOKENS_A_HASH).astype(np.uint64)
        rows *= self._of_place
        blocks: NDArray[np.uint64] = rows.sum(axis=1, dtype=np.uint64)
        return blocks

    def _remember(self, name: str, model: "_Model", prompt: _Prompt) -> None:
        self._number += 1
        for key in prompt.keys:
            entry = self._entries[key]
            entry.users += 1
            if entry.users == 1:
                self.size_bytes += entry.size_bytes
        self.size_bytes += prompt.size_bytes
        self._prompts[self._number] = name, prompt
        model.add(self._number, prompt)

    def _shrink(self, model: "_Model") -> None:
        while len(model.numbers) > self._prompts_max:
            self._forget(next(iter(model.numbers)))
        while self.size_bytes > self._bytes_max and len(self._prompts) > 1:
            self._forget(next(iter(self._prompts)))

    def _forget(self, number: int) -> None:
        name, prompt = self._prompts.pop(number)
        self._models[name].remove(number, prompt)
        self.size_bytes -= prompt.size_bytes
        for key in prompt.keys:
            entry = self._entries[key]
            entry.users -= 1
            if not entry.users:
                del self._entries[key]
                self.size_bytes -= entry.size_bytes

    def _forget_model(self, name: str) -> None:
        for number in list(self._models[name].numbers):
            self._forget(number)
        del self._models[name]


class _Model:
    """Which of one model's prompts have what: by beginnings, parts and marks."""

    __slots__ = ("_by_chain", "_by_what", "numbers")

    def __init__(self) -> None:
        self.numbers: OrderedDict[int, None] = OrderedDict()
        self._by_chain: dict[int, int] = {}
        self._by_what: dict[int, tuple[int, ...]] = {}

    def add(self, number: int, prompt: _Prompt) -> None:
        self.numbers[number] = None
        for key in prompt.chain:
            self._by_chain[key] = number
        for what in prompt.what:
            self._by_what[what] = (number, *self._by_what.get(what, ())[: LATEST_KEPT - 1])

    def remove(self, number: int, prompt: _Prompt) -> None:
        del self.numbers[number]
        for key in prompt.chain:
            if self._by_chain.get(key) == number:
                del self._by_chain[key]
        for what in prompt.what:
            left = tuple(one for one in self._by_what.get(what, ()) if one != number)
            if left:
                self._by_what[what] = left
            else:
                self._by_what.pop(what, None)

    def deepest(self, prompt: _Prompt) -> tuple[int, int]:
        """The latest prompt that begins with the most equal parts, and how many; 0 if there is none."""
        for depth in range(len(prompt.chain), 0, -1):
            number = self._by_chain.get(prompt.chain[depth - 1])
            if number is not None:
                return number, depth
        return 0, 0

    def candidates(self, prompt: _Prompt, deepest: int) -> list[int]:
        """The prompts that are most like one, the best first."""
        votes: Counter[int] = Counter()
        for what, weight in prompt.what.items():
            for number in self._by_what.get(what, ()):
                votes[number] += weight
        if deepest:
            votes[deepest] += 1
        numbers = [number for number, _ in votes.most_common(CANDIDATES_MAX)]
        return numbers if not deepest or deepest in numbers else [*numbers, deepest]


def _what(placed: Sequence[Placed]) -> dict[int, int]:
    """What others may have too, with a weight in bytes: the largest parts, and marks in the first and largest texts."""
    largest = nlargest(PARTS_MAX, placed, key=lambda part: part.size_bytes)
    found = {part.known.same: part.size_bytes for part in largest}
    for part in (*placed[: MARKED_MAX // 2], *largest[:MARKED_MAX]):
        marks = part.known.marks
        found.update((mark, part.size_bytes // len(marks)) for mark in marks)
    return found


def _chain(placed: Sequence[Placed]) -> tuple[int, ...]:
    key, keys = 0, []
    for part in placed:
        key = hash((key, part.label, part.known.same))
        keys.append(key)
    return tuple(keys)


def _in_tokens(found: Break, prompt: _Prompt, seen: Seen) -> Found | None:
    """The same in tokens; an engine that had them cached after all lost nothing."""
    size = sum(part.size_bytes for part in prompt.placed)
    share = prompt.tokens / max(1, size)
    lost = min(round(found.lost_bytes * share), prompt.tokens - max(0, seen.cached_tokens))
    if lost < LOST_TOKENS_MIN:
        return None
    return Found(found.kind, found.label, found.index, round(found.at_bytes * share), lost, found.excerpt)
