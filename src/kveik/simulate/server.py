"""A simulated engine that listens: in the event loop of who opens it, or in a thread of its own."""

import asyncio
import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop

from kveik.config import SimEngineSettings
from kveik.errors import EngineStartError
from kveik.simulate.app import App
from kveik.simulate.asks import Render
from kveik.simulate.behaviour import Behaviour
from kveik.simulate.core import EngineCore
from kveik.simulate.faults import Faults
from kveik.simulate.kv_events import EventEncoder, EventPublisher
from kveik.simulate.seen import Seen
from kveik.simulate.wire import Connection, Request

logger = logging.getLogger("kveik.simulate")

_BACKLOG = 2048
_START_S = 10.0
#: Longest that clients may take to receive the last answers of an engine that stops.
_LAST_BYTES_S = 1.0
_Result = TypeVar("_Result")


class _Door:
    """One listening port, and what its connections see: the app's faults, or none at the control port."""

    def __init__(self, server: "SimServer", *, faulty: bool) -> None:
        self._server = server
        self._faulty = faulty
        self.connections: set[Connection] = set()
        self.listening: asyncio.Server | None = None
        self.port = 0
        self.faults = Faults()
        self.keep_alive_s = server.settings.keep_alive_s
        self._ended = False

    def opened(self, connection: Connection) -> None:
        """A connection is there."""
        self.connections.add(connection)
        seen = self._server.seen
        seen.connections += 1
        seen.connections_total += 1
        if self._ended:
            connection.reset()

    def closed(self, connection: Connection) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        self._server.seen.connections -= 1

    def handle(self, request: Request, connection: Connection) -> None:
        """Answer one request."""
        self._server.app.handle(request, connection)

    def apply(self, faults: Faults) -> None:
        """Take over what concerns connections."""
        if not self._faulty:
            return
        read_on = self.faults.never_read and not faults.never_read
        self.faults = faults
        self.keep_alive_s = self._server.settings.keep_alive_s if faults.keep_alive_s < 0 else faults.keep_alive_s
        for connection in list(self.connections):
            if read_on:
                connection.read_on()
            elif faults.refuse and not connection.busy:
                connection.close()

    def drain(self) -> None:
        """Close idle connections, and the others after their answers."""
        self.keep_alive_s = 0.0
        for connection in list(self.connections):
            if not connection.busy:
                connection.close()

    def end(self) -> None:
        """Drop what is busy, and whoever was accepted but is not yet here: it would call a loop that is closed."""
        self._ended = True
        self.drain()
        for connection in list(self.connections):
            if connection.busy:
                connection.reset()

    def sweep(self, now_s: float) -> None:
        """Close the connections that have been idle for too long."""
        for connection in list(self.connections):
            if not connection.busy and now_s - connection.idle_since_s >= self.keep_alive_s:
                connection.close()


