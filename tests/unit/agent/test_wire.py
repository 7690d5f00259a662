import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.agent import wire
from kveik.agent.protocol import MAX_MESSAGE_BYTES, Done, Lookup, Read, Stats
from kveik.errors import AgentTimeoutError, ProtocolError


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    yield left, right
    left.close()
    right.close()


def test_a_message_arrives_as_it_was_sent(pair: tuple[socket.socket, socket.socket]) -> None:
    request = Lookup(7, b"n" * 16, [0, 1], [(0, [b"h" * 32])], 0.05)
    assert wire.send_within(pair[0], wire.encode(request), 1)
    body = wire.receive_body(pair[1])
    assert body is not None
    assert wire.decode_request(body) == request


def test_messages_keep_their_bounds(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].sendall(wire.encode(Stats(1)) + wire.encode(Stats(2)))
    assert [wire.decode_request(wire.receive_body(pair[1]) or b"").id for _ in range(2)] == [1, 2]


def test_the_end_between_messages_is_no_error(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].close()
    assert wire.receive_body(pair[1]) is None


@pytest.mark.parametrize("cut", [2, 6])
def test_the_end_within_a_message_is_one(pair: tuple[socket.socket, socket.socket], cut: int) -> None:
    pair[0].sendall(wire.encode(Stats(1))[:cut])
    pair[0].close()
    with pytest.raises(ProtocolError, match="ended within a message"):
        wire.receive_body(pair[1])


def test_a_length_beyond_the_limit_is_refused_before_it_takes_memory(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    pair[0].sendall(struct.pack("<I", MAX_MESSAGE_BYTES + 1))
    with pytest.raises(ProtocolError, match=str(MAX_MESSAGE_BYTES + 1)):
        wire.receive_body(pair[1])


def test_a_message_beyond_the_limit_is_not_sent() -> None:
    with pytest.raises(ProtocolError):
        wire.encode(Read(1, [b"k" * 52] * (MAX_MESSAGE_BYTES // 50), [1], 1.0))


@given(st.binary(max_size=200))
def test_any_bytes_give_a_request_or_a_protocol_error(body: bytes) -> None:
    try:
        wire.decode_request(body)
    except ProtocolError as error:
        assert "not a request" in str(error)


def test_an_answer_is_no_request() -> None:
    with pytest.raises(ProtocolError):
        wire.decode_request(wire.encode(Done(1))[4:])
    with pytest.raises(ProtocolError):
        wire.decode_answer(wire.encode(Stats(1))[4:])


def test_a_peer_that_does_not_read_costs_no_more_than_the_time_given(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    start_s = time.monotonic()
    with pytest.raises(AgentTimeoutError, match="in the middle"):
        wire.send_within(pair[0], bytes(8 << 20), 0.05)
    assert not wire.send_within(pair[0], b"more", 0.05)  # nothing of it was sent
    assert time.monotonic() - start_s < 2


def test_a_slow_reader_gets_a_long_message_whole(pair: tuple[socket.socket, socket.socket]) -> None:
    data = struct.pack("<I", 4 << 20) + bytes(4 << 20)
    received: list[bytearray | None] = []
    reader = threading.Thread(target=lambda: received.append(wire.receive_body(pair[1])))
    reader.start()
    assert wire.send_within(pair[0], data, 5)
    reader.join()
    assert received == [bytearray(4 << 20)]
