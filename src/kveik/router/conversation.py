"""What a body asks an engine to compute: token ids, a text, or a conversation for the chat template. Pure.

This follows what vLLM makes of the bodies of its endpoints, as far as text goes. Where something else
decides about the prompt (images, adapters' files, what an engine keeps of an earlier response) or
several prompts are in one body, :class:`RenderError` says so: such prompts are not known exactly.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kveik.errors import RenderError

#: A line that one client puts before its system prompt, with a number that changes with every request.
BILLING_HEADER = "x-anthropic-billing-header"

_decode = msgspec.json.Decoder().decode
Plain = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ids:
    """The prompt's token ids, as given."""

    ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Text:
    """A text to be tokenized, with the tokenizer's special tokens around it or without."""

    text: str
    special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages for the chat template, as the body has them, and the template's other variables."""

    messages: Sequence[Plain]
    tools: Sequence[Plain] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    special_tokens: bool = False
    #: System messages after the first belong into it, where the template takes only one.
    merges_system: bool = False


Prompt = Ids | Text | Conversation


def read_prompt(target: bytes, body: bytes) -> tuple[Prompt, str]:
    """The prompt of a body and its cache salt. Raises :class:`RenderError`."""
    read = _READERS.get(target.partition(b"?")[0].rstrip(b"/"))
    if read is None:
        raise RenderError("no endpoint that generates text from one prompt")
    try:
        members = _decode(body)
        if not isinstance(members, dict):
            raise RenderError("the body is no JSON object")
        salt = members.get("cache_salt") or ""
        if not isinstance(salt, str):
            raise RenderError("cache_salt is no text")
        _refuse(members, "truncate_prompt_tokens", "prompt_embeds", "kv_transfer_params", "mm_processor_kwargs")
        if members.get("prompt_logprobs") is not None or (members.get("echo") and members.get("logprobs") is not None):
            raise RenderError("log probabilities of the prompt make an engine compute all of it")
        return read(members), salt
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise RenderError(f"the body is not as expected: {error}") from error


def _refuse(members: Mapping[str, Any], *names: str) -> None:
    for name in names:
        if members.get(name):
            raise RenderError(f"{name} changes the prompt in ways that only the engine knows")


# -- /v1/completions ----------------------------------------------------------------------------


def _completion(members: Plain) -> Prompt:
    _refuse(members, "suffix")
    prompt = members.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return Text(prompt, members.get("add_special_tokens", True) is not False)
    if isinstance(prompt, list) and prompt and all(type(one) is int and 0 <= one < 1 << 32 for one in prompt):
        return Ids(prompt)
    raise RenderError("not exactly one prompt of text or token ids")


# -- /v1/chat/completions -----------------------------------------------------------------------


def _chat(members: Plain) -> Prompt:
    _refuse(members, "chat_template", "continue_final_message")
    options = _options(members, members.get("reasoning_effort"))
    options["add_generation_prompt"] = members.get("add_generation_prompt", True) is not False
    if members.get("documents") is not None:
        options["documents"] = members["documents"]
    messages = [_as_read(message) for message in members["messages"]]
    tools = members.get("tools")
    return Conversation(
        messages,
        None if tools is None else [_function_tool(tool["function"], tool) for tool in tools],
        options,
        members.get("add_special_tokens") is True,
    )


def _options(members: Plain, effort: object) -> Plain:
    """Variables of the template; a wish for reasoning switches thinking on where the template has a switch."""
    options = dict(members.get("chat_template_kwargs") or {})
    if options.keys() & {"chat_template", "tokenize", "messages", "continue_final_message"}:
        raise RenderError("chat_template_kwargs replace more than variables of the template")
    options["add_generation_prompt"] = True
    if effort is not None and effort != "auto":
        options.setdefault("enable_thinking", effort != "none")
        options["reasoning_effort"] = effort
    return options


def _as_read(message: Plain) -> Plain:
    """A message as the engine reads it: reasoning under one name, and the members of calls in its own order."""
    if message.get("reasoning_content") is None and not message.get("tool_calls"):
        return message
    read = {name: value for name, value in message.items() if name != "reasoning_content"}
    if read.get("reasoning") is None:
        read["reasoning"] = message.get("reasoning_content")
    if read.get("tool_calls"):
        read["tool_calls"] = [_call(call) for call in read["tool_calls"]]
    return read


def _call(call: Plain) -> Plain:
    function = {name: call["function"][name] for name in ("arguments", "name") if name in call["function"]}
    return {**{name: call[name] for name in ("id",) if name in call}, "function": function, "type": call["type"]}


def _function_tool(function: Plain, tool: Plain) -> Plain:
    """A tool with its members in the engine's order: templates write them out as they stand."""
    shown = {name: function.get(name) for name in ("name", "description", "parameters")}
    deferred = function.get("defer_loading") if function.get("defer_loading") is not None else tool.get("defer_loading")
    if function.get("strict") is not None:
        shown["strict"] = function["strict"]
    if deferred is not None:
        shown["defer_loading"] = deferred
    whole = {"type": "function", "function": shown}
    return whole if tool.get("defer_loading") is None else {**whole, "defer_loading": tool["defer_loading"]}


# -- /v1/responses ------------------------------------------------------------------------------


