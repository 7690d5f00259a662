"""A client's connection: parses requests, hands each to the router, and answers them in order."""

import asyncio
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import httptools

from kveik.router import http1
from kveik.router.incoming import NOT_PASSED_ON, Incoming, RefusedRequestError
from kveik.router.known_head import KnownHead, known_head
from kveik.router.relay import ClientLink

logger = logging.getLogger(__name__)

#: Requests of one connection that may wait for their turn (HTTP pipelining), by number and size; more are not read.
PIPELINED_MAX: Final = 8
PIPELINED_MAX_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What a client may send. Bytes and seconds; ``idle_s`` is also how long it may take nothing of an answer."""

    head_bytes: int
    body_bytes: int
    head_s: float
    body_idle_s: float
    idle_s: float


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


class ClientConnection(ClientLink):
    """One connection, an :class:`asyncio.Protocol` by its methods.

    At most one exchange is under way; what is pipelined waits.
    """

    __slots__ = (
        "_answer",
        "_draining",
        "_handler",
        "_head_bytes",
        "_head_only",
        "_known",
        "_parser",
        "_reading",
        "_refusal",
        "_since_s",
        "_slow_since_s",
        "_time",
        "_waiting",
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
        self._known: tuple[KnownHead, Incoming] | None = None
        self._answer: UnderWay | None = None
        self._head_only = False
        self._refusal: tuple[int, str] | None = None  # what ends the connection, after what came before it
        self._slow_since_s: float | None = None
        self._draining = False
        self._time = asyncio.get_running_loop().time  # asking for the loop costs a system call each time
        self._since_s = self._time()

    # -- asyncio --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self.transport = transport  # type: ignore[assignment]
        address = transport.get_extra_info("peername")
        self.peer = address[0] if isinstance(address, tuple) else ""
        self._handler.opened(self)

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        if self._refusal is not None:
            return
        between = self._reading is None and self._answer is None and not self._waiting
        if between and self._known is not None and self._as_before(*self._known, data):
            return
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            refusal = error.__context__
            if isinstance(refusal, RefusedRequestError):
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
            if between:
                self._remember(data)
            self._go_on()

    def _as_before(self, known: KnownHead, before: Incoming, data: bytes) -> bool:
        """Begin a request whose head is that of the one before, without parsing it again; False if it is another."""
        parts = known.split(data, self._handler.limits.body_bytes)
        if parts is None:
            return False
        self._since_s = self._time()
        self._begin(before.with_body(parts[1]))
        return True

    def _remember(self, data: bytes) -> None:
        """Keep the head of the request that came, if it was one, wholly, and can come again in the same words."""
        request, self._known = self._waiting[0], None
        plain = request.keep_alive and request.length > 0 and not (request.upgrade or request.expects)
        if plain and not (request.request_id or request.traceparent or self._reading) and len(self._waiting) == 1:
            known = known_head(data)
            if known is not None:
                self._known = known, request.with_body(b"")

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            request, rest = self._waiting.pop(), data[upgrade.args[0] :]
            if request.upgrade.lower() != b"h2c":
                self._refuse(501, "the router does not upgrade connections (no WebSocket): send plain HTTP/1.1")
            elif request.length > 0 or request.chunked:
                self._read_on(request, rest)
            else:
                self._waiting.append(request)
                self._parse(rest)

    def _read_on(self, request: Incoming, rest: bytes) -> None:
        """Read the body of a request that offers to go on in HTTP/2, which a server may ignore.

        Java's client offers it with each first request. The parser would take the body for HTTP/2.
        """
        framing = b"transfer-encoding: chunked" if request.chunked else b"content-length: %d" % request.length
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%s\r\n\r\n" % framing)
        self._reading = request
        self._parse(rest)

    @property
    def _in_head(self) -> bool:
        """Whether a head has begun that is not complete."""
        return self._reading is not None and not self._reading.method

    def _go_on(self) -> None:
        """Begin what waits, one request at a time; what is refused has its turn after them."""
        while self._waiting and self._answer is None and self.transport is not None:
            self._begin(self._waiting.popleft())
        if self.transport is None or self.transport.is_closing():
            return
        if self._answer is None and self._refusal is not None:
            self._say_refusal(*self._refusal)
        elif self._crowded:
            self.transport.pause_reading()
        self._ask_for_body()

    @property
    def _crowded(self) -> bool:
        """Whether enough waits."""
        waiting = self._waiting
        return len(waiting) > PIPELINED_MAX or sum(request.body_bytes for request in waiting) > PIPELINED_MAX_BYTES

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
        self._slow_since_s = self._time()
        if self._answer is not None:
            self._answer.client_slow(slow=True)

    def resume_writing(self) -> None:
        """The client caught up."""
        self._slow_since_s = None
        if self._answer is not None:
            self._answer.client_slow(slow=False)

    # -- the parser's callbacks -----------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request begins."""
        self._reading = Incoming()
        self._head_bytes = 0
        self._since_s = self._time()

    def on_url(self, url: bytes) -> None:
        """The target, perhaps in parts."""
        assert self._reading is not None
        self._reading.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or a trailer after the body."""
        reading = self._reading
        assert reading is not None
        reading.head_bytes += len(name) + len(value) + 4
        if reading.method:
            self._trailer(reading)
            return
        keep_apart = NOT_PASSED_ON.get(name.lower())
        if keep_apart is None:
            reading.headers.append(b"%s: %s\r\n" % (name, value))
        else:
            keep_apart(reading, value)

    def _trailer(self, reading: Incoming) -> None:
        """It is dropped: among the headers it could say anything that the head was checked for."""
        head_bytes = self._handler.limits.head_bytes
        if reading.head_bytes > head_bytes:
            raise RefusedRequestError(431, f"the request's head and trailers are longer than {head_bytes} bytes")

    def on_headers_complete(self) -> None:
        """The head is complete: refuse what is too large before it is read."""
        reading, parser, limits = self._reading, self._parser, self._handler.limits
        assert reading is not None
        http10 = parser.get_http_version() == "1.0"
        reading.end_head(parser.get_method(), http10=http10, keep_alive=parser.should_keep_alive())
        if reading.head_bytes + len(reading.target) > limits.head_bytes:
            raise RefusedRequestError(431, f"the request's head is longer than {limits.head_bytes} bytes")
        self._head_bytes = 0
        if reading.length > limits.body_bytes:
            raise RefusedRequestError(413, _too_large(reading.length, limits.body_bytes))
        if reading.expects:
            self._ask_for_body()

    def _ask_for_body(self) -> None:
        """Say that the body may come, once nothing else is to be said before."""
        reading = self._reading
        if reading is None or not reading.expects or self._answer is not None or self._waiting:
            return
        reading.expects = False
        if not reading.http10 and not reading.body_bytes:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        reading, limits = self._reading, self._handler.limits
        assert reading is not None
        reading.add_body(data)
        if reading.body_bytes > limits.body_bytes:
            raise RefusedRequestError(413, _too_large(reading.body_bytes, limits.body_bytes))

    def on_message_complete(self) -> None:
        """A request is complete."""
        reading, self._reading = self._reading, None
        assert reading is not None
        self._waiting.append(reading)  # begun when the parser has returned: nothing may raise through it

    # -- requests and answers -------------------------------------------------------------------

    def _begin(self, request: Incoming) -> None:
        self.http10 = request.http10
        self.keep_alive = request.keep_alive and not self._draining
        self._head_only = request.method == b"HEAD"
        try:
            answer = self._handler.handle(self, request)
        except Exception:
            # Supervision: a fault of the router's own ends this connection, and no other.
            logger.exception("a request failed in the router")
            answer = None
            self.keep_alive = False
            self.respond(500, http1.error_body(500, "the router failed; its log says why"))
        self._answer = answer if answer is not None and not answer.over else None
        if self._answer is not None:
            if self._slow_since_s is not None:
                self._answer.client_slow(slow=True)
        elif self.transport is not None and not self.keep_alive:
            self.transport.close()

    def respond(
        self,
        status: int,
        body: bytes,
        *,
        content_type: bytes = http1.JSON_TYPE,
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        """A whole answer of the router's own to the request that is being answered."""
        close, head_only = not self.keep_alive, self._head_only
        self.write(
            http1.response(status, body, content_type=content_type, headers=headers, close=close, head_only=head_only)
        )

    def write(self, data: bytes) -> None:
        """Send bytes; nothing if the client is gone."""
        if self.transport is not None:
            self.transport.write(data)

    def answered(self) -> None:
        """The answer is complete: go on with what waits."""
        self._answer = None
        self._since_s = self._time()
        if self._waiting or self._reading is not None or self._refusal is not None:
            self._go_on()
            if self.transport is not None and not self._crowded:
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

    def break_off(self) -> None:
        """End the connection with a reset, where an orderly end would look like the end of the answer."""
        self._answer = None
        self._waiting.clear()
        if self.transport is not None:
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()

    def _refuse(self, status: int, why: str) -> None:
        """Read no more; answer with an error and close, after what was asked before."""
        self._refusal = status, why
        self._reading = None
        self._go_on()

    def _say_refusal(self, status: int, why: str) -> None:
        """What the client still sends is read for a moment.

        Closing on unread bytes would reset the connection, and the client might never see why.
        """
        assert self.transport is not None
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
        limits, transport = self._handler.limits, self.transport
        if transport is None:
            return
        waited_s = now_s - self._since_s
        if self._slow_since_s is not None and now_s - self._slow_since_s > limits.idle_s:
            transport.abort()  # it reads nothing: the rest would be kept for ever
        elif self._answer is not None or self._refusal is not None:
            return
        elif transport.is_closing():  # and the client takes nothing of what is left
            if waited_s > limits.idle_s + 1:
                transport.abort()
        elif self._reading is None:
            if waited_s > limits.idle_s:
                transport.close()
        else:
            self._check_pace(self._reading, waited_s)

    def _check_pace(self, reading: Incoming, waited_s: float) -> None:
        limits = self._handler.limits
        if self._in_head:
            if waited_s > limits.head_s:
                self._refuse(408, f"the request's head did not come within {limits.head_s:g} s")
        elif waited_s > limits.body_idle_s + reading.body_bytes / BODY_BYTES_S:
            self._refuse(408, f"the request's body came too slowly: {reading.body_bytes} bytes in {waited_s:.0f} s")


def clients_of(handler: RequestHandler) -> Callable[[], Any]:
    """What makes the connections of a server; to asyncio's types a protocol is a subclass of theirs."""
    return lambda: ClientConnection(handler)


#: How long a refused client may go on sending.
LINGER_S: Final = 1.0
#: A body may always take as long as at this rate.
BODY_BYTES_S: Final = 10_000.0


def _too_large(size: int, limit: int) -> str:
    return f"the request's body has {size} bytes or more, expected at most {limit}"
