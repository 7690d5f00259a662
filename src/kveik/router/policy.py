"""Which engine gets a request: pure functions over plain values."""

from dataclasses import dataclass


@dataclass(slots=True)
class Candidate:
    """One engine that could take the request now.

    ``cached_tokens``: prompt tokens that this engine is expected to hold; ``shared_tokens``: those
    beyond them that the shared cache holds for its group. ``order`` breaks ties: the engine that
    was chosen longest ago has the lowest.
    """

    slot: int
    in_flight: int
    waiting_tokens: int
    cached_tokens: int
    shared_tokens: int
    prefill_tokens_s: float
    share: float
    order: int


@dataclass(frozen=True, slots=True)
class Choice:
    """The decision: which engine, why (a short word: a metric label), and what was expected."""

    slot: int
    reason: str
    expected_cached_tokens: int = 0
