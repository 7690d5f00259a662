"""Framing of messages on a Unix stream socket, and waiting no longer than a deadline."""

import os
import select
import socket
import struct

import msgspec

from kveik.agent.protocol import MAX_MESSAGE_BYTES, Answer, Request
from kveik.errors import AgentTimeoutError, ProtocolError

_LENGTH = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(Request)
_answers = msgspec.msgpack.Decoder(Answer)


def encode(message: Request | Answer) -> bytes:
    """The message with its length in front. Raises :class:`ProtocolError` if it is too long."""
    body = _encoder.encode(message)
    if len(body) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"message of {len(body)} bytes, at most {MAX_MESSAGE_BYTES} are allowed")
    return _LENGTH.pack(len(body)) + body


def decode_request(body: bytes | bytearray) -> Request:
    """The request in a message body. Raises :class:`ProtocolError`."""
    try:
        return _requests.decode(body)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"not a request: {error}") from error


def decode_answer(body: bytes | bytearray) -> Answer:
    """The answer in a message body. Raises :class:`ProtocolError`."""
    try:
        return _answers.decode(body)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"not an answer: {error}") from error


def receive_body(sock: socket.socket) -> bytearray | None:
    """The next message body, or None at the end of the stream.

    Raises :class:`ProtocolError` for a length that is not allowed or a message that breaks off,
    and ``OSError`` as the socket does.
    """
    head = _receive_exactly(sock, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    return receive_rest(sock, length)


def receive_rest(sock: socket.socket, length: int) -> bytearray:
    """The body of a message whose length is known. Raises as :func:`receive_body` does."""
    if length > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"message of {length} bytes, at most {MAX_MESSAGE_BYTES} are allowed")
    body = _receive_exactly(sock, length)
    if body is None:
        raise ProtocolError("the stream ended within a message")
    return body


def receive_with_descriptor(sock: socket.socket) -> tuple[bytearray, int | None]:
    """One message, and the file descriptor that came with its first bytes. Raises as :func:`receive_body` does."""
    head, descriptors, _, _ = socket.recv_fds(sock, _LENGTH.size, 1)
    try:
        if len(head) != _LENGTH.size:
            raise ProtocolError("the stream ended before a message")
        return receive_rest(sock, _LENGTH.unpack(head)[0]), descriptors[0] if descriptors else None
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise


def _receive_exactly(sock: socket.socket, length: int) -> bytearray | None:
    """``length`` bytes; None if the stream ends before the first of them."""
    buffer = bytearray()
    while len(buffer) < length:
        # In pieces: a length that was only announced must not take memory.
        piece = sock.recv(min(length - len(buffer), 1 << 18))
        if not piece:
            if buffer:
                raise ProtocolError("the stream ended within a message")
            return None
        buffer += piece
    return buffer


def send_within(sock: socket.socket, data: bytes, seconds: float) -> bool:
    """Send all of ``data``, waiting at most ``seconds`` each time the peer does not read.

    False if nothing was sent: the stream is still whole. Raises :class:`AgentTimeoutError` if the
    peer stopped reading in the middle of the message; the connection is useless then.
    """
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[sock.send(rest, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]
            continue
        except BlockingIOError:
            pass
        poller = select.poll()
        poller.register(sock, select.POLLOUT)
        if not poller.poll(seconds * 1000):
            if len(rest) == len(data):
                return False
            raise AgentTimeoutError(f"the peer read nothing for {seconds:g} s in the middle of a message")
    return True
