"""HTTP/1.1 of the simulated engine: one protocol object a connection, parsed by httptools."""

import asyncio
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol, cast
from urllib.parse import unquote

import httptools

from kveik.simulate.faults import Death, Faults
from kveik.simulate.schedule import NEVER_S

logger = logging.getLogger("kveik.simulate")

_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_MARK = b"server: kveik-sim-engine\r\nx-kveik-simulated: 1\r\n"
_JSON = b"application/json"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\n" + _MARK + b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"


class Request:
    """One request as it came in."""

    __slots__ = ("body", "headers", "keep_alive", "method", "path", "url")

    def __init__(self) -> None:
        self.url = b""
        self.path = ""
        self.method = ""
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.keep_alive = True

    def complete_head(self, method: bytes, keep_alive: bool) -> None:
        """All of the head is there."""
        self.method, self.keep_alive = method.decode("latin1"), keep_alive
        path = self.url.partition(b"?")[0]
        self.path = path.decode("latin1") if b"%" not in path else unquote(path.decode("latin1"))

    def header(self, name: bytes) -> bytes:
        """The value of the first header of that name (in lower case); empty if there is none."""
        return next((value for key, value in self.headers if key.lower() == name), b"")


class Listener(Protocol):
    """What a connection needs from the server behind it."""

    faults: Faults
    keep_alive_s: float

    def opened(self, connection: "Connection") -> None:
        """A connection is there."""

    def closed(self, connection: "Connection") -> None:
        """A connection is gone."""

    def handle(self, request: Request, connection: "Connection") -> None:
        """Answer a request through the connection, at once or later."""


class Connection(asyncio.Protocol):
    """One connection: reads requests, hands them on one at a time, writes answers.

    ``on_gone`` is what whoever answers wants called if the connection ends before the answer does;
    its argument says whether it was the client that left.
    """

    def __init__(self, listener: Listener, loop: asyncio.AbstractEventLoop) -> None:
        self._listener = listener
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._request: Request | None = None
        self._parts: list[bytes] = []
        self._waiting: deque[Request] = deque()
        self._current: Request | None = None
        self._held = b""
        self._expects = False
        self.on_gone: Callable[[bool], None] | None = None
        self._cut = False  # by us
        self.idle_since_s = NEVER_S  # before the first answer a connection may wait as long as it likes

    @property
    def gone(self) -> bool:
        """Whether nothing can be written any more."""
        return self._transport is None or self._transport.is_closing()

    @property
    def busy(self) -> bool:
        """Whether a request is under way."""
        return self._current is not None or self._request is not None

    # -- what the loop calls -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are none by inheritance
        self._listener.opened(self)

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        faults = self._listener.faults
        if faults.never_read or faults.read_bytes_s:
            self._hold(data, faults)
        else:
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            logger.debug("simulated engine: a wish to upgrade is ignored")
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or error from None  # a defect of ours, not of the bytes
        except httptools.HttpParserError:
            if self._current is None:
                self.respond(400, b"Invalid HTTP request received.", b"text/plain; charset=utf-8")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left, or we closed."""
        self._transport = None
        self._waiting.clear()
        self._listener.closed(self)
        if self.on_gone is not None:
            gone, self.on_gone = self.on_gone, None
            gone(not self._cut)

    # -- what the parser calls -----------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request begins."""
        self._request = Request()

    def on_url(self, url: bytes) -> None:
        """The target of a request, or a part of it."""
        if self._request is not None:
            self._request.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        request = self._request
        if request is not None:
            request.headers.append((name, value))
            if len(name) == 6 and name.lower() == b"expect":
                self._expects = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        """The headers are there, the body is not."""
        request = self._request
        if request is None:
            return
        request.complete_head(self._parser.get_method(), self._parser.should_keep_alive())
        if self._expects:
            self._expects = False
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._parts.append(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        request, self._request = self._request, None
        parts = self._parts
        if request is None:
            return
        if parts:
            request.body = parts[0] if len(parts) == 1 else b"".join(parts)
            self._parts = []
        if self._current is None:
            self._current = request
            self._listener.handle(request, self)
        else:
            self._waiting.append(request)

    # -- what answers ----------------------------------------------------------------------------

    def respond(self, status: int, body: bytes, kind: bytes = _JSON, headers: dict[str, str] | None = None) -> None:
        """A whole answer."""
        self._write(self.whole(status, body, kind, headers) + body)
        self.done()

    def whole(self, status: int, body: bytes, kind: bytes = _JSON, headers: dict[str, str] | None = None) -> bytes:
        """The head of a whole answer."""
        more = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("latin1") if headers else b""
        return b"HTTP/1.1 %d %b\r\n%bcontent-type: %b\r\ncontent-length: %d\r\n%b%b\r\n" % (
            status,
            _REASONS.get(status, b""),
            _MARK,
            kind,
            len(body),
            more,
            self._close_header(),
        )

    def stream_head(self) -> bytes:
        """The head of a stream."""
        return _STREAM_HEAD + self._close_header() + b"\r\n"

    def write(self, data: bytes) -> None:
        """Bytes of an answer, framed by the caller."""
        self._write(data)

    def done(self) -> None:
        """The answer is complete: the next request may come."""
        request, self._current = self._current, None
        self.on_gone = None
        self.idle_since_s = self._loop.time()
        if (request is not None and not request.keep_alive) or self._listener.keep_alive_s == 0:
            self.close()
        elif self._waiting:
            self._current = self._waiting.popleft()
            self._loop.call_soon(self._handle_next, self._current)

    def close(self) -> None:
        """End the connection after what is written."""
        if self._transport is not None:
            self._transport.close()

    def die(self, how: Death) -> None:
        """End the connection in the midst of an answer, once the bytes before have left."""
        self.on_gone = None
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size():
            self._loop.call_later(0.001, self.die, how)
        elif how == "rst":
            self.reset()
        else:
            transport.close()

    def reset(self) -> None:
        """End the connection by RST at once, as a killed process with unread data does."""
        transport = self._transport
        if transport is None:
            return
        raw: socket.socket | None = transport.get_extra_info("socket")
        self._cut = True
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()

    def read_on(self) -> None:
        """Take in what was held back, and read again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            held, self._held = self._held, b""
            if held:
                self._feed(held)

    def _handle_next(self, request: Request) -> None:
        if not self.gone:
            self._listener.handle(request, self)

    def _close_header(self) -> bytes:
        return b"" if self._current is None or self._current.keep_alive else b"connection: close\r\n"

    def _write(self, data: bytes) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.write(data)

    def _hold(self, data: bytes, faults: Faults) -> None:
        """Let bytes that have come wait as if they were still on their way, and read no others meanwhile."""
        self._held += data
        if self._transport is not None:
            self._transport.pause_reading()
        if not faults.never_read:
            self._loop.call_later(len(data) / faults.read_bytes_s, self.read_on)


_SIZES = tuple(b"%x\r\n" % size for size in range(1024))


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    size = len(data)
    return (_SIZES[size] if size < 1024 else b"%x\r\n" % size) + data + b"\r\n"
