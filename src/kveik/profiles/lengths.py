"""Memory for requests of different lengths: reserved ahead or in blocks, alone or sharing a beginning. Pure.

The same counts as vLLM's block manager gives; a test compares them, and ``kveik plan --python`` asks it.
"""

import math
import random
from collections.abc import Sequence

from kveik.errors import ConfigError
from kveik.profiles.figure import Figure

#: So that a mix is the same every time.
_SEED = 0
_COUNT = 100


def mix(text: str, count: int = _COUNT) -> list[int]:
    """Lengths in tokens: ``N,N,N``, ``uniform:LOW-HIGH``, or ``exponential:LOW-HIGH:MEAN`` (of what exceeds LOW).

    Raises :class:`ConfigError`.
    """
    kind, _, rest = text.partition(":")
    source = random.Random(_SEED)
    try:
        if kind == "uniform":
            low, high = (int(part) for part in rest.split("-"))
            lengths = [source.randint(low, high) for _ in range(count)]
        elif kind == "exponential":
            span, _, mean = rest.partition(":")
            low, high = (int(part) for part in span.split("-"))
            lengths = [min(high, low + int(source.expovariate(1 / float(mean)))) for _ in range(count)]
        else:
            lengths = [int(part) for part in text.split(",")]
    except (ValueError, ZeroDivisionError) as error:
        raise ConfigError(
            f"--lengths is {text!r}, expected N,N,N or uniform:LOW-HIGH or exponential:LOW-HIGH:MEAN"
        ) from error
    if min(lengths) < 1:
        raise ConfigError(f"--lengths is {text!r}: each request has at least 1 token")
    return lengths


def blocks_alone(lengths: Sequence[int], block: int) -> int:
    """Blocks if no two requests share one."""
    return sum(math.ceil(length / block) for length in lengths)


def blocks_sharing(lengths: Sequence[int], shared: int, block: int) -> int:
    """Blocks if all begin with the same ``shared`` tokens: whole blocks of that beginning exist once.

    The last token of a prompt is always computed, so a prompt that is all shared keeps its last block to itself.
    """
    common = [min(shared, length - 1) // block for length in lengths]
    return max(common, default=0) + sum(
        math.ceil(length / block) - own for length, own in zip(lengths, common, strict=True)
    )


def waste(lengths: Sequence[int], block: int, most: int = 0) -> tuple[Figure, ...]:
    """What of the memory holds no token: reserved for the longest request, and in blocks. Raises ConfigError."""
    if block < 1:
        raise ConfigError(f"--block-tokens is {block}, expected at least 1")
    total, count, longest = sum(lengths), len(lengths), most or max(lengths)
    if longest < max(lengths):
        raise ConfigError(f"the longest request may have {longest} tokens, but one has {max(lengths)}")
    blocks = blocks_alone(lengths, block)
    return (
        Figure("tokens of the requests", total, "tokens", "sum of lengths", f"{count} requests"),
        Figure(
            "unused if reserved ahead",
            100 * (1 - total / (count * longest)),
            "%",
            "1 - tokens / (requests x longest)",
            f"1 - {total:,} / ({count} x {longest:,})",
        ),
        Figure(
            "unused in blocks",
            100 * (1 - total / (blocks * block)),
            "%",
            "1 - tokens / (blocks x tokens a block)",
            f"1 - {total:,} / ({blocks:,} x {block})",
        ),
        Figure(
            "requests in the same memory",
            count * longest / (blocks * block),
            "times as many",
            "requests x longest / (blocks x tokens a block)",
            f"{count} x {longest:,} / ({blocks:,} x {block})",
        ),
    )


def sharing(lengths: Sequence[int], shared: int, block: int) -> tuple[Figure, ...]:
    """What a common beginning saves. Raises :class:`ConfigError`."""
    if shared < 0 or block < 1:
        raise ConfigError(f"--shared-tokens is {shared} and --block-tokens {block}, expected at least 0 and 1")
    alone, together = blocks_alone(lengths, block), blocks_sharing(lengths, shared, block)
    mean = sum(min(shared, length) for length in lengths) / sum(lengths)
    count = len(lengths)
    return (
        Figure(
            "blocks, each for itself",
            alone,
            "blocks",
            "sum of lengths / tokens a block, each rounded up",
            f"{count} requests",
        ),
        Figure(
            "blocks, beginning shared",
            together,
            "blocks",
            "whole blocks of the beginning once + all others",
            f"{min(shared, max(lengths)) // block} + others",
        ),
        Figure(
            "saved by sharing", 100 * (1 - together / alone), "%", "1 - shared / alone", f"1 - {together:,} / {alone:,}"
        ),
        Figure(
            "can be saved at most",
            100 * mean * (count - 1) / count,
            "%",
            "shared share x (requests - 1) / requests",
            f"{mean:.3f} x {count - 1} / {count}",
        ),
    )
