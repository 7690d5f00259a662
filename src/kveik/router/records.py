"""What became of one request: one record, to which logs, metrics, usage and learning listen."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class RequestRecord:
    """One finished request. Times in seconds; -1 where something did not happen.

    ``outcome``: ``ok``, or whose fault it was: ``client``, ``request``, ``engine``, ``network``,
    ``overload``, ``left`` (the client went away). ``status`` is what the client got, 0 if nothing.
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
    cached_tokens: int = -1
    prompt_tokens: int = -1
    completion_tokens: int = -1
    first_byte_s: float = -1.0
    total_s: float = 0.0
    request_bytes: int = 0
    response_bytes: int = 0
    trace_id: str = ""
    why: str = ""


RequestListener = Callable[[RequestRecord], None]
