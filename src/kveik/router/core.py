"""The router: takes requests, finds engines for them, and learns from what became of them.

Everything here runs on one event loop; nothing waits, locks or blocks. What takes time (probes of
engines, the registry) runs beside it: see :mod:`kveik.router.care`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from kveik.breaker import CLOSED
from kveik.config import RouterSettings
from kveik.errors import RequestError
from kveik.router import http1
from kveik.router.blame import Failure, Verdict, repeatable
from kveik.router.choice import Chooser
from kveik.router.client_side import ClientConnection, ClientLimits, UnderWay
from kveik.router.engine_set import EngineSet
from kveik.router.engines import EngineView
from kveik.router.exact_routing import ExactRouting
from kveik.router.exchange import Dispatcher, Exchange
from kveik.router.facts import RequestFacts
from kveik.router.gate import REFUSALS, Gate, Refused, Ticket
from kveik.router.incoming import Incoming
from kveik.router.policy import Choice
from kveik.router.prefix_learning import PrefixLearner
from kveik.router.prompt import PromptReader
from kveik.router.quarantine import Quarantine, fingerprint
from kveik.router.records import RequestListener, RequestRecord
from kveik.router.resume import Resumption
from kveik.router.trace import Tracing, request_id

logger = logging.getLogger(__name__)

#: Retries that are allowed at once, before the share of all requests counts; with more requests under way as
#: many as those, so that the death of one engine is not lost on any of them.
RETRY_RESERVE: Final = 20.0
#: An engine may be so many times slower than it was seen to be before its silence is looked into.
PREFILL_MARGIN: Final = 4.0
SHARE_MIN: Final = 0.1
#: Where the router itself takes what is posted.
OWN_POSTS: Final = b"/fleet"


class Care(Protocol):
    """What is done for engines beside the requests; see :mod:`kveik.router.care`."""

    def look_after(self, engine: EngineView) -> None:
        """An engine is silent: find out whether it works."""

    def revive(self, engine: EngineView) -> None:
        """An engine's breaker has opened: try it again and again."""


class Pages(Protocol):
    """What the router answers itself; see :mod:`kveik.router.pages`."""

    def answer(self, client: ClientConnection, request: Incoming) -> UnderWay | bool:
        """Answer the request if it is one of ours: True, or the answer to come; False if it is not."""


