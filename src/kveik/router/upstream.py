"""Connections to one engine: kept ones are used again, and each carries one exchange at a time.

The answer's bytes are handed on as they come; the parser only finds where the head and the
message end (and, for exchanges that frame the body anew, what its pieces are).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import httptools

from kveik.router import http1
from kveik.router.blame import Failure
from kveik.router.known_head import KnownHead, known_head

logger = logging.getLogger(__name__)

HEAD_MAX_BYTES: Final = 64 << 10

_NO_PIECES: Final[Sequence[bytes]] = ()
#: What makes an answer's head need a closer look, and change it on its way.
_NOT_PLAIN: Final = (
    b"\r\ntransfer-encoding:", b"text/event-stream", b"\r\nconnection:", b"\r\nkeep-alive:", b"\r\nx-request-id:",
    b"\r\ntrailer:", b"\r\nupgrade:", b"\r\nproxy-", b"\r\nte:",
)  # fmt: skip


class Answered:
    """What a connection tells the exchange that it carries. ``wants_pieces``: it needs the body without its framing.

    A base and no protocol: compiled, what is called for each request is called directly only then.
    """

    __slots__ = ("wants_pieces",)

    wants_pieces: bool

    def answer_whole(self, head: bytes, body: bytes) -> None:
        """A whole, plain answer of status 200: its head (without the blank line) goes on as it is; see `_plain`."""
        raise NotImplementedError

    def answer_began(self, status: int, head: bytes, data: bytes, pieces: Sequence[bytes], complete: bool) -> None:
        """The answer's head is complete; ``data`` are the raw bytes of the body that came with it."""
        raise NotImplementedError

    def answer_went_on(self, data: bytes, pieces: Sequence[bytes], complete: bool) -> None:
        """More raw bytes of the body."""
        raise NotImplementedError

    def attempt_failed(self, failure: Failure, why: str) -> None:
        """The connection is lost to this exchange."""
        raise NotImplementedError

    def router_failed(self) -> None:
        """The router itself failed while it handled the answer."""
        raise NotImplementedError


