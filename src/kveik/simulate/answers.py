"""Answers on the wire: the events of a stream and the whole documents, for each API.

Generated words need no escaping, so the events of plain streams are put together from bytes;
only what is asked for seldom (log probabilities, token ids) goes through a JSON encoder.
"""

import struct
import time
from base64 import b64encode
from collections.abc import Callable
from itertools import count
from typing import Any, ClassVar

import msgspec

from kveik.simulate.asks import Ask
from kveik.simulate.drafts import Draft

_json: Callable[[Any], bytes] = msgspec.json.Encoder().encode
_numbers = count(1)

#: Length of an embedding.
DIMENSIONS = 16


def _event(document: Any) -> bytes:
    return b"data: " + _json(document) + b"\n\n"


def _named_event(document: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (document["type"].encode(), _json(document))


class Answer:
    """One answer: its drafts, and how they look in one API. Subclasses say the latter.

    ``cached_tokens`` is -1 where the engine does not report it.
    """

    prefix: ClassVar[str] = "sim-"

    def __init__(self, ask: Ask, model: str) -> None:
        self.ask = ask
        self.model = model
        self.id = f"{self.prefix}{next(_numbers):016x}"
        self.created = int(time.time())
        self.cached_tokens = 0
        self.noise = 0.0
        self.drafts: list[Draft] = []

    def begin(self, context: bytes) -> None:
        """Know what the answer follows from; called before its first word."""
        ask = self.ask
        self.drafts = [Draft(context, n, ask.answer_tokens, ask.finish, ask.stops) for n in range(ask.n)]

    def opening(self) -> list[bytes]:
        """Events before the first word."""
        return []

    def step(self, tokens: int) -> list[bytes]:
        """Events of the next ``tokens`` words of each draft."""
        drafts, event = self.drafts, self._word_event
        if len(drafts) == 1:
            draft = drafts[0]
            return [event(0, draft) for _ in range(min(tokens, draft.limit - len(draft.words)))]
        return [event(n, draft) for _ in range(tokens) for n, draft in enumerate(drafts) if not draft.ended]

    def closing(self) -> list[bytes]:
        """Events after the last word."""
        return [b"data: [DONE]\n\n"]

    def document(self) -> bytes:
        """The whole answer at once. Lets the drafts grow to their ends."""
        raise NotImplementedError

    def _word_event(self, n: int, draft: Draft) -> bytes:
        raise NotImplementedError

    @property
    def completion_tokens(self) -> int:
        """Words of all drafts so far."""
        return sum([len(draft.words) for draft in self.drafts])

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage object."""
        prompt, completion = self.ask.prompt_tokens, self.completion_tokens
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
        }
        if self.cached_tokens >= 0:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        return usage

    def _text(self, draft: Draft) -> str:
        parts = []
        while not draft.ended:
            parts.append(draft.grow())
        return b"".join(parts).decode()


class CompletionAnswer(Answer):
    """``/v1/completions``."""

    prefix = "cmpl-"

    def __init__(self, ask: Ask, model: str) -> None:
        super().__init__(ask, model)
        self._plain = ask.top_logprobs < 0 and not ask.token_ids
        head = b'data: {"id":"%b","object":"text_completion","created":%d,"model":%b,"choices":[{"index":' % (
            self.id.encode(),
            self.created,
            _json(model),
        )
        self._heads = [head + b'%d,"text":"' % n for n in range(ask.n)]

    def closing(self) -> list[bytes]:
        """The usage, if asked for, and ``[DONE]``."""
        if not self.ask.include_usage:
            return [b"data: [DONE]\n\n"]
        return [_event({**self._outline("text_completion"), "choices": [], "usage": self.usage()}), b"data: [DONE]\n\n"]

    def document(self) -> bytes:
        """The answer as one document."""
        choices = [self._choice(n, draft) for n, draft in enumerate(self.drafts)]
        return _json({**self._outline("text_completion"), "choices": choices, "usage": self.usage()})

    def _outline(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _choice(self, n: int, draft: Draft) -> dict[str, Any]:
        parts, values, top = [], [], []
        while not draft.ended:
            parts.append(draft.grow())
            if self.ask.top_logprobs >= 0:
                value, candidates = self._logprobs(draft)
                values.append(value)
                top.append(candidates)
        choice: dict[str, Any] = {"index": n, "text": b"".join(parts).decode(), "logprobs": None}
        if self.ask.top_logprobs >= 0:
            choice["logprobs"] = {"token_logprobs": values, "top_logprobs": top}
        if self.ask.token_ids:
            choice["token_ids"] = [draft.token_id(at) for at in range(len(draft.words))]
        return {**choice, "finish_reason": draft.finish, "stop_reason": draft.stopped_by}

    def _word_event(self, n: int, draft: Draft) -> bytes:
        word = draft.grow()
        if not self._plain or draft.ended:
            return self._full_event(n, draft, word)
        return self._heads[n] + word + b'","logprobs":null,"finish_reason":null,"stop_reason":null}]}\n\n'

    def _full_event(self, n: int, draft: Draft, word: bytes) -> bytes:
        choice: dict[str, Any] = {"index": n, "text": word.decode(), "logprobs": None}
        if self.ask.top_logprobs >= 0:
            value, candidates = self._logprobs(draft)
            choice["logprobs"] = {"token_logprobs": [value], "top_logprobs": [candidates]}
        if self.ask.token_ids:
            choice["token_ids"] = [draft.token_id()]
        choice["finish_reason"] = draft.finish if draft.ended else None
        choice["stop_reason"] = draft.stopped_by if draft.ended else None
        return _event({**self._outline("text_completion"), "choices": [choice]})

    def _logprobs(self, draft: Draft) -> tuple[float, dict[str, float]]:
        candidates = draft.candidates(max(1, self.ask.top_logprobs), self.noise)
        name = "token_id:{}" if self.ask.tokens_as_ids else "{}"
        return next(iter(candidates.values())), {name.format(token): value for token, value in candidates.items()}


class ChatAnswer(Answer):
    """``/v1/chat/completions``."""

    prefix = "chatcmpl-"

    def __init__(self, ask: Ask, model: str) -> None:
        super().__init__(ask, model)
        self._plain = ask.top_logprobs < 0 and not ask.token_ids
        head = b'data: {"id":"%b","object":"chat.completion.chunk","created":%d,"model":%b,"choices":[{"index":' % (
            self.id.encode(),
            self.created,
            _json(model),
        )
        self._heads = [head + b'%d,"delta":{"content":"' % n for n in range(ask.n)]

    def opening(self) -> list[bytes]:
        """The role, for each choice."""
        return [
            self._chunk({"index": n, "delta": {"role": "assistant", "content": ""}, "finish_reason": None})
            for n in range(self.ask.n)
        ]

    def closing(self) -> list[bytes]:
        """The usage, if asked for, and ``[DONE]``."""
        if not self.ask.include_usage:
            return [b"data: [DONE]\n\n"]
        return [
            _event({**self._outline("chat.completion.chunk"), "choices": [], "usage": self.usage()}),
            *super().closing(),
        ]

    def document(self) -> bytes:
        """The answer as one document."""
        choices = []
        for n, draft in enumerate(self.drafts):
            logprobs: list[Any] = []
            parts = []
            while not draft.ended:
                parts.append(draft.grow())
                if self.ask.top_logprobs >= 0:
                    logprobs.append(self._logprobs(draft))
            message = {"role": "assistant", "content": b"".join(parts).decode()}
            choice: dict[str, Any] = {
                "index": n,
                "message": message,
                "logprobs": {"content": logprobs} if logprobs else None,
            }
            if self.ask.token_ids:
                choice["token_ids"] = [draft.token_id(at) for at in range(len(draft.words))]
            choices.append({**choice, "finish_reason": draft.finish, "stop_reason": draft.stopped_by})
        return _json({**self._outline("chat.completion"), "choices": choices, "usage": self.usage()})

    def _outline(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        return _event({**self._outline("chat.completion.chunk"), "choices": [choice]})

    def _word_event(self, n: int, draft: Draft) -> bytes:
        word = draft.grow()
        if self._plain and not draft.ended:
            return self._heads[n] + word + b'"},"logprobs":null,"finish_reason":null}]}\n\n'
        choice: dict[str, Any] = {"index": n, "delta": {"content": word.decode()}, "logprobs": None}
        if self.ask.top_logprobs >= 0:
            choice["logprobs"] = {"content": [self._logprobs(draft)]}
        if self.ask.token_ids:
            choice["token_ids"] = [draft.token_id()]
        choice["finish_reason"] = draft.finish if draft.ended else None
        if draft.ended:
            choice["stop_reason"] = draft.stopped_by
        return self._chunk(choice)

    def _logprobs(self, draft: Draft) -> dict[str, Any]:
        found = [
            {"token": f"token_id:{token}", "logprob": value, "bytes": None}
            for token, value in draft.candidates(max(1, self.ask.top_logprobs), self.noise).items()
        ]
        return {**found[0], "top_logprobs": found[: self.ask.top_logprobs]}


class ResponsesAnswer(Answer):
    """``/v1/responses``: one message of text."""

    prefix = "resp_"
    _sequence = 0

    def opening(self) -> list[bytes]:
        """The response, its message and the message's one part begin."""
        return [
            self._named("response.created", response=self._response("in_progress", [])),
            self._named("response.in_progress", response=self._response("in_progress", [])),
            self._named("response.output_item.added", output_index=0, item=self._message("", "in_progress")),
            self._named("response.content_part.added", **self._place(), part=self._part("")),
        ]

    def closing(self) -> list[bytes]:
        """Part, message and response are complete; there is no ``[DONE]`` in this API."""
        text = self.drafts[0].packed().decode()
        return [
            self._named("response.output_text.done", **self._place(), text=text, logprobs=[]),
            self._named("response.content_part.done", **self._place(), part=self._part(text)),
            self._named("response.output_item.done", output_index=0, item=self._message(text, "completed")),
            self._named("response.completed", response=self._response("completed", [self._message(text, "completed")])),
        ]

    def document(self) -> bytes:
        """The answer as one document."""
        text = self._text(self.drafts[0])
        return _json(self._response("completed", [self._message(text, "completed")]))

    def _word_event(self, n: int, draft: Draft) -> bytes:
        return self._named("response.output_text.delta", **self._place(), delta=draft.grow().decode(), logprobs=[])

    def _named(self, kind: str, **fields: Any) -> bytes:
        self._sequence += 1
        return _named_event({"type": kind, "sequence_number": self._sequence - 1, **fields})

    def _place(self) -> dict[str, Any]:
        return {"item_id": f"msg_{self.id}", "output_index": 0, "content_index": 0}

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _message(self, text: str, status: str) -> dict[str, Any]:
        content = [self._part(text)] if text else []
        return {"id": f"msg_{self.id}", "type": "message", "role": "assistant", "status": status, "content": content}

    def _response(self, status: str, output: list[Any]) -> dict[str, Any]:
        usage = None
        if status == "completed":
            prompt, completion = self.ask.prompt_tokens, self.completion_tokens
            usage = {
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": max(0, self.cached_tokens)},
                "output_tokens": completion,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompt + completion,
            }
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "model": self.model,
            "status": status,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": usage,
        }


