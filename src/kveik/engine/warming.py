"""Send prompts so that their KV blocks are computed and stored, or brought up, before anybody waits for them."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from kveik.engine import json_shape as shape
from kveik.engine.client import EngineClient
from kveik.errors import ConfigError, EngineError

#: Fields of a request that shape its answer, not its prompt; they are left out.
_ANSWER_FIELDS = frozenset({
    "n", "best_of", "stream", "stream_options", "max_tokens", "max_completion_tokens", "min_tokens", "logprobs",
    "top_logprobs", "prompt_logprobs", "echo", "stop", "response_format", "use_beam_search",
})  # fmt: skip
#: After so many failures in a row there is no point in going on.
FAILURES_MAX = 5


@dataclass(frozen=True, slots=True)
class WarmRequest:
    """One prompt: the path to post to, the body without what shapes the answer, and where it stands in the file."""

    path: str
    body: Mapping[str, Any]
    line: int

    def asked(self, model: str) -> dict[str, Any]:
        """The body to send: one token, greedy; ``model`` unless the request names another."""
        return {"model": model, **self.body, "max_tokens": 1, "temperature": 0.0, "stream": False}


@dataclass(frozen=True, slots=True)
class WarmProgress:
    """How far it is. ``cached_tokens`` counts those of answers that told it, ``silent`` the answers that did not."""

    requests: int
    done: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    silent: int = 0
    seconds: float = 0.0
    failures: Sequence[str] = field(default_factory=tuple)

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that were not there yet, as far as answers tell."""
        return self.prompt_tokens - self.cached_tokens


def read_prompts(text: str, *, whole: bool) -> list[WarmRequest]:
    """The prompts of a text: with ``whole`` it is one prompt, else each line that is not empty is one."""
    if whole:
        return [WarmRequest("/v1/completions", {"prompt": text}, 1)] if text.strip() else []
    lines = enumerate(text.splitlines(), start=1)
    return [WarmRequest("/v1/completions", {"prompt": line}, number) for number, line in lines if line.strip()]


def read_requests(text: str) -> list[WarmRequest]:
    """The requests of a JSON Lines text.

    A line is a text, a list of token ids, or an object with ``messages`` (a chat) or ``prompt``; also one with such an
    object as ``body``, as batch files have. Raises :class:`ConfigError` that names the line.
    """
    return list(_requests(text))


def _requests(text: str) -> Iterator[WarmRequest]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            told = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"line {number} is no JSON: {error}") from None
        yield _request(told, number)


def _request(told: Any, line: int) -> WarmRequest:
    if isinstance(told, dict) and isinstance(told.get("body"), dict):
        told = told["body"]
    if isinstance(told, dict):
        body = {name: value for name, value in told.items() if name not in _ANSWER_FIELDS}
        if isinstance(body.get("messages"), list) and body["messages"]:
            return WarmRequest("/v1/chat/completions", body, line)
        if _is_prompt(body.get("prompt")):
            return WarmRequest("/v1/completions", body, line)
    elif _is_prompt(told):
        return WarmRequest("/v1/completions", {"prompt": told}, line)
    raise ConfigError(
        f"line {line} is no prompt: expected a text, a list of token ids, or an object with messages or prompt"
    )


def _is_prompt(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value)
    return isinstance(value, list) and bool(value) and all(type(token) is int and token >= 0 for token in value)


class Warming:
    """Sends all requests, ``concurrency`` at a time, and counts. ``tell`` gets the count after each answer.

    Stops early after :data:`FAILURES_MAX` failures in a row; the rest then counts as neither done nor failed.
    """

    def __init__(
        self,
        client: EngineClient,
        model: str,
        *,
        concurrency: int = 1,
        tell: Callable[[WarmProgress], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._model = model
        self._concurrency = concurrency
        self._tell = tell
        self._lock = threading.Lock()
        self._in_a_row = 0
        self._began_s = time.monotonic()
        self._done = self._prompt_tokens = self._cached_tokens = self._silent = 0
        self._failures: list[str] = []

    def run(self, requests: Sequence[WarmRequest]) -> WarmProgress:
        """Send them; what came of it."""
        self._began_s = time.monotonic()
        with ThreadPoolExecutor(self._concurrency, "kveik-warm") as threads:
            jobs = [threads.submit(self._send, request, len(requests)) for request in requests]
            try:
                for job in jobs:
                    job.result()
            except KeyboardInterrupt:
                threads.shutdown(wait=False, cancel_futures=True)
                raise
        return self._progress(len(requests))

    def _send(self, request: WarmRequest, requests: int) -> None:
        if self._in_a_row >= FAILURES_MAX:
            return
        try:
            usage = self._usage(request)
        except EngineError as error:
            with self._lock:
                self._in_a_row += 1
                self._failures.append(f"line {request.line}: {error}")
        else:
            with self._lock:
                self._in_a_row = 0
                self._done += 1
                self._count(*usage)
        with self._lock:
            self._tell(self._progress(requests))

    def _count(self, prompt_tokens: int, cached_tokens: int) -> None:
        self._prompt_tokens += prompt_tokens
        self._cached_tokens += max(0, cached_tokens)
        self._silent += cached_tokens < 0

    def _usage(self, request: WarmRequest) -> tuple[int, int]:
        """Prompt tokens, and how many of them were cached; -1 where the answer does not tell."""
        what = f"usage of {self._client.url}{request.path}"
        answer = self._client.post(request.path, request.asked(self._model))
        usage = shape.mapping(answer.get("usage") or {}, what)
        details = shape.mapping(usage.get("prompt_tokens_details") or {}, what)
        cached = details.get("cached_tokens")
        return (
            shape.whole(usage.get("prompt_tokens") or 0, what),
            -1 if cached is None else shape.whole(cached, what),
        )

    def _progress(self, requests: int) -> WarmProgress:
        return WarmProgress(
            requests,
            self._done,
            len(self._failures),
            self._prompt_tokens,
            self._cached_tokens,
            self._silent,
            time.monotonic() - self._began_s,
            tuple(self._failures),
        )
