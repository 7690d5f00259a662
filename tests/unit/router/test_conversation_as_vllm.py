"""Bodies are read as vLLM reads them: compared with vLLM's own code, body by body, down to the order of members."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("vllm", reason="compares with vLLM's own reading of bodies")

from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.utils import construct_input_messages, construct_tool_dicts
from vllm.renderers.chat_utils import parse_chat_messages

from kveik.router.chat_template import _one_system_message, template_messages
from kveik.router.conversation import Conversation, read_prompt

CONFIG = SimpleNamespace(
    multimodal_config=None, allowed_local_media_path="", allowed_media_domains=None, enable_prompt_embeds=False,
    hf_config=SimpleNamespace(model_type="llama"), model="m",
)  # fmt: skip
LOOKED_AT = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))

Plain = dict[str, Any]
text = st.sampled_from(["hi", "", "中文\n x", "a b"])
cache_control = {"cache_control": {"type": "ephemeral"}}


def members(required: dict[str, Any], optional: dict[str, Any]) -> st.SearchStrategy[Plain]:
    return st.fixed_dictionaries(
        {name: value if isinstance(value, st.SearchStrategy) else st.just(value) for name, value in required.items()},
        optional={
            name: value if isinstance(value, st.SearchStrategy) else st.just(value) for name, value in optional.items()
        },
    )


def parts(kind: str) -> st.SearchStrategy[list[Plain]]:
    return st.lists(members({"type": kind, "text": text}, cache_control), min_size=1, max_size=2)


content = text | parts("text")
arguments = st.sampled_from(['{"b": 1, "a": "é"}', "{}", "[1]", "{bad", ""])
call = members({"id": "c1", "type": "function"}, {}).flatmap(
    lambda made: st.builds(lambda given: {**made, "function": {"name": "f", "arguments": given}}, arguments)
)
schema = st.just({"type": "object", "z": 1, "a": {}})
function = members({"name": "f"}, {"description": "d", "parameters": schema, "strict": st.booleans(), "more": 1})
tool = st.builds(
    lambda given, rest: {"type": "function", "function": given, **rest},
    function,
    members({}, {"defer_loading": st.booleans()}),
)
header = st.just([{"type": "text", "text": "x-anthropic-billing-header: a\nrest"}, {"type": "text", "text": "more"}])
options = {
    "chat_template_kwargs": st.just({"enable_thinking": False, "x": 1}),
    "reasoning_effort": st.sampled_from(["low", "none"]),
    "add_generation_prompt": st.booleans(),
    "tools": st.lists(tool, min_size=1, max_size=2),
}
message = st.one_of(
    members({"role": st.sampled_from(["system", "developer"]), "content": content | header}, {}),
    members({"role": "user", "content": content}, {"name": "joe"}),
    members({"role": "assistant", "content": content | st.none()}, {"reasoning": "why", "tool_calls": st.lists(call)}),
    members({"role": "assistant", "content": text}, {"reasoning_content": "why"}),
    members({"role": "tool", "tool_call_id": "c1", "content": content}, {}),
)
chats = members({"model": "m", "messages": st.lists(message, min_size=1, max_size=5)}, options)

result = st.sampled_from(["r", [{"type": "text", "text": "r1"}, {"type": "text", "text": "r2"}], None])
user_block = members({"type": "text", "text": text}, cache_control) | members(
    {"type": "tool_result", "tool_use_id": "t", "content": result}, {}
)
assistant_block = st.one_of(
    members({"type": "text", "text": text}, {}),
    st.just({"type": "thinking", "thinking": "why", "signature": "s"}),
    st.just({"type": "redacted_thinking", "data": "xx"}),
    members({"type": "tool_use", "id": "t", "name": "f", "input": st.sampled_from([{}, {"b": 1, "a": "é"}])}, {}),
)
system = st.sampled_from(
    ["S", [{"type": "text", "text": one} for one in ("s1", "x-anthropic-billing-header: q", "s2")]]
)
anthropic_message = st.one_of(
    members({"role": "user", "content": text | st.lists(user_block, min_size=1, max_size=3)}, {}),
    members({"role": "assistant", "content": text | st.lists(assistant_block, min_size=1, max_size=3)}, {}),
    members({"role": "system", "content": system}, {}),
)
anthropic_tool = members(
    {"name": "f", "input_schema": st.sampled_from([{"properties": {}}, {"type": "object"}])},
    {"description": "d", "strict": True},
)
anthropic = members(
    {"model": "m", "max_tokens": 5000, "messages": st.lists(anthropic_message, min_size=1, max_size=5)},
    {
        "system": system,
        "tools": st.lists(anthropic_tool, max_size=2),
        "thinking": st.sampled_from([{"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}]),
        "output_config": st.just({"effort": "low"}),
        "chat_template_kwargs": st.just({"enable_thinking": True}),
    },
)

item = st.one_of(
    members({"role": "user", "content": text | parts("input_text")}, {"type": "message"}),
    members({"role": st.sampled_from(["system", "developer"]), "content": text}, {}),
    members({"role": "assistant", "content": text}, {}),
    st.just({"type": "message", "role": "assistant", "id": "m", "status": "completed",
             "content": [{"type": "output_text", "text": "o", "annotations": []}]}),
    members({"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'}, {"status": "completed"}),
    st.just({"type": "function_call_output", "call_id": "c", "output": "out"}),
    st.just({"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "why"}]}),
)  # fmt: skip
response_tool = members(
    {"type": "function", "name": "f", "parameters": schema}, {"strict": st.booleans(), "description": "d"}
)
responses = members(
    {"model": "m", "input": st.just("question") | st.lists(item, min_size=1, max_size=5)},
    {"instructions": "ins", "tools": st.lists(response_tool, max_size=2), "reasoning": st.just({"effort": "low"})},
)


def assert_alike(target: bytes, body: Plain, request: Any, messages: Any, tools: Any, *, merged: bool = False) -> None:
    """That both make the same messages, tools and options of a body, for templates of text and of parts."""
    prompt, _ = read_prompt(target, json.dumps(body).encode())
    assert isinstance(prompt, Conversation)
    given = request.build_chat_params(None, "auto").chat_template_kwargs
    expected = {name: value for name, value in given.items() if value is not None and name != "continue_final_message"}
    assert dict(prompt.options) == expected
    assert json.dumps(prompt.tools) == json.dumps(tools)
    ours = _one_system_message(prompt.messages, "") if merged else prompt.messages
    for form in ("string", "openai"):
        theirs, _, _ = parse_chat_messages(json.loads(json.dumps(messages, default=dump)), CONFIG, form)
        shown = template_messages(ours, as_parts=form == "openai", knows_developer=True)
        assert json.dumps(shown) == json.dumps(theirs), form


def dump(value: Any) -> Any:
    """What pydantic keeps as objects or iterators."""
    return value.model_dump() if hasattr(value, "model_dump") else list(value)


def dumped(tools: Any) -> Any:
    return None if tools is None else [one.model_dump() for one in tools]


@LOOKED_AT
@given(chats)
def test_chats_are_read_as_vllm_reads_them(body: Plain) -> None:
    request = ChatCompletionRequest(**json.loads(json.dumps(body)))
    assert_alike(b"/v1/chat/completions", body, request, request.messages, dumped(request.tools))


@LOOKED_AT
@given(anthropic, st.booleans())
def test_messages_are_read_as_vllm_reads_them(body: Plain, merged: bool) -> None:
    asked = AnthropicMessagesRequest(**json.loads(json.dumps(body)))
    request = AnthropicServingMessages.to_chat_completion_request(asked, merge_inline_system=merged)
    assert_alike(b"/v1/messages", body, request, request.messages, dumped(request.tools), merged=merged)


@LOOKED_AT
@given(responses)
def test_responses_are_read_as_vllm_reads_them(body: Plain) -> None:
    request = ResponsesRequest(**json.loads(json.dumps(body)))
    messages = construct_input_messages(request_instructions=request.instructions, request_input=request.input)
    tools = construct_tool_dicts(request.tools, request.tool_choice)
    assert_alike(b"/v1/responses", body, request, messages, tools)
