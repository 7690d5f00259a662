"""The life of one request: attempts on engines until one answers.

::

    waiting --(an engine answers)--> answering --(complete, given up, or the client left)--> over
       ^                                 |
       +---(it fails, nothing has gone to the client)

Another engine is tried only while nothing of an answer has gone to the client, only for requests
that may run twice, and within the retry budget. How the answer gets to the client is the affair of
:mod:`kveik.router.relay`, and what a failure means of :mod:`kveik.router.blame`.
"""

import asyncio
import logging
import re
from collections.abc import Sequence
from time import perf_counter
from typing import Final

from kveik.router import http1
from kveik.router.blame import TOO_LONG_CODE, Blame, Evidence, Failure, Verdict, judge, repeatable
from kveik.router.engines import EngineView
from kveik.router.facts import RequestFacts
from kveik.router.gate import Ticket
from kveik.router.policy import Choice
from kveik.router.records import RequestRecord
from kveik.router.relay import HOLD_MAX_BYTES, ClientLink, Relay, Step
from kveik.router.resume import Resumption
from kveik.router.stream import error_status
from kveik.router.upstream import Answered, EngineConnection

logger = logging.getLogger(__name__)

ERROR_TEXT_BYTES: Final = 4096
#: The kind of an error, which is a word of the engine's.
_ERROR_KIND: Final = re.compile(r'"type"\s*:\s*"([A-Za-z_]{1,60})"')

# Looking a member up in its enum costs as much as passing a piece on.
_MORE: Final = Step.MORE
_COMPLETE: Final = Step.COMPLETE


class Dispatcher:
    """What an exchange needs of the router. A base for the reason that :class:`.upstream.Answered` is one."""

    __slots__ = ("loop",)

    loop: asyncio.AbstractEventLoop

    def choose(self, exchange: "Exchange", now_s: float) -> tuple[EngineView, Choice] | None:
        """An engine for the next attempt, booked for it; None if there is none now."""
        raise NotImplementedError

    def first_byte_deadline_s(self, exchange: "Exchange", now_s: float) -> float:
        """When an engine that gave no byte is looked at."""
        raise NotImplementedError

    def may_retry(self, exchange: "Exchange") -> bool:
        """Whether one more attempt is allowed, by number and by the retry budget."""
        raise NotImplementedError

    def first_byte(self, exchange: "Exchange") -> None:
        """The engine has begun a good answer."""
        raise NotImplementedError

    def leave(self, exchange: "Exchange") -> None:
        """The attempt is over, however it went: what was booked on the engine is free again."""
        raise NotImplementedError

    def blame(self, engine: EngineView, exchange: "Exchange", verdict: Verdict, why: str) -> str:
        """What a failed attempt says about an engine; why the request must not be tried again, if so."""
        raise NotImplementedError

    def finished(self, exchange: "Exchange") -> None:
        """The request is over; its record is complete."""
        raise NotImplementedError

    def look_after(self, engine: EngineView) -> None:
        """An engine is silent for longer than expected: find out whether it still works."""
        raise NotImplementedError


