"""A client's connection: parses requests, hands each to the router, and answers them in order."""

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

import httptools

from kveik.router import http1

logger = logging.getLogger(__name__)

#: Requests of one connection that may wait for their turn (HTTP pipelining); more are not read.
PIPELINED_MAX = 8


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What a client may send. Bytes and seconds."""

    head_bytes: int
    body_bytes: int
    head_s: float
    body_idle_s: float
    idle_s: float


class Incoming:
    """One request as it is being read. ``headers`` are the lines that are passed on to an engine."""

    __slots__ = (
        "_parts", "api_key", "authorization", "body_bytes", "expects", "head_bytes", "headers", "host", "http10",
        "keep_alive", "length", "method", "request_id", "target", "traceparent",
    )  # fmt: skip

    def __init__(self) -> None:
        self.method = b""
        self.target = b""
        self.headers: list[bytes] = []
        self.head_bytes = 0
        self.host = b""
        self.authorization = b""
        self.api_key = b""
        self.request_id = b""
        self.traceparent = b""
        self.length = -1
        self.expects = False
        self.http10 = False
        self.keep_alive = True
        self.body_bytes = 0
        self._parts: list[bytes] = []

    def add_body(self, data: bytes) -> None:
        """A piece of the body."""
        self._parts.append(data)
        self.body_bytes += len(data)

    @property
    def body(self) -> bytes:
        """The whole body."""
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)


class UnderWay(Protocol):
    """An answer that a client waits for."""

    @property
    def over(self) -> bool:
        """Whether the client has it, or will get no more of it."""

    def client_left(self) -> None:
        """The client went away."""

    def client_slow(self, *, slow: bool) -> None:
        """The client does not (or again) take what is sent to it."""


class RequestHandler(Protocol):
    """The router, as a client's connection sees it."""

    limits: ClientLimits

    def handle(self, client: "ClientConnection", request: Incoming) -> UnderWay | None:
        """Begin to answer a request; None if it is answered already."""

    def opened(self, client: "ClientConnection") -> None:
        """A client connected."""

    def closed(self, client: "ClientConnection") -> None:
        """A client's connection is gone."""


