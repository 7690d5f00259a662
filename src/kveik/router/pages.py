"""What the router answers itself: its health, its metrics, the fleet, and the union of the models.

Everything else is passed on to an engine.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from kveik.router import http1
from kveik.router.client_side import ClientConnection, UnderWay
from kveik.router.compiled import is_compiled
from kveik.router.dashboard import HEADERS, HTML_TYPE, PAGE
from kveik.router.engines import EngineView
from kveik.router.gate import Refused
from kveik.router.incoming import Incoming

logger = logging.getLogger(__name__)

TEXT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
Plain = dict[str, Any]


class Admin(Protocol):
    """Handles what may wait for a file or the network: see :mod:`kveik.router.fleet_api`."""

    def handle(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """Status and JSON body. Called on a thread of its own."""

    def may_read(self, headers: Mapping[str, str]) -> bool:
        """Whether these headers allow to see the fleet."""


class Shown(Protocol):
    """What the fleet is like, and who tells so: see :mod:`kveik.router.status_page`. Answers are status and JSON."""

    def document(self, query: bytes) -> tuple[int, bytes]:
        """``GET /fleet/status``."""

    def take_report(self, method: bytes, node: str, body: bytes) -> tuple[int, bytes]:
        """``PUT /fleet/nodes/NODE``."""


class Told(Protocol):
    """What pages show of the router: see :class:`kveik.router.core.Router`."""

    gate: Any
    engines: Any
    quarantine: Any
    draining: bool

    @property
    def under_way(self) -> int:
        """Requests that are not over."""


class _Later:
    """An answer that a thread prepares."""

    def __init__(
        self,
        client: ClientConnection,
        work: Coroutine[Any, Any, tuple[int, bytes]],
        content_type: bytes = http1.JSON_TYPE,
    ) -> None:
        self.over = False
        self._client = client
        self._content_type = content_type
        self._task = asyncio.get_running_loop().create_task(self._run(work))

    async def _run(self, work: Coroutine[Any, Any, tuple[int, bytes]]) -> None:
        try:
            status, body = await work
        except Exception:
            # Supervision: the client waits for an answer, whatever happens.
            logger.exception("a page of the router failed")
            status, body = 500, http1.error_body(500, "the router failed; its log says why")
            self._content_type = http1.JSON_TYPE
        if self.over:
            return
        self.over = True
        self._client.respond(status, body, content_type=self._content_type)
        if self._client.keep_alive:
            self._client.answered()
        else:
            self._client.cut()

    def client_left(self) -> None:
        """What was asked for is done nevertheless."""
        self.over = True

    def client_slow(self, *, slow: bool) -> None:
        """The answer is short."""


_READING = (b"GET", b"HEAD")
_NODES = "/fleet/nodes/"
_FRESH = ((b"cache-control", b"no-store"),)


class OwnPages:
    """The router's own answers. ``more``: parts of /fleet that others make.

    ``metrics`` takes what /metrics shows; what it returns makes the text of it, on a thread of its own.

    Each part has a page of its own as well (/fleet/usage); those in ``apart`` have only that, since they are long.
    ``status``: what the fleet is like. ``index_of``: how exactly it is known what an engine holds.
    """

    def __init__(
        self,
        router: Told,
        admin: Admin,
        metrics: Callable[[], Callable[[], bytes]],
        more: Mapping[str, Callable[[], object]],
        apart: Mapping[str, Callable[[], object]],
        status: Shown,
        index_of: Callable[[EngineView], object] = lambda _: None,
    ) -> None:
        self._router = router
        self._admin = admin
        self._metrics = metrics
        self._scrape: asyncio.Task[tuple[int, bytes]] | None = None
        self._status = status
        self._index_of = index_of
        self._more = {"quarantine": router.quarantine.listing, **more}
        self._parts = {
            "/fleet": self.document,
            **{f"/fleet/{name}": part for name, part in {**self._more, **apart}.items()},
        }
        self._fixed: dict[bytes, Callable[[], tuple[int, bytes, bytes]]] = {
            b"/health": self._health,
            b"/ready": self._ready,
        }

    def answer(self, client: ClientConnection, request: Incoming) -> UnderWay | bool:
        """Answer it if it is one of ours: True, or the answer to come; False if it is not."""
        fleet = request.target.startswith(b"/fleet")
        if not fleet and request.method not in _READING:
            return False
        path = request.target.partition(b"?")[0]
        if fleet:
            return self._fleet(client, request, path)
        if path == b"/v1/models":
            self._models(client, request)
            return True
        if path == b"/metrics":
            return _Later(client, self._scraped(), TEXT_TYPE)
        if path == b"/dashboard":
            client.respond(200, PAGE, content_type=HTML_TYPE, headers=HEADERS)
            return True
        page = self._fixed.get(path)
        if page is None:
            return False
        status, body, kind = page()
        client.respond(status, body, content_type=kind)
        return True

    # -- health and models ----------------------------------------------------------------------

    def _health(self) -> tuple[int, bytes, bytes]:
        """The router itself: it answers, so its loop turns."""
        return 200, b'{"status":"ok"}', http1.JSON_TYPE

    def _ready(self) -> tuple[int, bytes, bytes]:
        """Whether requests can be served now, for load balancers in front."""
        engines = [engine.name for engine in self._router.engines if engine.takes_requests]
        if self._router.draining:
            return 503, b'{"status":"draining"}', http1.JSON_TYPE
        if not engines:
            return 503, b'{"status":"no engine takes requests"}', http1.JSON_TYPE
        return 200, json.dumps({"status": "ready", "engines": engines}).encode(), http1.JSON_TYPE

    def _models(self, client: ClientConnection, request: Incoming) -> None:
        now_s = asyncio.get_running_loop().time()
        state = self._router.gate.identify(request.authorization or request.api_key or None, now_s)
        if isinstance(state, Refused):
            client.respond(state.status, state.body, headers=state.headers)
            return
        cards = [card for card in self._router.engines.model_cards if state.may_use(str(card["id"]))]
        client.respond(200, json.dumps({"object": "list", "data": cards}).encode())

    async def _scraped(self) -> tuple[int, bytes]:
        """The text of /metrics. Who asks while it is being made gets the same: many scrapers cost as much as one."""
        if self._scrape is None:
            self._scrape = asyncio.create_task(self._made(self._metrics()))
        return await self._scrape

    async def _made(self, text: Callable[[], bytes]) -> tuple[int, bytes]:
        try:
            return 200, await asyncio.to_thread(text)
        finally:
            self._scrape = None

    # -- the fleet ------------------------------------------------------------------------------

    def _fleet(self, client: ClientConnection, request: Incoming, path: bytes) -> UnderWay | bool:
        headers = _names(request)
        text = path.decode("latin-1")
        if (text == "/fleet/status" and request.method in _READING) or text.startswith(_NODES):
            self._show_status(client, request, text, allowed=self._admin.may_read(headers))
            return True
        part = self._parts.get(text.rstrip("/"))
        if request.method in (b"GET", b"HEAD") and part is not None:
            if not self._admin.may_read(headers):
                client.respond(401, _no_token())
                return True
            client.respond(200, json.dumps(part(), default=str).encode())
            return True
        if request.method == b"POST" and text.startswith("/fleet/quarantine/") and text.endswith("/release"):
            if not self._admin.may_read(headers):
                client.respond(401, _no_token())
                return True
            name = text.removeprefix("/fleet/quarantine/").removesuffix("/release")
            released = self._router.quarantine.release(name)
            client.respond(200 if released else 404, json.dumps({"released": released}).encode())
            return True
        method, body = request.method.decode("ascii"), request.body
        work = asyncio.to_thread(self._admin.handle, method, text, headers, body)
        return _Later(client, work)

    def _show_status(self, client: ClientConnection, request: Incoming, path: str, *, allowed: bool) -> None:
        if not allowed:
            client.respond(401, _no_token())
        elif path.startswith(_NODES):
            client.respond(*self._status.take_report(request.method, path.removeprefix(_NODES), request.body))
        else:
            client.respond(*self._status.document(request.target.partition(b"?")[2]), headers=_FRESH)

    def document(self) -> Plain:
        """Everything that /fleet shows, as plain values."""
        router = self._router
        return {
            "engines": [
                {**engine_document(engine), "prefix_index": self._index_of(engine)} for engine in router.engines
            ],
            "refused_engines": router.engines.refused,
            "requests_under_way": router.under_way,
            "draining": router.draining,
            "compiled": is_compiled(),
            **{name: part() for name, part in self._more.items()},
        }


def engine_document(engine: EngineView) -> Plain:
    """One engine as /fleet shows it."""
    announcement = engine.announcement
    return {
        "id": engine.name,
        "url": announcement.url,
        "state": engine.state if engine.breaker.state == "closed" else "out",
        "fleet_state": engine.state,
        "why": engine.why,
        "models": list(engine.models),
        "namespace": announcement.namespace,
        "max_model_tokens": engine.max_model_tokens,
        "simulated": announcement.simulated,
        "in_flight": engine.in_flight,
        "waiting_tokens": engine.waiting_tokens,
        "breaker": engine.breaker.state,
        "failures_in_a_row": engine.breaker.failures_in_a_row,
        "share": round(engine.share, 2),
        "prefill_tokens_s": round(engine.prefill.tokens_s),
        "connections": engine.pool.connections if engine.pool is not None else 0,
    }


def _names(request: Incoming) -> dict[str, str]:
    """The headers that admin requests need."""
    headers = {}
    for line in request.headers:
        name, _, value = line.partition(b":")
        headers[name.decode("latin-1").strip().lower()] = value.decode("latin-1").strip()
    if request.host:
        headers["host"] = request.host.decode("latin-1")
    if request.authorization:
        headers["authorization"] = request.authorization.decode("latin-1")
    return headers


def _no_token() -> bytes:
    return http1.error_body(401, "the fleet's page needs the admission token: send it as 'Authorization: Bearer TOKEN'")
