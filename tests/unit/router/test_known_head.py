"""Heads that are known: what is taken for one means, to the parser, the same but for its length."""

from typing import Any

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.router.known_head import KNOWN_MAX_BYTES, KnownHead, known_head

START = b"POST /v1/x HTTP/1.1\r\nhost: a\r\nauthorization: Bearer b\r\n"
END = b"\r\naccept: */*\r\n\r\n"


def message(body: bytes, start: bytes = START, name: bytes = b"content-length: ", end: bytes = END) -> bytes:
    return start + name + b"%d" % len(body) + end + body


def known(data: bytes = message(b"hello")) -> KnownHead:
    found = known_head(data)
    assert found is not None
    return found


def test_the_next_message_may_have_another_length() -> None:
    for body in (b"{}", b"x" * 100_000, b""):
        data = message(body)
        assert known().split(data, 1 << 20) == (data[: len(data) - len(body) - 4], body)


@pytest.mark.parametrize("name", [b"Content-Length: ", b"CONTENT-LENGTH:", b"content-length:   "])
def test_a_length_is_found_however_it_is_written(name: bytes) -> None:
    assert known(message(b"abc", name=name)).split(message(b"abcdef", name=name), 99) is not None


@pytest.mark.parametrize(
    "other",
    [
        message(b"hello", start=START.replace(b"Bearer b", b"Bearer c")),
        message(b"hello", start=START + b"x: 1\r\n"),
        message(b"hello", name=b"Content-Length: "),
        message(b"hello", end=b"\r\naccept: text/*\r\n\r\n"),
        message(b"hello", end=b"\r\naccept: */*\r\ncontent-length: 9\r\n\r\n"),
        message(b"hello")[:-1],
        message(b"hello") + b"P",
        message(b"hello") + message(b"hello"),
        START + b"content-length: +5" + END + b"hello",
        START + b"content-length: 5 " + END + b"hello",
        START + b"content-length: 5_0" + END + b"x" * 50,
        START + b"content-length: " + END + b"hello",
        START + b"content-length: 0000000000000005" + END + b"hello",
        START + b"content-length: \xb2" + END + b"hello",
        b"",
        START,
    ],
)
def test_anything_else_is_for_the_parser(other: bytes) -> None:
    assert known().split(other, 1 << 20) is None


def test_a_body_that_is_too_long_is_for_the_parser() -> None:
    assert known().split(message(b"x" * 100), 99) is None
    assert known().split(message(b"x" * 100), 100) is not None


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        START + b"content-length: 5\r\ncontent-length: 5" + END + b"hello",
        message(b"hello") + b"more",
        message(b"hello")[:-1],
        message(b"hello", end=b"\r\nx: " + b"y" * KNOWN_MAX_BYTES + b"\r\n\r\n"),
        b"content-length: 5",
    ],
)
def test_heads_that_are_not_kept(data: bytes) -> None:
    assert known_head(data) is None


class Parsed:
    """What the parser makes of bytes."""

    def __init__(self, data: bytes) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.body = b""
        self.complete = 0
        parser = httptools.HttpRequestParser(self)
        parser.feed_data(data)
        self.told.append((parser.get_method(), parser.get_http_version(), parser.should_keep_alive()))

    def on_url(self, url: bytes) -> None:
        self.told.append((url,))

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() != b"content-length":
            self.told.append((name, value))

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete += 1


pieces = st.sampled_from(
    [b"content-length: ", b"\r\n", b"5", b"55", b" ", b"\t", b"x: 1", b"host: a", b"+", b"\r\n\r\n", b"\n", b"\r", b"0"]
)


@given(st.lists(pieces, max_size=6), st.lists(pieces, max_size=6), st.binary(max_size=60))
def test_what_is_taken_for_a_known_head_is_one_whole_message_like_the_first_to_the_parser(
    before: list[bytes], after: list[bytes], body: bytes
) -> None:
    start, end = START + b"".join(before), b"".join(after) + END
    first = message(b"hello", start=start, end=end)
    try:
        one = Parsed(first)
    except httptools.HttpParserError:
        return  # such a message is refused
    found = known_head(first) if one.complete == 1 and one.body == b"hello" else None
    data = message(body, start=start, end=end)
    parts = found.split(data, 99) if found is not None else None
    if parts is None:
        return
    other = Parsed(data)
    assert other.told == one.told
    assert other.complete == 1
    assert other.body == parts[1]
