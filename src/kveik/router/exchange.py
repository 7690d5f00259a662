"""The life of one request: attempts on engines until one answers, and the way of that answer to the client.

States of the answer::

    waiting --(head of a stream, or more than HOLD_MAX_BYTES)--> passing --(end)--> over
    waiting --(comments were sent, or the client speaks HTTP/1.0)--> framing --(end)--> over
    waiting --(head of anything else)--> holding --(end)--> over

*Passing*: raw bytes go through as they came. *Framing*: the body's pieces get framing of our own.
*Holding*: short answers are kept until they are whole, so that one that is cut can be had from
another engine. Another engine is tried only while nothing of an answer has gone to the client.
"""

import asyncio
from enum import Enum
from typing import Protocol

from kveik.router import http1
from kveik.router.blame import TOO_LONG_CODE, Blame, Evidence, Failure, Verdict, judge, repeatable
from kveik.router.engines import EngineView
from kveik.router.facts import RequestFacts
from kveik.router.gate import Ticket
from kveik.router.policy import Choice
from kveik.router.records import RequestRecord
from kveik.router.stream import KEEP_ALIVE, StreamWatch, error_event, usage_in
from kveik.router.upstream import EngineConnection

HOLD_MAX_BYTES = 256 << 10
ERROR_TEXT_BYTES = 4096
#: Streams of these paths have an end mark; of others, the end of the body is the end.
_NAMED = (b"/responses", b"/messages")
_MARKED = (b"/chat/completions", b"/completions", *_NAMED)


class State(Enum):
    """Where the answer is."""

    WAITING = "waiting"
    HOLDING = "holding"
    PASSING = "passing"
    FRAMING = "framing"
    OVER = "over"


class ClientLink(Protocol):
    """What an exchange needs of the client's connection."""

    http10: bool
    keep_alive: bool

    def write(self, data: bytes) -> None:
        """Send bytes."""

    def answered(self) -> None:
        """The answer is complete and the connection is kept: the next request may be handled."""

    def cut(self) -> None:
        """End the connection after what was written, so that the client sees an answer without an end."""


class Dispatcher(Protocol):
    """What an exchange needs of the router."""

    def choose(self, exchange: "Exchange") -> tuple[EngineView, Choice] | None:
        """An engine for the next attempt, booked for it; None if there is none now."""

    def first_byte_deadline_s(self, exchange: "Exchange", now_s: float) -> float:
        """When an engine that gave no byte is looked at."""

    def retry_permitted(self, exchange: "Exchange") -> bool:
        """Whether one more attempt is allowed, by number and by the budget, from which it takes one."""

    def first_byte(self, exchange: "Exchange") -> None:
        """The engine has begun a good answer."""

    def leave(self, exchange: "Exchange") -> None:
        """The attempt is over, however it went: what was booked on the engine is free again."""

    def blame(self, engine: EngineView, exchange: "Exchange", verdict: Verdict, why: str) -> str:
        """What a failed attempt says about an engine; why the request must not be tried again, if so."""

    def finished(self, exchange: "Exchange") -> None:
        """The request is over; its record is complete."""

    def look_after(self, engine: EngineView) -> None:
        """An engine is silent for longer than expected: find out whether it still works."""


