"""Earlier requests that are like one: with the same beginning, or alike but for some place. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kveik.agent.funnel import RequestFunnel
from kveik.kv.prompt_print import DIGEST_BYTES, chunk_span, equal_chunks, leading_tokens

#: Prompts are alike if at least so many chunks of them are equal, and this share.
ALIKE_CHUNKS_MIN = 4
ALIKE_SHARE_MIN = 0.5


@dataclass(frozen=True, slots=True)
class Twin:
    """An earlier request. ``leading_tokens`` are equal from the start; ``alike`` is the share of equal chunks."""

    record: RequestFunnel
    leading_tokens: int
    alike: float

    @property
    def differs_in(self) -> tuple[int, int]:
        """The tokens in which the first difference lies, where the prompts are long enough."""
        return _chunk_from(self.leading_tokens)

    @property
    def goes_on(self) -> bool:
        """Whether all of its prompt is the beginning of the other one, but perhaps for its last few tokens."""
        return max(self.leading_tokens, self.differs_in[1] - 1) >= self.record.prompt_tokens


def earlier(record: RequestFunnel, others: Iterable[RequestFunnel]) -> list[RequestFunnel]:
    """Those that came before, with prompts that can be compared; the latest first."""
    before = [other for other in others if other.began_s < record.began_s and other.prints and other is not record]
    return sorted(before, key=lambda other: other.began_s, reverse=True)


def with_same_beginning(record: RequestFunnel, before: Iterable[RequestFunnel]) -> Twin | None:
    """The latest of those whose prompts share the most tokens from the start; None if no token is shared."""
    best: Twin | None = None
    for other in before:
        twin = _compared(record, other)
        if twin.leading_tokens > (best.leading_tokens if best is not None else 0):
            best = twin
    return best


def most_alike(record: RequestFunnel, before: Iterable[RequestFunnel]) -> Twin | None:
    """The latest of those with the most in common, wherever it is; None if none has much."""
    best: Twin | None = None
    for other in before:
        twin = _compared(record, other)
        chunks = round(twin.alike * len(record.prints) / DIGEST_BYTES)
        alike = twin.alike >= ALIKE_SHARE_MIN and chunks >= ALIKE_CHUNKS_MIN
        if alike and twin.alike > (best.alike if best is not None else 0.0):
            best = twin
    return best


def _compared(record: RequestFunnel, other: RequestFunnel) -> Twin:
    equal = equal_chunks(record.prints, other.prints)
    chunks = max(1, len(record.prints) // DIGEST_BYTES)
    leading = leading_tokens(record.prints, record.prompt_tokens, other.prints, other.prompt_tokens)
    return Twin(other, leading, float(np.count_nonzero(equal)) / chunks)


def _chunk_from(token: int) -> tuple[int, int]:
    chunk = 0
    while chunk_span(chunk)[1] <= token:
        chunk += 1
    return chunk_span(chunk)