class MessagesAnswer(Answer):
    """``/v1/messages``: Anthropic's form, one block of text."""

    prefix = "msg_"

    def opening(self) -> list[bytes]:
        """The message and its one block begin."""
        return [
            _named_event({"type": "message_start", "message": {**self._message(), "content": [], "stop_reason": None}}),
            _named_event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        ]

    def closing(self) -> list[bytes]:
        """Block and message are complete; there is no ``[DONE]`` in this API."""
        delta = {"stop_reason": self._reason(), "stop_sequence": self.drafts[0].stopped_by}
        return [
            _named_event({"type": "content_block_stop", "index": 0}),
            _named_event({"type": "message_delta", "delta": delta, "usage": self.usage()}),
            _named_event({"type": "message_stop"}),
        ]

    def document(self) -> bytes:
        """The answer as one document."""
        text = self._text(self.drafts[0])
        content = [{"type": "text", "text": text}]
        return _json({**self._message(), "content": content, "stop_reason": self._reason()})

    def usage(self) -> dict[str, Any]:
        """Anthropic's usage object: tokens from the cache are not among the input tokens."""
        cached = max(0, self.cached_tokens)
        return {
            "input_tokens": self.ask.prompt_tokens - cached,
            "cache_read_input_tokens": cached,
            "output_tokens": self.completion_tokens,
        }

    def _word_event(self, n: int, draft: Draft) -> bytes:
        delta = {"type": "text_delta", "text": draft.grow().decode()}
        return _named_event({"type": "content_block_delta", "index": 0, "delta": delta})

    def _message(self) -> dict[str, Any]:
        outline = {"id": self.id, "type": "message", "role": "assistant", "model": self.model}
        return {**outline, "stop_sequence": None, "usage": self.usage()}

    def _reason(self) -> str:
        draft = self.drafts[0]
        if draft.stopped_by is not None:
            return "stop_sequence"
        return "max_tokens" if draft.finish == "length" else "end_turn"


class EmbeddingsAnswer(Answer):
    """``/v1/embeddings``: numbers from -1 to 1 that follow from the text."""

    prefix = "embd-"

    def document(self) -> bytes:
        """The answer as one document."""
        draft = Draft(self.ask.context, 0, DIMENSIONS, "stop")
        self._text(draft)
        vector = [number / 2048 - 1 for number in draft.words]
        packed = b64encode(struct.pack(f"<{DIMENSIONS}f", *vector)).decode()
        prompt = self.ask.prompt_tokens
        return _json(
            {
                "id": self.id,
                "object": "list",
                "created": self.created,
                "model": self.model,
                "data": [{"index": 0, "object": "embedding", "embedding": packed if self.ask.base64 else vector}],
                "usage": {"prompt_tokens": prompt, "total_tokens": prompt, "completion_tokens": 0},
            }
        )
