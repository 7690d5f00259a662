import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kveik.router.cache_salt import combined, with_cache_salt, with_tenant_salt

texts = st.text(st.characters(exclude_categories=[]), max_size=8)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
names = texts | st.sampled_from(["cache_salt", "messages", "cache\\u005fsalt", ""])
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=8
)
objects = st.dictionaries(names, values, max_size=5)
salts = st.from_regex(r"[0-9a-f]{1,32}", fullmatch=True)


def escaped(text: str) -> str:
    """The same text with every character written as an escape."""
    units = text.encode("utf-16-be", "surrogatepass")
    return '"' + "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2)) + '"'


@given(objects, salts, st.booleans(), st.sampled_from([None, 2]))
def test_only_the_outermost_salt_changes(document: dict[str, Any], salt: str, ascii_only: bool, indent: int) -> None:
    text = json.dumps(document, ensure_ascii=ascii_only, indent=indent)
    body = text.encode("utf8", "surrogatepass")
    try:
        json.loads(body)
    except UnicodeDecodeError:
        return
    assert json.loads(with_cache_salt(body, salt)) == {**document, "cache_salt": salt}


@given(st.lists(st.tuples(names, values, st.booleans()), max_size=6), salts)
@example([("cache_salt", "a", False), ("cache_salt", "b", True), ("x", {"cache_salt": "c"}, False)], "s")
def test_names_that_are_doubled_or_written_with_escapes_are_found(
    members: list[tuple[str, Any, bool]], salt: str
) -> None:
    pairs = [f"{escaped(n) if odd else json.dumps(n)} : {json.dumps(v)}" for n, v, odd in members]
    body = ("{" + ",".join(pairs) + "}").encode()
    changed = with_cache_salt(body, salt)
    assert json.loads(changed) == {**json.loads(body), "cache_salt": salt}
    outermost = json.loads(changed, object_pairs_hook=list)
    assert [name for name, _ in outermost].count("cache_salt") == 1


def test_what_is_nested_stays_byte_for_byte() -> None:
    inner = b'[ {"role" : "user", "content":"\\u00e9 \\/ 1.50 \xe4\xbd\xa0", "cache_salt" :"mine"} , 1.50e+2 ]'
    changed = with_cache_salt(b'{"model":"m", "messages" : ' + inner + b', "cache_salt":"theirs"}', "ours")
    assert changed == b'{"model":"m","messages":' + inner + b',"cache_salt":"ours"}'


def test_a_text_that_looks_like_the_member_is_no_member() -> None:
    body = json.dumps({"prompt": '","cache_salt":"x","a":"'}).encode()
    assert json.loads(with_cache_salt(body, "s")) == {**json.loads(body), "cache_salt": "s"}


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": "half \\ud83d"}',
        b'{"half \\ud83d": 1}',
        b"\xef\xbb\xbf{}",
        '{"prompt": "x"}'.encode("utf-16"),
        b'{"temperature": 1e999}',
        b'{"logit_bias": {"1": Infinity}}',
    ],
)
def test_what_engines_accept_beyond_strict_json_is_accepted(body: bytes) -> None:
    assert json.loads(with_cache_salt(body, "s")) == {**json.loads(body), "cache_salt": "s"}


def test_a_number_that_is_none_stays_none() -> None:
    assert math.isnan(json.loads(with_cache_salt(b'{"temperature": NaN}', "s"))["temperature"])


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b'"text"', b"null", b"{", b'{"a":1} {"cache_salt":"x"}', b'{"a":01}', b"\xff\xfe", b'{"a":"\x01"}',
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"a":' + b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="body"):
        with_cache_salt(body, "s")


@given(st.binary(max_size=40) | texts.map(lambda text: text.encode("utf8", "surrogatepass")))
def test_any_bytes_are_changed_or_refused(body: bytes) -> None:
    try:
        changed = with_cache_salt(body, "s")
    except ValueError:
        return
    assert json.loads(changed.decode("utf8", "replace"))["cache_salt"] == "s"


@given(texts)
def test_a_client_s_salt_never_reaches_another_tenant(client_salt: str) -> None:
    body = json.dumps({"cache_salt": client_salt}).encode()
    ours = json.loads(with_tenant_salt(body, "tenant-a"))["cache_salt"]
    theirs = json.loads(with_tenant_salt(body, "tenant-b"))["cache_salt"]
    assert ours != theirs
    assert client_salt not in (ours, theirs) or client_salt == ""


def test_a_client_s_salt_keeps_its_users_apart_within_the_tenant() -> None:
    salted = [
        json.loads(with_tenant_salt(json.dumps({"cache_salt": user}).encode(), "tenant"))["cache_salt"]
        for user in ("anna", "ben", "anna")
    ]
    assert salted[0] == salted[2] != salted[1]
    assert "tenant" not in salted


@pytest.mark.parametrize("given_salt", [b"null", b'""', b"7", b"{}", b'["tenant-b"]'])
def test_a_salt_that_is_no_text_counts_for_nothing(given_salt: bytes) -> None:
    assert json.loads(with_tenant_salt(b'{"cache_salt":' + given_salt + b"}", "t")) == {"cache_salt": "t"}
    assert combined("t", "") == "t"
