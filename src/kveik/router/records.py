"""What became of one request: one record, to which logs, metrics, usage and learning listen."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kveik.router.facts import RequestFacts


@dataclass(init=False, slots=True, eq=False)
class RequestRecord:
    """One finished request. Times in seconds; -1 where something did not happen.

    ``outcome``: ``ok``, or whose fault it was: ``client``, ``request``, ``engine``, ``network``,
    ``overload``, ``router``; or ``left``: the client went away. ``status`` is what the client got, 0
    if nothing.
    ``resumed``: how often another engine went on with its stream.
    ``added_s`` is the router's own part of ``first_byte_s``: from the whole request to its sending,
    and from the engine's first byte to the client's. ``cut``: the answer had begun and was not
    ended. ``expected_prompt_tokens``: how long the router took the prompt for, by its own tokens where ``exact``.
    ``span_id`` is the router's span and ``parent_span_id`` the client's, where there are any. ``facts``: what
    its body told, for what learns from the outcome; never logged.
    """

    request_id: str
    method: str
    path: str
    model: str
    engine: str
    key_name: str
    reason: str
    outcome: str
    status: int
    attempts: int
    resumed: int
    stream: bool
    expected_cached_tokens: int
    expected_prompt_tokens: int
    exact: bool
    cached_tokens: int
    prompt_tokens: int
    completion_tokens: int
    first_byte_s: float
    added_s: float
    total_s: float
    request_bytes: int
    response_bytes: int
    cut: bool
    client: str
    trace_id: str
    span_id: str
    parent_span_id: str
    why: str
    facts: RequestFacts | None

    def __init__(self, request_id: str, method: str, path: str, **given: Any) -> None:
        """``given``: other fields by their names. By hand, since what dataclasses make is never compiled."""
        self.request_id, self.method, self.path = request_id, method, path
        self.model = self.engine = self.key_name = self.reason = self.client = self.why = ""
        self.trace_id = self.span_id = self.parent_span_id = ""
        self.outcome = "ok"
        self.status = self.attempts = self.resumed = 0
        self.expected_cached_tokens = self.request_bytes = self.response_bytes = 0
        self.stream = self.exact = self.cut = False
        self.expected_prompt_tokens = self.cached_tokens = self.prompt_tokens = self.completion_tokens = -1
        self.first_byte_s = self.added_s = -1.0
        self.total_s = 0.0
        self.facts = None
        for name, value in given.items():
            setattr(self, name, value)


RequestListener = Callable[[RequestRecord], None]