class EngineConnection:
    """One connection, an :class:`asyncio.Protocol` by its methods.

    ``reused`` tells whether it has carried an exchange before this one.
    """

    __slots__ = (
        "_complete", "_early_heads", "_gives_pieces", "_head", "_keep", "_parser", "_paused", "_pieces", "_pool",
        "_raw", "_status", "_surplus", "_until_end", "exchange", "idle_since_s", "reused", "time", "transport",
    )  # fmt: skip

    def __init__(self, pool: "EnginePool") -> None:
        self._pool = pool
        self.transport: asyncio.Transport | None = None
        self.exchange: Answered | None = None
        self.reused = False
        self.idle_since_s = 0.0
        self.time = asyncio.get_running_loop().time  # asking for the loop costs a system call each time
        self._parser: Any = None
        self._gives_pieces: bool | None = None  # what the parser was made for
        self._paused = False
        self._reset()

    def _reset(self) -> None:
        self._raw = b""
        self._head = False
        self._complete = False
        self._keep = False
        self._until_end = False  # the end of the connection is the end of the body
        self._surplus = False
        self._early_heads = 0  # of status 1xx, before that of the answer
        self._status = 0
        self._pieces: list[bytes] = []

    # -- asyncio --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Bytes of the answer; none are its end."""
        exchange = self.exchange
        if exchange is None:  # nobody asked for them
            self.abort()
            return
        try:
            if not data:
                self._ended(exchange)
            elif self._head or not self._took_known(exchange, data):
                self._feed(exchange, data)
        except Exception:
            # Supervision: a fault of the router's own must not pass for the engine's.
            logger.exception("an answer failed in the router")
            self.exchange = None
            self.abort()
            exchange.router_failed()

    def _took_known(self, exchange: Answered, data: bytes) -> bool:
        """Hand on a whole answer with the head of the one before, which need not be parsed; False if it is another."""
        known = self._pool.known_head
        if known is None or self._raw or self._early_heads or exchange.wants_pieces:
            return False
        parts = known.split(data, len(data))
        if parts is None:
            return False
        self._keep = True
        exchange.answer_whole(*parts)
        if self.exchange is exchange:
            self._done()
        return True

    def eof_received(self) -> None:
        """The engine sends no more."""
        if self.exchange is not None and self._until_end:
            self.data_received(b"")

    def _ended(self, exchange: Answered) -> None:
        exchange.answer_went_on(b"", _NO_PIECES, True)
        if self.exchange is exchange:
            self._done()

    def _feed(self, exchange: Answered, data: bytes) -> None:
        had_head = self._head
        if not had_head and not self._raw and exchange.wants_pieces is not self._gives_pieces:
            self._gives_pieces = exchange.wants_pieces
            self._parser = httptools.HttpResponseParser((_PieceSink if self._gives_pieces else _Sink)(self))
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._lost(self._before_any_byte or Failure.MALFORMED, f"its answer is no HTTP: {error}")
            return
        if self._surplus:  # which would pass for the beginning of the client's next answer
            self._lost(Failure.MALFORMED, "its answer goes on after its end")
            return
        if had_head:
            exchange.answer_went_on(data, self._take_pieces() if self._gives_pieces else _NO_PIECES, self._complete)
        elif self._head:
            self._answer_begins(exchange, data)
        else:
            self._raw += data
            if len(self._raw) > HEAD_MAX_BYTES:
                self._lost(Failure.MALFORMED, f"the head of its answer is longer than {HEAD_MAX_BYTES} bytes")
            return
        if self._complete and self.exchange is exchange:
            self._done()

    def _answer_begins(self, exchange: Answered, data: bytes) -> None:
        raw = self._raw + data if self._raw else data
        self._raw = b""
        for _ in range(self._early_heads):
            raw = raw.partition(b"\r\n\r\n")[2]
        end = raw.find(b"\r\n\r\n") + 4
        if end < 4:
            self._lost(Failure.MALFORMED, "the head of its answer does not end as HTTP says")
            return
        if not self._keep and not self._complete:
            head = raw[:end].lower()
            self._until_end = b"\r\ncontent-length:" not in head and b"\r\ntransfer-encoding:" not in head
        if self._complete and self._keep and self._status == 200 and raw is data:
            self._pool.known_head = _plain(data, end)
        exchange.answer_began(self._status, raw[:end], raw[end:], self._take_pieces(), self._complete)

    def _take_pieces(self) -> Sequence[bytes]:
        pieces = self._pieces
        if pieces:
            self._pieces = []
        return pieces

    def _done(self) -> None:
        self.exchange = None
        transport = self.transport
        # A request that is not wholly sent would be the beginning of the next one.
        if self._keep and transport is not None and not (transport.is_closing() or transport.get_write_buffer_size()):
            self.reused = True
            if self._head:  # else the parser has seen nothing of this answer
                self._reset()
            if self._paused:
                self.resume_reading()
            self._pool.give_back(self)
        else:
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """The engine closed it, or we did."""
        self.transport = None
        self._pool.forget(self)
        if self.exchange is not None:
            self._lost(
                self._before_any_byte or Failure.CUT, f"the engine's connection ended{f': {error}' if error else ''}"
            )

    @property
    def _before_any_byte(self) -> Failure | None:
        """What it is if a kept connection fails before the answer begins: the fault lies with what went before."""
        return Failure.STALE if self.reused and not self._head and not self._raw else None

    def _lost(self, failure: Failure, why: str) -> None:
        exchange, self.exchange = self.exchange, None
        self.abort()
        if exchange is not None:
            exchange.attempt_failed(failure, why)

    def pause_writing(self) -> None:
        """The engine reads slowly; the request is in memory anyway."""

    def resume_writing(self) -> None:
        """It caught up."""

    # -- for the parser -------------------------------------------------------------------------

    def message_begin(self) -> None:
        """An answer begins, perhaps where nobody asked for one more."""
        self._surplus = self._complete

    def head_complete(self) -> None:
        """The head of an answer is complete."""
        status = self._parser.get_status_code()
        if status < 200:
            self._early_heads += 1
            return
        self._status = status
        self._keep = self._parser.should_keep_alive()
        self._head = True

    def message_complete(self) -> None:
        """The answer is complete, unless it was only the word that one will come."""
        self._complete = self._head

    def piece(self, data: bytes) -> None:
        """A piece of the body, without its framing."""
        self._pieces.append(data)

    # -- for the exchange -----------------------------------------------------------------------

    def send(self, exchange: Answered, request: bytes) -> None:
        """Carry an exchange: send its request, and tell it about the answer."""
        self.exchange = exchange
        assert self.transport is not None
        self.transport.write(request)

    def release(self) -> None:
        """The exchange ended before its answer did: nobody reads the rest, and the engine shall stop."""
        self.exchange = None
        self.abort()

    def finish_without_body(self) -> None:
        """The exchange knows that no body follows (HEAD), which the parser does not."""
        self.exchange = None
        self.close()

    def close(self) -> None:
        """End the connection."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """End the connection at once, so that the engine sees it at once."""
        if self.transport is not None:
            self.transport.abort()

    def pause_reading(self) -> None:
        """The client reads slowly."""
        if self.transport is not None and not self._paused:
            self._paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """The client caught up."""
        if self.transport is not None and self._paused:
            self._paused = False
            self.transport.resume_reading()


class _Sink:
    """What the parser calls; without ``on_body``, so that pieces cost nothing."""

    __slots__ = ("on_headers_complete", "on_message_begin", "on_message_complete")

    def __init__(self, connection: EngineConnection) -> None:
        self.on_message_begin = connection.message_begin
        self.on_headers_complete = connection.head_complete
        self.on_message_complete = connection.message_complete


class _PieceSink(_Sink):
    __slots__ = ("on_body",)

    def __init__(self, connection: EngineConnection) -> None:
        super().__init__(connection)
        self.on_body = connection.piece


def _plain(data: bytes, end: int) -> KnownHead | None:
    """The head of a whole answer if it has a length, is no stream, and nothing of it is of its connection only."""
    head = data[:end].lower()
    return None if any(mark in head for mark in _NOT_PLAIN) else known_head(data)


class EnginePool:
    """The connections to one engine. ``idle_max_s`` must be below the time after which the engine closes idle ones.

    (uvicorn, and so vLLM: 5 s.) A request that travels while the engine closes fails as ``STALE``.
    """

    def __init__(self, host: str, port: int, *, idle_max_s: float, connect_s: float) -> None:
        self.host, self.port = host, port
        self.host_header = http1.host_header(host, port)
        self._idle_max_s = idle_max_s
        self._connect_s = connect_s
        self._retired = False
        self.known_head: KnownHead | None = None  # of the last whole answer; a ``Date`` in it changes once a second
        self._idle: deque[EngineConnection] = deque()
        self._all: set[EngineConnection] = set()
        self._dials: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"EnginePool({self.host}:{self.port}, {len(self._all)} connections, {len(self._idle)} idle)"

    @property
    def connections(self) -> int:
        """Connections that exist."""
        return len(self._all)

    def take(self, now_s: float) -> EngineConnection | None:
        """A kept connection that is fresh enough, or None."""
        while self._idle:
            connection = self._idle.pop()
            if connection.transport is None or connection.transport.is_closing():
                continue
            if now_s - connection.idle_since_s <= self._idle_max_s:
                return connection
            connection.close()
        return None

    def give_back(self, connection: EngineConnection) -> None:
        """The connection is free for the next exchange."""
        if self._retired:
            connection.close()
            return
        connection.idle_since_s = connection.time()
        self._idle.append(connection)

    def forget(self, connection: EngineConnection) -> None:
        """The connection is gone."""
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def close_idle(self, now_s: float) -> None:
        """Close kept connections that are too old to be used again."""
        while self._idle and now_s - self._idle[0].idle_since_s > self._idle_max_s:
            self._idle.popleft().close()

    def retire(self) -> None:
        """The engine has left: its connections are closed as they become free."""
        self._retired = True
        while self._idle:
            self._idle.popleft().close()

    def dial(
        self, made: Callable[[EngineConnection], None], failed: Callable[[Failure, str], None]
    ) -> "asyncio.Task[None]":
        """Connect anew; one of the two is called. Cancel the task to give up."""
        task = asyncio.get_running_loop().create_task(self._dial(made, failed))
        self._dials.add(task)
        task.add_done_callback(self._dials.discard)
        return task

    async def _dial(self, made: Callable[[EngineConnection], None], failed: Callable[[Failure, str], None]) -> None:
        connection = EngineConnection(self)
        protocol: Any = connection  # asyncio's types ask for a subclass, and what runs for what it does
        try:
            async with asyncio.timeout(self._connect_s):
                await asyncio.get_running_loop().create_connection(lambda: protocol, self.host, self.port)
        except TimeoutError:
            failed(Failure.CONNECT_TIMEOUT, f"no connection to {self.host}:{self.port} within {self._connect_s:g} s")
        except OSError as error:
            failed(Failure.REFUSED, f"no connection to {self.host}:{self.port}: {error.strerror or error}")
        else:
            if connection.transport is None:
                failed(Failure.CUT, "the engine ended the connection at once")
                return
            self._all.add(connection)
            made(connection)

    def close(self) -> None:
        """End all connections; exchanges on them fail."""
        for task in list(self._dials):
            task.cancel()
        for connection in list(self._all):
            connection.abort()
