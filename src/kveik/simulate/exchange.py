"""One request for tokens from its first byte to its last, with what is to go wrong on the way."""

import asyncio
import time

from kveik.simulate.answers import Answer
from kveik.simulate.core import EngineCore
from kveik.simulate.faults import Faults
from kveik.simulate.schedule import Sequence
from kveik.simulate.seen import Aborted, Seen
from kveik.simulate.wire import LAST_CHUNK, Connection, Request, chunk


class Exchange:
    """Between one connection and the engine: a sink for tokens that writes what they make of the answer."""

    __slots__ = (
        "_began_s",
        "_connection",
        "_core",
        "_faults",
        "_opened",
        "_over",
        "_request",
        "_seen",
        "_sent",
        "_sequence",
        "answer",
    )

    def __init__(
        self, core: EngineCore, seen: Seen, connection: Connection, request: Request, answer: Answer, faults: Faults
    ) -> None:
        self.answer = answer
        self._core = core
        self._seen = seen
        self._connection = connection
        self._request = request
        self._faults = faults
        self._began_s = time.monotonic()
        self._sequence: Sequence | None = None
        self._opened = False  # the stream's head has been sent
        self._sent = 0  # events of the stream
        self._over = False

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hand the request to the engine, now or after the delay that is set."""
        self._connection.on_gone = self._gone
        if self._faults.first_byte_delay_s > 0:
            loop.call_later(self._faults.first_byte_delay_s, self._submit)
        else:
            self._submit()

    def grown(self, tokens: int, last: bool) -> None:
        """Tokens have come: write them, or for a whole answer wait for the last."""
        if self._over:
            return
        answer = self.answer
        if not answer.ask.stream:
            if last:
                self._whole(answer.document())
            return
        events = answer.opening() if not self._sent else []
        events += answer.step(tokens)
        if last:
            events += answer.closing()
        limit = self._limit()
        if 0 <= limit <= self._sent + len(events):
            self._break_off(events, limit - self._sent)
        else:
            self._write(events, last)

    def _submit(self) -> None:
        if self._over:
            return
        if self._core.hung:  # not even headers: nobody takes the request
            self._core.when_on(self._submit)
            return
        self._sequence = Sequence(self.answer.ask.answer_tokens, self)
        self._core.submit(self._sequence)
        stream, limit = self.answer.ask.stream, self._limit()
        if stream and not self._opened and not self._over and (self._core.settings.early_headers or limit == 0):
            self._connection.write(self._head())
            if limit == 0:
                self._break_off([], 0)

    def _limit(self) -> int:
        """After how many events the stream breaks off; -1: never."""
        faults = self._faults
        return faults.die_after_chunks if faults.die_after_chunks >= 0 else faults.stall_after_chunks

    def _head(self) -> bytes:
        self._opened = True
        return self._connection.stream_head()

    def _write(self, events: list[bytes], last: bool) -> None:
        parts = [chunk(event) for event in events]
        if not self._opened:
            parts.insert(0, self._head())
        self._sent += len(events)
        if last:
            parts.append(LAST_CHUNK)
        self._connection.write(b"".join(parts))
        if last:
            self._finish(200)

    def _whole(self, body: bytes) -> None:
        connection = self._connection
        if self._limit() < 0:
            self._end(200)
            connection.respond(200, body)
            return
        connection.write(connection.whole(200, body) + body[: len(body) // 2])
        self._die_or_stall()

    def _break_off(self, events: list[bytes], keep: int) -> None:
        """Send ``keep`` more events and then what the fault says."""
        self._write(events[:keep], last=False)
        if self._faults.die_after_chunks >= 0 and self._faults.die_by == "mid_line" and keep < len(events):
            torn = events[keep]
            self._connection.write(chunk(torn[: len(torn) // 2]))
        self._die_or_stall()

    def _die_or_stall(self) -> None:
        """Die now, or stay as it is until the client leaves."""
        if self._faults.die_after_chunks < 0:
            self._over = True
            if self._sequence is not None:
                self._core.stall(self._sequence)
            return
        if self._sequence is not None:
            self._core.abort(self._sequence)
        self._end(200)
        self._connection.die(self._faults.die_by)

    def _finish(self, status: int) -> None:
        self._end(status)
        self._connection.done()

    def _end(self, status: int) -> None:
        self._over = True
        self._sequence = None  # which refers to this: leave no cycles to the garbage collector
        self._connection.on_gone = None
        self._seen.statuses[status] += 1
        self._seen.end()

    def _gone(self, client_left: bool) -> None:
        """The connection has ended: stop at once."""
        self._over = True
        if client_left:
            now_s = time.monotonic()
            self._seen.left(Aborted(self._request.path, now_s, now_s - self._began_s, self._sent))
        self._seen.end()
        if self._sequence is not None:
            self._core.abort(self._sequence)