def _response(members: Plain) -> Prompt:
    _refuse(members, "previous_response_id", "conversation", "prompt", "previous_input_messages")
    if members.get("truncation", "disabled") != "disabled":
        raise RenderError("truncation is left to the engine")
    effort = (members.get("reasoning") or {}).get("effort")
    given = members["input"]
    messages: list[Plain] = []
    if members.get("instructions"):
        messages.append({"role": "system", "content": members["instructions"]})
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    else:
        for item in given:
            _add_item(messages, item)
        if given and given[-1].get("status") in ("in_progress", "incomplete"):
            raise RenderError("the last message is to be continued")
    tools = members.get("tools") or None
    if tools is not None:
        if any(tool.get("type") in ("custom", "namespace") for tool in tools):
            raise RenderError("custom and namespace tools are rewritten by the engine")
        tools = [_function_tool(tool, {}) for tool in tools if tool.get("type") == "function"]
    return Conversation(messages, tools, _options(members, effort), special_tokens=True)


def _add_item(messages: list[Plain], item: Plain) -> None:
    """One item of a response's input. What an assistant did in one turn becomes one message."""
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    kind, role = item.get("type", "message"), item.get("role")
    if kind == "function_call":
        call = {
            "id": item.get("call_id"),
            "function": {"name": item["name"], "arguments": item["arguments"]},
            "type": "function",
        }
        if item.get("namespace"):
            raise RenderError("namespaced calls are renamed by the engine")
        if last is not None:
            last.setdefault("tool_calls", []).append(call)
        else:
            messages.append({"role": "assistant", "tool_calls": [call]})
    elif kind == "function_call_output":
        messages.append({"role": "tool", "content": item["output"], "tool_call_id": item.get("call_id")})
    elif kind == "message" and role == "assistant":
        _set_or_add(messages, last, "content", _first_text(item["content"]))
    elif kind == "reasoning" and item.get("content"):
        _set_or_add(messages, last, "reasoning", item["content"][0]["text"])
    elif kind == "message" and isinstance(role, str):
        messages.append(item)
    else:
        raise RenderError(f"an input item of type {kind!r}")


def _set_or_add(messages: list[Plain], last: Plain | None, name: str, text: str) -> None:
    if last is not None and last.get(name) is None:
        last[name] = text
    else:
        messages.append({"role": "assistant", name: text})


def _first_text(content: str | list[Plain]) -> str:
    text = content if isinstance(content, str) else content[0]["text"]
    if not isinstance(text, str):
        raise RenderError("an answer that is no text")
    return text


# -- /v1/messages -------------------------------------------------------------------------------


def _message(members: Plain) -> Prompt:
    thinking = (members.get("thinking") or {}).get("type")
    if thinking == "disabled":
        raise RenderError("how an engine switches thinking off is not told")
    system = members.get("system") or ""
    texts = [system] if isinstance(system, str) else _system_texts(system)
    messages: list[Plain] = [{"role": "system", "content": "".join(texts)}] if any(texts) else []
    for message in members["messages"]:
        _add_message(messages, message)
    tools = members.get("tools")
    if tools is not None:
        tools = [_function_tool({**tool, "parameters": _schema(tool["input_schema"])}, {}) for tool in tools]
    effort = (members.get("output_config") or {}).get("effort")
    return Conversation(messages, tools, _options(members, effort), merges_system=True)


def _system_texts(blocks: Sequence[Plain]) -> list[str]:
    texts = [block.get("text") or "" for block in blocks if block["type"] == "text"]
    return [text for text in texts if not text.startswith(BILLING_HEADER)]


def _schema(schema: Plain) -> Plain:
    return schema if "type" in schema else {**schema, "type": "object"}


def _add_message(messages: list[Plain], message: Plain) -> None:
    role, content = message["role"], message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if any(block["type"] in ("tool_addition", "tool_removal") for block in blocks):
        raise RenderError("tools that change within a conversation")
    if role == "system":
        text = "".join(_system_texts(blocks))
        if text:
            messages.append({"role": "system", "content": text})
        return
    converted: Plain = {"role": role}
    if isinstance(content, str):
        converted["content"] = content
    else:
        _add_blocks(messages, converted, content)
    if role != "user" or "content" in converted:
        messages.append(converted)


def _add_blocks(messages: list[Plain], converted: Plain, blocks: Sequence[Plain]) -> None:
    """Fill in a message from its blocks; results of tools become messages of their own before it."""
    parts: list[Plain] = []
    calls: list[Plain] = []
    reasoning: list[str] = []
    for block in blocks:
        kind = block["type"]
        if kind == "text":
            if block.get("text"):
                parts.append({"type": "text", "text": block["text"]})
        elif kind == "thinking":
            reasoning.append(block.get("thinking") or "")
        elif kind == "tool_use":
            arguments = json.dumps(block.get("input") or {})
            call = {"arguments": arguments, "name": block.get("name") or ""}
            calls.append({"id": block.get("id"), "function": call, "type": "function"})
        elif kind == "tool_result" and converted["role"] == "user":
            text = _result_text(block.get("content"))
            messages.append({"role": "tool", "tool_call_id": block.get("tool_use_id") or "", "content": text})
        elif kind != "redacted_thinking":
            raise RenderError(f"a block of type {kind!r}")
    if reasoning:
        converted["reasoning"] = "".join(reasoning)
    if calls:
        converted["tool_calls"] = calls
    if parts:
        converted["content"] = parts[0]["text"] if len(parts) == 1 else parts


def _result_text(content: object) -> str:
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    if any(item["type"] != "text" for item in content):
        raise RenderError("a tool's result that is no text")
    return "\n".join(item.get("text", "") for item in content)


_READERS: Mapping[bytes, Callable[[Plain], Prompt]] = {
    b"/v1/completions": _completion,
    b"/v1/chat/completions": _chat,
    b"/v1/responses": _response,
    b"/v1/messages": _message,
}
