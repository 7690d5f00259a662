"""The bodies of 14 kinds by which it is tried out whether two sides render prompts alike. Values only."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BodyOfKind:
    """One of the bodies. ``told``: ``/tokenize`` can be asked for its tokens."""

    kind: str
    target: bytes
    members: Mapping[str, Any]
    told: bool = True

    def request(self, model: str, salt: str = "") -> bytes:
        """The body, for one token of an answer."""
        limit = "max_output_tokens" if self.target == b"/v1/responses" else "max_tokens"
        members = {"model": model, limit: 1, "temperature": 0, **self.members}
        return json.dumps(members | ({"cache_salt": salt} if salt else {})).encode()

    def question(self, model: str) -> bytes:
        """The same prompt for ``/tokenize``."""
        return json.dumps({"model": model, **self.members}).encode()


_LONG = "The harbour master counts the boats that come in, and writes each of them into the book of the day. " * 16
_TOOL = {
    "type": "function",
    "function": {
        "name": "tide_table",
        "description": "When the water is high.",
        "parameters": {"type": "object", "properties": {"harbour": {"type": "string"}}, "required": ["harbour"]},
    },
}
_ASKED = {"role": "user", "content": "When is high water in Bergen?"}
_CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "tide_table", "arguments": '{"harbour": "Bergen"}'}}
    ],
}
_CHAT, _TEXT = b"/v1/chat/completions", b"/v1/completions"


def _chat(kind: str, *messages: Mapping[str, Any], **members: Any) -> BodyOfKind:
    return BodyOfKind(kind, _CHAT, {"messages": list(messages), **members})


#: The 14 kinds.
KINDS: Sequence[BodyOfKind] = (
    BodyOfKind("prompt text", _TEXT, {"prompt": f"Once upon a time. {_LONG}"}),
    BodyOfKind("prompt ids", _TEXT, {"prompt": [5 + number % 40 for number in range(300)]}, told=False),
    _chat("chat", {"role": "system", "content": "Be brief."}, _ASKED, {"role": "assistant", "content": "At six."},
          {"role": "user", "content": "And low?"}),
    _chat("system as parts", {"role": "system", "content": [{"type": "text", "text": "Be brief."},
          {"type": "text", "text": "Be kind."}]}, _ASKED),
    _chat("tools", _ASKED, tools=[_TOOL]),
    _chat("tool results", _ASKED, _CALLED, {"role": "tool", "tool_call_id": "call_1", "content": "06:12 and 18:40"},
          tools=[_TOOL]),
    _chat("chat_template_kwargs", _ASKED, chat_template_kwargs={"enable_thinking": False, "custom": "value"}),
    _chat("add_generation_prompt=false", _ASKED, {"role": "assistant", "content": "At six."},
          add_generation_prompt=False),
    _chat("assistant with reasoning", _ASKED, {"role": "assistant", "content": "At six.",
          "reasoning": "The moon is full, so it is early."}, {"role": "user", "content": "Are you sure?"}),
    BodyOfKind("responses with text", b"/v1/responses", {"input": _LONG}, told=False),
    BodyOfKind("responses with a list", b"/v1/responses", {"instructions": "Be brief.", "input": [
        {"role": "user", "content": _LONG},
        {"role": "assistant", "content": "At six."},
        {"role": "user", "content": [{"type": "input_text", "text": "And low?"}]},
    ]}, told=False),
    BodyOfKind("messages with system blocks", b"/v1/messages", {
        "system": [{"type": "text", "text": "Be brief. "}, {"type": "text", "text": _LONG}],
        "messages": [_ASKED, {"role": "assistant", "content": [{"type": "text", "text": "At six."}]},
                     {"role": "user", "content": [{"type": "text", "text": "And low?"}]}],
    }, told=False),
    _chat("Chinese", {"role": "user", "content": "请用中文简要说明：港口今天有几艘船？谢谢！"}),
    _chat("emoji with joiners", {"role": "user", "content": "👩‍👩‍👧‍👦 sail ⛵️ to 🏴‍☠️, e\u0301 and é"}),
)  # fmt: skip