class Router(Dispatcher):
    """One router. Handed to each client's connection, and to each exchange."""

    def __init__(
        self,
        settings: RouterSettings,
        gate: Gate,
        chooser: Chooser,
        read_facts: PromptReader,
        listeners: Sequence[RequestListener] = (),
        forget_slot: Callable[[int], None] = lambda _: None,
        tracing: Tracing | None = None,
    ) -> None:
        self.settings = settings
        self.gate = gate
        self.engines = EngineSet(settings, forget_slot)
        self.quarantine = Quarantine(settings.quarantine_kills)
        self.limits = ClientLimits(
            settings.head_bytes_max,
            settings.body_bytes_max,
            settings.head_timeout_s,
            settings.body_timeout_s,
            settings.client_idle_s,
        )
        self.care: Care | None = None
        self.pages: Pages | None = None
        self.tokens: ExactRouting | None = None
        self.learner: PrefixLearner | None = None
        self.draining = False
        self.retries_refused = 0
        # Of the settings what each request asks for: reading it there costs more.
        self._comment_after_s, self._stream_idle_s = float(settings.comment_after_s), float(settings.stream_idle_s)
        self._first_byte_s, self._first_byte_max_s = float(settings.first_byte_s), float(settings.first_byte_max_s)
        self._slow_prefill_tokens_s = float(settings.slow_prefill_tokens_s)
        self._resume_streams, self._pass_authorization = settings.resume_streams, settings.pass_authorization
        self._session_header = settings.session_header.lower().encode() if settings.policy == "session" else b""
        self._chooser = chooser
        self._read_facts = read_facts
        self._listeners = list(listeners)
        self._tracing = tracing or Tracing()
        self.loop = asyncio.get_running_loop()
        self._clients: set[ClientConnection] = set()
        self._exchanges: set[Exchange] = set()
        self._homeless: deque[tuple[float, Exchange]] = deque()
        self._retry_budget = RETRY_RESERVE
        self._chosen = 0

    def __repr__(self) -> str:
        return f"Router({self.engines!r}, {len(self._exchanges)} requests under way, {len(self._clients)} clients)"

    # -- clients --------------------------------------------------------------------------------

    def opened(self, client: ClientConnection) -> None:
        """A client connected."""
        self._clients.add(client)
        if self.draining:
            client.drain()

    def closed(self, client: ClientConnection) -> None:
        """A client's connection is gone."""
        self._clients.discard(client)

    def handle(self, client: ClientConnection, request: Incoming) -> UnderWay | None:
        """Begin to answer one request."""
        if request.method != b"POST" or request.target.startswith(OWN_POSTS):
            own = self.pages.answer(client, request) if self.pages is not None else False
            if own:
                return None if own is True else own
        now_s = self.loop.time()
        record = RequestRecord(request_id(request.request_id), request.method_text, request.target_text)
        record.request_bytes, record.client = request.body_bytes, client.peer
        ticket = self.gate.enter(request.authorization or request.api_key or None, now_s)
        if isinstance(ticket, Refused):
            self._refuse_early(client, record, ticket)
            return None
        record.key_name = ticket.key_name
        # With its tenant's salt from here on: equal prompts of two tenants share no blocks, and no expectation.
        body = self.gate.body_for_engine(ticket, request.body)
        if isinstance(body, Refused):
            self.gate.leave(ticket, now_s)
            self._refuse_early(client, record, body)
            return None
        try:
            facts = self._read_facts(request.target, body)
        except RequestError as error:
            self.gate.leave(ticket, now_s)
            self._refuse_early(
                client, record, Refused("bad_request", 400, http1.error_body(400, str(error), param=error.param))
            )
            return None
        record.model, record.stream, record.facts = facts.model, facts.stream, facts
        if self._session_header:
            facts.session = http1.header_value(request.headers, self._session_header).decode("latin-1")
        refused = self._not_allowed(ticket, facts, request, body, now_s)
        if refused is not None:
            self.gate.leave(ticket, now_s)
            self._refuse_early(client, record, refused)
            return None
        exchange = Exchange(
            self,
            client,
            record,
            request.method,
            request.target,
            self._passed_on(request),
            body,
            facts,
            now_s,
            traceparent=self._tracing.begin(request.traceparent, record),
            comment_after_s=self._comment_after_s,
            stream_idle_s=self._stream_idle_s,
            resumption=self._resumption(request, facts, body),
        )
        exchange.ticket = ticket
        self._exchanges.add(exchange)
        if self._retry_budget < RETRY_RESERVE or self._retry_budget < len(self._exchanges):
            self._retry_budget += self.settings.retry_share
        if ticket.waits:
            self._wait_turn(ticket, exchange)
            return exchange
        self._begin(exchange)
        return exchange

    def _resumption(self, request: Incoming, facts: RequestFacts, body: bytes) -> Resumption | None:
        """What lets another engine go on with a stream, where that is asked for and possible."""
        if not (self._resume_streams and facts.resumable and request.method == b"POST"):
            return None
        return Resumption(body, chat=b"/chat/" in request.target)

    def _passed_on(self, request: Incoming) -> bytes:
        """The header lines that engines get."""
        if request.authorization and self._pass_authorization:
            return request.passed_on + b"authorization: %s\r\n" % request.authorization
        return request.passed_on

    def _not_allowed(
        self, ticket: Ticket, facts: RequestFacts, request: Incoming, body: bytes, now_s: float
    ) -> Refused | None:
        refused = self.gate.allow(ticket, facts.model, facts.prompt_tokens, now_s)
        if refused is not None:
            return refused
        if self.quarantine.suspects:
            why = self.quarantine.refuses(fingerprint(request.target, body))
            if why:
                return Refused("quarantined", 422, http1.error_body(422, why, code="request_quarantined"))
        if facts.model and not self.engines.serving(facts.model) and self.engines.all_models_known:
            known = ", ".join(sorted({model for engine in self.engines.by_name.values() for model in engine.models}))
            message = f"the model {facts.model!r} does not exist here; models are: {known or 'none yet'}"
            return Refused("unknown_model", 404, http1.error_body(404, message, code="model_not_found", param="model"))
        return None

    def _refuse_early(self, client: ClientConnection, record: RequestRecord, refused: Refused) -> None:
        headers = ((b"x-request-id", record.request_id.encode()), *refused.headers)
        client.respond(refused.status, refused.body, headers=headers)
        record.outcome = "overload" if refused.status == 503 else "client"
        record.status, record.reason = refused.status, refused.reason
        self._tell(record)

    def _wait_turn(self, ticket: Ticket, exchange: Exchange) -> None:
        # Apart from what all requests go through: a function that has a closure in it costs more, compiled.
        ticket.on_turn = lambda refusal: self._turn(exchange, refusal)

    def _turn(self, exchange: Exchange, refusal: Refused | None) -> None:
        if exchange.over:
            return
        if refusal is None:
            self._begin(exchange)
            return
        exchange.record.outcome = "overload"
        row = REFUSALS[refusal.reason]
        exchange.refuse(row.status, row.message, code=row.code, retry_after_s=row.retry_after_s)

    def _begin(self, exchange: Exchange) -> None:
        """Send a request to an engine, once its tokens are known where they are of use."""
        if not self._has_started(exchange, self.tokens):
            self._wait_for_engine(exchange)

    def _start(self, exchange: Exchange) -> None:
        if not self._has_started(exchange):
            self._wait_for_engine(exchange)

    def _wait_for_engine(self, exchange: Exchange) -> None:
        self._homeless.append((self.loop.time() + self.settings.engine_wait_s, exchange))

    def _has_started(self, exchange: Exchange, tokens: ExactRouting | None = None) -> bool:
        """Send a request to an engine; False if there is none now. ``tokens``: first find out its prompt's.

        A request in which the router fails ends, and no other.
        """
        try:
            if tokens is not None and not self._has_tokens(tokens, exchange):
                return True
            return exchange.over or exchange.start()
        except Exception:
            logger.exception("a request failed in the router")
            exchange.router_failed()
            return True

    def _has_tokens(self, tokens: ExactRouting, exchange: Exchange) -> bool:
        """True if all that can be known of its prompt is known; else the request begins when it is."""
        return tokens.prepare(exchange.target, exchange.body, exchange.facts, lambda: self._start(exchange))

    # -- what exchanges ask ---------------------------------------------------------------------

    def choose(self, exchange: Exchange, now_s: float) -> tuple[EngineView, Choice] | None:
        """An engine for the next attempt, booked."""
        facts = exchange.facts
        engines = self.engines.open_for(facts.model)
        if exchange.excluded or exchange.longer_than_tokens or not engines:
            engines = self._others(exchange)
        if not engines:
            return None
        engine, choice = self._chooser.choose(facts, engines, now_s)
        self._chooser.learn(facts, engine, now_s)
        self._chosen += 1
        engine.chosen = self._chosen
        if exchange.record.attempts and not exchange.longer_than_tokens:
            self._retry_budget -= 1.0
        exchange.booked_tokens = tokens = choice.expected_compute_tokens
        engine.in_flight += 1
        engine.waiting_tokens += tokens
        return engine, choice

    def _others(self, exchange: Exchange) -> list[EngineView]:
        """What is left for a request that was tried before; an engine that is out, if there is no other.

        The last engine of a model is never out for a request that it has not failed yet.
        """
        model, longer = exchange.facts.model, exchange.longer_than_tokens

        def fits(engine: EngineView) -> bool:
            if exchange.excluded >> engine.slot & 1:
                return False
            return not longer or engine.max_model_tokens > longer

        engines = [engine for engine in self.engines.open_for(model) if fits(engine)]
        if engines or exchange.record.attempts:
            return engines
        return [engine for engine in self.engines.serving(model) if engine.state == "ready" and fits(engine)]

    def first_byte_deadline_s(self, exchange: Exchange, now_s: float) -> float:
        """When to look at an engine that gave no byte: after what computing the prompt, and those before it, takes."""
        engine = exchange.engine
        if engine is None:
            return now_s + self._first_byte_s
        # vLLM's counters stand still within a step, and one step may hold a whole prompt: patience must cover it.
        rate = max(self._slow_prefill_tokens_s, engine.prefill.tokens_s / PREFILL_MARGIN)
        return now_s + min(self._first_byte_s + engine.waiting_tokens / rate, self._first_byte_max_s)

    def may_retry(self, exchange: Exchange) -> bool:
        """By number of attempts, and by the budget; an engine with a longer window is always worth an attempt."""
        if exchange.record.attempts >= self.settings.attempts_max:
            return False
        if self._retry_budget >= 1.0 or exchange.longer_than_tokens:
            return True
        self.retries_refused += 1
        return False

    def first_byte(self, exchange: Exchange) -> None:
        """The engine works: learn how fast."""
        engine = exchange.engine
        if engine is None or exchange.booked_tokens < 0:
            return
        tokens, exchange.booked_tokens = exchange.booked_tokens, 0
        engine.waiting_tokens -= tokens
        if exchange.facts.stream:  # of other answers the first byte comes with the last
            exchange.prefill_tokens = tokens
            exchange.prefill_s = engine.prefill.began(tokens, exchange.attempt_began_s, self.loop.time())
        if engine.breaker.failures_in_a_row:
            engine.breaker = engine.breaker.succeeded()
            self.engines.rebuild()

    def leave(self, exchange: Exchange) -> None:
        """Free what was booked."""
        engine = exchange.engine
        if engine is not None and exchange.booked_tokens >= 0:
            engine.in_flight -= 1
            engine.waiting_tokens -= exchange.booked_tokens
            exchange.booked_tokens = -1

    def blame(self, engine: EngineView, exchange: Exchange, verdict: Verdict, why: str) -> str:
        """What a failed attempt says about an engine, and about the request if engines die of it."""
        now_s = self.loop.time()
        refusal = ""
        if verdict.died and exchange.method == b"POST":
            name = fingerprint(exchange.target, exchange.body)
            if self.quarantine.died_with(name, engine.name, exchange.facts.model, now_s):
                refusal = self.quarantine.refuses(name)
        if verdict.counts:
            engine.breaker = engine.breaker.failed(now_s, timed_out=verdict.opens)
            if engine.breaker.state != CLOSED:
                self.put_out(engine, why)
        return refusal

    def put_out(self, engine: EngineView, why: str) -> None:
        """No more requests for this engine until it has passed a trial."""
        engine.why = why
        engine.prefill.forget()
        self.engines.rebuild()
        if self.care is not None:
            self.care.revive(engine)

    def bring_back(self, engine: EngineView) -> None:
        """It has passed: requests again, few at first."""
        engine.breaker = engine.breaker.succeeded()
        engine.why = ""
        self._begin_slowly(engine)
        self.engines_changed()

    def _begin_slowly(self, engine: EngineView) -> None:
        engine.back_s = self.loop.time()
        engine.share = SHARE_MIN if self.settings.slow_start_s else 1.0

    def engines_changed(self) -> None:
        """Engines came, left or changed: requests that wait for one are tried again."""
        self.engines.rebuild()
        for engine in self.engines:
            if engine.state == "isolated":
                self._move_off(engine)
            elif engine.was_held and engine.takes_requests:
                engine.was_held = False
                self._begin_slowly(engine)
        for _ in range(len(self._homeless)):
            until_s, exchange = self._homeless.popleft()
            if not self._has_started(exchange):
                self._homeless.append((until_s, exchange))

    def _move_off(self, engine: EngineView) -> None:
        """It is not trusted: what it has not begun to answer goes elsewhere if it may; the rest goes on there."""
        for exchange in self.waiting_on(engine):
            left = exchange.record.attempts < self.settings.attempts_max and self._retry_budget >= 1.0
            if left and repeatable(exchange.method, exchange.target) and self._others(exchange):
                exchange.engine_silent(f"the engine is isolated: {engine.why}", Failure.ISOLATED)

    def look_after(self, engine: EngineView) -> None:
        """Find out whether a silent engine works."""
        if self.care is not None:
            self.care.look_after(engine)

    def waiting_on(self, engine: EngineView) -> list[Exchange]:
        """The exchanges that this engine has given nothing yet."""
        return [exchange for exchange in self._exchanges if exchange.engine is engine and exchange.waits_for_first_byte]

    def engine_moves(self, engine: EngineView) -> None:
        """It is busy, not stuck: those who wait for it may go on waiting, but not for ever."""
        now_s = self.loop.time()
        for exchange in self.waiting_on(engine):
            if now_s - exchange.attempt_began_s > self.settings.first_byte_max_s:
                exchange.engine_silent(f"no byte within {self.settings.first_byte_max_s:g} s")
            elif exchange.first_byte_by_s <= now_s:
                exchange.first_byte_by_s = now_s + self.settings.first_byte_s

    def engine_stuck(self, engine: EngineView, why: str) -> None:
        """It does nothing: those who wait for it go elsewhere, if there is an elsewhere that they have not tried.

        Who has tried all engines stays: then it is rather its prompt that takes so long, as it did on the others.
        """
        going = [
            exchange
            for exchange in self.waiting_on(engine)
            if any(other is not engine for other in self._others(exchange))
        ]
        if not going:
            self.engine_moves(engine)
            return
        engine.breaker = engine.breaker.failed(self.loop.time(), timed_out=True)
        self.put_out(engine, why)
        for exchange in going:
            exchange.engine_silent(why, Failure.SILENT)
        self.engine_moves(engine)  # for those whose model no other engine serves

    def finished(self, exchange: Exchange) -> None:
        """A request is over."""
        self._exchanges.discard(exchange)
        self.leave(exchange)
        if exchange.prefill_s > 0:
            self._learn_rate(exchange)
        record = exchange.record
        if self.quarantine.suspects and record.outcome == "ok":
            self.quarantine.answered(fingerprint(exchange.target, exchange.body))
        if exchange.ticket is not None:
            self.gate.leave(exchange.ticket, self.loop.time(), used_tokens(record))
        if self.tokens is not None:
            self.tokens.finished(record)
        if self.learner is not None and record.outcome == "ok" and exchange.method == b"POST":
            self.learner.take(exchange.target, exchange.body, record)
        self._chooser.feed_back(record)
        self._tell(record)

    def _learn_rate(self, exchange: Exchange) -> None:
        """How fast the engine computed the prompt: what the answer says of its usage beats what was expected."""
        engine, record, tokens = exchange.engine, exchange.record, exchange.prefill_tokens
        if engine is None:
            return
        if record.cached_tokens >= 0 and not record.resumed:
            tokens = record.prompt_tokens - record.cached_tokens
        engine.prefill.learn(tokens, exchange.prefill_s)

    def _tell(self, record: RequestRecord) -> None:
        facts = record.facts
        if facts is not None:
            record.expected_prompt_tokens, record.exact = facts.prompt_tokens, facts.prompt is not None
        record.facts = None  # of a prompt's content, listeners that keep things get nothing
        for listener in self._listeners:
            listener(record)

    # -- time -----------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Called some twenty times a second."""
        for exchange in list(self._exchanges):
            exchange.tick(now_s)
        self.gate.tick(now_s)
        while self._homeless and self._homeless[0][0] <= now_s:
            _, exchange = self._homeless.popleft()
            if not self._has_started(exchange):
                exchange.record.outcome = "overload"
                exchange.refuse(503, self._nobody(exchange.facts.model), code="no_engine", retry_after_s=2)

    def slow_tick(self, now_s: float) -> None:
        """Called about once a second."""
        for client in list(self._clients):
            client.tick(now_s)
        for engine in self.engines.by_name.values():
            if engine.pool is not None:
                engine.pool.close_idle(now_s)
            if engine.breaker.state != CLOSED and self.care is not None:
                self.care.revive(engine)  # if that failed, it begins anew: no engine is out for ever
            if engine.share < 1.0:
                engine.share = min(1.0, SHARE_MIN + (now_s - engine.back_s) / max(1e-3, self.settings.slow_start_s))

    def _nobody(self, model: str) -> str:
        states = "; ".join(
            f"{engine.name} is {engine.state if engine.breaker.state == CLOSED else 'out'}"
            + (f" ({engine.why})" if engine.why else "")
            for engine in self.engines.serving(model)
        )
        return f"no engine takes requests{f' for {model!r}' if model else ''} now: {states or 'none is registered'}"

    # -- the end --------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take nothing new; what is under way goes on."""
        self.draining = True
        for client in list(self._clients):
            client.drain()

    @property
    def under_way(self) -> int:
        """Requests that are not over."""
        return len(self._exchanges)

    @property
    def at_rest(self) -> bool:
        """Whether all requests are over and all clients have what was answered."""
        return not self._exchanges and not self._clients

    def close(self) -> None:
        """End all connections."""
        for client in list(self._clients):
            client.cut_off()
        self.engines.close()


def used_tokens(record: RequestRecord) -> int | None:
    """Prompt and completion tokens; None if an engine answered without saying how many."""
    if record.prompt_tokens >= 0:
        return record.prompt_tokens + max(0, record.completion_tokens)
    return None if record.first_byte_s >= 0 else 0
