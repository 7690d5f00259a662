"""A probe: one real inference that costs next to nothing, straight at the engine.

It is a fixed prompt of eight token ids and an answer of four: less than a block of any KV cache, so that nothing
of it stays, and with a salt of its own. It asks for log probabilities, by which the answer is judged
(:mod:`kveik.watchdog.reference`), and for the lowest priority where the engine has priorities. Engines that take
no token ids are asked in words; what an engine takes is found out once, from its refusals.
"""

import errno
import math
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kveik.engine import json_shape as shape
from kveik.engine.client import EngineClient, EngineStatusError
from kveik.errors import EngineError
from kveik.watchdog.verdict import Probed

#: Ids that every vocabulary has, and that are neither special tokens nor single bytes in the common ones.
PROMPT = (301, 418, 333, 467, 389, 352, 440, 376)
QUESTION = "One, two, three, four, five,"
ANSWER_TOKENS = 4
SALT = "kveik-watchdog"
#: Higher is later (vLLM's ``--scheduling-policy priority``).
PRIORITY = 1_000_000

#: Answers that say: I do not take such a request.
_OTHER_WAY = (400, 404, 405, 415, 422, 501)
#: Nobody is there to be asked.
_UNREACHABLE = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH)
_TOKEN_ID = re.compile(r"token_id:(\d{1,18})")
#: What Starlette's JSON encoder says when log probabilities are NaN; vLLM 0.32 answers HTTP 400 with it.
_NOT_FINITE = "not JSON compliant"


