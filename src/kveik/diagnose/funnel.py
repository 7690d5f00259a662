"""The stages of one request's hit, from its prompt to the tokens that were used, and what each of them lost. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from kveik.agent.funnel import RequestFunnel

RENDERED, HASHED, REACHABLE, KNOWN, ALIGNED, ALLOWED, LOADED, VERIFIED, USED = STAGES = (
    "rendered",
    "hashed",
    "reachable",
    "known",
    "aligned",
    "allowed",
    "loaded",
    "verified",
    "used",
)
#: What each stage counts.
MEANINGS = {
    RENDERED: "tokens of the prompt, as the engine sees it",
    HASHED: "those in whole blocks, which alone have a name",
    REACHABLE: "as far as a hit may reach",
    KNOWN: "there without a gap, in the engine or in the shared cache",
    ALIGNED: "usable by all KV cache groups at once",
    ALLOWED: "worth loading",
    LOADED: "taken by the engine and brought",
    VERIFIED: "with the right bytes",
    USED: "not computed",
}
#: Failures of a load that came when bytes were checked.
WRONG_BYTES = frozenset(("checksum", "read_back", "reused"))


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: tokens that passed it, and those that the stage before had and this one lost."""

    name: str
    tokens: int
    lost: int


def stages(record: RequestFunnel) -> list[Stage]:
    """All stages in order. What did not happen passes on what there was."""
    local = record.local_tokens
    known = max(local, record.known_tokens)
    aligned = max(local, record.usable_tokens)
    allowed = max(local, record.allowed_tokens)
    taken = local + record.load_tokens if record.load_tokens >= 0 else allowed
    arrived = record.used_tokens if record.used_tokens >= 0 else taken
    verified = arrived
    if _mostly_wrong_bytes(record):
        arrived = taken
    counts = [
        record.prompt_tokens, record.hashed_tokens, max(local, record.limit_tokens), known, aligned, allowed,
        min(taken, arrived), verified, used_tokens(record),
    ]  # fmt: skip
    return [
        Stage(name, tokens, max(0, before - tokens))
        for name, tokens, before in zip(STAGES, counts, [counts[0], *counts], strict=False)
    ]


def _mostly_wrong_bytes(record: RequestFunnel) -> bool:
    wrong = sum(count for reason, count in record.failed_blocks.items() if reason in WRONG_BYTES)
    return wrong > 0 and 2 * wrong >= sum(record.failed_blocks.values())


def used_tokens(record: RequestFunnel) -> int:
    """Tokens that were not computed, as vLLM counts them (``cached_tokens``).

    A prompt that was loaded to its end has its last token computed again, for the logits, and counts as cached whole.
    """
    loaded = record.local_tokens + max(0, record.load_tokens)
    there = record.used_tokens if record.used_tokens >= 0 else loaded
    if record.computed_from < 0 or record.computed_from == there - 1 == record.prompt_tokens - 1:
        return there
    return record.computed_from


def eater(found: Sequence[Stage]) -> Stage | None:
    """The stage that ate the hit: that which lost most of what could be had; None if nothing was lost.

    What no hit can ever have (the rest of a block, the last token) counts only where it left nothing.
    """
    lossy = [stage for stage in found if stage.name not in (RENDERED, HASHED, REACHABLE) and stage.lost > 0]
    if lossy:
        return max(lossy, key=lambda stage: stage.lost)
    if found[-1].tokens > 0:
        return None
    return max((stage for stage in found if stage.lost > 0), key=lambda stage: stage.lost, default=None)
