"""The values of one MGET, received straight into their buffers.

The client library would hand each value over in memory of its own, copied three times on the way. So it connects, and
sends the command; what the server answers (RESP2, an array of bulk strings) is read here.
"""

import socket

from kveik.errors import ServerRefusedError

#: What is read at once where a line is expected; what belongs to the value behind it is copied.
_LINE_BYTES = 64
_LINE_MAX_BYTES = 4096
#: Where values go that their buffer cannot hold.
_BIN_BYTES = 256 << 10


class Values:
    """The answer to one MGET on ``stream``, from its first byte on.

    The constructor raises :class:`ServerRefusedError`, after which the connection can be used again. Everything raises
    ``OSError`` where the connection ends or is too slow, or where what comes is no such answer; then it can not.
    """

    def __init__(self, stream: socket.socket, keys: int) -> None:
        self._stream = stream
        self._held = b""
        line = self._line()
        if line.startswith(b"-"):
            raise ServerRefusedError(line[1:].decode("utf8", "replace"))
        if line != b"*%d" % keys:
            raise ConnectionError(f"the server answered MGET of {keys} keys with {line[:40]!r}")

    def next_into(self, buffer: memoryview) -> int | None:
        """Receive the next value; its bytes, or None for a key that is not there.

        A value that has more bytes than the buffer is dropped.
        """
        line = self._line()
        if line == b"$-1":
            return None
        if not line.startswith(b"$") or not line[1:].isdigit():
            raise ConnectionError(f"the server sent {line[:40]!r} where a value was expected")
        size = int(line[1:])
        if size <= len(buffer):
            self._fill(buffer[:size])
        else:
            self._drop(size)
        if self._line():
            raise ConnectionError("the server sent more than it had said")
        return size

    def _line(self) -> bytes:
        while b"\r\n" not in self._held:
            if len(self._held) > _LINE_MAX_BYTES:
                raise ConnectionError(f"the server sent {self._held[:40]!r} where a line was expected")
            more = self._stream.recv(_LINE_BYTES)
            if not more:
                raise _ended()
            self._held += more
        line, _, self._held = self._held.partition(b"\r\n")
        return line

    def _fill(self, buffer: memoryview) -> None:
        held = min(len(self._held), len(buffer))
        buffer[:held] = self._held[:held]
        self._held = self._held[held:]
        while held < len(buffer):
            received = self._stream.recv_into(buffer[held:])
            if not received:
                raise _ended()
            held += received

    def _drop(self, size: int) -> None:
        waste = memoryview(bytearray(min(size, _BIN_BYTES)))
        while size:
            self._fill(waste[:size])
            size -= min(size, len(waste))


def _ended() -> ConnectionError:
    return ConnectionError("the server closed the connection in the midst of an answer")
