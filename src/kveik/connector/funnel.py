"""The engine's latest requests and what became of their hits: filled by the scheduler's side, told to the agent.

The functions that note something are called on the engine's thread, for requests whose record is kept; each writes a
few fields. Records are told in the background (:meth:`Funnels.take`), and told again after they changed.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

from kveik.agent.funnel import MissingBlock, RequestFunnel
from kveik.clock import Clock
from kveik.connector.load_choice import Choice
from kveik.connector.plan import Found, Shape, known_tokens
from kveik.kv.hit_length import HitLength
from kveik.kv.prompt_print import prompt_print

#: So much of the first block's hash is kept: enough to see whether two requests' first blocks have one name.
HASH_BYTES = 8
#: Prompts that wait for being digested are kept up to so many tokens, should no agent be there for long.
PROMPT_TOKENS_MAX = 4 << 20


class Funnels:
    """The records of the last ``kept`` requests; 0: none are made. ``saves``: the engine saves its blocks."""

    def __init__(self, kept: int, shape: Shape, clock: Clock, *, saves: bool = True) -> None:
        self._kept = kept
        self._saves = saves
        self._sizes = shape.hash_tokens, shape.unit_tokens
        self._clock = clock
        self._lock = threading.Lock()
        self._records: deque[RequestFunnel] = deque(maxlen=max(1, kept))
        self._changed: dict[int, RequestFunnel] = {}
        self._prompts: dict[int, Sequence[int]] = {}
        self._prompt_tokens = 0

    def __repr__(self) -> str:
        return f"Funnels({len(self._records)} of {self._kept}, {len(self._changed)} to tell)"

    def begin(self, request: Any) -> RequestFunnel | None:
        """A request came in: its record, or None where none are made."""
        if not self._kept:
            return None
        record = RequestFunnel(
            request.request_id,
            self._clock.wall(),
            request.num_prompt_tokens,
            *self._sizes,
            saves=self._saves,
        )
        prompt = getattr(request, "prompt_token_ids", None)
        with self._lock:
            if len(self._records) == self._kept:
                gone = id(self._records[0])
                self._changed.pop(gone, None)
                self._prompt_tokens -= len(self._prompts.pop(gone, ()))
            self._records.append(record)
            if prompt and self._prompt_tokens + len(prompt) <= PROMPT_TOKENS_MAX:
                self._prompts[id(record)] = prompt
                self._prompt_tokens += len(prompt)
        return record

    def changed(self, record: RequestFunnel | None) -> None:
        """Tell of it, or tell of it again."""
        if record is not None:
            with self._lock:
                self._changed[id(record)] = record

    def tell_all(self) -> None:
        """Another agent has come, which knows none of them."""
        with self._lock:
            self._changed = {id(record): record for record in self._records if record.hashed_tokens or record.lookup}

    def take(self) -> list[RequestFunnel]:
        """Those that are to be told now, their prompts digested. For a thread in the background."""
        with self._lock:
            records, self._changed = list(self._changed.values()), {}
            prompts = [self._prompts.pop(id(record), ()) for record in records]
            self._prompt_tokens -= sum(map(len, prompts))
        for record, prompt in zip(records, prompts, strict=True):
            if prompt:
                record.prints = prompt_print(prompt)
        return records


def note_limits(
    record: RequestFunnel | None, namespace: bytes, hashes: Sequence[bytes], local_tokens: int, limit_tokens: int
) -> None:
    """What could be hoped for beside the engine's own hit."""
    if record is None or record.computed_from >= 0:
        return
    record.looked_up = True
    if record.load_tokens > 0:
        return
    record.namespace = namespace
    record.hashed_tokens = len(hashes) * record.hash_tokens
    record.first_hash = bytes(hashes[0][:HASH_BYTES]) if hashes else b""
    record.local_tokens, record.limit_tokens = local_tokens, limit_tokens
    record.known_tokens = record.usable_tokens = record.allowed_tokens = -1
    record.lookup = record.cut = record.choice = ""
    record.missing = None


