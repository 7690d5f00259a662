"""The simulated engine's own tokenizer: four bytes of UTF-8 are one token.

It stands in for a real one in what matters to caches and routers: it is deterministic, equal text
from the start gives equal tokens from the start, ids can be turned back into text, and a token is
about as long as a real one. A sequence of tokens is kept *packed*: four bytes a token, little
endian, so the text of a prompt is its packed form, padded with zero bytes to whole tokens.
"""

import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

TOKEN_BYTES = 4
MAX_TOKEN_ID = (1 << 32) - 1

_PADDING = (b"", b"\0\0\0", b"\0\0", b"\0")

#: One word a generated token: a space and three letters, so an answer never needs padding.
WORDS = tuple(
    f" {a}{b}{c}".encode() for a in "abdefghiklmnorst" for b in "aeiouylrnmsthdgk" for c in "abdefghiklmnorst"
)


def pack_text(text: str) -> bytes:
    """The tokens of ``text``, packed. A lone surrogate, which JSON can hold, becomes a question mark."""
    data = text.encode("utf8", "replace")
    return data + _PADDING[len(data) % TOKEN_BYTES]


def pack_ids(ids: Iterable[int]) -> bytes:
    """Token ids, packed. Raises :class:`ValueError` for an id below 0 or above :data:`MAX_TOKEN_ID`."""
    try:
        return array("I", ids).tobytes()
    except (OverflowError, TypeError) as error:
        raise ValueError(f"token ids must be whole numbers from 0 to {MAX_TOKEN_ID}") from error


def token_ids(packed: bytes) -> list[int]:
    """The ids of packed tokens."""
    return array("I", packed).tolist()


def text_of(packed: bytes) -> str:
    """The text of packed tokens; what is no UTF-8 becomes replacement characters."""
    return packed.replace(b"\0", b"").decode("utf8", "replace")


def render_chat(
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Any] = (),
    template_options: Mapping[str, Any] | None = None,
    generation_prompt: bool = True,
    open_end: bool = False,
) -> bytes:
    """The prompt of a chat, packed: each part of it is whole tokens, so a longer chat has the same start.

    ``open_end`` leaves out what closes the last message: the answer continues it.
    """
    parts = []
    for name, value in (("options", template_options), ("tools", tools)):
        if value:
            parts += [_marker(name), pack_text(json.dumps(value, sort_keys=True))]
    for message in messages:
        parts += [_marker(message.get("role", "user")), pack_text(_content(message)), b"\n\0\0\0"]
    if open_end and messages:
        parts.pop()
    elif generation_prompt:
        parts.append(_marker("assistant"))
    return b"".join(parts)


def _marker(name: Any) -> bytes:
    """What begins a message; filled with spaces, since zero bytes at the end of a prompt count as padding."""
    data = f"<|{name}|>".encode("utf8", "replace")
    return data + b" " * (-len(data) % TOKEN_BYTES)


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str) and len(message) == 2 and "role" in message:
        return content
    text = content if isinstance(content, str) else "".join(map(_part, content or ()))
    rest = {name: value for name, value in message.items() if name not in {"role", "content"} and value}
    return text + json.dumps(rest, sort_keys=True) if rest else text


def _part(part: Any) -> str:
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    return part if isinstance(part, str) else json.dumps(part, sort_keys=True)
