"""The text form of keys in stores that name their objects by text."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.errors import ConfigError
from kveik.kv.keys import BlockKey
from kveik.store.key_text import LONGEST, KeyTexts

NAMESPACE = b"\xab" * 16
KEYS = st.builds(
    BlockKey.of,
    st.binary(min_size=16, max_size=16),
    st.sampled_from([16, 32]).flatmap(lambda size: st.binary(min_size=size, max_size=size)),
    st.integers(0, 0xFFFF),
    st.integers(0, 0xFFFF),
)


@given(KEYS)
def test_a_text_gives_its_key_back_and_has_only_characters_that_every_store_takes(key: BlockKey) -> None:
    texts = KeyTexts()

    assert texts.key(texts.of(key)) == key
    assert re.fullmatch(r"[A-Za-z0-9_-]+", texts.of(key))


def test_no_text_is_longer_than_promised_whatever_the_prefix() -> None:
    longest = BlockKey.of(NAMESPACE, b"h" * 32, 0xFFFF, 0xFFFF)
    room = LONGEST - len(longest.text) - 1

    assert len(KeyTexts("p" * room).of(longest)) == LONGEST
    with pytest.raises(ConfigError, match="expected 1 to"):
        KeyTexts("p" * (room + 1))


@pytest.mark.parametrize("prefix", ["", "a.b", "a/b", "a b", "ü", "a\n"])
def test_a_prefix_with_other_characters_is_refused_in_words(prefix: str) -> None:
    with pytest.raises(ConfigError, match="letters, digits"):
        KeyTexts(prefix)


@pytest.mark.parametrize("text", ["", "kveik-", "kveik-x", "other-key", "kveik-00-g0-r0-00", "xkveik-"])
def test_texts_of_others_are_no_keys(text: str) -> None:
    assert KeyTexts().key(text) is None


def test_a_key_under_another_prefix_is_not_ours() -> None:
    key = BlockKey.of(NAMESPACE, b"h" * 32)

    assert KeyTexts("team-a").key(KeyTexts("team-b").of(key)) is None
    assert KeyTexts("team").key(KeyTexts("team-b").of(key)) is None


def test_all_texts_of_a_namespace_begin_alike_and_match_its_expression_and_others_do_neither() -> None:
    texts = KeyTexts("team")
    ours = texts.of(BlockKey.of(NAMESPACE, b"h" * 16, 3, 12))
    others = [texts.of(BlockKey.of(b"\xac" * 16, b"h" * 32)), KeyTexts("team-b").of(BlockKey.of(NAMESPACE, b"h" * 16))]

    assert ours.startswith(texts.start(NAMESPACE))
    assert re.search(texts.regex(NAMESPACE), ours)
    for other in others:
        assert not other.startswith(texts.start(NAMESPACE))
        assert not re.search(texts.regex(NAMESPACE), other)


def test_an_empty_digest_means_all_namespaces_of_the_prefix() -> None:
    texts = KeyTexts("team")
    keys = [BlockKey.of(bytes([number]) * 16, b"h" * 32) for number in range(3)]

    assert all(texts.of(key).startswith(texts.start(b"")) for key in keys)
    assert all(re.search(texts.regex(b""), texts.of(key)) for key in keys)
    assert not re.search(texts.regex(b""), KeyTexts("team-b").of(keys[0]))
    assert not re.search(texts.regex(b""), "team-notes")


def test_one_namespace_can_be_left_out_of_all() -> None:
    texts = KeyTexts("team")
    ours, spared = (texts.of(BlockKey.of(digest, b"h" * 32)) for digest in (NAMESPACE, b"\x01" * 16))
    expression = texts.regex(b"", spared=b"\x01" * 16)

    assert re.search(expression, ours)
    assert not re.search(expression, spared)
