"""Bodies become requests, or are refused in vLLM's words."""

import json
from typing import Any

import pytest

from kveik.errors import RenderError
from kveik.simulate import asks
from kveik.simulate.asks import Ask, ModelLimits, RefusedRequestError
from kveik.simulate.tokenizer import pack_ids, pack_text, render_chat

LIMITS = ModelLimits("simulated", 100, 20)
CHAT = [{"role": "user", "content": "hello"}]


def chat(**given: Any) -> Ask:
    return asks.chat(json.dumps({"messages": CHAT, **given}).encode(), LIMITS)


def completion(**given: Any) -> Ask:
    return asks.completion(json.dumps({"prompt": "hello", **given}).encode(), LIMITS)


@pytest.mark.parametrize(
    ("given", "tokens", "finish"),
    [
        ({}, 20, "stop"),
        ({"max_tokens": 19}, 19, "length"),
        ({"max_completion_tokens": 5, "max_tokens": 9}, 5, "length"),
        ({"max_tokens": 50}, 20, "stop"),
        ({"max_tokens": 50, "ignore_eos": True}, 50, "length"),
        ({"messages": [{"role": "user", "content": "x" * 340}]}, 8, "length"),
    ],
)
def test_an_answer_ends_by_itself_or_at_its_limit(given: dict[str, Any], tokens: int, finish: str) -> None:
    ask = chat(**given)
    assert (ask.answer_tokens, ask.finish) == (tokens, finish)


def test_a_completion_has_sixteen_tokens_unless_it_says_otherwise() -> None:
    assert (completion().answer_tokens, completion(max_tokens=3).answer_tokens) == (16, 3)


@pytest.mark.parametrize("prompt", ["hello", ["hello"], [1, 2, 3], [[1, 2, 3]]])
def test_a_prompt_is_text_or_ids_alone_or_in_a_list(prompt: Any) -> None:
    inner = prompt[0] if isinstance(prompt[0], list) or prompt == ["hello"] else prompt
    packed = pack_text(inner) if isinstance(inner, str) else pack_ids(inner)
    assert completion(prompt=prompt).packed == packed


def test_padding_of_text_is_no_part_of_what_the_answer_follows_from_but_ids_are_whole() -> None:
    assert completion(prompt="hello").context == b"hello"
    assert completion(prompt=[104]).context == b"h\0\0\0"


def test_the_rest_of_a_body_is_read() -> None:
    ask = completion(n=2, stream=True, stream_options={"include_usage": True}, cache_salt="s", stop="x", logprobs=3)
    assert (ask.n, ask.stream, ask.include_usage, ask.salt, ask.stops, ask.top_logprobs) == (
        2,
        True,
        True,
        "s",
        ("x",),
        3,
    )
    ask = chat(logprobs=True, top_logprobs=4, stop=["a", "b"], return_token_ids=True)
    assert (ask.top_logprobs, ask.stops, ask.token_ids) == (4, ("a", "b"), True)
    assert chat(n=None, stream=None, stop=None, max_tokens=None, unknown_field=[{}]).n == 1


def test_responses_and_messages_are_chats_too() -> None:
    user = {"role": "user", "content": "hello"}
    system = {"role": "system", "content": "Be brief."}
    body = {"input": "hello", "instructions": "Be brief.", "max_output_tokens": 3}
    ask = asks.responses(json.dumps(body).encode(), LIMITS)
    assert (ask.packed, ask.answer_tokens) == (render_chat([system, user]), 3)
    body = {"messages": [user], "system": "Be brief.", "max_tokens": 3, "stop_sequences": ["x"]}
    ask = asks.messages(json.dumps(body).encode(), LIMITS)
    assert (ask.packed, ask.answer_tokens, ask.stops) == (render_chat([system, user]), 3, ("x",))


def test_embeddings_are_never_streamed() -> None:
    ask = asks.embeddings(b'{"input": "hello", "encoding_format": "base64", "stream": true}', LIMITS)
    assert (ask.packed, ask.base64, ask.stream, ask.answer_tokens) == (pack_text("hello"), True, False, 1)