class Exchange:
    """One request of one client. Made by the client's connection; :meth:`start` begins it."""

    __slots__ = (
        "_begun", "_blamed_later", "_client", "_connection", "_dial", "_head_sent", "_held", "_loop", "_marked",
        "_path", "_paused", "_repeatable", "_router", "_stale_once", "_status", "_watch", "attempt_began_s", "body",
        "booked_tokens", "choice", "comment_after_s", "engine", "excluded", "facts", "first_byte_by_s", "headers",
        "last_byte_s", "longer_than_tokens", "method", "record", "started_s", "state", "stream_idle_s", "target",
        "ticket", "traceparent", "wants_pieces",
    )  # fmt: skip

    def __init__(
        self,
        router: Dispatcher,
        client: ClientLink,
        record: RequestRecord,
        method: bytes,
        target: bytes,
        headers: bytes,
        body: bytes,
        facts: RequestFacts,
        *,
        traceparent: bytes = b"",
        comment_after_s: float = 0.0,
        stream_idle_s: float = 60.0,
    ) -> None:
        self._router, self._client, self.record = router, client, record
        self.method, self.target, self.headers, self.body, self.facts = method, target, headers, body, facts
        self.traceparent = traceparent
        self.comment_after_s, self.stream_idle_s = comment_after_s, stream_idle_s
        self._loop = asyncio.get_running_loop()
        self.started_s = self.last_byte_s = self.attempt_began_s = self._loop.time()
        self._repeatable = repeatable(method, target)
        self._path = target.partition(b"?")[0]
        self._marked = self._path.endswith(_MARKED)
        self.engine: EngineView | None = None
        self.choice: Choice | None = None
        self.booked_tokens = -1  # on the engine of this attempt; negative: nothing is booked
        self.ticket: Ticket | None = None
        self.excluded = 0  # bits of slots that were tried
        self.longer_than_tokens = 0  # only engines that take longer prompts are any use
        self.first_byte_by_s = 0.0
        self.state = State.WAITING
        self.wants_pieces = client.http10
        self._head_sent = False  # a stream has begun for the client, perhaps with nothing but comments
        self._begun = False  # something of an engine's answer has gone to the client
        self._connection: EngineConnection | None = None
        self._dial: asyncio.Task[None] | None = None
        self._held: list[bytes] = []
        self._status = 0
        self._watch: StreamWatch | None = None
        self._stale_once = False
        self._paused = False
        self._blamed_later: list[tuple[EngineView, Verdict, str]] = []

    def __repr__(self) -> str:
        where = self.engine.name if self.engine is not None else "no engine"
        return f"Exchange({self.record.request_id}, {self.state.value}, {where}, attempt {self.record.attempts})"

    @property
    def over(self) -> bool:
        """Whether the client has its answer, or will get no more of it."""
        return self.state is State.OVER

    # -- attempts -------------------------------------------------------------------------------

    def start(self) -> bool:
        """Send the request to an engine; False if there is none now."""
        chosen = self._router.choose(self)
        if chosen is None:
            return False
        self.engine, self.choice = chosen
        self.record.attempts += 1
        self.record.engine, self.record.reason = self.engine.name, self.choice.reason
        self.record.expected_cached_tokens = self.choice.expected_cached_tokens
        self.attempt_began_s = now_s = self._loop.time()
        self.first_byte_by_s = self._router.first_byte_deadline_s(self, now_s)
        assert self.engine.pool is not None
        connection = self.engine.pool.take(now_s)
        if connection is not None:
            self._send(connection)
        else:
            self._dial = self.engine.pool.dial(self._send, self.attempt_failed)
        return True

    def _send(self, connection: EngineConnection) -> None:
        self._dial = None
        self._connection = connection
        assert self.engine is not None
        if self.record.added_s < 0:
            self.record.added_s = self._loop.time() - self.started_s
        head = http1.request_head(
            self.method,
            self.target,
            self.headers,
            host=self.engine.host_header,
            length=len(self.body),
            request_id=self.record.request_id.encode(),
            traceparent=self.traceparent,
        )
        connection.send(self, head + self.body)

    def attempt_failed(self, failure: Failure, why: str) -> None:
        """The connection to the engine is lost, or was never made."""
        self._connection = self._dial = None
        self._fail(Evidence(failure, answered=self._begun), why)

    def _fail(self, evidence: Evidence, why: str, answer: bytes = b"") -> None:
        """One attempt is over without success; ``answer`` is the engine's own error answer."""
        verdict = judge(evidence, repeatable=self._repeatable)
        engine = self.engine
        assert engine is not None
        self.record.why = why
        if verdict.too_long:
            self.longer_than_tokens = engine.announcement.max_model_tokens or 1 << 62
        if verdict.same and not self._stale_once:
            self._stale_once = True
            self._dial = engine.pool.dial(self._send, self.attempt_failed) if engine.pool is not None else None
            return
        self._router.leave(self)
        by_status = evidence.failure is Failure.STATUS and verdict.blame is Blame.ENGINE and not verdict.opens
        if by_status:  # if another engine fails in the same way it is the request's fault
            self._blamed_later.append((engine, verdict, why))
        elif refusal := self._router.blame(engine, self, verdict, why):
            self.record.outcome = Blame.REQUEST.value
            self._let_go()
            self.refuse(422, refusal, code="request_quarantined")
            return
        self.excluded |= 1 << engine.slot
        if verdict.elsewhere and not self._begun and self._router.retry_permitted(self):
            self.state = State.FRAMING if self._head_sent else State.WAITING
            self._held, self._status, self._watch = [], 0, None
            if self.start():
                return
        blame = verdict.blame
        if by_status and len(self._blamed_later) > 1:
            blame = Blame.REQUEST
        else:
            self._settle_blame()
        self._give_up(blame, evidence, why, answer)

    def _settle_blame(self) -> None:
        """Another engine did better, or there is none: what failed before counts against its engine."""
        for engine, verdict, why in self._blamed_later:
            self._router.blame(engine, self, verdict, why)
        self._blamed_later.clear()

    def _give_up(self, blame: Blame, evidence: Evidence, why: str, answer: bytes) -> None:
        """Tell the client what became of it."""
        self.record.outcome = blame.value
        status, code, message = _in_words(blame, evidence, why)
        if self.state in (State.PASSING, State.FRAMING):
            self._end_stream_with(message, code)
        elif answer and not (blame is Blame.CLIENT and evidence.status >= 500):
            self.record.status = evidence.status
            self._client.write(self._with_request_id(answer))
            self._over(keep=self._client.keep_alive)
        else:
            self.refuse(status, message, code=code)

    def refuse(self, status: int, message: str, *, code: str = "", retry_after_s: int = 0) -> None:
        """Answer with an error of the router's own; as an event where a stream has begun."""
        if self.state in (State.PASSING, State.FRAMING):
            self._end_stream_with(message, code)
            return
        self.record.status = status
        headers = [(b"x-request-id", self.record.request_id.encode())]
        if retry_after_s:
            headers.append((b"retry-after", b"%d" % retry_after_s))
        body = http1.error_body(status, message, code=code)
        keep = self._client.keep_alive
        self._client.write(http1.response(status, body, headers=headers, close=not keep))
        self._over(keep=keep)

    def _end_stream_with(self, message: str, code: str) -> None:
        """An error event, and an end of the connection that no client takes for the end of the answer."""
        watch = self._watch
        self.record.cut = True
        event = error_event(message, code=code, after_partial=watch is not None and not watch.between_events)
        self._client.write(event if self._client.http10 else http1.chunk(event))
        self._over(keep=False)

    # -- the answer -----------------------------------------------------------------------------

    def answer_began(self, status: int, head: bytes, data: bytes, pieces: list[bytes], complete: bool) -> None:
        """The engine's answer has begun."""
        self.last_byte_s = now_s = self._loop.time()
        self._status = status
        if status >= 400:
            self.state = State.FRAMING if self._head_sent else State.HOLDING
            self._held = [head, data]
            if complete or self.method == b"HEAD":
                self._error_answer(whole=complete)
            return
        if self.record.first_byte_s < 0:
            self.record.first_byte_s = now_s - self.started_s
        self._router.first_byte(self)
        streams = b"text/event-stream" in head.lower()
        if streams:
            self._watch = StreamWatch(named_events=self._path.endswith(_NAMED))
        if self.wants_pieces:
            self._frame(head, pieces, complete)
        elif streams:
            self.state = State.PASSING
            self._pass(self._with_request_id(head), data, complete)
        else:
            self.state = State.HOLDING
            self._held = [head]
            self._hold(data, complete)

    def answer_went_on(self, data: bytes, pieces: list[bytes], complete: bool) -> None:
        """More of the engine's answer."""
        self.last_byte_s = self._loop.time()
        if self._status >= 400:
            self._held.append(data)
            if complete or sum(map(len, self._held)) > HOLD_MAX_BYTES:
                self._error_answer(whole=complete)
        elif self.state is State.PASSING:
            self._pass(b"", data, complete)
        elif self.state is State.FRAMING:
            self._frame(b"", pieces, complete)
        else:
            self._hold(data, complete)

    def _error_answer(self, *, whole: bool) -> None:
        connection, self._connection = self._connection, None
        if not whole and connection is not None:
            connection.finish_without_body()
        answer = b"".join(self._held)
        text = answer[-ERROR_TEXT_BYTES:].decode("utf8", "replace")
        self._fail(Evidence(Failure.STATUS, self._status, text, answered=False), _message_of(answer), answer)

    def _hold(self, data: bytes, complete: bool) -> None:
        if self.method == b"HEAD" and self._connection is not None:
            self._connection.finish_without_body()
            complete = True
        self._held.append(data)
        if complete:
            answer = b"".join(self._held)
            self._note_usage(answer[-4096:])
            self.record.response_bytes += len(answer)
            self.record.status = self._status
            self._client.write(self._with_request_id(answer))
            self._succeeded()
        elif sum(map(len, self._held)) > HOLD_MAX_BYTES:
            self.state, self._begun, self._head_sent = State.PASSING, True, True
            held, self._held = b"".join(self._held), []
            self._write(self._with_request_id(held))

    def _pass(self, head: bytes, data: bytes, complete: bool) -> None:
        """Raw bytes, as they came. The last chunk of a stream is kept back if the stream has no end mark."""
        watch = self._watch
        if watch is not None and data:
            watch.saw(data)
        self._begun = self._head_sent = True
        if complete and watch is not None and self._marked and not watch.complete:
            self._write(head + data.removesuffix(http1.LAST_CHUNK))
            self._connection = None
            self._fail(Evidence(Failure.CUT, answered=True), "the engine ended the stream without its end mark")
            return
        self._write(head + data if head else data)
        if complete:
            self.record.status = self._status
            if watch is not None:
                self._note_usage(watch.tail)
            self._succeeded()

    def _frame(self, head: bytes, pieces: list[bytes], complete: bool) -> None:
        """Pieces of the body in framing of our own: after comments, and for HTTP/1.0."""
        if head and self._head_sent and self._watch is None:  # comments were sent, and now comes no stream
            self._let_go()
            self._fail(Evidence(Failure.MALFORMED), "the engine answered with something that is no stream")
            return
        body = b"".join(pieces)
        watch = self._watch
        if watch is not None and body:
            watch.saw(body)
        if head and not self._head_sent:
            self._client.keep_alive = False
            self._write(self._with_request_id(_unframed(head)))
            self._head_sent = True
        self.state = State.FRAMING
        self._begun = self._begun or bool(body)
        if body:
            self._write(body if self._client.http10 else http1.chunk(body))
        if not complete:
            return
        if watch is not None and self._marked and not watch.complete:
            self._connection = None
            self._fail(Evidence(Failure.CUT, answered=True), "the engine ended the stream without its end mark")
            return
        if not self._client.http10:
            self._client.write(http1.LAST_CHUNK)
        self.record.status = self._status
        if watch is not None:
            self._note_usage(watch.tail)
        self._succeeded()

    def _write(self, data: bytes) -> None:
        self.record.response_bytes += len(data)
        self._client.write(data)

    def _with_request_id(self, answer: bytes) -> bytes:
        """The answer with our headers in its head, and without those of the engine's connection."""
        end = answer.find(b"\r\n\r\n") + 4
        head = answer[:end]
        lower = head.lower()
        if b"\r\nconnection:" in lower or b"\r\nkeep-alive:" in lower or b"\r\nx-request-id:" in lower:
            head = http1.without_hop_by_hop(head)
        close = b"" if self._client.keep_alive else b"connection: close\r\n"
        return b"%sx-request-id: %s\r\n%s\r\n%s" % (head[:-2], self.record.request_id.encode(), close, answer[end:])

    def _note_usage(self, tail: bytes) -> None:
        record = self.record
        record.prompt_tokens, record.completion_tokens, record.cached_tokens = usage_in(tail)

    # -- ends -----------------------------------------------------------------------------------

    def _succeeded(self) -> None:
        self._connection = None
        if self._blamed_later:
            self._settle_blame()
        self._over(keep=self._client.keep_alive)

    def _over(self, *, keep: bool) -> None:
        if self.state is State.OVER:
            return
        self._end()
        if keep:
            self._client.answered()
        else:
            self._client.cut()

    def _let_go(self) -> None:
        """Leave the engine: what it still computes for this request is for nobody."""
        if self._dial is not None:
            self._dial.cancel()
            self._dial = None
        if self._connection is not None:
            self._connection.release()
            self._connection = None

    def client_left(self) -> None:
        """The client went away."""
        if self.state is not State.OVER:
            self.record.outcome = "left"
            self._end()

    def _end(self) -> None:
        self.state = State.OVER
        self._let_go()
        self.record.total_s = self._loop.time() - self.started_s
        self._router.finished(self)

    def client_slow(self, *, slow: bool) -> None:
        """The client does not (or again) take what is sent to it."""
        self._paused = slow
        if self._connection is not None:
            if slow:
                self._connection.pause_reading()
            else:
                self._connection.resume_reading()

    # -- time -----------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Called a few times a second."""
        if self.state is State.WAITING or (self.state is State.FRAMING and self._status == 0):
            if self.comment_after_s and self.facts.stream and now_s - self.last_byte_s >= self.comment_after_s:
                self._comment(now_s)
            if self.engine is not None and now_s >= self.first_byte_by_s:
                self._router.look_after(self.engine)
        elif self._paused:
            self.last_byte_s = now_s  # it is the client that stalls
        elif now_s - self.last_byte_s >= self.stream_idle_s:
            self.engine_silent(f"no byte of the answer for {self.stream_idle_s:g} s", Failure.STALLED)

    @property
    def waits_for_first_byte(self) -> bool:
        """Whether the engine has given nothing yet."""
        return self.engine is not None and self._status == 0 and self.state is not State.OVER

    def engine_silent(self, why: str, failure: Failure = Failure.SILENT) -> None:
        """Leave this engine: it does not answer."""
        self._let_go()
        self.attempt_failed(failure, why)

    def _comment(self, now_s: float) -> None:
        """A line that says only that the router is there, so that nobody between cuts a silent connection."""
        self.last_byte_s = now_s
        if self._client.http10:
            return
        if not self._head_sent:
            self._client.write(http1.stream_head(self.record.request_id.encode()))
            self._head_sent = self.wants_pieces = True
            self.state = State.FRAMING
        self._client.write(http1.chunk(KEEP_ALIVE))


