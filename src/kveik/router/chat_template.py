"""Renders conversations as an engine's chat template does: vLLM's view of messages, Hugging Face's of Jinja.

The template comes from the model's folder and runs in Jinja's sandbox, which keeps it from everything but
its variables.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kveik.errors import RenderError
from kveik.router.conversation import BILLING_HEADER, Conversation, Plain

_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
#: Members of parts that mean something to engines; any other is left in for the template.
_PART_MEMBERS = frozenset((
    "audio_embeds", "audio_url", "closed", "data", "file", "image_embeds", "image_pil", "image_url", "input_audio",
    "name", "prompt_cache_breakpoint", "refusal", "text", "thinking", "type", "uuid", "video_embeds", "video_url",
))  # fmt: skip


class ChatTemplate:
    """One template. ``special_tokens``: names (``bos_token``, ...) that templates use, and their texts."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Raises :class:`RenderError` for a template that can't be compiled."""
        self._special_tokens = dict(special_tokens)
        environment = _environment()
        try:
            self._render = environment.from_string(source).render
            parsed = environment.parse(source)
        except jinja2.TemplateError as error:
            raise RenderError(f"its chat template cannot be compiled: {error}") from error
        self._as_parts = any(_goes_through_content(loop) for loop in parsed.find_all(jinja2.nodes.For))
        self._knows_developer = "'developer'" in source or '"developer"' in source
        self._takes_system_anywhere = self._try_system_in_between()

    def render(self, conversation: Conversation) -> str:
        """The prompt's text. Raises :class:`RenderError`."""
        messages = conversation.messages
        variables = {**self._special_tokens, "tools": conversation.tools, "documents": None, **conversation.options}
        try:
            if conversation.merges_system and not self._takes_system_anywhere:
                messages = _one_system_message(messages, "")
            shown = template_messages(messages, as_parts=self._as_parts, knows_developer=self._knows_developer)
            return self._render({**variables, "messages": shown})
        except RenderError:
            raise
        except Exception as error:  # whatever a template does with what the client sent
            raise RenderError(f"the chat template failed: {error}") from error

    def _try_system_in_between(self) -> bool:
        roles = ("system", "user", "system", "user")
        try:
            self._render(
                {"messages": [{"role": role, "content": "t"} for role in roles], "add_generation_prompt": False}
            )
        except (jinja2.TemplateError, TypeError):
            return False
        return True


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks what the assistant said, which matters to training only."""

    tags = {"generation"}  # noqa: RUF012 (as the base class has it)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """The marked part as if there were no mark."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)  # noqa: DTZ005 (as engines do)
    return environment


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _goes_through_content(loop: jinja2.nodes.For) -> bool:
    """Whether a loop runs over the parts of a message's content."""
    node: jinja2.nodes.Node | None = loop.iter
    while True:
        if (isinstance(node, (jinja2.nodes.Filter, jinja2.nodes.Test)) and node.node is not None) or (
            isinstance(node, jinja2.nodes.Getitem) and isinstance(node.arg, jinja2.nodes.Slice)
        ):
            node = node.node
        else:
            break
    if isinstance(node, jinja2.nodes.Name):
        return node.name == "content"
    if isinstance(node, jinja2.nodes.Getattr):
        return node.attr == "content"
    return (
        isinstance(node, jinja2.nodes.Getitem)
        and isinstance(node.arg, jinja2.nodes.Const)
        and node.arg.value == "content"
    )


def template_messages(messages: Sequence[Plain], *, as_parts: bool, knows_developer: bool) -> list[Plain]:
    """The messages in the form that chat templates expect.

    ``as_parts``: contents are lists of parts, since the template goes through them; else text.
    Raises :class:`RenderError` for contents that are no text.
    """
    shown = [_template_message(message, as_parts=as_parts) for message in messages]
    if not knows_developer and any(message["role"] == "developer" for message in shown):
        renamed = [{**one, "role": "system"} if one["role"] == "developer" else one for one in shown]
        return _one_system_message(renamed, "\n\n")
    return shown


def _template_message(message: Plain, *, as_parts: bool) -> Plain:
    role = message["role"]
    shown: Plain = {"role": role, "content": _content(message.get("content"), role, as_parts=as_parts)}
    if role == "assistant":
        if message.get("tool_calls"):
            shown["tool_calls"] = [_parsed_call(call) for call in message["tool_calls"]]
        if message.get("reasoning") is not None:
            shown["reasoning"] = shown["reasoning_content"] = message["reasoning"]
    elif role == "tool":
        if "tool_call_id" in message:
            shown["tool_call_id"] = message["tool_call_id"]
        if as_parts:
            shown["content"] = "\n".join(part["text"] for part in shown["content"])
    for name in ("name", "task"):
        if isinstance(message.get(name), str):
            shown[name] = message[name]
    if role == "developer":
        if message.get("tools"):
            raise RenderError("tools of a developer message")
        shown["tools"] = None
    return shown


def _content(content: object, role: str, *, as_parts: bool) -> str | list[Plain]:
    if content is None:
        parts = []
    elif isinstance(content, str):
        parts = [_text_part(content)]
    elif isinstance(content, list):
        parts = [part for given in content if (part := _read_part(given)) is not None]
    else:
        raise RenderError("contents that are neither text nor a list")
    if role == "system":
        parts = [rest for part in parts if (rest := _without_billing_header(part)) is not None]
    return parts if as_parts else "\n".join(part["text"] for part in parts if part["text"])


def _text_part(text: str) -> Plain:
    return {"type": "text", "text": text}


def _read_part(part: object) -> Plain | None:
    """One part of a content, with whatever members of its own the client gave it; None where it has no text."""
    if isinstance(part, str):
        return _text_part(part)
    if not isinstance(part, dict) or part.get("type") not in _TEXT_PARTS or part.get("uuid") is not None:
        raise RenderError("contents that are no text")
    text = part.get(_TEXT_PARTS[part["type"]])
    if text is None:
        return None
    if not isinstance(text, str):
        raise RenderError("a part of text that has none")
    return {**_text_part(text), **{name: value for name, value in part.items() if name not in _PART_MEMBERS}}


def _without_billing_header(part: Plain) -> Plain | None:
    text: str = part["text"]
    if not text.startswith(BILLING_HEADER):
        return part
    rest = text.partition("\n")[2]
    return {**part, "text": rest} if rest else None


def _parsed_call(call: Plain) -> Plain:
    """Templates want a call's arguments as an object, not as JSON in a text."""
    function = call["function"]
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {}
    return {**call, "function": {**function, "arguments": arguments if isinstance(arguments, dict) else {}}}


def _one_system_message(messages: Sequence[Plain], between: str) -> list[Plain]:
    systems = [message for message in messages if message["role"] == "system"]
    if not systems or (len(systems) == 1 and messages[0] is systems[0]):
        return list(messages)
    texts = [text for message in systems if (text := _text_of(message["content"]))]
    merged = {"role": "system", "content": between.join(texts)}
    return [merged, *(message for message in messages if message["role"] != "system")]


def _text_of(content: str | list[Plain]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)
