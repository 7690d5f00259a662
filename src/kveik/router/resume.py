"""A stream with which another engine goes on: what was said so far, and the request that asks for the rest. No I/O.

The engine that goes on gets the prompt with the text that the client has already: as the beginning of a completion, or
as the last message of a chat, which it continues (``continue_final_message``, vLLM's
``entrypoints/openai/chat_completion/protocol.py``). So only plain text with one choice can go on
(:attr:`.body_kinds.Generation.is_resumable`); what else turns up in a stream (reasoning, tool calls, log probabilities)
makes it one that cannot. Text is cut into tokens anew at the seam, so the rest may differ from what the lost engine
would have said, as two runs of a seeded request may.
"""

import re
from typing import Any

import msgspec

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.encode
_DATA, _DONE = b"data:", b"[DONE]"
_EVENT = re.compile(rb".*?(?:\n\n|\r\n\r\n)", re.DOTALL)
_LIMITS = ("max_tokens", "max_completion_tokens")
#: Members of a chat's body by which its last message is not simply to be answered.
_OWN_WAYS = ("continue_final_message", "add_generation_prompt")


class Resumption:
    """One stream of ``/chat/completions`` (``chat``) or ``/completions``.

    ``error``: the event by which the engine told of an error, empty if none did; the client has not got it.
    """

    __slots__ = (
        "_before", "_body", "_chat", "_created", "_finished", "_id", "_left", "_plain", "_seam", "_text", "_tokens",
        "error",
    )  # fmt: skip

    def __init__(self, body: bytes, *, chat: bool) -> None:
        self._body, self._chat = body, chat
        self._text = ""
        self._tokens = 0  # pieces of text: engines send one for each token
        self._before = -1  # tokens that came from engines before this one; negative: it is the first
        self._id: object = None
        self._created: object = None
        self._left = b""
        self._seam = ""
        self._plain = True
        self._finished = False
        self.error = b""

    def take(self, data: bytes, *, complete: bool = False) -> bytes:
        """What the client may have of the body (without its framing): whole events, since none but its engine ends one.

        Events of the first engine stay as they came; those of others get its id, and a usage that counts all.
        """
        data = self._left + data
        events: list[bytes] = _EVENT.findall(data)
        self._left = data[sum(map(len, events)) :]
        if complete:
            events.append(self._left)
            self._left = b""
        passed: list[bytes] = []
        for event in events:
            shown = self._see(event)
            if self.error:
                break
            passed.append(shown)
        return b"".join(passed)

    def continued(self) -> bytes | None:
        """The body of the request for the rest; None where nothing can go on with it."""
        self._left, self.error = b"", b""
        if not self._plain or self._finished:
            return None
        try:
            body = _decode(self._body)
        except msgspec.DecodeError:
            return None
        self._before, self._seam = self._tokens, self._text[len(self._text.rstrip()) :]
        if not self._text:
            return self._body
        for name in _LIMITS:
            if isinstance(body.get(name), (int, float)):
                body[name] = max(1, int(body[name]) - self._tokens)
        if not self._chat:
            if not isinstance(body.get("prompt"), str):
                return None
            body["prompt"] += self._text
            return _encode(body)
        messages = body.get("messages")
        if any(body.get(name) is not None for name in _OWN_WAYS) or not isinstance(messages, list) or not messages:
            return None
        if not isinstance(messages[-1], dict) or messages[-1].get("role") == "assistant":
            return None
        messages.append({"role": "assistant", "content": self._text})
        body["add_generation_prompt"], body["continue_final_message"] = False, True
        return _encode(body)

    def _see(self, event: bytes) -> bytes:
        """Learn from one event, and make of it what the client gets."""
        line = event.strip()
        if not line.startswith(_DATA):
            return event
        text = line[len(_DATA) :].strip()
        if text == _DONE:
            return event
        try:
            told = _decode(text)
        except msgspec.DecodeError:
            self._plain = False
            return event
        if told.get("error"):
            self.error = line
            return b""
        if self._before < 0:
            if self._id is None:
                self._id, self._created = told.get("id"), told.get("created")
            self._learn(told)
            return event
        return self._joined(told)

    def _learn(self, told: dict[str, Any]) -> str:
        """The text of one event, added to all text."""
        choices = told.get("choices") or []
        if len(choices) > 1:
            self._plain = False
        if len(choices) != 1:
            return ""
        choice = choices[0]
        if choice.get("logprobs"):
            self._plain = False
        if choice.get("finish_reason"):
            self._finished = True
        said = choice.get("delta") if self._chat else {"content": choice.get("text")}
        if not isinstance(said, dict) or any(value for name, value in said.items() if name not in ("role", "content")):
            self._plain = False
            return ""
        text = said.get("content") or ""
        self._text += text
        self._tokens += bool(text)
        return str(text)

    def _joined(self, told: dict[str, Any]) -> bytes:
        """An event of an engine that goes on, as if the first one had sent it; nothing if it only begins an answer."""
        choices = told.get("choices") or []
        if self._seam and choices:
            self._drop_seam(choices[0])
        text = self._learn(told)
        if choices and self._chat and isinstance(choices[0].get("delta"), dict):
            choices[0]["delta"].pop("role", None)
        if choices and not text and not choices[0].get("finish_reason") and not told.get("usage"):
            return b""
        if self._id is not None:
            told["id"], told["created"] = self._id, self._created
        usage = told.get("usage")
        if isinstance(usage, dict):
            usage["prompt_tokens"] = max(0, usage.get("prompt_tokens", 0) - self._before)
            usage["completion_tokens"] = usage.get("completion_tokens", 0) + self._before
        return b"data: %s\n\n" % _encode(told)

    def _drop_seam(self, choice: dict[str, Any]) -> None:
        """White space at the seam, which templates may cut off, would come twice."""
        where = choice.get("delta") if self._chat else choice
        name = "content" if self._chat else "text"
        if isinstance(where, dict) and isinstance(where.get(name), str) and where[name]:
            where[name] = where[name].removeprefix(self._seam)
            self._seam = ""