def _unframed(head: bytes) -> bytes:
    """A head for a body that ends with the connection."""
    lines = [line for line in head[:-4].split(b"\r\n") if not line.lower().startswith(b"transfer-encoding:")]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _message_of(answer: bytes) -> str:
    """The error text of an engine's answer, short, for logs and events."""
    body = answer.partition(b"\r\n\r\n")[2]
    start = body.find(b'"message"')
    text = body[start : start + 400] if start >= 0 else body[:400]
    return text.decode("utf8", "replace")


def _in_words(blame: Blame, evidence: Evidence, why: str) -> tuple[int, str, str]:
    """Status, code and message of the router's own error answer."""
    if blame is Blame.CLIENT and evidence.status >= 500:
        return 400, TOO_LONG_CODE, f"the prompt does not fit the model: {why}"
    if blame is Blame.OVERLOAD:
        return 503, "engines_overloaded", f"no engine takes more requests now: {why}"
    if evidence.failure is Failure.STALLED:
        return 504, "engine_stalled", f"the engine stopped in the middle of its answer: {why}"
    if evidence.failure in (Failure.SILENT, Failure.CONNECT_TIMEOUT):
        return 504, "engine_silent", f"the engine gave no answer in time: {why}"
    return 502, "engine_failed", f"the engine failed: {why}"
