"""Requests of the router's own to an engine, over the same connections as those of clients."""

import asyncio
from collections.abc import Sequence
from typing import Final

from kveik.errors import EngineError
from kveik.router import http1
from kveik.router.blame import Failure
from kveik.router.upstream import Answered, EngineConnection, EnginePool

#: Of an answer that is longer, nobody of ours wants the rest.
ANSWER_MAX_BYTES: Final = 16 << 20


class _Answer(Answered):
    """Collects one answer."""

    __slots__ = ("_future", "_pieces", "_size", "_status")

    def __init__(self, future: "asyncio.Future[tuple[int, bytes]]") -> None:
        self.wants_pieces = True
        self._future = future
        self._status = 0
        self._pieces: list[bytes] = []
        self._size = 0

    def answer_whole(self, head: bytes, body: bytes) -> None:
        """All of it is there, of status 200."""
        self.answer_began(200, head, body, (body,), True)

    def answer_began(self, status: int, head: bytes, data: bytes, pieces: Sequence[bytes], complete: bool) -> None:
        """The head is there."""
        self._status = status
        self.answer_went_on(data, pieces, complete)

    def answer_went_on(self, data: bytes, pieces: Sequence[bytes], complete: bool) -> None:
        """A part of the body is there."""
        self._pieces += pieces
        self._size += sum(map(len, pieces))
        if self._future.done():
            return
        if complete:
            self._future.set_result((self._status, b"".join(self._pieces)))
        elif self._size > ANSWER_MAX_BYTES:
            self._future.set_exception(EngineError(f"an answer of more than {ANSWER_MAX_BYTES} bytes"))

    def router_failed(self) -> None:
        """The router itself failed."""
        self.attempt_failed(Failure.MALFORMED, "the router failed; its log says why")

    def attempt_failed(self, failure: Failure, why: str) -> None:
        """The connection is lost."""
        if not self._future.done():
            self._future.set_exception(EngineError(why))


async def fetch(
    pool: EnginePool, method: bytes, target: bytes, body: bytes = b"", *, deadline_s: float, fresh: bool = False
) -> tuple[int, bytes]:
    """Status and body of an engine's answer.

    ``fresh`` does not use a kept connection. Raises :class:`EngineError` when the engine cannot be
    reached, breaks off or does not answer within ``deadline_s``.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[tuple[int, bytes]] = loop.create_future()
    answer = _Answer(future)
    kind = b"content-type: application/json\r\n" if body else b""
    request = http1.request_head(
        method, target, kind, host=pool.host_header, length=len(body), request_id=b"kveik-router", traceparent=b""
    )
    held: list[EngineConnection] = []

    def send(connection: EngineConnection) -> None:
        held.append(connection)
        connection.send(answer, request + body)

    connection = None if fresh else pool.take(loop.time())
    dial = pool.dial(send, answer.attempt_failed) if connection is None else None
    if connection is not None:
        send(connection)
    try:
        async with asyncio.timeout(deadline_s):
            return await future
    except TimeoutError as error:
        raise EngineError(f"no answer from {pool.host}:{pool.port} within {deadline_s:g} s") from error
    finally:
        if not future.done() or future.cancelled() or future.exception() is not None:
            if dial is not None:
                dial.cancel()
            for connection in held:
                if connection.exchange is answer:
                    connection.release()