class Exchange(Answered):
    """One request of one client. Made by the router; :meth:`start` begins it."""

    __slots__ = (
        "_blamed_later", "_client", "_connection", "_dial", "_error", "_loop", "_paused", "_relay", "_rest",
        "_resumption", "_router", "_stale_engine", "_status", "attempt_began_s", "body", "booked_tokens",
        "comment_after_s", "engine", "excluded", "facts", "first_byte_by_s", "headers", "last_byte_s",
        "longer_than_tokens", "method", "over", "prefill_s", "prefill_tokens", "record", "started_s", "stream_idle_s",
        "target", "ticket", "traceparent",
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
        now_s: float,
        *,
        traceparent: bytes = b"",
        comment_after_s: float = 0.0,
        stream_idle_s: float = 60.0,
        resumption: Resumption | None = None,
    ) -> None:
        """``now_s``: of the loop. ``resumption``: another engine may go on with its stream."""
        self._router, self._client, self.record = router, client, record
        self.method, self.target, self.headers, self.body, self.facts = method, target, headers, body, facts
        self.traceparent = traceparent
        self.comment_after_s, self.stream_idle_s = comment_after_s, stream_idle_s
        self._loop = router.loop
        self.last_byte_s = self.attempt_began_s = now_s
        self.started_s = perf_counter()  # uvloop's time moves once a millisecond: too coarse for what is measured
        self._resumption = resumption
        self._rest = b""  # the body of the request for the rest of a stream
        self._relay = Relay(client, record, target.partition(b"?")[0], reframes=resumption is not None)
        self.wants_pieces = self._relay.wants_pieces  # of the body, without its framing
        self.engine: EngineView | None = None
        self.booked_tokens = -1  # on the engine of this attempt; negative: nothing is booked
        self.prefill_s, self.prefill_tokens = 0.0, 0  # how long the prompt took on it, and what was to be computed
        self.ticket: Ticket | None = None
        self.excluded = 0  # bits of slots that were tried
        self.longer_than_tokens = 0  # only engines that take longer prompts are any use
        self.first_byte_by_s = 0.0
        self.over = False
        self._connection: EngineConnection | None = None
        self._dial: asyncio.Task[None] | None = None
        self._status = 0
        self._error: list[bytes] = []  # an answer that is held back, from its head on
        self._stale_engine: EngineView | None = None  # whose kept connection ended under this request
        self._paused = False
        self._blamed_later: list[tuple[EngineView, Verdict, str]] = []

    def __repr__(self) -> str:
        where = self.engine.name if self.engine is not None else "no engine"
        state = "over" if self.over else "answering" if self._relay.begun else "waiting"
        return f"Exchange({self.record.request_id}, {state}, {where}, attempt {self.record.attempts})"

    # -- attempts -------------------------------------------------------------------------------

    def start(self) -> bool:
        """Send the request to an engine; False if there is none now."""
        now_s = self._loop.time()
        chosen = self._router.choose(self, now_s)
        if chosen is None:
            return False
        self.engine, choice = chosen
        self.record.attempts += 1
        self.record.engine, self.record.reason = self.engine.name, choice.reason
        self.record.expected_cached_tokens = choice.expected_cached_tokens
        self.attempt_began_s, self.prefill_s = now_s, 0.0
        self.first_byte_by_s = self._router.first_byte_deadline_s(self, now_s)
        assert self.engine.pool is not None
        # An engine that ends a kept connection may have begun: what could do harm twice does not travel on one.
        connection = self.engine.pool.take(now_s) if repeatable(self.method, self.target) else None
        if connection is not None:
            self._send(connection)
        else:
            self._dial = self.engine.pool.dial(self._send, self.attempt_failed)
        return True

    def _send(self, connection: EngineConnection) -> None:
        self._dial = None
        self._connection = connection
        assert self.engine is not None
        body = self._rest or self.body
        if self.record.added_s < 0:
            self.record.added_s = perf_counter() - self.started_s
        head = http1.request_head(
            self.method,
            self.target,
            self.headers,
            host=self.engine.host_header,
            length=len(body),
            request_id=self.record.request_id.encode(),
            traceparent=self.traceparent,
        )
        connection.send(self, head + body)
        if self._paused:
            connection.pause_reading()

    def attempt_failed(self, failure: Failure, why: str) -> None:
        """The connection to the engine is lost, or was never made."""
        self._connection = self._dial = None
        if self.over:
            return
        if failure is Failure.REFUSED and self._stale_engine is self.engine:
            failure = Failure.DIED
        try:
            self._fail(Evidence(failure, answered=self._relay.begun), why)
        except Exception:
            # Supervision: who waits for an answer gets one, whatever happens.
            logger.exception("a request failed in the router")
            self.router_failed()

    def _fail(self, evidence: Evidence, why: str, answer: bytes = b"") -> None:
        """One attempt is over without success; ``answer`` is the engine's own error answer."""
        verdict = judge(evidence, repeatable=repeatable(self.method, self.target))
        engine = self.engine
        assert engine is not None
        self.record.why = why
        if verdict.too_long:
            self.longer_than_tokens = engine.max_model_tokens or 1 << 62
        if verdict.same and self._stale_engine is not engine and engine.pool is not None:
            self._stale_engine = engine
            self._dial = engine.pool.dial(self._send, self.attempt_failed)
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
        if engine.state != "gone":  # else another engine may have its slot
            self.excluded |= 1 << engine.slot
        if verdict.elsewhere and not self._relay.begun and self._router.may_retry(self):
            self._status, self._error = 0, []
            self._relay.reset()
            self.record.first_byte_s = -1.0  # it was not the answer's
            if self.start():
                return
        if self._relay.begun and verdict.blame is not Blame.CLIENT and self._goes_on():
            return
        blame = verdict.blame
        if self._rest and blame is Blame.CLIENT:
            blame = Blame.ENGINE  # it is our request that was refused, and an engine's loss that made us ask
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

    def _goes_on(self) -> bool:
        """Have another engine go on with the stream that this one began; False if none can."""
        if self._resumption is None or not self._router.may_retry(self):
            return False
        rest = self._resumption.continued()
        if rest is None or not self._relay.go_on():
            return False
        self._rest = rest
        self._status, self._error = 0, []
        self.last_byte_s = self._loop.time()
        if not self.start():
            return False
        self.record.resumed += 1
        return True

    def _give_up(self, blame: Blame, evidence: Evidence, why: str, answer: bytes) -> None:
        """Tell the client what became of it."""
        self.record.outcome = blame.value
        if answer and not self._relay.head_sent and not (blame is Blame.CLIENT and evidence.status >= 500):
            self._relay.pass_error(evidence.status, answer)
            self._over(keep=self._client.keep_alive)
        else:
            status, code, message = _in_words(blame, evidence, _message_of(evidence.text) or why)
            self.refuse(status, message, code=code)

    def refuse(self, status: int, message: str, *, code: str = "", retry_after_s: int = 0) -> None:
        """Answer with an error of the router's own; as an event where a stream has begun."""
        keep = self._relay.refuse(status, message, code=code, retry_after_s=retry_after_s)
        self._over(keep=keep)

    # -- the answer -----------------------------------------------------------------------------

    def answer_whole(self, head: bytes, body: bytes) -> None:
        """The engine's whole answer, of status 200; the client gets its head (without blank line) as it is."""
        if self._relay.head_sent:  # the client waits for a stream
            self.answer_began(200, head + b"\r\n\r\n", body, (), True)
            return
        self._first_byte()
        self._relay.whole(head, body)
        self._step(_COMPLETE, True)

    def answer_began(self, status: int, head: bytes, data: bytes, pieces: Sequence[bytes], complete: bool) -> None:
        """The engine's answer has begun."""
        self.last_byte_s = self._loop.time()
        self._status = status
        if self.method == b"HEAD" and self._connection is not None:
            self._connection.finish_without_body()
            complete = True
        if self.wants_pieces:
            data = b"".join(pieces)
        self._error = [head]
        if data and status < 400 and self.facts.stream:
            self._status = error_status(data, first=True) or status
        if self._status >= 400:
            self._error.append(data)
            if complete:
                self._error_answer(whole=True)
            return
        if self._resumption is not None:
            data = self._resumption.take(data, complete=complete)
            if self._resumption.error:
                self._relay.began(status, head, data, complete=False)
                self._failed_within(self._resumption.error, complete)
                return
        if data or complete:
            self._first_byte()
        self._step(self._relay.began(status, head, data, complete=complete), complete)

    def answer_went_on(self, data: bytes, pieces: Sequence[bytes], complete: bool) -> None:
        """More of the engine's answer."""
        self.last_byte_s = self._loop.time()
        if self.wants_pieces:
            data = b"".join(pieces)
        if self.record.first_byte_s < 0 and self._status < 400 and self.facts.stream:  # its head came alone
            self._status = error_status(data, first=True) or self._status
        if self._status >= 400:
            self._error.append(data)
            if complete or sum(map(len, self._error)) > HOLD_MAX_BYTES:
                self._error_answer(whole=complete)
            return
        if self._resumption is not None:
            data = self._resumption.take(data, complete=complete)
            if self._resumption.error:
                self._relay.went_on(data, complete=False)
                self._failed_within(self._resumption.error, complete)
                return
        if self.record.first_byte_s < 0:
            self._first_byte()
        step = self._relay.went_on(data, complete)
        if step is not _MORE:
            self._step(step, complete)

    def _first_byte(self) -> None:
        if self.record.first_byte_s < 0:
            self.record.first_byte_s = perf_counter() - self.started_s
        self._router.first_byte(self)

    def _step(self, step: Step, complete: bool) -> None:
        if step is _MORE:
            return
        if complete:  # the connection goes back to the pool by itself
            self._connection = None
        if step is _COMPLETE:
            if self._relay.error_status:
                self._ended_in_error(self._relay.error_status)
            elif self._blamed_later:
                self._settle_blame()
            self._over(keep=self._client.keep_alive)
            return
        self._let_go()
        if step is Step.MISFIT:
            self._fail(Evidence(Failure.MALFORMED), "the engine answered with something that is no stream")
        else:
            evidence = Evidence(Failure.MALFORMED, answered=self._relay.begun)
            self._fail(evidence, "the engine ended the stream without its end mark")

    def _ended_in_error(self, status: int) -> None:
        """The engine gave up within a stream and said so: the client has its words, here it counts as what it is."""
        verdict = judge(Evidence(Failure.STATUS, status, answered=True), repeatable=False)
        why = f"status {status} within the stream"
        self.record.outcome, self.record.why, self.record.cut = verdict.blame.value, why, True
        assert self.engine is not None
        self._router.blame(self.engine, self, verdict, why)

    def _failed_within(self, error: bytes, complete: bool) -> None:
        """The engine said within a stream that it failed, and the client has not heard it: another one may go on."""
        if complete:  # the connection goes back to the pool by itself
            self._connection = None
        self._let_go()
        status = error_status(error, first=True) or 500
        text = error[:ERROR_TEXT_BYTES].decode("utf8", "replace")
        why = f"{_status_in_words(status, text)} within the stream"
        self._fail(Evidence(Failure.STATUS, status, text, answered=True), why)

    def _error_answer(self, *, whole: bool) -> None:
        connection, self._connection = self._connection, None
        if not whole and connection is not None:
            connection.release()
        answer = b"".join(self._error)
        text = answer[-ERROR_TEXT_BYTES:].decode("utf8", "replace")
        self._fail(
            Evidence(Failure.STATUS, self._status, text), _status_in_words(self._status, text), answer if whole else b""
        )

    # -- ends -----------------------------------------------------------------------------------

    def _over(self, *, keep: bool) -> None:
        if self.over:
            return
        self._end()
        if keep:
            self._client.answered()
        elif self._relay.looks_whole:
            self._client.break_off()
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

    def router_failed(self) -> None:
        """A fault of the router's own: the client sees an error, or an answer that is cut; no engine is blamed."""
        if not self.over:
            self.record.outcome, self.record.why = "router", "the router failed; its log says why"
            self._let_go()
            self.refuse(500, self.record.why)

    def client_left(self) -> None:
        """The client went away."""
        if not self.over:
            self.record.outcome = "left"
            self._end()

    def _end(self) -> None:
        self.over = True
        self._let_go()
        self.record.total_s = perf_counter() - self.started_s
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
        if self.record.first_byte_s < 0:
            if self.comment_after_s and self.facts.stream and now_s - self.last_byte_s >= self.comment_after_s:
                self.last_byte_s = now_s
                self._relay.comment()
            if self.engine is not None and now_s >= self.first_byte_by_s:
                self._router.look_after(self.engine)
        elif self._paused:
            self.last_byte_s = now_s  # it is the client that stalls
        elif now_s - self.last_byte_s >= self.stream_idle_s:
            self.engine_silent(f"no byte of the answer for {self.stream_idle_s:g} s", Failure.STALLED)

    @property
    def waits_for_first_byte(self) -> bool:
        """Whether the engine has given nothing of an answer yet; the head of a stream is nothing."""
        return self.engine is not None and self.record.first_byte_s < 0 and not self.over

    def engine_silent(self, why: str, failure: Failure = Failure.SILENT) -> None:
        """Leave this engine: it does not answer."""
        self._let_go()
        self.attempt_failed(failure, why)


def _message_of(text: str) -> str:
    """What an engine's error answer says, short, for the client whose request it is: it may repeat the prompt."""
    start = max(text.find('"message"'), text.find("\r\n\r\n"))
    return text[max(start, 0) :][:400].strip()


def _status_in_words(status: int, text: str) -> str:
    """An engine's error answer for logs and for other clients: nothing of what a prompt could stand in."""
    kind = _ERROR_KIND.search(text)
    return f"status {status}{f' ({kind[1]})' if kind is not None else ''}"


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
