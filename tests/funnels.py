"""Records of requests as engines tell them, for tests that explain them."""

from collections.abc import Sequence
from typing import Any

from kveik.agent.funnel import MissingBlock, RequestFunnel
from kveik.kv.prompt_print import prompt_print

BLOCK = 128
HERE, THERE = b"h" * 16, b"t" * 16


def prompt(count: int, seed: int = 0) -> list[int]:
    """A prompt that differs everywhere from one of another seed."""
    return [seed * 1_000_000 + index for index in range(count)]


def told(name: str, tokens: Sequence[int], began_s: float = 100.0, **given: Any) -> RequestFunnel:
    """A request that found nothing and was saved, unless something else is given."""
    hashed = len(tokens) // BLOCK * BLOCK
    facts: dict[str, Any] = {
        "namespace": HERE,
        "first_hash": b"%d" % tokens[0],
        "prints": prompt_print(tokens),
        "hashed_tokens": hashed,
        "limit_tokens": hashed,
        "lookup": "miss",
        "asked_s": began_s,
        "known_tokens": 0,
        "usable_tokens": 0,
        "allowed_tokens": 0,
        "load_tokens": 0,
        "computed_from": 0,
        "ended": True,
        "saved_blocks": hashed // BLOCK,
        **given,
    }
    return RequestFunnel(f"cmpl-{name}-0-0123abcd", began_s, len(tokens), BLOCK, BLOCK, **facts)


def lacking(block: int, **given: Any) -> MissingBlock:
    """One block of 128 tokens that was missing."""
    return MissingBlock(0, block * BLOCK, (block + 1) * BLOCK, bytes([block]) * 32, **given)