@dataclass(frozen=True, slots=True)
class Reply:
    """An engine's answer. ``logprobs`` are NaN where they are no numbers; ``top``: the best candidates by token id.

    All but ``text`` is empty where an engine tells no token ids or no log probabilities.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top: tuple[Mapping[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What became of one probe. RIGHT means: an answer, yet to be judged. ``way`` and ``model``: how it was asked."""

    probed: Probed
    detail: str
    reply: Reply | None = None
    took_s: float = 0.0
    model: str = ""
    way: str = ""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to ask: a path, and the body but for the model."""

    name: str
    path: str
    body: Mapping[str, Any] = field(default_factory=dict)


_TOKEN_IDS: Mapping[str, Any] = {
    "prompt": list(PROMPT),
    "max_tokens": ANSWER_TOKENS,
    "temperature": 0.0,
    "ignore_eos": True,
    "return_token_ids": True,
    "cache_salt": SALT,
}


def _by_token_ids(top_logprobs: int) -> Way:
    body = {**_TOKEN_IDS, "logprobs": top_logprobs, "return_tokens_as_token_ids": True}
    return Way(f"token ids, {top_logprobs} candidates", "/v1/completions", body)


_WORDS = {"max_tokens": ANSWER_TOKENS, "temperature": 0.0}

#: From the best to what every engine takes. 20 candidates are vLLM's default limit, which a fleet may lower.
WAYS = (
    _by_token_ids(20),
    _by_token_ids(5),
    Way("text", "/v1/completions", {"prompt": QUESTION, **_WORDS}),
    Way("chat", "/v1/chat/completions", {"messages": [{"role": "user", "content": QUESTION}], **_WORDS}),
)
#: Shows that an engine infers and little else; for an engine's first answer.
PLAIN = Way("token ids alone", "/v1/completions", _TOKEN_IDS)


class Prober:
    """Asks one engine. ``patience_s``: after that nobody waits for an answer any more.

    It learns the model's name, whether priorities are taken and which way to ask; :meth:`forget` all that when
    the engine was started anew.
    """

    def __init__(self, url: str, *, patience_s: float, api_key: str = "") -> None:
        self._url = url
        self._patience_s = patience_s
        self._api_key = api_key
        self.forget()

    def forget(self) -> None:
        """Ask as if for the first time."""
        self._model = ""
        self._way = 0
        self._priority = True

    def ask(self, rank: str = "", *, plain: bool = False) -> ProbeResult:
        """Send one probe and wait for what becomes of it, to a data-parallel rank if one is named.

        ``plain``: without log probabilities, where the engine takes token ids.
        """
        started_s = time.monotonic()
        client = self._client(rank)
        try:
            short = self._plain_reply(client) if plain else None
            reply = short or self._reply(client)
        except EngineError as error:
            result = _outcome_of(error, self._patience_s)
            if result.probed in (Probed.UNFIT, Probed.REFUSED):
                self.forget()  # another model, or another engine
            return result
        took_s = time.monotonic() - started_s
        way = PLAIN.name if short else WAYS[self._way].name
        return ProbeResult(Probed.RIGHT, f"after {took_s:.2f} s", reply, took_s, self._model, way)

    def _client(self, rank: str) -> EngineClient:
        headers = {"X-data-parallel-rank": rank} if rank else {}
        return EngineClient(self._url, read_timeout_s=self._patience_s, api_key=self._api_key, headers=headers)

    def _plain_reply(self, client: EngineClient) -> Reply | None:
        """The answer to the plain question; None if more has to be asked.

        That is so where the engine takes no such question, and where the answer is one token again and again, as of
        numbers that are NaN.
        """
        self._model = self._model or client.model().name
        try:
            reply = read_reply(client.post(PLAIN.path, {"model": self._model, **PLAIN.body}))
        except EngineStatusError as error:
            if error.status not in _OTHER_WAY:
                raise
            return None
        return reply if len(set(reply.token_ids)) > 1 else None

    def _reply(self, client: EngineClient) -> Reply:
        """The first answer that one of the ways gets, beginning with the one that did before."""
        self._model = self._model or client.model().name
        while True:
            way = WAYS[self._way]
            priority = {"priority": PRIORITY} if self._priority and self._way < 2 else {}
            try:
                return read_reply(client.post(way.path, {"model": self._model, **way.body, **priority}))
            except EngineStatusError as error:
                if error.status not in _OTHER_WAY or _NOT_FINITE in error.text:
                    raise
                if priority and "priority" in error.text:
                    self._priority = False
                elif self._way + 1 < len(WAYS):
                    self._way += 1
                else:
                    raise


def _outcome_of(error: EngineError, patience_s: float) -> ProbeResult:
    """What an error says about the engine."""
    cause = error.__cause__
    if isinstance(error, EngineStatusError):
        if _NOT_FINITE in error.text:
            return ProbeResult(Probed.WRONG, f"log probabilities are not finite (HTTP {error.status} says so)")
        unfit = 400 <= error.status < 500 and error.status not in (408, 429)
        return ProbeResult(Probed.UNFIT if unfit else Probed.FAILED, str(error))
    if isinstance(cause, TimeoutError):
        return ProbeResult(Probed.LATE, f"no answer within {patience_s:g} s")
    if isinstance(cause, socket.gaierror) or (isinstance(cause, OSError) and cause.errno in _UNREACHABLE):
        return ProbeResult(Probed.REFUSED, str(error))
    return ProbeResult(Probed.FAILED, str(error))


def read_reply(document: Mapping[str, Any]) -> Reply:
    """The answer in a document of ``/v1/completions`` or ``/v1/chat/completions``; EngineError if it is none."""
    choices = shape.sequence(document.get("choices"), "choices of a probe's answer")
    if not choices:
        return Reply("")
    choice = shape.mapping(choices[0], "a choice of a probe's answer")
    message = choice.get("message")
    text = choice.get("text") if message is None else shape.mapping(message, "message").get("content")
    logprobs = choice.get("logprobs")
    given = logprobs if isinstance(logprobs, dict) else {}
    return Reply(
        text=text if isinstance(text, str) else "",
        token_ids=tuple(shape.whole(token, "a token id") for token in choice.get("token_ids") or ()),
        logprobs=tuple(_number(value) for value in given.get("token_logprobs") or ()),
        top=tuple(_candidates(position) for position in given.get("top_logprobs") or ()),
    )


def _number(value: Any) -> float:
    """A number as it is; NaN for what is none: JSON has neither NaN nor infinity, some engines write null."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _candidates(position: Any) -> dict[int, float]:
    """The candidates at one position whose names are token ids."""
    found = {name: _TOKEN_ID.fullmatch(name) for name in position} if isinstance(position, dict) else {}
    return {int(match[1]): _number(position[name]) for name, match in found.items() if match}
