"""An engine over HTTP: ask it for completions and for what it says about itself.

Only the standard library is used, one connection a call, so a client can be shared between
threads. Every call raises :class:`~kveik.errors.EngineError` when the engine cannot be reached,
refuses, is silent for longer than the read time-out or answers something that is no answer.
"""

import http.client
import json
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kveik.engine import json_shape as shape
from kveik.engine.metrics import MetricsSnapshot, parse_metrics
from kveik.errors import EngineError

#: What vLLM allows by default (``--max-logprobs``).
MAX_TOP_LOGPROBS = 20
#: No vocabulary needs more, and Python reads no number of thousands of digits.
_TOKEN_DIGITS = 18


class EngineStatusError(EngineError):
    """The engine answered with an HTTP status other than 200."""

    def __init__(self, what: str, status: int, text: str) -> None:
        super().__init__(f"{what}: HTTP {status}: {text[:500].strip()}")
        self.status = status
        self.text = text


class EngineStreamError(EngineError):
    """A stream that had begun ended with an error, or without its end mark."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that an engine serves. ``max_model_tokens`` is 0 when the engine does not say."""

    name: str
    max_model_tokens: int
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A greedy completion of exactly ``max_tokens`` tokens for a prompt given as token ids.

    ``cache_salt`` isolates the prefix cache: blocks of one salt never serve another one.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    top_logprobs: int = 0
    cache_salt: str = ""

    def body(self, model: str) -> dict[str, Any]:
        """The JSON body of ``POST /v1/completions``, streaming."""
        body: dict[str, Any] = {
            "model": model,
            "prompt": list(self.prompt),
            "max_tokens": self.max_tokens,
            "temperature": 0.0,
            "repetition_penalty": 1.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        if self.top_logprobs:
            body["logprobs"] = self.top_logprobs
            # Text forms of tokens are ambiguous (partial UTF-8); ids never are.
            body["return_tokens_as_token_ids"] = True
        if self.cache_salt:
            body["cache_salt"] = self.cache_salt
        return body


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine answered.

    ``logprobs`` has one value a generated token, ``top_logprobs`` the best candidates of each
    position by token id; both are empty when none were asked for. ``cached_tokens`` is -1 when
    the engine does not report it.
    """

    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...]
    top_logprobs: tuple[Mapping[int, float], ...]
    ttft_s: float
    total_s: float
    prompt_tokens: int
    cached_tokens: int
    finish_reason: str


def _address(url: str) -> urllib.parse.SplitResult:
    """The parts of an engine's address. Raises :class:`EngineError` for anything else."""
    wrong = EngineError(f"{url!r} is no address of an engine, expected http://HOST:PORT")
    try:
        parts = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
        _ = parts.port  # raises for a port that is none
    except ValueError:
        raise wrong from None
    if parts.scheme not in ("http", "https") or not parts.hostname or any(map(str.isspace, parts.netloc)):
        raise wrong
    return parts


class EngineClient:
    """One engine at ``url``. Time-outs in seconds; ``read_timeout_s`` bounds each single wait."""

    def __init__(
        self,
        url: str,
        *,
        read_timeout_s: float = 300.0,
        connect_timeout_s: float = 5.0,
        api_key: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        parts = _address(url)
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"
        self._parts = urllib.parse.urlsplit(self.url)
        self._read_timeout_s = read_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._headers = {**(headers or {}), **({"Authorization": f"Bearer {api_key}"} if api_key else {})}

    def __repr__(self) -> str:
        return f"EngineClient({self.url})"

    def health(self) -> bool:
        """Whether ``/health`` answers 200. It only reads a flag: a hung engine can look healthy."""
        try:
            self._call("GET", "/health")
        except EngineError:
            return False
        return True

    def model(self) -> ServedModel:
        """The first model that the engine serves."""
        return self.models()[0]

    def models(self) -> tuple[ServedModel, ...]:
        """All models that the engine lists, adapters too; at least one."""
        where = f"{self.url}/v1/models"
        cards = shape.sequence(self._json("GET", "/v1/models").get("data"), f"data of {where}")
        if not cards:
            raise EngineError(f"{where} names no model")
        return tuple(_served(shape.mapping(card, f"a model of {where}"), where) for card in cards)

    def tokenize(self, text: str, model: str) -> tuple[int, ...]:
        """The token ids of ``text`` as a prompt, with the special tokens that the model wants first."""
        where = f"{self.url}/tokenize"
        answer = self._json("POST", "/tokenize", {"model": model, "prompt": text})
        tokens = shape.sequence(answer.get("tokens"), f"tokens of {where}")
        return tuple(shape.whole(token, f"a token of {where}") for token in tokens)

    def reset_local_cache(self, patience_s: float = 10.0) -> None:
        """Empty the engine's own prefix cache and leave the shared one alone.

        The engine says no while blocks are held (requests or saves under way), so it is asked
        again for ``patience_s``. The route exists in vLLM's development mode only: status 404
        (:class:`EngineStatusError`) without it.
        """
        until_s = time.monotonic() + patience_s
        while self._json("POST", "/reset_prefix_cache?reset_external=false").get("success") is not True:
            if time.monotonic() > until_s:
                raise EngineError(f"{self.url} did not empty its prefix cache within {patience_s:g} s: blocks are held")
            time.sleep(0.05)

    def version(self) -> str:
        """The version of the server, as vLLM tells it; empty where it does not."""
        try:
            told = self._json("GET", "/version").get("version")
        except EngineStatusError:
            return ""
        return told if isinstance(told, str) else ""

    def server_config(self) -> Mapping[str, Any]:
        """vLLM's own configuration. In vLLM's development mode only: status 404 without it."""
        config = self._json("GET", "/server_info?config_format=json").get("vllm_config")
        return config if isinstance(config, dict) else {}

    def metrics(self) -> MetricsSnapshot:
        """All metrics of the engine now."""
        return parse_metrics(self.metrics_text())

    def metrics_text(self) -> str:
        """The same as the engine writes them."""
        return self._call("GET", "/metrics").decode("utf8", "replace")

    def post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The JSON object that a JSON body gets for an answer."""
        return self._json("POST", path, body)

    def complete(self, request: CompletionRequest, model: str) -> Completion:
        """Run one completion, streaming, and measure the time to its first token."""
        started_s = time.perf_counter()
        answer = _Answer()
        with self._response("POST", "/v1/completions", request.body(model)) as response:
            for event in _events(response, self.url):
                answer.add(event, time.perf_counter() - started_s, self.url)
        return answer.completion(time.perf_counter() - started_s, self.url)

    def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        what = f"the answer of {self.url}{path}"
        return shape.mapping(shape.parsed(self._call(method, path, body), what), what)

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        with self._response(method, path, body) as response:
            return response.read()

    @contextmanager
    def _response(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """The open response of one request, status 200; network trouble becomes an EngineError."""
        connection = self._connection()
        what = f"{method} {self.url}{path}"
        try:
            connection.connect()
            connection.sock.settimeout(self._read_timeout_s)
            payload = None if body is None else json.dumps(body).encode()
            headers = {
                **self._headers,
                **({"Content-Type": "application/json"} if payload is not None else {}),
            }
            connection.request(method, self._parts.path + path, payload, headers)
            with connection.getresponse() as response:  # the connection does not close it where the engine ends it
                if response.status != 200:
                    raise EngineStatusError(what, response.status, response.read(4096).decode("utf8", "replace"))
                yield response
        except TimeoutError as error:
            raise EngineError(f"{what}: no answer within {self._read_timeout_s:g} s") from error
        except (OSError, http.client.HTTPException, UnicodeError) as error:  # UnicodeError: a host name that is none
            raise EngineError(f"{what}: {error or type(error).__name__}") from error
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        return kind(self._parts.netloc, timeout=self._connect_timeout_s)


def _served(card: Mapping[str, Any], where: str) -> ServedModel:
    limit = card.get("max_model_len")
    return ServedModel(
        shape.text(card.get("id"), f"id of a model of {where}"),
        0 if limit is None else shape.whole(limit, f"max_model_len of {where}"),
        simulated=card.get("simulated") is True,
    )


def _events(response: http.client.HTTPResponse, url: str) -> Iterator[Mapping[str, Any]]:
    """The JSON documents of a server-sent event stream; ends only with ``[DONE]``.

    A stream that stops before that was cut, and a cut answer must not pass for a short one.
    """
    for line in iter(response.readline, b""):
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        event = shape.mapping(shape.parsed(data, f"{url}: an event of the stream"), f"{url}: an event of the stream")
        if "error" in event:
            raise EngineStreamError(f"{url}: error in the stream: {data[:500].decode('utf8', 'replace')}")
        yield event
    raise EngineStreamError(f"{url}: the stream ended before [DONE]")


class _Answer:
    """Collects the events of one stream."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._text: list[str] = []
        self._logprobs: list[float] = []
        self._top: list[Mapping[int, float]] = []
        self._usage: Mapping[str, Any] = {}
        self._ttft_s = 0.0
        self._finish_reason = ""

    def add(self, event: Mapping[str, Any], elapsed_s: float, url: str) -> None:
        """Take in one event that arrived ``elapsed_s`` after the request was sent."""
        self._usage = shape.mapping(event.get("usage") or self._usage, f"{url}: usage")
        for choice in shape.sequence(event.get("choices") or [], f"{url}: choices"):
            self._add_choice(shape.mapping(choice, f"{url}: a choice"), elapsed_s, url)

    def _add_choice(self, choice: Mapping[str, Any], elapsed_s: float, url: str) -> None:
        ids = shape.sequence(choice.get("token_ids") or [], f"{url}: token_ids")
        if ids and not self._ids:
            self._ttft_s = elapsed_s
        self._ids.extend(shape.whole(token, f"{url}: a token id") for token in ids)
        self._text.append(shape.text(choice.get("text") or "", f"{url}: text"))
        self._finish_reason = shape.text(choice.get("finish_reason") or self._finish_reason, f"{url}: finish_reason")
        if choice.get("logprobs"):
            self._add_logprobs(shape.mapping(choice["logprobs"], f"{url}: logprobs"), url)

    def _add_logprobs(self, logprobs: Mapping[str, Any], url: str) -> None:
        values = shape.sequence(logprobs.get("token_logprobs"), f"{url}: token_logprobs")
        self._logprobs.extend(shape.number(value, f"{url}: a log probability") for value in values)
        for position in shape.sequence(logprobs.get("top_logprobs"), f"{url}: top_logprobs"):
            candidates = shape.mapping(position, f"{url}: an entry of top_logprobs")
            self._top.append(
                {
                    _token_id(token, url): shape.number(value, f"{url}: a log probability")
                    for token, value in candidates.items()
                }
            )

    def completion(self, total_s: float, url: str) -> Completion:
        """The finished answer."""
        if not self._ids:
            raise EngineError(f"{url}: the answer holds no token ids (vLLM before return_token_ids?)")
        details = shape.mapping(self._usage.get("prompt_tokens_details") or {}, f"{url}: prompt_tokens_details")
        cached = details.get("cached_tokens")
        return Completion(
            token_ids=tuple(self._ids),
            text="".join(self._text),
            logprobs=tuple(self._logprobs),
            top_logprobs=tuple(self._top),
            ttft_s=self._ttft_s,
            total_s=total_s,
            prompt_tokens=shape.whole(self._usage.get("prompt_tokens") or 0, f"{url}: prompt_tokens"),
            cached_tokens=-1 if cached is None else shape.whole(cached, f"{url}: cached_tokens"),
            finish_reason=self._finish_reason,
        )


def _token_id(text: str, url: str) -> int:
    """The id in ``token_id:123``, the form that ``return_tokens_as_token_ids`` asks for."""
    digits = text.removeprefix("token_id:")
    if digits == text or not digits.isascii() or not digits.isdigit() or len(digits) > _TOKEN_DIGITS:
        raise EngineError(f"{url}: a candidate token is {text[:100]!r}, expected token_id:NUMBER")
    return int(digits)


def warm_up(client: EngineClient, model: str, prompt: Sequence[int] = (1, 2, 3)) -> float:
    """One tiny real inference, the only honest sign of readiness; seconds to its first token."""
    return client.complete(CompletionRequest(tuple(prompt), max_tokens=1), model).ttft_s
