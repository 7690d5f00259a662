"""The latest requests as this router saw them, for those who ask why one of them found nothing."""

from collections import deque

import msgspec

from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.router.records import RequestRecord


class RoutedRequest(msgspec.Struct, gc=False):
    """One request. ``ended_s`` is wall time; -1 where something is not known.

    ``expected_prompt_tokens`` is what the router made of the prompt, by its own tokens where ``exact``, else estimated;
    ``expected_cached_tokens`` what the engine was expected to have of it. ``prompt_tokens`` and ``cached_tokens`` are
    what the engine's answer said of its usage.
    """

    request_id: str
    ended_s: float
    model: str
    engine: str
    reason: str
    outcome: str
    status: int
    attempts: int
    exact: bool
    expected_prompt_tokens: int
    expected_cached_tokens: int
    prompt_tokens: int
    cached_tokens: int
    first_byte_s: float
    total_s: float


class RequestBook:
    """A listener that keeps the last ``kept`` requests; 0: none."""

    def __init__(self, kept: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self._records: deque[tuple[float, RequestRecord]] = deque(maxlen=kept)
        self._clock = clock

    def __repr__(self) -> str:
        return f"RequestBook({len(self._records)} of {self._records.maxlen})"

    def __call__(self, record: RequestRecord) -> None:
        """One more request is over."""
        self._records.append((self._clock.wall(), record))

    def document(self) -> list[dict[str, object]]:
        """All of them as plain values, the latest first."""
        rows: list[dict[str, object]] = msgspec.to_builtins(
            [_routed(ended_s, record) for ended_s, record in reversed(self._records)]
        )
        return rows


def _routed(ended_s: float, record: RequestRecord) -> RoutedRequest:
    return RoutedRequest(
        record.request_id,
        ended_s,
        record.model,
        record.engine,
        record.reason,
        record.outcome,
        record.status,
        record.attempts,
        record.exact,
        record.expected_prompt_tokens,
        record.expected_cached_tokens,
        record.prompt_tokens,
        record.cached_tokens,
        record.first_byte_s,
        record.total_s,
    )
