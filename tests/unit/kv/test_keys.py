"""Keys: every part counts, and there is one text form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.errors import KeyFormatError
from kveik.kv.keys import BlockKey, key_prefix

namespaces = st.binary(min_size=16, max_size=16)
hashes = st.binary(min_size=16, max_size=16) | st.binary(min_size=32, max_size=32)
numbers = st.integers(0, 0xFFFF)
parts = st.tuples(namespaces, hashes, numbers, numbers)


@given(parts)
def test_a_key_gives_back_its_parts(given_parts: tuple[bytes, bytes, int, int]) -> None:
    namespace, block_hash, group, rank = given_parts
    key = BlockKey.of(namespace, block_hash, group, rank)

    assert (key.namespace, key.block_hash, key.group, key.rank) == given_parts


@given(parts, parts)
def test_keys_are_equal_only_when_every_part_is(
    one: tuple[bytes, bytes, int, int], two: tuple[bytes, bytes, int, int]
) -> None:
    assert (BlockKey.of(*one) == BlockKey.of(*two)) == (one == two)


@given(parts, parts)
def test_flipping_any_one_part_gives_another_key(
    one: tuple[bytes, bytes, int, int], two: tuple[bytes, bytes, int, int]
) -> None:
    key = BlockKey.of(*one)

    assert (BlockKey.of(two[0], one[1], one[2], one[3]) == key) == (one[0] == two[0])
    assert (BlockKey.of(one[0], two[1], one[2], one[3]) == key) == (one[1] == two[1])
    assert (BlockKey.of(one[0], one[1], two[2], one[3]) == key) == (one[2] == two[2])
    assert (BlockKey.of(one[0], one[1], one[2], two[3]) == key) == (one[3] == two[3])


@given(parts)
def test_text_and_packed_form_lead_back_to_the_key(given_parts: tuple[bytes, bytes, int, int]) -> None:
    key = BlockKey.of(*given_parts)

    assert BlockKey.parse(key.text) == key
    assert BlockKey.from_packed(bytes(key)) == key
    assert str(key) == key.text


@given(parts)
def test_the_text_is_fit_for_file_names_and_object_stores(given_parts: tuple[bytes, bytes, int, int]) -> None:
    text = BlockKey.of(*given_parts).text

    assert len(text) <= 111
    assert all(character in "0123456789abcdefgr-" for character in text)


@given(st.text(max_size=120))
def test_text_that_parses_is_the_text_of_its_key(text: str) -> None:
    try:
        key = BlockKey.parse(text)
    except KeyFormatError:
        return
    assert key.text == text


@given(parts)
def test_a_lookup_may_build_keys_from_their_common_prefix(given_parts: tuple[bytes, bytes, int, int]) -> None:
    namespace, block_hash, group, rank = given_parts

    assert key_prefix(namespace, group, rank) + block_hash == BlockKey.of(*given_parts)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no key",
        f"{'a' * 32}-g00-r0-{'b' * 64}",  # a number in another spelling
        f"{'a' * 32}-g0-r65536-{'b' * 64}",
        f"{'A' * 32}-g0-r0-{'b' * 64}",
        f"{'a' * 32}-g0-r0-{'b' * 48}",
        f"{'a' * 32}-g0-r0-{'b' * 64}\n",
        f"{'a' * 32}-g٣-r0-{'b' * 64}",
    ],
)
def test_other_spellings_of_a_key_are_refused(text: str) -> None:
    with pytest.raises(KeyFormatError):
        BlockKey.parse(text)


@pytest.mark.parametrize("size", [0, 20, 35, 37, 51, 53])
def test_a_packed_key_of_the_wrong_size_is_refused(size: int) -> None:
    with pytest.raises(KeyFormatError, match=f"{size} bytes"):
        BlockKey.from_packed(bytes(size))


@pytest.mark.parametrize(("namespace", "group", "rank"), [(b"short", 0, 0), (bytes(16), -1, 0), (bytes(16), 0, 65536)])
def test_parts_out_of_range_are_refused(namespace: bytes, group: int, rank: int) -> None:
    with pytest.raises(KeyFormatError):
        BlockKey.of(namespace, bytes(32), group, rank)


def test_keys_serve_as_dictionary_keys_beside_plain_bytes() -> None:
    key = BlockKey.of(bytes(16), bytes(32), 1, 2)

    assert {key: "there"}[BlockKey.from_packed(bytes(key))] == "there"
    assert {bytes(key): "there"}[key] == "there"


def test_the_repr_is_readable() -> None:
    assert repr(BlockKey.of(bytes(16), bytes(16))) == f"BlockKey({'0' * 32}-g0-r0-{'0' * 32})"
