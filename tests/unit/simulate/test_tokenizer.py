"""Four bytes are a token: equal starts, and back to text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.simulate.tokenizer import (
    MAX_TOKEN_ID,
    TOKEN_BYTES,
    WORDS,
    pack_ids,
    pack_text,
    render_chat,
    text_of,
    token_ids,
)

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "你好 👩‍🚀"}]


@given(st.text().filter(lambda text: "\0" not in text and not any("\ud800" <= c <= "\udfff" for c in text)))
def test_text_survives_the_way_to_ids_and_back(text: str) -> None:
    ids = token_ids(pack_text(text))
    assert text_of(pack_ids(ids)) == text
    assert len(ids) == -(-len(text.encode()) // TOKEN_BYTES)


@given(st.lists(st.integers(0, MAX_TOKEN_ID)))
def test_any_ids_survive(ids: list[int]) -> None:
    assert token_ids(pack_ids(ids)) == ids


@given(st.text(), st.text())
def test_equal_text_from_the_start_gives_equal_tokens_from_the_start(text: str, tail: str) -> None:
    whole = pack_text(text + tail)
    same = len(text.encode("utf8", "replace")) // TOKEN_BYTES * TOKEN_BYTES
    assert whole[:same] == pack_text(text)[:same]


@pytest.mark.parametrize("ids", [[-1], [MAX_TOKEN_ID + 1], [1.5], ["1"], [None]])
def test_what_is_no_token_id_is_refused(ids: list[object]) -> None:
    with pytest.raises(ValueError, match="whole numbers from 0"):
        pack_ids(ids)  # type: ignore[arg-type]


def test_a_longer_chat_begins_with_the_tokens_of_the_shorter_one() -> None:
    short = render_chat(MESSAGES)
    longer = render_chat([*MESSAGES, {"role": "assistant", "content": " bla"}, {"role": "user", "content": "and?"}])
    assert longer.startswith(short)


def test_an_open_end_is_what_the_answer_would_have_seen() -> None:
    begun = render_chat([*MESSAGES, {"role": "assistant", "content": " bli abc"}], open_end=True)
    assert begun == render_chat(MESSAGES) + b" bli abc"


@pytest.mark.parametrize(
    "changed",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"template_options": {"enable_thinking": False}},
        {"generation_prompt": False},
        {"messages": [{"role": "system", "content": [{"type": "text", "text": "Be"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]},
        {"messages": [{"role": "user"}]},
    ],
)
def test_all_that_a_template_would_show_changes_the_prompt(changed: dict[str, object]) -> None:
    given = {"messages": MESSAGES, **changed}
    messages = given.pop("messages")
    assert render_chat(messages, **given) != render_chat(MESSAGES)  # type: ignore[arg-type]


def test_text_in_parts_is_the_same_prompt_as_in_one_string() -> None:
    parts = [{"type": "text", "text": "Hello "}, {"type": "text", "text": "there"}]
    assert render_chat([{"role": "user", "content": parts}]) == render_chat(
        [{"role": "user", "content": "Hello there"}]
    )


def test_words_are_all_different_and_one_token_each() -> None:
    assert len(set(WORDS)) == len(WORDS) == 4096
    assert {len(word) for word in WORDS} == {TOKEN_BYTES}
    assert all(word.isascii() and word.strip().isalpha() for word in WORDS)
