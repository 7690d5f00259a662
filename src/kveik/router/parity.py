"""Whether the router turns bodies into the same tokens as an engine: tried out with bodies of 14 kinds.

Engines tell tokens at ``/tokenize``, for prompts and chats. For other endpoints, and for prompts that are
token ids already, the engine gets a real request for one token. Its prompt stands under a salt of its own,
by which its blocks are known among the engine's KV events: their tokens are what it really computed.
"""

import asyncio
import json
import secrets
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kveik.errors import EngineError, RenderError
from kveik.router.fetch import fetch
from kveik.router.rendering import Renders, given_ids
from kveik.router.upstream import EnginePool

SAME, DIFFERS, NOT_OFFERED, UNKNOWN = "same", "differs", "not offered", "unknown"

#: Begins to watch the engine's events for blocks under a salt. What it returns waits a short time for
#: their tokens, and gives those that came.
Watch = Callable[[str], Callable[[], Awaitable[Sequence[int]]]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one kind of body came to. ``how``: by ``/tokenize``, by the tokens in events, or by their number only."""

    kind: str
    result: str
    how: str = ""
    why: str = ""
    tokens: int = 0

    @property
    def document(self) -> dict[str, Any]:
        """As plain values."""
        shown = {"kind": self.kind, "result": self.result, "how": self.how, "why": self.why, "tokens": self.tokens}
        return {name: value for name, value in shown.items() if value}


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


async def check_parity(
    pool: EnginePool, model: str, rendering: Renders | None, watch: Watch, deadline_s: float
) -> list[Verdict]:
    """A verdict on each kind, in order. Without a ``rendering`` only prompts of token ids can be compared."""
    return [await _check(one, pool, model, rendering, watch, deadline_s) for one in KINDS]


async def _check(
    one: BodyOfKind, pool: EnginePool, model: str, rendering: Renders | None, watch: Watch, deadline_s: float
) -> Verdict:
    salt = f"kveik-parity-{secrets.token_hex(8)}"
    body = one.request(model, salt)
    try:
        if one.kind == "prompt ids":
            prompt = given_ids(one.target, body)
        elif rendering is None:
            return Verdict(one.kind, UNKNOWN, why="no folder with the model's tokenizer is known")
        else:
            prompt = await asyncio.to_thread(rendering.prompt, one.target, body)
    except RenderError as error:
        return Verdict(one.kind, UNKNOWN, why=str(error))
    ours = array("I", prompt.packed).tolist()
    try:
        if one.told:
            status, answer = await fetch(pool, b"POST", b"/tokenize", one.question(model), deadline_s=deadline_s)
        else:
            stored = watch(salt)
            status, answer = await fetch(pool, b"POST", one.target, body, deadline_s=deadline_s)
    except EngineError as error:
        return Verdict(one.kind, UNKNOWN, why=str(error), tokens=len(ours))
    if status != 200:
        why = f"status {status}: {answer[:200].decode('utf8', 'replace')}"
        return Verdict(one.kind, UNKNOWN if status >= 500 else NOT_OFFERED, why=why, tokens=len(ours))
    text_of = rendering.text_of if rendering is not None else str
    if one.told:
        return await asyncio.to_thread(verdict, one.kind, ours, _told_tokens(answer), "tokenize", text_of)
    theirs = await stored()
    count = _counted_tokens(answer)
    if count not in (-1, len(ours)):
        where = await asyncio.to_thread(first_difference, ours[: len(theirs)], theirs, text_of)
        return Verdict(
            one.kind, DIFFERS, "count", f"{len(ours)} tokens, the engine counted {count}. {where}", len(ours)
        )
    if not theirs:
        return Verdict(one.kind, SAME if count >= 0 else UNKNOWN, "count", "no event told its tokens", len(ours))
    return await asyncio.to_thread(verdict, one.kind, ours[: len(theirs)], theirs, "events", text_of)


def verdict(
    kind: str, ours: Sequence[int], theirs: Sequence[int] | None, how: str, text_of: Callable[[int], str]
) -> Verdict:
    """The verdict on two lists of tokens."""
    if theirs is None:
        return Verdict(kind, UNKNOWN, how, "the engine's answer has no tokens", len(ours))
    why = first_difference(ours, theirs, text_of)
    return Verdict(kind, DIFFERS if why else SAME, how, why, len(ours))


def first_difference(ours: Sequence[int], theirs: Sequence[int], text_of: Callable[[int], str]) -> str:
    """The first token in which two lists differ, in words; empty if they are equal."""
    for number, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        if our != their:
            return f"token {number} is {our} ({text_of(our)!r}), the engine's is {their} ({text_of(their)!r})"
    if len(ours) == len(theirs):
        return ""
    number = min(len(ours), len(theirs))
    longer, where = (ours, "here") if len(ours) > number else (theirs, "in the engine")
    lengths = f"{len(ours)} tokens here, {len(theirs)} in the engine"
    return f"token {number} is {longer[number]} ({text_of(longer[number])!r}) only {where}: {lengths}"


def _told_tokens(answer: bytes) -> list[int] | None:
    try:
        tokens = json.loads(answer)["tokens"]
    except (ValueError, KeyError, TypeError):
        return None
    return tokens if isinstance(tokens, list) and all(type(one) is int for one in tokens) else None


def _counted_tokens(answer: bytes) -> int:
    """How many prompt tokens an answer says it had; -1 if it doesn't say."""
    try:
        usage = json.loads(answer)["usage"]
        if "prompt_tokens" in usage:
            return int(usage["prompt_tokens"])
        cached = (usage.get("cache_read_input_tokens") or 0) + (usage.get("cache_creation_input_tokens") or 0)
        return int(usage["input_tokens"]) + int(cached)
    except (ValueError, KeyError, TypeError, AttributeError):
        return -1
