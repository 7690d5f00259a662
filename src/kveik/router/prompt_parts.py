"""Takes a request's prompt apart: tools, system prompt, messages and what is in them, in the order of templates. Pure.

Only what a chat template renders counts, and of each part the JSON as the client wrote it, so that most parts are
compared by one hash. What changes all keys of a prompt without being text (cache salt, template options) is one
part too, the first. Images and sounds are parts by themselves.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Raw

from kveik.router.body_kinds import NOTHING
from kveik.router.conversation import BILLING_HEADER
from kveik.router.prompt import MEDIA_TOKENS, TOKEN_BYTES

#: What a part is: template options, a tool, an image or sound, reasoning, calls of tools, else the role of who speaks.
OPTIONS: Final = "options"
TOOL: Final = "tool"
MEDIA: Final = "media"
REASONING: Final = "reasoning"
CALLS: Final = "calls"
SYSTEM: Final = "system"
ASSISTANT: Final = "assistant"
PROMPT: Final = "prompt"
TOKENS: Final = "token ids"
RESULT: Final = "tool result"

#: Parts of one prompt that are looked at; what follows counts as not there.
PARTS_MAX = 2000
#: What an image or sound counts as, whatever its size.
MEDIA_BYTES = MEDIA_TOKENS * TOKEN_BYTES

_THINKS = (b'"<think>', b'"\\n<think>')
_BILLING = b'"' + BILLING_HEADER.encode()
_EMPTY = frozenset((b"", b"null", b'""', b"[]", b"{}"))


class Part(msgspec.Struct, frozen=True, gc=False):
    """One part. ``index``: of its message, from 0; -1 outside of messages. ``raw``: its JSON.

    ``encoded``: the JSON is one string, whose text counts. ``size_bytes`` is what it adds to the prompt.
    """

    label: str
    index: int
    raw: bytes
    encoded: bool = False

    @property
    def size_bytes(self) -> int:
        """What it adds to the prompt: of options nothing, and of a medium its tokens."""
        if self.label == OPTIONS:
            return 0
        if self.label == MEDIA:
            return MEDIA_BYTES
        return max(0, len(self.raw) - 2) if self.encoded else len(self.raw)

    @property
    def thinks(self) -> bool:
        """Whether its text begins with a block of reasoning."""
        return self.raw.startswith(_THINKS)

    def text(self) -> bytes:
        """What is compared, in UTF-8: of other JSON than strings its members in their order, without white space.

        Ids of calls are left out: they say who called, and few templates render them.
        """
        if self.label in _AS_THEY_ARE:
            return self.raw
        try:
            value = msgspec.json.decode(self.raw)
        except msgspec.DecodeError:  # half a surrogate pair, over which some clients cut their texts
            return self.raw
        if self.encoded:
            return str(value).encode("utf8", "replace")
        return msgspec.json.encode(_without_ids(value) if self.label in (CALLS, RESULT) else value)

    def any_order(self) -> bytes:
        """The same of JSON, with members sorted."""
        try:
            return msgspec.json.encode(msgspec.json.decode(self.raw), order="sorted")
        except msgspec.DecodeError:
            return self.raw


_AS_THEY_ARE = frozenset((OPTIONS, MEDIA, TOKENS))
_IDS = frozenset(("id", "call_id", "tool_use_id", "tool_call_id"))


def _without_ids(value: Any) -> Any:
    """A call or a list of calls without ids."""
    if isinstance(value, list):
        return [_without_ids(one) for one in value]
    if isinstance(value, dict):
        return {name: one for name, one in value.items() if name not in _IDS}
    return value


class _Chat(msgspec.Struct, gc=False):
    tools: list[Raw] | None = None
    functions: list[Raw] | None = None
    messages: list[Raw] | None = None
    cache_salt: Raw = NOTHING
    tool_choice: Raw = NOTHING
    documents: Raw = NOTHING
    chat_template: Raw = NOTHING
    chat_template_kwargs: Raw = NOTHING
    reasoning_effort: Raw = NOTHING
    thinking: Raw = NOTHING
    system: Raw = NOTHING


class _Response(msgspec.Struct, gc=False):
    tools: list[Raw] | None = None
    instructions: Raw = NOTHING
    input: Raw = NOTHING
    cache_salt: Raw = NOTHING
    reasoning: Raw = NOTHING


class _Completion(msgspec.Struct, gc=False):
    prompt: Raw = NOTHING
    cache_salt: Raw = NOTHING


class _Item(msgspec.Struct, gc=False):
    """A message, a block of one, or an item of a response's input."""

    type: str = ""
    role: str = ""
    content: Raw = NOTHING
    text: Raw = NOTHING
    thinking: Raw = NOTHING
    reasoning: Raw = NOTHING
    reasoning_content: Raw = NOTHING
    tool_calls: Raw = NOTHING
    function_call: Raw = NOTHING


_chat = msgspec.json.Decoder(_Chat).decode
_response = msgspec.json.Decoder(_Response).decode
_completion = msgspec.json.Decoder(_Completion).decode
_item = msgspec.json.Decoder(_Item).decode
_items = msgspec.json.Decoder(list[Raw]).decode