def _is_open(record: RequestFunnel | None) -> TypeGuard[RequestFunnel]:
    """Whether lookups still count: vLLM has neither taken a load nor begun to compute."""
    return record is not None and record.computed_from < 0 and record.load_tokens <= 0


def note_lookup(record: RequestFunnel | None, outcome: str, asked_s: float = -1.0, seconds: float = 0.0) -> None:
    """How asking the agent ended, or why it was not asked."""
    if _is_open(record):
        record.lookup, record.lookup_s = outcome, seconds
        if asked_s >= 0:
            record.asked_s = asked_s


def note_found(
    record: RequestFunnel | None,
    shape: Shape,
    found: Found,
    hit: HitLength,
    failed: frozenset[tuple[int, bytes]],
    place_name: Callable[[int], str],
) -> None:
    """What is there, how much of it all groups can use, and the block that stopped it."""
    if not _is_open(record):
        return
    record.asked_blocks = sum(len(part.hashes) for part in found.parts)
    counts = np.bincount(np.frombuffer(b"".join(found.places), np.uint8)).tolist()
    record.found_blocks = {place_name(place): blocks for place, blocks in enumerate(counts) if place and blocks}
    record.known_tokens = max(found.local_tokens, known_tokens(shape, found))
    record.usable_tokens = record.allowed_tokens = max(found.local_tokens, hit.tokens)
    record.cut = hit.reason
    record.missing = _missing(shape, found, hit, failed)


def _missing(shape: Shape, found: Found, hit: HitLength, failed: frozenset[tuple[int, bytes]]) -> MissingBlock | None:
    if hit.missing is None:
        return None
    index, block = hit.missing
    group = next(group for group in shape.groups if group.index == index)
    part, places = found.by_group[index]
    at = block - part.first_block
    if not 0 <= at < len(part.hashes):
        return None
    return MissingBlock(
        index,
        block * group.block_tokens,
        (block + 1) * group.block_tokens,
        part.hashes[at],
        places[at] != 0 and (index, part.hashes[at]) in failed,
        list(found.lacking.get((index, block), ())),
    )


def note_choice(record: RequestFunnel | None, choice: Choice) -> None:
    """How much of it is worth loading."""
    if _is_open(record):
        record.allowed_tokens, record.choice = choice.tokens, choice.reason
        record.choice_s = (choice.load_s, choice.first_token_s, choice.cold_s)


def note_too_few(record: RequestFunnel | None) -> None:
    """Fewer tokens than are worth a load by the settings."""
    if _is_open(record) and record.allowed_tokens > record.local_tokens:
        record.allowed_tokens, record.choice = record.local_tokens, "too_few"


def note_taken(record: RequestFunnel | None, local_tokens: int, external_tokens: int) -> None:
    """vLLM allocated memory: behind its own hit for a load of so many tokens, or for none."""
    if record is None or record.computed_from >= 0 or not record.looked_up:
        return  # it goes on after a load
    record.looked_up = False
    record.admissions += 1
    record.admitted_local_tokens += local_tokens
    record.admitted_load_tokens += external_tokens
    if record.load_tokens <= 0:
        record.load_tokens = external_tokens


def note_loaded(
    record: RequestFunnel | None, used_tokens: int, seconds: float, failed_blocks: Mapping[str, int]
) -> None:
    """A load ended with so many usable tokens, the engine's own included."""
    if record is not None:
        record.used_tokens = used_tokens
        record.load_s += seconds
        record.failed_blocks = summed(record.failed_blocks, failed_blocks)


def note_dropped(record: RequestFunnel | None, blocks: Mapping[str, int]) -> None:
    """Some of its new blocks will not be saved."""
    if record is not None:
        record.dropped_blocks = summed(record.dropped_blocks, blocks)


def note_saving(record: RequestFunnel | None) -> None:
    """A save was queued."""
    if record is not None:
        record.saving += 1


def note_saved(record: RequestFunnel | None, blocks: int, dropped_blocks: Mapping[str, int]) -> None:
    """A save of so many blocks ended on all ranks."""
    if record is not None:
        record.saving -= 1
        record.saved_blocks += blocks - sum(dropped_blocks.values())
        note_dropped(record, dropped_blocks)


def summed(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Both counts in one."""
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
