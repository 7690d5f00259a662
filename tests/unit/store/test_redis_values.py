"""An answer to MGET, in whatever pieces it comes, and whatever else a server may send."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.errors import ServerRefusedError
from kveik.store.redis_values import Values


@contextmanager
def sent(*pieces: bytes) -> Iterator[socket.socket]:
    """A stream on which these pieces come, and then its end."""
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)

    def send() -> None:
        with theirs, contextlib.suppress(OSError):  # nobody reads on after what is wrong
            for piece in pieces:
                theirs.sendall(piece)

    thread = threading.Thread(target=send)
    ours.settimeout(10)
    with ours:
        thread.start()
        yield ours
    thread.join()


def bulk(value: bytes | None) -> bytes:
    return b"$-1\r\n" if value is None else b"$%d\r\n%b\r\n" % (len(value), value)


@given(
    st.lists(st.none() | st.binary(max_size=300), min_size=1, max_size=5),
    st.lists(st.integers(1, 80), min_size=1, max_size=20),
    st.integers(0, 300),
)
def test_all_values_arrive_however_the_stream_is_cut(values: list[bytes | None], cuts: list[int], room: int) -> None:
    text = b"*%d\r\n" % len(values) + b"".join(map(bulk, values))
    pieces = []
    for cut in cuts:
        pieces.append(text[:cut])
        text = text[cut:]
    with sent(*pieces, text) as stream:
        answer = Values(stream, len(values))
        for value in values:
            buffer = bytearray(room)
            size = answer.next_into(memoryview(buffer))
            assert size == (None if value is None else len(value))
            if value is not None and len(value) <= room:
                assert buffer[: len(value)] == value


def test_a_value_beyond_its_buffer_is_dropped_and_the_next_one_is_whole() -> None:
    with sent(b"*2\r\n" + bulk(bytes(700_000)) + bulk(b"next")) as stream:
        answer = Values(stream, 2)
        assert answer.next_into(memoryview(bytearray(10))) == 700_000
        buffer = bytearray(4)
        assert answer.next_into(memoryview(buffer)) == 4
        assert buffer == b"next"


def test_the_server_s_error_is_told_in_its_words() -> None:
    with (
        sent(b"-LOADING Redis is loading the dataset in memory\r\n") as stream,
        pytest.raises(ServerRefusedError, match="LOADING Redis is loading"),
    ):
        Values(stream, 1)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "closed the connection"),
        (b"*2\r\n", "MGET of 1 keys with"),
        (b"+OK\r\n", "MGET of 1 keys with"),
        (b"*1\r\n:5\r\n", "where a value was expected"),
        (b"*1\r\n$-2\r\n", "where a value was expected"),
        (b"*1\r\n$9\r\nshort", "closed the connection"),
        (b"*1\r\n$2\r\nabc\r\n", "more than it had said"),
        (b"x" * 5000, "where a line was expected"),
    ],
)
def test_what_is_no_answer_ends_the_connection(text: bytes, why: str) -> None:
    with sent(text) as stream, pytest.raises(ConnectionError, match=why):
        Values(stream, 1).next_into(memoryview(bytearray(10)))


def test_a_server_that_stops_in_the_midst_of_a_value_is_a_time_out() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0.05)
        theirs.sendall(b"*1\r\n$100\r\nabc")
        answer = Values(ours, 1)
        with pytest.raises(TimeoutError):
            answer.next_into(memoryview(bytearray(100)))
