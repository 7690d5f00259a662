"""Bodies tell model, size and prefix; whatever changes the rendered prompt changes the keys."""

import json
import random
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kveik.errors import KveikError, RequestError
from kveik.router.body_kinds import KINDS
from kveik.router.facts import RequestFacts
from kveik.router.prefix_keys import PrefixHasher
from kveik.router.prompt import MEDIA_TOKENS, SEEDS_KEPT, PromptReader

CHAT, COMPLETIONS, RESPONSES = b"/v1/chat/completions", b"/v1/completions", b"/v1/responses"
MESSAGES, EMBEDDINGS = b"/v1/messages", b"/v1/embeddings"
LONG = "The quick brown fox jumps over the lazy dog. " * 40  # 1,800 bytes: seven blocks

reader = PromptReader(PrefixHasher(secret=1))


def read(target: bytes, body: Any) -> RequestFacts:
    raw = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    return reader(target, raw)


def keys(target: bytes, body: Any) -> list[int]:
    found: list[int] = read(target, body).keys.tolist()
    return found


def chat(*texts: str, **members: Any) -> dict[str, Any]:
    roles = ["user", "assistant"]
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
    return {"model": "m", "messages": messages, **members}


def common(one: list[int], other: list[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def test_facts_of_a_chat() -> None:
    facts = read(CHAT, chat(LONG, stream=True, max_tokens=99))
    assert (facts.model, facts.stream, facts.max_tokens) == ("m", True, 99)
    assert facts.prompt_bytes == len(json.dumps(chat(LONG)["messages"]))
    assert facts.prompt_tokens == facts.prompt_bytes // 4
    assert len(facts.keys) == (facts.prompt_bytes + 8) // 256


def test_the_newer_name_of_the_token_limit_counts_more() -> None:
    assert read(CHAT, chat("x", max_tokens=5, max_completion_tokens=7)).max_tokens == 7
    assert read(RESPONSES, {"input": "x", "max_output_tokens": 3}).max_tokens == 3


@pytest.mark.parametrize(("given", "told"), [(None, 0), (-3, 0), (16.0, 16), (10**30, 1 << 40), (0, 0)])
def test_odd_token_limits_are_left_to_the_engine(given: Any, told: int) -> None:
    assert read(CHAT, chat("x", max_tokens=given)).max_tokens == told


@pytest.mark.parametrize("target", [CHAT + b"?a=b", CHAT + b"/", CHAT + b"/?x"])
def test_a_query_or_a_slash_at_the_end_of_the_path_changes_nothing(target: bytes) -> None:
    assert keys(target, chat(LONG)) == keys(CHAT, chat(LONG))


def test_the_next_turn_of_a_conversation_shares_all_of_the_turns_before() -> None:
    first, second = keys(CHAT, chat(LONG)), keys(CHAT, chat(LONG, LONG, "and now?"))
    assert common(first, second) == len(first) >= 7


def test_other_last_words_leave_the_keys_before_them() -> None:
    one, other = keys(CHAT, chat(LONG + "one" + LONG)), keys(CHAT, chat(LONG + "two" + LONG))
    assert common(one, other) == 7
    assert not set(one[7:]) & set(other[7:])


@pytest.mark.parametrize(
    "changed",
    [
        {"model": "other"},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"functions": [{"name": "f"}]},
        {"cache_salt": "tenant"},
        {"chat_template": "{{ messages }}"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"add_generation_prompt": False},
        {"continue_final_message": True},
        {"reasoning_effort": "high"},
        {"documents": [{"title": "t"}]},
        {"tool_choice": "none"},
        {"mm_processor_kwargs": {"crop": 1}},
        {"messages": [{"role": "system", "content": LONG}]},
        {"messages": [{"role": "user", "name": "ann", "content": LONG}]},
        {"messages": [{"role": "user", "content": LONG.replace("quick", "quiet")}]},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_whatever_changes_the_start_of_the_rendered_prompt_changes_every_key(changed: dict[str, Any]) -> None:
    assert not set(keys(CHAT, chat(LONG))) & set(keys(CHAT, chat(LONG) | changed))


def test_prompts_with_the_same_tools_share_them_whatever_the_messages() -> None:
    tools = [{"type": "function", "function": {"name": f"f{n}", "description": "d" * 90}} for n in range(10)]
    one, other = keys(CHAT, chat("one" + LONG, tools=tools)), keys(CHAT, chat("two" + LONG, tools=tools))
    assert 4 <= common(one, other) < len(one)


@pytest.mark.parametrize("empty", [[], None])
def test_no_tools_are_the_same_as_an_empty_list_of_tools(empty: Any) -> None:
    assert keys(CHAT, chat(LONG, tools=empty)) == keys(CHAT, chat(LONG))


def test_sampling_does_not_change_the_keys() -> None:
    assert keys(CHAT, chat(LONG, temperature=0.3, max_tokens=9, stream=True, user="u", n=2)) == keys(CHAT, chat(LONG))


def test_the_same_text_at_two_endpoints_is_rendered_differently() -> None:
    of = [keys(COMPLETIONS, {"prompt": LONG}), keys(RESPONSES, {"input": LONG}), keys(EMBEDDINGS, {"input": LONG})]
    assert len({key for found in of for key in found}) == sum(map(len, of)) >= 21


def test_completions_take_text_lists_and_token_ids() -> None:
    assert len(keys(COMPLETIONS, {"prompt": LONG})) == 7
    assert len(keys(COMPLETIONS, {"prompt": [LONG, "b"]})) == 7
    ids = read(COMPLETIONS, {"prompt": list(range(1000, 1600))})
    assert ids.prompt_tokens == 600
    assert common(ids.keys.tolist(), keys(COMPLETIONS, {"prompt": list(range(1000, 2000))})) == len(ids.keys)
    assert read(COMPLETIONS, {"prompt": [[1, 2, 3], [4, 5]]}).prompt_tokens == 5
    assert read(COMPLETIONS, {"prompt": None, "model": "m"}).model == "m"


def test_responses_cover_instructions_and_what_they_continue() -> None:
    body = {"model": "m", "instructions": LONG, "input": [{"role": "user", "content": "hi"}]}
    assert common(keys(RESPONSES, body), keys(RESPONSES, body | {"input": "other"})) == 7
    assert not set(keys(RESPONSES, body)) & set(keys(RESPONSES, body | {"previous_response_id": "resp_1"}))


def test_messages_cover_the_system_prompt_first() -> None:
    body = {"model": "m", "max_tokens": 5, "system": [{"type": "text", "text": LONG}], "messages": []}
    asks = [{"role": "user", "content": text} for text in ("one", "two")]
    one, other = (keys(MESSAGES, body | {"messages": [ask]}) for ask in asks)
    assert common(one, other) == len(one) == 7
    assert not set(one) & set(keys(MESSAGES, body | {"system": "short", "messages": [asks[0]]}))


def image(dice: random.Random, size: int = 60_000) -> dict[str, Any]:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    data = "".join(dice.choices(alphabet, k=size))
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def test_images_are_known_by_their_bytes_and_cost_tokens_not_by_their_size() -> None:
    dice = random.Random(1)
    one, other = image(dice), image(dice)

    def seen(picture: dict[str, Any], question: str = "what?") -> RequestFacts:
        content = [{"type": "text", "text": LONG}, picture, {"type": "text", "text": question + LONG}]
        return read(CHAT, {"messages": [{"role": "user", "content": content}]})

    assert seen(one).keys.tolist() == seen(one).keys.tolist()
    assert 7 <= common(seen(one).keys.tolist(), seen(other).keys.tolist()) < len(seen(one).keys) < 20
    assert common(seen(one).keys.tolist(), seen(one, "who?").keys.tolist()) == 7
    assert MEDIA_TOKENS < seen(one).prompt_tokens < MEDIA_TOKENS + 1200


def test_sounds_and_anthropics_images_count_as_media_too() -> None:
    data = "QUJD" * 20_000
    sound = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    for target, part in ((CHAT, sound), (MESSAGES, picture)):
        facts = read(target, {"messages": [{"role": "user", "content": [part, part]}]})
        assert 2 * MEDIA_TOKENS <= facts.prompt_tokens < 2 * MEDIA_TOKENS + 200


def test_long_text_that_speaks_of_base64_is_text() -> None:
    text = 'data:image/png;base64,AAAA" ' * 3000
    facts = read(CHAT, chat(text))
    assert facts.prompt_tokens > len(text) / 5


def test_a_body_full_of_what_looks_like_media_costs_in_proportion_to_its_length() -> None:
    def processor_s(count: int) -> float:
        parts = '{"data":"","data":"x"},' * count
        body = ('{"messages":[' + parts.rstrip(",") + "]}").encode()
        began_s = time.process_time()
        assert reader(CHAT, body).prompt_bytes > 20 * count
        return time.process_time() - began_s

    short_s = min(processor_s(15_000) for _ in range(5))
    assert min(processor_s(150_000) for _ in range(3)) < 40 * short_s  # ten times as long; a square would be a hundred


def test_chinese_is_estimated_alike_however_it_is_written() -> None:
    body = chat("人工智能的发展" * 500)
    plain = reader(CHAT, json.dumps(body, ensure_ascii=False).encode())
    escaped = reader(CHAT, json.dumps(body).encode())
    assert escaped.prompt_tokens == pytest.approx(plain.prompt_tokens, rel=0.05)


@pytest.mark.parametrize(
    ("members", "resumable"),
    [
        ({"temperature": 0}, True),
        ({"temperature": 0.0, "n": 1, "presence_penalty": 0, "tools": []}, True),
        ({"seed": 5}, True),
        ({"seed": 5, "response_format": {"type": "text"}, "logprobs": False, "stop": None}, True),
        ({}, False),
        ({"temperature": 1}, False),
        ({"temperature": 0, "n": 2}, False),
        ({"temperature": 0, "tools": [{"type": "function"}]}, False),
        ({"temperature": 0, "response_format": {"type": "json_object"}}, False),
        ({"temperature": 0, "structured_outputs": {"regex": "a"}}, False),
        ({"temperature": 0, "logprobs": True}, False),
        ({"temperature": 0, "logprobs": 0}, False),
        ({"temperature": 0, "stop": ["\n"]}, False),
        ({"temperature": 0, "frequency_penalty": 0.5}, False),
        ({"temperature": 0, "best_of": 2}, False),
    ],
)
def test_only_plain_greedy_or_seeded_text_can_be_resumed(members: dict[str, Any], resumable: bool) -> None:
    assert read(CHAT, chat("x", stream=True, **members)).resumable is resumable
    assert read(COMPLETIONS, {"prompt": "x", "stream": True, **members}).resumable is resumable


def test_token_ids_several_prompts_and_other_endpoints_cannot_be_resumed() -> None:
    for target, body in (
        (COMPLETIONS, {"prompt": [1, 2]}),
        (COMPLETIONS, {"prompt": ["a", "b"]}),
        (COMPLETIONS, {"prompt": "a", "suffix": "b"}),
        (RESPONSES, {"input": "x"}),
        (MESSAGES, {"messages": []}),
    ):
        assert not read(target, body | {"temperature": 0, "stream": True}).resumable
    assert not read(CHAT, chat("x", temperature=0)).resumable, "its answer is held until it is whole"


WRONG: list[tuple[bytes, Any, str, str]] = [
    (CHAT, {"model": 5}, "model", "model is 5, expected text"),
    (CHAT, {"model": ["a"]}, "model", 'model is ["a"], expected text'),
    (CHAT, {"stream": "yes"}, "stream", 'stream is "yes", expected true or false'),
    (CHAT, {"stream": 1}, "stream", "stream is 1, expected true or false"),
    (CHAT, {"max_tokens": "10"}, "max_tokens", 'max_tokens is "10", expected a number'),
    (CHAT, {"n": True}, "n", "n is true, expected a number"),
    (CHAT, {"temperature": {}}, "temperature", "temperature is {}, expected a number"),
    (CHAT, {"messages": "hi"}, "messages", 'messages is "hi", expected a list'),
    (CHAT, {"messages": {"a": 1}}, "messages", 'messages is {"a": 1}, expected a list'),
    (COMPLETIONS, {"prompt": 3}, "prompt", "prompt is 3, expected text or a list"),
    (RESPONSES, {"input": False}, "input", "input is false, expected text or a list"),
]


@pytest.mark.parametrize(("target", "body", "param", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_a_wrong_type_is_told_with_member_value_and_what_was_expected(
    target: bytes, body: Any, param: str, message: str
) -> None:
    with pytest.raises(RequestError) as caught:
        read(target, body)
    assert (str(caught.value), caught.value.param) == (message, param)


def test_a_long_wrong_value_is_shown_in_part() -> None:
    with pytest.raises(RequestError) as caught:
        read(CHAT, {"stream": "x" * 100_000})
    assert len(str(caught.value)) < 120


def test_a_wrong_value_in_a_huge_body_is_named_without_building_all_of_the_body() -> None:
    huge = b'{"model":5,' + b",".join(b'"m%d":1' % n for n in range(200_000)) + b"}"
    with pytest.raises(RequestError, match=r"^model is of another type, expected text$"):
        reader(CHAT, huge)


def test_a_wrong_type_is_told_even_where_the_rest_is_broken() -> None:
    with pytest.raises(RequestError, match=r"^model is of another type, expected text$"):
        reader(CHAT, b'{"model":5, "stream": tru}')


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"model": NaN}', "not valid JSON"),
        (b'{"zzz": Infinity}', "not valid JSON"),
        (b"{} {}", "not valid JSON"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b"null", "not a JSON object"),
        (b"[1]", "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b'{"messages": ["\xff"]}', "not valid UTF-8"),
        (b'{"ignored": "\xc3\x28"}', "not valid UTF-8"),
        (b'{"\xed\xa0\x80": 1}', "not valid UTF-8"),
        (b'{"messages":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested too deeply"),
        (b'{"ignored":' + b'{"a":' * 200_000 + b"1" + b"}" * 200_001, "nested too deeply"),
        (b"[" * 200_000, "not a JSON object"),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value[:20]),
)
def test_what_is_no_json_object_in_utf8_is_the_clients_fault(body: bytes, told: str) -> None:
    with pytest.raises(RequestError, match=told):
        reader(CHAT, body)


def test_of_duplicate_members_the_last_one_counts_as_it_does_for_engines() -> None:
    assert reader(CHAT, b'{"model":"a","stream":true,"model":"b","stream":false}').model == "b"


def test_escaped_names_of_members_are_read() -> None:
    assert reader(CHAT, b'{"m\\u006fdel":"a"}').model == "a"


def test_nulls_are_absent() -> None:
    facts = read(CHAT, {"model": None, "messages": None, "stream": None, "max_tokens": None, "temperature": None})
    assert (facts.model, facts.stream, facts.max_tokens, len(facts.keys)) == ("", False, 0, 0)


def test_an_unknown_path_has_no_keys_and_no_wrong_bodies() -> None:
    assert read(b"/v1/rerank", {"model": "m", "stream": True, "query": LONG}).model == "m"
    assert len(read(b"/v1/rerank", {"model": "m", "documents": [LONG]}).keys) == 0
    for body in (b"", b"\xff\x00", b"{", b'{"model": 5}', b"[" * 100_000):
        assert reader(b"/whatever", body).model == ""


def test_the_model_of_a_form_is_read() -> None:
    form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--b\r\n\r\n\x00\xff\r\n--b--\r\n'
    assert reader(b"/v1/audio/transcriptions", form).model == "whisper"


def test_a_great_many_models_and_salts_change_nothing_for_the_others() -> None:
    before = keys(CHAT, chat(LONG))
    for number in range(3 * SEEDS_KEPT):
        read(CHAT, {"model": f"m{number}", "cache_salt": str(number)})
        read(CHAT, {"model": f"m{number}"})
    assert keys(CHAT, chat(LONG)) == before
    assert len(reader._seeds) <= SEEDS_KEPT


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
MEMBERS = """
    model stream messages prompt input system instructions tools max_tokens temperature n seed stop cache_salt
""".split()  # noqa: SIM905 (reads better)
members = st.sampled_from(MEMBERS)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.dictionaries(members, json_values, max_size=6), st.booleans())
def test_any_json_gives_facts_or_a_request_error(target: bytes, body: dict[str, Any], ascii_only: bool) -> None:
    raw = json.dumps(body, ensure_ascii=ascii_only).encode("utf8", "surrogatepass")
    try:
        facts = reader(target, raw)
    except RequestError as error:
        assert str(error)
        return
    assert 0 <= facts.max_tokens <= 1 << 40
    assert facts.prompt_tokens >= 0
    assert len(facts.keys) <= (facts.prompt_bytes + 8) // 256


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.binary(max_size=60))
def test_any_bytes_give_facts_or_a_request_error(target: bytes, body: bytes) -> None:
    for attempt in (body, b'{"model":"' + body + b'"}', b'{"messages":[' + body + b"]}"):
        try:
            reader(target, attempt)
        except KveikError as error:
            assert isinstance(error, RequestError)
