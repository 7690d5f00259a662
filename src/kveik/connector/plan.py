"""What to look up, load and save: pure decisions over plain values.

Tokens are counted from the start of the request. ``hashes`` are vLLM's chained block hashes, one
for every ``hash_tokens`` tokens; the key of a group's block is the hash at the block's end.
``tables`` are vLLM's block tables: for each group the block ids in order, 0 for blocks that the
engine does not hold (the null block).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from kveik.agent.protocol import Located
from kveik.kv.groups import GroupKind, GroupSpec
from kveik.kv.hit_length import HitLength, alignment_tokens, usable_hit

NULL_BLOCK = 0


class BlockRef(NamedTuple):
    """One block of the engine and the hash that names its content."""

    group: int
    block_id: int
    block_hash: bytes


@dataclass(frozen=True, slots=True)
class Shape:
    """The engine's KV cache as planning sees it."""

    groups: tuple[GroupSpec, ...]
    hash_tokens: int
    drop_last_unit: bool = False  # drafters (EAGLE, MTP) must recompute the last unit of a hit

    @property
    def unit_tokens(self) -> int:
        """Hits are multiples of this."""
        return alignment_tokens(self.groups)

    def block_hash(self, hashes: Sequence[bytes], group: GroupSpec, block: int) -> bytes:
        """The hash that names block ``block`` of ``group``."""
        return bytes(hashes[(block + 1) * group.block_tokens // self.hash_tokens - 1])


def hit_limit_tokens(
    shape: Shape, num_tokens: int, num_hashes: int, *, local_tokens: int = 0, whole_prompt: bool = False
) -> int:
    """The longest hit to hope for: at least the last token must be computed to get logits.

    vLLM's own prefix cache has the same limit. With ``whole_prompt`` a prompt that ends with a
    block may be loaded to its end; vLLM then computes its last token again
    (``v1/core/sched/scheduler.py``, ``_update_waiting_for_remote_kv``). A state that has seen the
    last token must not see it twice, and drafters drop a unit anyway. Where the engine's own hit of
    ``local_tokens`` reaches as far as it can, one more block is not worth a load.
    """
    most = num_hashes * shape.hash_tokens
    local_limit = max(0, min(num_tokens - 1, most) // shape.unit_tokens * shape.unit_tokens)
    again = whole_prompt and not shape.drop_last_unit and all(map(_can_compute_last_token_again, shape.groups))
    if not again or local_limit <= local_tokens:
        return local_limit
    return max(0, min(num_tokens, most) // shape.unit_tokens * shape.unit_tokens)


def _can_compute_last_token_again(group: GroupSpec) -> bool:
    """Whether the blocks of a hit also serve the token before its end.

    That token's window reaches one token further back, which is another block if the window is
    a multiple of the block plus the token itself.
    """
    if group.kind is GroupKind.SLIDING_WINDOW:
        return group.window_tokens % group.block_tokens != 1
    return group.kind is GroupKind.FULL


class LookupPart(NamedTuple):
    """Blocks ``first_block``, ``first_block + 1``, ... of one group, by hash."""

    group: int
    first_block: int
    hashes: list[bytes]


def lookup_parts(shape: Shape, hashes: Sequence[bytes], local_tokens: int, limit_tokens: int) -> list[LookupPart]:
    """What to ask the agent: all blocks of all groups after the engine's own hit.

    Blocks of a window or state that lie before ``local_tokens`` are in the engine already: its own
    hit at ``local_tokens`` needed a window that reaches further back.
    """
    parts = []
    for group in shape.groups:
        first, end = local_tokens // group.block_tokens, limit_tokens // group.block_tokens
        parts.append(
            LookupPart(group.index, first, [shape.block_hash(hashes, group, block) for block in range(first, end)])
        )
    return parts


@dataclass(frozen=True)
class Found:
    """The agent's answer: for each part one byte a block, the place (0 = absent).

    ``lacking``: blocks (group, index) that only these ranks lack.
    """

    local_tokens: int
    parts: tuple[LookupPart, ...]
    places: tuple[bytes, ...]
    lacking: Mapping[tuple[int, int], Sequence[int]] = field(default_factory=dict)

    @cached_property
    def by_group(self) -> dict[int, tuple[LookupPart, bytes]]:
        """Each group's part and its answer."""
        return {part.group: (part, places) for part, places in zip(self.parts, self.places, strict=True)}

    def has(self, group: int, block: int, absent: frozenset[tuple[int, bytes]] = frozenset()) -> bool:
        """Whether a block is there, or in the engine already. ``absent`` as for :func:`usable`."""
        part, places = self.by_group[group]
        index = block - part.first_block
        if index < 0:
            return True
        return index < len(places) and places[index] != 0 and (group, part.hashes[index]) not in absent

    def place(self, group: GroupSpec, block: int) -> int:
        """Where a block lies; blocks of the engine's own hit have no place."""
        part, places = self.by_group[group.index]
        index = block - part.first_block
        return places[index] if 0 <= index < len(places) else 0


def found_of(local_tokens: int, parts: Sequence[LookupPart], answer: Located) -> Found:
    """What the agent's answer to these parts says."""
    lacking = {(parts[one.part].group, parts[one.part].first_block + one.index): one.ranks for one in answer.partly}
    return Found(local_tokens, tuple(parts), tuple(answer.places), lacking)


def usable(shape: Shape, found: Found, limit_tokens: int, absent: frozenset[tuple[int, bytes]]) -> HitLength:
    """The longest usable hit, counting the engine's own blocks as present.

    ``absent`` holds (group, block hash) of blocks whose load failed lately: they are treated as
    missing, so that the same failing hit is not offered again and again.
    """

    def present(group: int, block: int) -> bool:
        return found.has(group, block, absent)

    hit = usable_hit(shape.groups, present, limit_tokens)
    if shape.drop_last_unit and hit.tokens > 0:
        shorter = usable_hit(shape.groups, present, hit.tokens - shape.unit_tokens)
        hit = replace(shorter, reason=shorter.reason or "the drafter needs the last unit computed")
    return hit


def known_tokens(shape: Shape, found: Found) -> int:
    """Tokens from the start up to the first that some full-attention group lacks, whether a hit can end there or not.

    Where a model has no such group: up to the last that is there.
    """
    gaps = [_end_of(found, group, "first gap") for group in shape.groups if group.kind is GroupKind.FULL]
    return min(gaps) if gaps else min((_end_of(found, group, "last block") for group in shape.groups), default=0)


def _end_of(found: Found, group: GroupSpec, where: str) -> int:
    part, places = found.by_group[group.index]
    gap = places.find(0)
    blocks = (len(places) if gap < 0 else gap) if where == "first gap" else len(places.rstrip(b"\0"))
    return (part.first_block + blocks) * group.block_tokens


def load_blocks(
    shape: Shape, hashes: Sequence[bytes], tables: Sequence[Sequence[int]], local_tokens: int, hit_tokens: int
) -> tuple[list[BlockRef], bool]:
    """The engine's blocks to fill for a hit, in the order of the tokens they cover.

    The second value is false when the engine holds no block where the hit needs one. Then the two
    sides disagree about the layout, and the whole load must count as failed.
    """
    refs: list[tuple[int, BlockRef]] = []
    complete = True
    for group in shape.groups:
        table = tables[group.index]
        for block in group.needed_blocks(hit_tokens):
            if (block + 1) * group.block_tokens <= local_tokens:
                continue
            if block >= len(table) or table[block] == NULL_BLOCK:
                complete = False
                continue
            name = shape.block_hash(hashes, group, block)
            refs.append((block * group.block_tokens, BlockRef(group.index, table[block], name)))
    refs.sort(key=lambda ref: ref[0])
    return [ref for _, ref in refs], complete


def save_blocks(
    shape: Shape,
    hashes: Sequence[bytes],
    tables: Sequence[Sequence[int]],
    start_tokens: int,
    end_tokens: int,
    skip_groups: frozenset[int] = frozenset(),
) -> list[BlockRef]:
    """The blocks that became whole between two token counts, as far as the engine still holds them."""
    refs: list[BlockRef] = []
    for group in shape.groups:
        table = tables[group.index]
        if group.index not in skip_groups:
            refs.extend(
                BlockRef(group.index, table[block], shape.block_hash(hashes, group, block))
                for block in range(start_tokens // group.block_tokens, end_tokens // group.block_tokens)
                if block < len(table) and table[block] != NULL_BLOCK
            )
    return refs


def room_end_tokens(shape: Shape, start_tokens: int, room_blocks: int) -> int:
    """How far a save that starts at ``start_tokens`` may go when only so many blocks may be held."""
    unit = shape.unit_tokens
    blocks_per_unit = sum(unit // group.block_tokens for group in shape.groups)
    return (start_tokens // unit + max(0, room_blocks) // blocks_per_unit) * unit


def surviving_tokens(
    shape: Shape, loaded: Sequence[BlockRef], failed: frozenset[tuple[int, bytes]], local_tokens: int, hit_tokens: int
) -> int:
    """How many tokens of a hit can still be used after some of its blocks failed.

    With one group vLLM keeps the longest valid prefix; with several it recomputes the whole hit
    (vLLM ``v1/core/sched/scheduler.py``, ``_handle_failed_recving``).
    """
    if not failed:
        return hit_tokens
    if len(shape.groups) > 1:
        return local_tokens
    block_tokens = shape.groups[0].block_tokens
    for index, ref in enumerate(loaded):
        if (ref.group, ref.block_hash) in failed:
            return local_tokens + index * block_tokens
    return hit_tokens


def limit_after_failure(
    shape: Shape,
    hashes: Sequence[bytes],
    loaded: Sequence[BlockRef],
    failed: frozenset[tuple[int, bytes]],
    hit_tokens: int,
) -> int:
    """After a failure a request may be offered only what lies before the first failed block.

    Strictly less than the hit that failed, so that retries end.
    """
    block_tokens = {group.index: group.block_tokens for group in shape.groups}
    end_tokens = {bytes(name): (index + 1) * shape.hash_tokens for index, name in enumerate(hashes)}
    starts = [
        end_tokens.get(ref.block_hash, 0) - block_tokens[ref.group]  # a name the request lost: offer nothing
        for ref in loaded
        if (ref.group, ref.block_hash) in failed
    ]
    unit = shape.unit_tokens
    return min(min(starts, default=hit_tokens) // unit * unit, hit_tokens - unit)


def tokens_by_place(shape: Shape, found: Found, hit_tokens: int) -> dict[int, int]:
    """Split a hit's tokens by place: each unit counts for the slowest place among its blocks."""
    split: dict[int, int] = {}
    needed_by_group = [(group, group.needed_blocks(hit_tokens)) for group in shape.groups]
    for start in range(found.local_tokens, hit_tokens, shape.unit_tokens):
        place = 0
        for group, needed in needed_by_group:
            first, end = start // group.block_tokens, (start + shape.unit_tokens) // group.block_tokens
            for block in range(max(first, needed.start), min(end, needed.stop)):
                place = max(place, found.place(group, block))
        split[place] = split.get(place, 0) + shape.unit_tokens
    return split