@pytest.mark.parametrize(
    ("prompt_bytes", "max_tokens", "text"),
    [
        (400, 1, "your prompt contains 100 input tokens"),
        (4000, 1, "your prompt contains 1000 input tokens"),
        (200, 51, "you requested 51 output tokens and your prompt contains 50 input tokens"),
    ],
)
def test_what_does_not_fit_is_the_client_s_fault(prompt_bytes: int, max_tokens: int, text: str) -> None:
    with pytest.raises(RefusedRequestError, match="maximum context length is 100 tokens") as refused:
        completion(prompt="x" * prompt_bytes, max_tokens=max_tokens)
    assert text in str(refused.value)
    assert refused.value.document()["error"]["code"] == 400
    assert completion(prompt="x" * 200, max_tokens=50).answer_tokens == 20


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"", 400, "JSON"),
        (b"{", 400, "JSON"),
        (b'{"prompt": "\xff"}', 400, "JSON"),
        (b'{"prompt": ' + b"[" * 100_000, 400, "JSON"),
        (b"[]", 400, "Expected `object`"),
        (b"{}", 400, "prompt"),
        (b'{"prompt": "x", "max_tokens": "5"}', 400, "max_tokens"),
        (b'{"prompt": "x", "max_tokens": 0}', 400, "max_tokens must be at least 1, got 0."),
        (b'{"prompt": "x", "n": 0}', 400, "n must be from 1"),
        (b'{"prompt": ""}', 400, "must not be empty"),
        (b'{"prompt": []}', 400, "must not be empty"),
        (b'{"prompt": 5}', 400, "text or a list of token ids"),
        (b'{"prompt": [-1]}', 400, "whole numbers from 0"),
        (b'{"prompt": [1, "x"]}', 400, "whole numbers from 0"),
        (b'{"prompt": ["a", "b"]}', 400, "one prompt a request"),
        (b'{"prompt": "x", "model": "other"}', 404, "The model `other` does not exist."),
    ],
)
def test_what_makes_no_sense_is_refused_with_status_and_reason(body: bytes, status: int, text: str) -> None:
    with pytest.raises(RefusedRequestError) as refused:
        asks.completion(body, LIMITS)
    error = refused.value.document()["error"]
    assert refused.value.status == error["code"] == status
    assert text in error["message"]
    assert error["type"]


def test_a_limit_of_nothing_is_refused_by_either_name() -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        with pytest.raises(RefusedRequestError, match="max_tokens must be at least 1, got 0"):
            chat(**{"max_tokens": 5, name: 0})


def test_a_chat_without_messages_is_refused() -> None:
    with pytest.raises(RefusedRequestError, match="messages"):
        chat(messages=[])


def test_tokenizing_renders_as_a_chat_does() -> None:
    for given in ({}, {"tools": [{"name": "f"}]}, {"chat_template_kwargs": {"a": 1}}, {"add_generation_prompt": False}):
        body = json.dumps({"messages": CHAT, **given}).encode()
        assert asks.tokenize(body, LIMITS) == chat(**given).packed
    assert asks.tokenize(b'{"prompt": "hello"}', LIMITS) == pack_text("hello")
    assert asks.detokenize(b'{"tokens": [1, 2]}', LIMITS) == pack_ids([1, 2])
    with pytest.raises(RefusedRequestError, match="prompt or messages"):
        asks.tokenize(b"{}", LIMITS)
    with pytest.raises(RefusedRequestError, match="token ids"):
        asks.detokenize(b'{"tokens": "abc"}', LIMITS)


def test_prompts_can_have_another_model_s_tokens_while_answers_follow_from_the_text() -> None:
    asked = []

    def render(path: str, body: bytes) -> bytes:
        asked.append(path)
        return pack_ids(range(7))

    limits = ModelLimits("simulated", 100, 20, render)
    body = json.dumps({"messages": CHAT, "prompt": "hello", "input": "hello", "max_tokens": 5}).encode()
    for read in (asks.chat, asks.completion, asks.responses, asks.messages):
        ask, own = read(body, limits), read(body, LIMITS)
        assert (ask.prompt_tokens, ask.context) == (7, own.context)
    assert asks.tokenize(b'{"prompt": "hello"}', limits) == pack_ids(range(7))
    assert asks.completion(b'{"prompt": [1, 2]}', limits).packed == pack_ids([1, 2])
    assert asked == ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/completions"]
    with pytest.raises(RefusedRequestError, match="no text of tokens"):
        asks.detokenize(b'{"tokens": [1]}', limits)


def test_a_prompt_that_cannot_be_rendered_is_refused() -> None:
    def render(path: str, body: bytes) -> bytes:
        raise RenderError("no template")

    with pytest.raises(RefusedRequestError, match="no template"):
        asks.chat(json.dumps({"messages": CHAT}).encode(), ModelLimits("simulated", 100, 20, render))