class SimServer:
    """One simulated engine.

    As a context manager it runs in a thread of its own. In an event loop: ``await server.open()`` and
    ``await server.shut()``. Without settings it takes a free port. ``change_faults`` and ``call`` may
    be called from any thread, ``seen`` may be read from any.

    ``record`` keeps all requests in ``seen.recorded``. With ``shared``, a set that several engines
    may have in common, it has a connector to a cache that they share, and ``behaviour`` says how it
    deviates. With ``render`` prompts have another model's tokens. ``on_crash`` is called where the
    ``crash`` fault strikes; without it the engine drops all connections and stops listening, until
    :meth:`restart`.
    """

    def __init__(
        self,
        settings: SimEngineSettings | None = None,
        *,
        record: bool = False,
        on_crash: Callable[[], None] | None = None,
        behaviour: Behaviour | None = None,
        shared: set[bytes] | None = None,
        render: Render | None = None,
    ) -> None:
        self.settings = settings or SimEngineSettings(port=0)
        self.seen = Seen()
        self.app: App
        self._behaviour = behaviour
        self._shared = shared
        self._render = render
        self._record = record
        self._on_crash = on_crash
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._doors: list[_Door] = []
        self._publisher: EventPublisher | None = None
        self._endpoints = (self.settings.events, self.settings.events_replay)
        self._sweeper: asyncio.TimerHandle | None = None
        self._reopening: asyncio.Task[None] | None = None
        self._crashed = False

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._doors[0].port

    @property
    def url(self) -> str:
        """Its address, without a path."""
        return f"http://{self.settings.host}:{self.port}"

    @property
    def control_url(self) -> str:
        """Where faults reach not: the control port, or its address if there is none."""
        return f"http://127.0.0.1:{self._doors[-1].port}"

    @property
    def events_endpoint(self) -> str:
        """Where KV events are published, with the port that was taken; empty without events."""
        return self._publisher.endpoint if self._publisher else ""

    @property
    def replay_endpoint(self) -> str:
        """Where KV events are replayed; empty without that."""
        return self._publisher.replay if self._publisher else ""

    def change_faults(self, **changes: Any) -> Faults:
        """Set switches of :class:`~kveik.simulate.faults.Faults`; ``reset=True`` starts from the defaults.

        Raises :class:`~kveik.errors.ConfigError` for an unknown switch or a bad value.
        """
        return self.call(lambda: self.app.change_faults(changes))

    def lose_events(self, batches: int = 1) -> None:
        """Let subscribers miss so many batches of KV events (empty ones), which can still be replayed."""
        publisher = self._publisher
        if publisher is not None:
            self.call(lambda: publisher.drop_next(batches))

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Run a function in the engine's loop and give its result back, from any thread."""
        loop = self._loop
        assert loop is not None, "the engine is not open"
        if self._thread is None or threading.current_thread() is self._thread:
            return function()

        async def run() -> _Result:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), loop).result(_START_S)

    # -- in an event loop ----------------------------------------------------------------------

    async def open(self) -> None:
        """Listen. Raises :class:`EngineStartError` where a port or endpoint cannot be had."""
        self._loop = asyncio.get_running_loop()
        self._doors = [_Door(self, faulty=True)]
        wanted = [(self.settings.host, self.settings.port)]
        if self.settings.control_port:
            self._doors.append(_Door(self, faulty=False))
            wanted.append(("127.0.0.1", self.settings.control_port))
        try:
            self._boot()
            for door, (host, port) in zip(self._doors, wanted, strict=True):
                await self._listen(door, host, port)
        except OSError as error:
            await self.shut()
            raise EngineStartError(f"the simulated engine cannot listen: {error}") from error
        self._sweep()
        logger.info("simulated engine: serving model %s at %s", self.settings.model, self.url)

    async def shut(self, drain_s: float = 0.0) -> None:
        """Stop listening, let running requests go on for ``drain_s``, then drop all connections."""
        loop = asyncio.get_running_loop()
        self._stop_listening()
        for door in self._doors:
            door.drain()
        until_s = loop.time() + drain_s
        while self.seen.active and loop.time() < until_s:
            await asyncio.sleep(0.01)
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._publisher is not None:
            self._publisher.close()
        for door in self._doors:
            door.end()
        until_s = loop.time() + _LAST_BYTES_S
        await asyncio.sleep(0)
        while any(door.connections for door in self._doors) and loop.time() < until_s:
            await asyncio.sleep(0.001)
        logger.info("simulated engine: stopped")

    async def reopen(self) -> None:
        """Come back on the same port after :meth:`crash`, with empty cache and counters, and good again."""
        main = self._doors[0]
        if self._crashed:
            self._crashed = False
            self.seen.reset()
            self._boot()
            main.apply(self.app.faults)
            await self._listen(main, self.settings.host, main.port)

    # -- in a thread of its own ----------------------------------------------------------------

    def __enter__(self) -> Self:
        loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="kveik-sim-engine", daemon=True)
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self.open(), loop).result(_START_S)
        except EngineStartError:
            self._end_thread(loop)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the engine that runs in its own thread. A second time does nothing."""
        loop = self._loop
        if loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self.shut(), loop).result(_START_S)
        self._end_thread(loop)

    def crash(self) -> None:
        """What kill -9 does: all connections are reset and nobody listens. From any thread."""
        self.call(self._crash)

    def restart(self) -> None:
        """:meth:`reopen` for an engine in a thread of its own."""
        loop = self._loop
        assert loop is not None
        asyncio.run_coroutine_threadsafe(self.reopen(), loop).result(_START_S)

    # -- inside --------------------------------------------------------------------------------

    def _boot(self) -> None:
        """What an engine is made of, new; its KV events begin at 0 again, as a real one's do."""
        loop, settings = self._loop, self.settings
        assert loop is not None
        if settings.events:
            encoder = EventEncoder(settings.block_tokens, short=settings.events_short_hashes)
            self._publisher = EventPublisher(loop, encoder, *self._endpoints, settings.events_topic)
            self._endpoints = (self._publisher.endpoint, self._publisher.replay)
        core = EngineCore(settings, loop, self._publisher, behaviour=self._behaviour, shared=self._shared)
        self.app = App(
            settings,
            core,
            self.seen,
            loop,
            crash=self._crash_by_request,
            apply=self._apply,
            record=self._record,
            render=self._render,
        )
        if self._publisher is not None:
            self.app.event_sources = {"0": self._publisher.config()}

    async def _listen(self, door: _Door, host: str, port: int) -> None:
        loop = self._loop
        assert loop is not None
        door.listening = await loop.create_server(
            lambda: Connection(door, loop), host, port, backlog=_BACKLOG, reuse_address=True
        )
        door.port = door.listening.sockets[0].getsockname()[1]

    def _stop_listening(self, doors: slice = slice(None)) -> None:
        for door in self._doors[doors]:
            if door.listening is not None:
                door.listening.close()
                door.listening = None

    def _apply(self, faults: Faults) -> None:
        self.app.core.hang(faults.hang)
        for door in self._doors:
            door.apply(faults)
        main, loop = self._doors[0], self._loop
        if faults.refuse:
            self._stop_listening(slice(0, 1))
        elif main.listening is None and loop is not None and not self._crashed:
            self._reopening = loop.create_task(self._listen(main, self.settings.host, main.port))

    def _sweep(self) -> None:
        assert self._loop is not None
        for door in self._doors:
            door.sweep(self._loop.time())
        shortest_s = min(door.keep_alive_s for door in self._doors)
        self._sweeper = self._loop.call_later(min(max(shortest_s / 20, 0.01), 0.25), self._sweep)

    def _crash_by_request(self) -> None:
        logger.warning("simulated engine: a request crashes it, as it was told")
        (self._on_crash or self._crash)()

    def _crash(self) -> None:
        self._crashed = True
        self._stop_listening(slice(0, 1))
        for connection in list(self._doors[0].connections):
            connection.reset()
        if self._publisher is not None:
            self._publisher.close()

    def _end_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._thread is not None
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join(_START_S)
        self._thread = None
        loop.close()
