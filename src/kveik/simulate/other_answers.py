"""Answers of the APIs beside completions and chats: responses, messages, embeddings."""

import struct
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import msgspec

from kveik.simulate.answers import Answer
from kveik.simulate.drafts import Draft

_json: Callable[[Any], bytes] = msgspec.json.Encoder().encode

#: Length of an embedding.
DIMENSIONS = 16


def _named_event(document: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (document["type"].encode(), _json(document))


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
        text = self.drafts[0].rest()
        return _json(self._response("completed", [self._message(text, "completed")]))

    def _word_events(self, n: int, draft: Draft, count: int) -> list[bytes]:
        return [
            self._named("response.output_text.delta", **self._place(), delta=word.decode(), logprobs=[])
            for word in draft.grow(count)
        ]

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
        text = self.drafts[0].rest()
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

    def _word_events(self, n: int, draft: Draft, count: int) -> list[bytes]:
        block = {"type": "content_block_delta", "index": 0}
        return [
            _named_event({**block, "delta": {"type": "text_delta", "text": word.decode()}})
            for word in draft.grow(count)
        ]

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
        draft.grow(DIMENSIONS)
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
