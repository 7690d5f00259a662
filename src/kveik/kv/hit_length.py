"""From the blocks that are present to the tokens that can be used, for all groups together.

A hit is usable only at a length where *every* group has all the blocks it needs, so the answer
is the longest such length, and the reason why it is not longer is kept for people: a pool that
holds every key and still hits nothing is the kind of riddle this module exists to answer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kveik.kv.groups import GroupKind, GroupSpec

#: presence test: (group index, block index within the group) -> is it there
Present = Callable[[int, int], bool]


@dataclass(frozen=True, slots=True)
class HitLength:
    """A usable hit. ``reason`` says why it is not longer; empty when nothing stopped it.

    ``missing`` is the block (group, index within it) that stopped it first, if it was one.
    """

    tokens: int
    reason: str = ""
    missing: tuple[int, int] | None = field(default=None, compare=False)


def alignment_tokens(groups: Sequence[GroupSpec]) -> int:
    """The hit unit: the least common multiple of all groups' block sizes."""
    return math.lcm(*(group.block_tokens for group in groups))


def usable_hit(groups: Sequence[GroupSpec], present: Present, limit_tokens: int) -> HitLength:
    """The longest usable hit of at most ``limit_tokens``.

    Full-attention groups bound the length from the left first (they are cheap and usually the
    ones that end); then the remaining groups are tried from that bound down.
    """
    if not groups:
        return HitLength(0, "no KV cache groups")
    unit = alignment_tokens(groups)
    limit = limit_tokens // unit * unit
    if limit == 0:
        return HitLength(0, f"{limit_tokens} tokens are less than the hit unit of {unit}")
    bound, reason = limit, ""
    stopped_by: tuple[int, int] | None = None
    for group in groups:
        if group.kind is GroupKind.FULL:
            tokens, missing = _leading_tokens(group, present, bound)
            if missing is not None and tokens // unit * unit < bound:
                reason = f"group {group.index} ({group.describe()}) lacks block {missing}"
                stopped_by = (group.index, missing)
            bound = min(bound, tokens // unit * unit)
    return _longest_common(groups, present, bound, unit, HitLength(bound, reason, stopped_by))


def _leading_tokens(group: GroupSpec, present: Present, bound: int) -> tuple[int, int | None]:
    for block in group.needed_blocks(bound):
        if not present(group.index, block):
            return block * group.block_tokens, block
    return bound, None


def _longest_common(
    groups: Sequence[GroupSpec], present: Present, bound: int, unit: int, by_full: HitLength
) -> HitLength:
    reason, missing = by_full.reason, by_full.missing
    partial = [group for group in groups if group.kind is not GroupKind.FULL]
    tokens = bound
    while tokens > 0:
        obstacle = _first_obstacle(partial, present, tokens)
        if obstacle is None:
            break
        group, block = obstacle
        if tokens == bound:
            shortened = f"group {group.index} ({group.describe()}) lacks block {block} for {tokens} tokens"
            reason = f"{reason}; then {shortened}" if reason else shortened
            missing = missing or (group.index, block)
        tokens = _next_candidate(group, block, tokens, unit)
    return HitLength(max(0, tokens), reason, missing)


def _first_obstacle(groups: Sequence[GroupSpec], present: Present, tokens: int) -> tuple[GroupSpec, int] | None:
    for group in groups:
        for block in reversed(group.needed_blocks(tokens)):
            if not present(group.index, block):
                return group, block
    return None


def _next_candidate(group: GroupSpec, missing: int, tokens: int, unit: int) -> int:
    """The longest shorter length at which ``missing``, the last absent block, is not needed."""
    below = missing * group.block_tokens // unit * unit
    return min(below, tokens - unit)