_TEXT_TYPES = frozenset(("", "text", "input_text", "output_text"))
_MEDIA_WORDS = ("image", "audio", "video", "file", "document")


def parts_of(target: bytes, body: bytes) -> list[Part]:
    """The parts of a prompt; none where the endpoint has no single prompt or the body is not as expected."""
    read = _READERS.get(target.partition(b"?")[0].rstrip(b"/"))
    if read is None:
        return []
    parts: list[Part] = []
    try:
        for part in read(body):
            parts.append(part)
            if len(parts) == PARTS_MAX:
                break
    except (msgspec.DecodeError, RecursionError):
        return []
    return parts


def _of_chat(body: bytes) -> Iterator[Part]:
    read: _Chat = _chat(body)
    yield _options(
        read.cache_salt, read.tool_choice, read.documents, read.chat_template, read.chat_template_kwargs,
        read.reasoning_effort, read.thinking,
    )  # fmt: skip
    yield from _of_tools(read.tools or read.functions)
    yield from _of_content(SYSTEM, -1, read.system)
    for index, message in enumerate(read.messages or ()):
        yield from _of_item(index, message)


def _of_messages(body: bytes) -> Iterator[Part]:
    """Of this endpoint engines leave one client's billing line out, as :mod:`kveik.router.conversation` does."""
    for part in _of_chat(body):
        if part.label != SYSTEM or not part.raw.startswith(_BILLING):
            yield part


def _of_response(body: bytes) -> Iterator[Part]:
    read: _Response = _response(body)
    yield _options(read.cache_salt, read.reasoning)
    yield from _of_tools(read.tools)
    yield from _of_content(SYSTEM, -1, read.instructions)
    if bytes(read.input)[:1] == b"[":
        for index, item in enumerate(_items(read.input)):
            yield from _of_item(index, item)
    else:
        yield from _of_content("user", 0, read.input)


def _of_completion(body: bytes) -> Iterator[Part]:
    read: _Completion = _completion(body)
    yield _options(read.cache_salt)
    given = bytes(read.prompt)
    if given[:1] == b"[":
        inside = _items(given)
        if len(inside) == 1 and bytes(inside[0])[:1] in (b'"', b"["):
            given = bytes(inside[0])
        elif not inside or not bytes(inside[0])[:1].isdigit():
            return  # several prompts
    if given not in _EMPTY:
        is_text = given[:1] == b'"'
        yield Part(PROMPT if is_text else TOKENS, -1, given, is_text)


def _options(*members: Raw) -> Part:
    return Part(OPTIONS, -1, b"\0".join(map(bytes, members)))


def _of_tools(tools: list[Raw] | None) -> Iterator[Part]:
    for tool in tools or ():
        yield Part(TOOL, -1, bytes(tool))


def _of_item(index: int, raw: Raw) -> Iterator[Part]:
    item: _Item = _item(raw)
    if item.type == "reasoning":  # of /v1/responses
        yield Part(REASONING, index, bytes(raw))
        return
    if not item.role:
        yield Part(CALLS if item.type == "function_call" else RESULT, index, bytes(raw))
        return
    reasoning = bytes(item.reasoning) or bytes(item.reasoning_content)
    if reasoning not in _EMPTY:
        yield Part(REASONING, index, reasoning, reasoning[:1] == b'"')
    yield from _of_content(_LABELS.get(item.role, item.role), index, item.content)
    for calls in (bytes(item.tool_calls), bytes(item.function_call)):
        if calls not in _EMPTY:
            yield Part(CALLS, index, calls)


_LABELS = {"developer": SYSTEM, "tool": RESULT, "function": RESULT}


def _of_content(label: str, index: int, content: Raw) -> Iterator[Part]:
    raw = bytes(content)
    if raw in _EMPTY:
        return
    if raw[:1] != b"[":
        yield Part(label, index, raw, raw[:1] == b'"')
        return
    for block in _items(raw):
        yield from _of_block(label, index, block)


def _of_block(label: str, index: int, block: Raw) -> Iterator[Part]:
    whole = bytes(block)
    if whole[:1] != b"{":
        yield Part(label, index, whole, whole[:1] == b'"')
        return
    item: _Item = _item(block)
    if item.type in _TEXT_TYPES:
        text = bytes(item.text)
        if text not in _EMPTY:
            yield Part(label, index, text, text[:1] == b'"')
    elif item.type == "thinking":
        yield Part(REASONING, index, bytes(item.thinking), True)
    elif item.type == "tool_use":
        yield Part(CALLS, index, whole)
    elif item.type == "tool_result":
        yield Part(RESULT, index, whole)
    else:
        media = any(word in item.type for word in _MEDIA_WORDS)
        yield Part(MEDIA if media else label, index, whole)


_READERS = {
    b"/v1/chat/completions": _of_chat,
    b"/v1/messages": _of_messages,
    b"/v1/responses": _of_response,
    b"/v1/completions": _of_completion,
}
