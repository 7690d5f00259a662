"""Prompts are taken apart in the order in which templates write them."""

import json
from typing import Any

import pytest

from kveik.router.prompt_parts import MEDIA_BYTES, PARTS_MAX, Part, parts_of
from tests.prompts import CHAT, message, tool


def parts(target: bytes = CHAT, **body: Any) -> list[Part]:
    return parts_of(target, json.dumps({"model": "m", **body}, ensure_ascii=False).encode())


def labels(found: list[Part]) -> list[tuple[str, int]]:
    return [(part.label, part.index) for part in found]


def test_a_chat_has_options_tools_and_messages_with_what_is_in_them() -> None:
    calls = [{"id": "call_1", "type": "function", "function": {"name": "read", "arguments": "{}"}}]
    found = parts(
        messages=[
            message("system", "rules"),
            message("user", [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "x"}}]),
            message("assistant", "so", reasoning_content="because", tool_calls=calls),
            message("tool", "done", tool_call_id="call_1"),
        ],
        tools=[tool("read")],
    )
    assert labels(found) == [
        ("options", -1), ("tool", -1), ("system", 0), ("user", 1), ("media", 1), ("reasoning", 2), ("assistant", 2),
        ("calls", 2), ("tool result", 3),
    ]  # fmt: skip
    assert [part.text() for part in found if part.encoded] == [b"rules", b"see", b"because", b"so", b"done"]


def test_messages_of_anthropic_s_endpoint_are_read_without_the_billing_line_that_engines_drop() -> None:
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cch=1a2b3;"},
        {"type": "text", "text": "rules"},
    ]
    content = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "tool_use", "id": "t1", "name": "read", "input": {}},
    ]
    body = {"system": system, "messages": [message("user", "hi"), message("assistant", content)]}
    assert labels(parts(b"/v1/messages", **body))[1:] == [
        ("system", -1), ("user", 0), ("reasoning", 1), ("calls", 1),
    ]  # fmt: skip
    assert labels(parts(CHAT, **body))[1:3] == [("system", -1), ("system", -1)]


def test_responses_are_read_with_text_or_items() -> None:
    assert labels(parts(b"/v1/responses", instructions="rules", input="hi")) == [
        ("options", -1), ("system", -1), ("user", 0),
    ]  # fmt: skip
    items = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c", "name": "read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "done"},
    ]
    assert labels(parts(b"/v1/responses", input=items))[1:] == [
        ("user", 0), ("reasoning", 1), ("calls", 2), ("tool result", 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("prompt", "label"), [("text", "prompt"), (["text"], "prompt"), ([1, 2], "token ids"), ([[1, 2]], "token ids")]
)
def test_completions_have_one_prompt_of_text_or_token_ids(prompt: Any, label: str) -> None:
    assert labels(parts(b"/v1/completions?x=1", prompt=prompt)) == [("options", -1), (label, -1)]


@pytest.mark.parametrize(
    ("target", "body"),
    [
        (b"/v1/embeddings", b'{"input":"x"}'),
        (CHAT, b"no json"),
        (CHAT, b'{"messages":{"role":"user"}}'),
        (CHAT, b'{"messages":["text"]}'),
        (CHAT, b'{"messages":[{"role":5}]}'),
        (CHAT, b"[" * 100_000),
    ],
)
def test_what_is_no_prompt_has_no_parts(target: bytes, body: bytes) -> None:
    assert parts_of(target, body) == []


def test_several_prompts_in_one_body_are_left_alone() -> None:
    assert labels(parts(b"/v1/completions", prompt=["one", "two"])) == [("options", -1)]


def test_of_very_many_parts_the_first_are_looked_at() -> None:
    assert len(parts(messages=[message("user", "x")] * (PARTS_MAX + 5))) == PARTS_MAX


def test_options_that_change_the_prompt_are_one_part_that_takes_no_place() -> None:
    one, other = (parts(messages=[message("user", "x")], cache_salt=salt)[0] for salt in ("a", "b"))
    assert one.raw != other.raw
    assert one.size_bytes == 0


def test_json_counts_by_its_members_and_not_by_its_white_space_or_the_ids_of_calls() -> None:
    spaced = Part("calls", 1, b'[{"id": "c1", "function": {"name": "f"}}]')
    packed = Part("calls", 1, b'[{"id":"c2","function":{"name":"f"}}]')
    assert spaced.text() == packed.text()
    assert Part("tool", -1, b'{"a":1,"b":2}').text() != Part("tool", -1, b'{"b":2,"a":1}').text()
    assert Part("tool", -1, b'{"a":1,"b":2}').any_order() == Part("tool", -1, b'{"b":2,"a":1}').any_order()


def test_an_image_counts_as_some_tokens_whatever_its_size() -> None:
    assert Part("media", 0, b"x" * 100_000).size_bytes == MEDIA_BYTES


def test_an_answer_that_begins_with_reasoning_is_seen_as_such() -> None:
    assert Part("assistant", 1, b'"<think>hm</think>so"', True).thinks
    assert not Part("assistant", 1, b'"so"', True).thinks


def test_half_a_surrogate_pair_is_no_reason_to_fail() -> None:
    assert Part("user", 0, b'"a\\ud83d"', True).text() == b'"a\\ud83d"'
    assert Part("tool", -1, b'{"a":"\\ud83d"}').any_order() == b'{"a":"\\ud83d"}'
