"""The routes of the simulated engine: vLLM's, and ``/sim`` for its switches and counters."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec
import xxhash

import kveik
from kveik.config import SimEngineSettings
from kveik.errors import ConfigError
from kveik.simulate import asks
from kveik.simulate.answers import Answer, ChatAnswer, CompletionAnswer
from kveik.simulate.asks import Ask, ModelLimits, RefusedRequestError, Render
from kveik.simulate.behaviour import Behaviour
from kveik.simulate.core import EngineCore
from kveik.simulate.exchange import Exchange
from kveik.simulate.faults import NO_FAULTS, Faults, changed
from kveik.simulate.other_answers import EmbeddingsAnswer, MessagesAnswer, ResponsesAnswer
from kveik.simulate.seen import Recorded, Seen
from kveik.simulate.tokenizer import TOKEN_BYTES, text_of, token_ids
from kveik.simulate.wire import Connection, Request

logger = logging.getLogger("kveik.simulate")

_json: Callable[[Any], bytes] = msgspec.json.Encoder().encode
_TEXT = b"text/plain; version=0.0.4; charset=utf-8"

_Route = Callable[[Request, Connection], None]

#: Paths that make tokens, how their bodies are read and what answers look like.
GENERATION: dict[str, tuple[Callable[[bytes, ModelLimits], Ask], type[Answer]]] = {
    "/v1/chat/completions": (asks.chat, ChatAnswer),
    "/v1/completions": (asks.completion, CompletionAnswer),
    "/v1/responses": (asks.responses, ResponsesAnswer),
    "/v1/messages": (asks.messages, MessagesAnswer),
    "/v1/embeddings": (asks.embeddings, EmbeddingsAnswer),
}


class App:
    """Answers requests of all connections. ``crash`` and ``apply`` are the server's: die, and act on new faults."""

    def __init__(
        self,
        settings: SimEngineSettings,
        core: EngineCore,
        seen: Seen,
        loop: asyncio.AbstractEventLoop,
        *,
        crash: Callable[[], None],
        apply: Callable[[Faults], None],
        record: bool = False,
        render: Render | None = None,
    ) -> None:
        self.core = core
        self.seen = seen
        self.faults = NO_FAULTS
        self.event_sources: dict[str, Any] = {}
        self._settings = settings
        self._limits = ModelLimits(settings.model, settings.max_model_tokens, settings.answer_tokens, render)
        self._loop = loop
        self._crash = crash
        self._apply = apply
        self._record = record
        self._number = 0
        self._key = f"Bearer {settings.api_key}".encode() if settings.api_key else b""
        self._routes = self._table()

    def handle(self, request: Request, connection: Connection) -> None:
        """Answer one request."""
        path = request.path
        self.seen.requests[path] += 1
        if self._record:
            headers = {name.decode("latin1").lower(): value.decode("latin1") for name, value in request.headers}
            self.seen.recorded.append(Recorded(request.method, path, headers, request.body))
        try:
            if self._key and path.startswith("/v1") and request.header(b"authorization") != self._key:
                self._respond(connection, 401, _json({"error": "Unauthorized"}))
            elif path in GENERATION and request.method == "POST":
                self._generate(request, connection)
            else:
                self._route(request)(request, connection)
        except RefusedRequestError as error:
            self._respond(connection, error.status, _json(error.document()))

    def change_faults(self, changes: dict[str, Any]) -> Faults:
        """Set switches by name. Raises :class:`ConfigError` for what is none."""
        self.faults = changed(self.faults, changes)
        self._number = 0
        logger.info("simulated engine: faults are now %s", self.fault_names() or "off")
        self._apply(self.faults)
        return self.faults

    def fault_names(self) -> dict[str, Any]:
        """The switches that are not at their defaults."""
        good = msgspec.structs.asdict(NO_FAULTS)
        return {name: value for name, value in msgspec.structs.asdict(self.faults).items() if value != good[name]}

    def state(self) -> dict[str, Any]:
        """What ``/sim`` shows."""
        gauges = self.core.gauges()
        return {
            "simulated": True,
            "model": self._settings.model,
            "faults": msgspec.structs.asdict(self.faults),
            "seen": self.seen.document(),
            "running": gauges.running,
            "waiting": gauges.waiting,
            "cached_blocks": len(self.core.cache),
        }

    # -- requests for tokens -------------------------------------------------------------------

    def _generate(self, request: Request, connection: Connection) -> None:
        faults = self._faults_of(request)
        if faults is not NO_FAULTS and self._struck_down(faults, connection):
            return
        read, kind = GENERATION[request.path]
        ask = read(request.body, self._limits)
        group = ask.packed[: self._settings.group_tokens * TOKEN_BYTES]
        self.seen.begin(xxhash.xxh3_64_hexdigest(group))
        answer = kind(ask, self._settings.model)
        Exchange(self.core, self.seen, connection, request, answer, faults).begin(self._loop)

    def _faults_of(self, request: Request) -> Faults:
        """The faults that hit this request: each ``every``-th, if its body has the text asked for."""
        faults, breaks_after = self.faults, self.core.behaviour.breaks_stream_after
        if breaks_after >= 0:
            return Faults(die_after_chunks=breaks_after, die_by="fin")
        if faults is NO_FAULTS or faults.containing.encode("utf8", "replace") not in request.body:
            return NO_FAULTS
        self._number += 1
        return faults if self._number % faults.every == 0 else NO_FAULTS

    def _struck_down(self, faults: Faults, connection: Connection) -> bool:
        """Whether the request ended before anybody looked at it."""
        if faults.crash:
            self._crash()
        elif faults.close_unanswered:
            connection.close()
        elif faults.status:
            self.seen.statuses[faults.status] += 1
            answer = (faults.status, faults.body(), b"application/json", faults.status_headers)
            if faults.first_byte_delay_s > 0:
                self._loop.call_later(faults.first_byte_delay_s, connection.respond, *answer)
            else:
                connection.respond(*answer)
        else:
            return False
        return True

    # -- the other routes ----------------------------------------------------------------------

    def _table(self) -> dict[str, dict[str, _Route]]:
        return {
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/version": {"GET": lambda _, to: self._send(to, {"version": f"kveik-sim-{kveik.__version__}"})},
            "/metrics": {"GET": self._metrics},
            "/v1/models": {"GET": self._models},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/reset_prefix_cache": {"POST": self._reset_cache},
            "/server_info": {"GET": self._server_info},
            "/kv_event_sources": {"GET": lambda _, to: self._send(to, self.event_sources)},
            "/sim": {"GET": lambda _, to: self._send(to, self.state()), "POST": self._change},
            "/sim/forget": {"POST": self._forget},
        }

    def _route(self, request: Request) -> _Route:
        methods = self._routes.get(request.path, {"POST": None} if request.path in GENERATION else None)
        if methods is None:
            raise RefusedRequestError("Not Found", 404, "Not Found")
        route = methods.get(request.method)
        if route is None:
            raise RefusedRequestError("Method Not Allowed", 405, "Method Not Allowed")
        return route

    def _health(self, request: Request, connection: Connection) -> None:
        self._respond(connection, self.faults.health_status, b"")

    def _metrics(self, request: Request, connection: Connection) -> None:
        self._respond(connection, 200, self.core.metrics_text().encode(), _TEXT)

    def _models(self, request: Request, connection: Connection) -> None:
        card = {
            "id": self._settings.model,
            "object": "model",
            "created": 0,
            "owned_by": "kveik simulated engine",
            "root": self._settings.model,
            "parent": None,
            "max_model_len": self._settings.max_model_tokens,
            "simulated": True,
        }
        self._send(connection, {"object": "list", "data": [card]})

    def _tokenize(self, request: Request, connection: Connection) -> None:
        ids = token_ids(asks.tokenize(request.body, self._limits))
        limit = self._settings.max_model_tokens
        self._send(connection, {"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": None})

    def _detokenize(self, request: Request, connection: Connection) -> None:
        self._send(connection, {"prompt": text_of(asks.detokenize(request.body, self._limits))})

    def _reset_cache(self, request: Request, connection: Connection) -> None:
        behaviour = self._in_development()
        done = behaviour.refuses_resets <= 0
        if done:
            self.core.cache.clear()
            logger.info("simulated engine: prefix cache emptied")
        else:
            behaviour.refuses_resets -= 1
        self._send(connection, {"success": done})

    def _server_info(self, request: Request, connection: Connection) -> None:
        behaviour, settings = self._in_development(), self._settings
        extra = {"read_back_every": int(behaviour.compares_blocks)}
        config = {
            "model_config": {"dtype": f"torch.{behaviour.dtype}", "max_model_len": settings.max_model_tokens},
            "cache_config": {
                "block_size": settings.block_tokens,
                "kv_cache_size_tokens": settings.cache_blocks * settings.block_tokens,
            },
            "kv_transfer_config": {"kv_connector_extra_config": extra} if self.core.has_connector else None,
        }
        self._send(connection, {"vllm_config": config})

    def _in_development(self) -> Behaviour:
        """The behaviour, on routes that vLLM has in its development mode only."""
        if not self.core.behaviour.development_mode:
            raise RefusedRequestError("Not Found", 404, "Not Found")
        return self.core.behaviour

    def _change(self, request: Request, connection: Connection) -> None:
        try:
            changes = msgspec.json.decode(request.body, type=dict[str, Any])
            self.change_faults(changes)
        except (msgspec.DecodeError, ConfigError) as error:
            raise RefusedRequestError(str(error)) from error
        self._send(connection, self.state())

    def _forget(self, request: Request, connection: Connection) -> None:
        self.seen.reset()
        self._send(connection, self.state())

    def _send(self, connection: Connection, document: Any) -> None:
        self._respond(connection, 200, _json(document))

    def _respond(self, connection: Connection, status: int, body: bytes, kind: bytes = b"application/json") -> None:
        self.seen.statuses[status] += 1
        connection.respond(status, body, kind)