class ClientConnection(asyncio.Protocol):
    """One connection. At most one exchange is under way; what is pipelined waits."""

    __slots__ = (
        "_answer",
        "_draining",
        "_handler",
        "_head_bytes",
        "_parser",
        "_reading",
        "_refused",
        "_since_s",
        "_waiting",
        "http10",
        "keep_alive",
        "peer",
        "transport",
    )  # fmt: skip

    def __init__(self, handler: RequestHandler) -> None:
        self._handler = handler
        self.transport: asyncio.Transport | None = None
        self.peer = ""
        self.http10 = False
        self.keep_alive = True
        self._parser: Any = httptools.HttpRequestParser(self)
        self._reading: Incoming | None = None
        self._head_bytes = 0
        self._waiting: deque[Incoming] = deque()
        self._answer: UnderWay | None = None
        self._refused = False
        self._draining = False
        self._since_s = asyncio.get_running_loop().time()

    # -- asyncio --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self.transport = transport  # type: ignore[assignment]
        address = transport.get_extra_info("peername")
        self.peer = address[0] if isinstance(address, tuple) else ""
        self._handler.opened(self)

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        if self._refused:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(501, "the router does not upgrade connections (no WebSocket): send plain HTTP/1.1")
            return
        except httptools.HttpParserError as error:
            refusal = error.__context__
            if isinstance(refusal, _RefusedError):
                self._refuse(refusal.status, str(refusal))
            else:
                self._refuse(400, f"this is no valid HTTP/1.1 request: {error}")
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self._handler.limits.head_bytes:
                self._refuse(431, f"the request's head is longer than {self._handler.limits.head_bytes} bytes")
                return
        if self._waiting:
            self._go_on()

    @property
    def _in_head(self) -> bool:
        """Whether a head has begun that is not complete."""
        return self._reading is not None and not self._reading.method

    def _go_on(self) -> None:
        """Begin what waits, one request at a time."""
        while self._waiting and self._answer is None and self.transport is not None:
            self._begin(self._waiting.popleft())
        if self.transport is not None and len(self._waiting) > PIPELINED_MAX:
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        """The client sends no more: it has left, as far as an HTTP server can know."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """The client is gone."""
        self.transport = None
        exchange, self._answer = self._answer, None
        self._waiting.clear()
        if exchange is not None:
            exchange.client_left()
        self._handler.closed(self)

    def pause_writing(self) -> None:
        """The client takes too little."""
        if self._answer is not None:
            self._answer.client_slow(slow=True)

    def resume_writing(self) -> None:
        """The client caught up."""
        if self._answer is not None:
            self._answer.client_slow(slow=False)

    # -- the parser's callbacks -----------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request begins."""
        self._reading = Incoming()
        self._head_bytes = 0
        self._since_s = asyncio.get_running_loop().time()

    def on_url(self, url: bytes) -> None:
        """The target, perhaps in parts."""
        assert self._reading is not None
        self._reading.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header: kept as it came, unless it is the router's own affair."""
        reading = self._reading
        assert reading is not None
        lower = name.lower()
        reading.head_bytes += len(name) + len(value) + 4
        keep_apart = _NOT_PASSED_ON.get(lower)
        if keep_apart is None:
            reading.headers.append(b"%s: %s\r\n" % (name, value))
        else:
            keep_apart(reading, value)

    def on_headers_complete(self) -> None:
        """The head is complete: refuse what is too large before it is read."""
        reading, parser, limits = self._reading, self._parser, self._handler.limits
        assert reading is not None
        reading.method = parser.get_method()
        reading.http10 = parser.get_http_version() == "1.0"
        reading.keep_alive = parser.should_keep_alive()
        if reading.head_bytes + len(reading.target) > limits.head_bytes:
            raise _RefusedError(431, f"the request's head is longer than {limits.head_bytes} bytes")
        self._head_bytes = 0
        if reading.length > limits.body_bytes:
            raise _RefusedError(413, _too_large(reading.length, limits.body_bytes))
        if reading.expects and self.transport is not None:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        reading, limits = self._reading, self._handler.limits
        assert reading is not None
        reading.add_body(data)
        if reading.body_bytes > limits.body_bytes:
            raise _RefusedError(413, _too_large(reading.body_bytes, limits.body_bytes))

    def on_message_complete(self) -> None:
        """A request is complete."""
        reading, self._reading = self._reading, None
        assert reading is not None
        self._waiting.append(reading)  # begun when the parser has returned: nothing may raise through it

    # -- requests and answers -------------------------------------------------------------------

    def _begin(self, request: Incoming) -> None:
        self.http10 = request.http10
        self.keep_alive = request.keep_alive and not self._draining
        try:
            answer = self._handler.handle(self, request)
        except Exception:
            # Supervision: a fault of the router's own ends this connection, and no other.
            logger.exception("a request failed in the router")
            answer = None
            self.keep_alive = False
            self.write(http1.response(500, http1.error_body(500, "the router failed; its log says why"), close=True))
        self._answer = answer if answer is not None and not answer.over else None
        if self._answer is None and self.transport is not None and not self.keep_alive:
            self.transport.close()

    def write(self, data: bytes) -> None:
        """Send bytes; nothing if the client is gone."""
        if self.transport is not None:
            self.transport.write(data)

    def answered(self) -> None:
        """The answer is complete: go on with what waits."""
        self._answer = None
        self._since_s = asyncio.get_running_loop().time()
        if self._waiting:
            self._go_on()
            if self.transport is not None and len(self._waiting) <= PIPELINED_MAX:
                self.transport.resume_reading()

    def cut(self) -> None:
        """Close after what was written."""
        self._answer = None
        self._waiting.clear()
        if self.transport is not None:
            self.transport.close()

    def drain(self) -> None:
        """No request after the one under way; an idle connection is closed."""
        self._draining = True
        self.keep_alive = False
        if self._answer is None and self._reading is None and self.transport is not None:
            self.transport.close()

    def _refuse(self, status: int, why: str) -> None:
        """Answer with an error and close; a request under way is given up with the connection.

        What the client still sends is read for a moment: closing on unread bytes would reset the
        connection, and the client might never see why.
        """
        self._refused = True
        if self.transport is None:
            return
        if self._answer is not None:
            self.cut_off()
            return
        self.transport.write(http1.response(status, http1.error_body(status, why), close=True))
        self.transport.write_eof()
        asyncio.get_running_loop().call_later(LINGER_S, self.cut_off)

    def cut_off(self) -> None:
        """Close the connection; the exchange learns of it by ``connection_lost``."""
        if self.transport is not None:
            self.transport.close()

    @property
    def busy(self) -> bool:
        """Whether an answer is under way."""
        return self._answer is not None

    def tick(self, now_s: float) -> None:
        """Called about once a second: who is too slow, or idle for too long, is closed."""
        limits = self._handler.limits
        if self._answer is not None or self._refused or self.transport is None:
            return
        reading, waited_s = self._reading, now_s - self._since_s
        if reading is None:
            if waited_s > limits.idle_s:
                self.transport.close()
        elif self._in_head:
            if waited_s > limits.head_s:
                self._refuse(408, f"the request's head did not come within {limits.head_s:g} s")
        elif waited_s > limits.body_idle_s + reading.body_bytes / BODY_BYTES_S:
            self._refuse(408, f"the request's body came too slowly: {reading.body_bytes} bytes in {waited_s:.0f} s")


#: How long a refused client may go on sending.
LINGER_S = 1.0
#: A body may always take as long as at this rate.
BODY_BYTES_S = 10_000.0


class _RefusedError(Exception):
    """Raised inside the parser's callbacks, to end the request that is being read."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def _too_large(size: int, limit: int) -> str:
    return f"the request's body has {size} bytes or more, expected at most {limit}"


def _length(reading: Incoming, value: bytes) -> None:
    reading.length = int(value) if value.isdigit() else -1  # the parser itself refuses what is no number


def _host(reading: Incoming, value: bytes) -> None:
    reading.host = value


def _expects(reading: Incoming, value: bytes) -> None:
    reading.expects = value.lower() == b"100-continue"


def _authorization(reading: Incoming, value: bytes) -> None:
    reading.authorization = value


def _api_key(reading: Incoming, value: bytes) -> None:
    reading.api_key = value


def _request_id(reading: Incoming, value: bytes) -> None:
    reading.request_id = value


def _traceparent(reading: Incoming, value: bytes) -> None:
    reading.traceparent = value


def _dropped(_: Incoming, __: bytes) -> None:
    """Of this connection only."""


_NOT_PASSED_ON = {
    **dict.fromkeys(http1.HOP_BY_HOP | http1.OWN_REQUEST_HEADERS, _dropped),
    b"host": _host,
    b"content-length": _length,
    b"expect": _expects,
    b"authorization": _authorization,
    b"x-api-key": _api_key,
    b"x-request-id": _request_id,
    b"traceparent": _traceparent,
}
