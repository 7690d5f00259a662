"""What became of one request: one record, to which logs, metrics, usage and learning listen."""

from collections.abc import Callable
from dataclasses import dataclass

from kveik.router.facts import RequestFacts


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One finished request. Times in seconds; -1 where something did not happen.

    ``outcome``: ``ok``, or whose fault it was: ``client``, ``request``, ``engine``, ``network``,
    ``overload``, ``router``; or ``left``: the client went away. ``status`` is what the client got, 0
    if nothing.
    ``added_s`` is the router's own part of ``first_byte_s``: from the whole request to its sending,
    and from the engine's first byte to the client's. ``cut``: the answer had begun and was not
    ended. ``expected_prompt_tokens``: how long the router took the prompt for, by its own tokens where ``exact``.
    ``span_id`` is the router's span and ``parent_span_id`` the client's, where there are any. ``facts``: what
    its body told, for what learns from the outcome; never logged.
    """

    request_id: str
    method: str
    path: str
    model: str = ""
    engine: str = ""
    key_name: str = ""
    reason: str = ""
    outcome: str = "ok"
    status: int = 0
    attempts: int = 0
    stream: bool = False
    expected_cached_tokens: int = 0
    expected_prompt_tokens: int = -1
    exact: bool = False
    cached_tokens: int = -1
    prompt_tokens: int = -1
    completion_tokens: int = -1
    first_byte_s: float = -1.0
    added_s: float = -1.0
    total_s: float = 0.0
    request_bytes: int = 0
    response_bytes: int = 0
    cut: bool = False
    client: str = ""
    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str = ""
    why: str = ""
    facts: RequestFacts | None = None


RequestListener = Callable[[RequestRecord], None]
