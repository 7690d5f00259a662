"""A running router: everything opened, put together, ticking, and closed in order."""

import asyncio
import contextlib
import gc
import logging
import os
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kveik.config import RouterSettings
from kveik.errors import FleetError, RouterStartError
from kveik.fleet.lifecycle import Event
from kveik.fleet.member_file import default_file
from kveik.fleet.membership import Membership
from kveik.fleet.opening import open_registry
from kveik.fleet.registry import Registry
from kveik.fleet.static_list import StaticList
from kveik.pulse import Pulse
from kveik.records import Listener, ignore
from kveik.router.api_keys import ApiKeys
from kveik.router.care import EngineCare
from kveik.router.choice import Chooser
from kveik.router.client_side import clients_of
from kveik.router.core import Router
from kveik.router.engines import EngineView
from kveik.router.exact_index import CombinedIndex, ExactIndex
from kveik.router.exact_routing import ExactRouting
from kveik.router.fleet_api import Admission, FleetAdmin, FleetApi, is_loopback, read_token
from kveik.router.gate import Gate
from kveik.router.pages import OwnPages
from kveik.router.policy import LOOKS_AT_CACHE
from kveik.router.prefix_file import PrefixKeeper
from kveik.router.prefix_index import ApproximateIndex
from kveik.router.prefix_keys import PrefixHasher
from kveik.router.prefix_learning import PrefixLearner
from kveik.router.prompt import PromptReader
from kveik.router.request_book import RequestBook
from kveik.router.status_page import StatusPage
from kveik.router.telemetry import Telemetry

logger = logging.getLogger("kveik.router")

TICK_S = 0.05
SLOW_TICKS = 20
BACKLOG = 4096


class RouterApp:
    """One router on one event loop. Use :func:`running_router`."""

    def __init__(self, settings: RouterSettings, registry: Registry, config: Path | None, listener: Listener) -> None:
        """Raises :class:`ConfigError` for settings that do not fit each other or files that are no good."""
        self._settings = settings
        self._registry = registry
        self._loop = asyncio.get_running_loop()
        now_s = self._loop.time()
        token = read_token(settings.admission_token_file, os.environ)
        keys = ApiKeys(Path(settings.keys_file), listener) if settings.keys_file else None
        approximate = ApproximateIndex(settings.prefix_blocks_max, settings.prefix_expire_min * 60, now_s)
        self._prefixes = PrefixKeeper(_prefix_file(settings), approximate, secrets.randbits(64))
        self._prefixes_saved_s = now_s
        index = CombinedIndex(approximate, ExactIndex(settings.exact_blocks_max))
        self.chooser = Chooser(settings, now_s, index)
        self.telemetry = Telemetry(settings, self.chooser)
        self._status = StatusPage(registry, settings.policy)
        requests = RequestBook(settings.funnel_requests)
        self.router = Router(
            settings,
            Gate(settings, keys, now_s),
            self.chooser,
            PromptReader(PrefixHasher(self._prefixes.secret)),
            [*self.telemetry.listeners, self._status.listener, requests],
            self._forget_slot,
            self.telemetry.tracing,
        )
        self._status.router = self.router
        self._learner = _learner(settings)
        self.router.learner = self.telemetry.learner = self._learner
        self._exact: ExactRouting | None = None
        if settings.exact_index and settings.policy in LOOKS_AT_CACHE:
            self.router.tokens = self._exact = ExactRouting(settings, index, lambda: self.router.engines)
        self.router.care = self._care = EngineCare(settings, self.router, self._proved)
        self.router.pages = OwnPages(
            self.router,
            FleetAdmin(FleetApi(registry), Admission(token, is_loopback(settings.host))),
            lambda: self.telemetry.scrape(self.router),
            {
                "last_choices": self.chooser.last_choices,
                "prefix_index": self.chooser.index_document,
                "registry": lambda: {"revision": registry.view.revision, "trouble": registry.trouble},
            },
            apart={
                "usage": self.telemetry.usage_document,
                "requests": requests.document,
                "prefixes": self.telemetry.prefixes_document,
            },
            status=self._status,
            index_of=self._index_of,
        )
        self._list = StaticList(registry, config, poll_s=settings.engines_poll_s) if config is not None else None
        self._background: set[asyncio.Task[None]] = set()
        self._ticker: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None
        self.address = ""

    async def start(self) -> None:
        """Follow the registry and listen. Raises :class:`RouterStartError` if the port cannot be had."""
        self._registry.subscribe(self._follow_soon)
        if self._list is not None:
            await asyncio.to_thread(self._list.start)
        self._follow(self._registry.view)
        host, port = self._settings.host, self._settings.port
        try:
            self._server = await self._loop.create_server(clients_of(self.router), host, port, backlog=BACKLOG)
        except OSError as error:
            raise RouterStartError(
                f"cannot listen on {host}:{port}: {error.strerror or error}. "
                "Choose another port with --port, or stop what uses this one"
            ) from error
        bound = self._server.sockets[0].getsockname()
        self.address = f"http://{bound[0]}:{bound[1]}"
        self._ticker = self._loop.create_task(self._tick())

    def _forget_slot(self, slot: int) -> None:
        """Another engine may get this slot."""
        self.chooser.forget_engine(slot)
        if self._exact is not None:
            self._exact.forget(slot)

    def _index_of(self, engine: EngineView) -> dict[str, Any]:
        """How exactly it is known what an engine holds, for /fleet."""
        if self._exact is None:
            return {"kind": "approximate", "why": "exact answers are switched off"}
        return self._exact.document(engine)

    def _follow_soon(self, view: Membership) -> None:
        """Called on a thread of the registry."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._follow, view)

    def _follow(self, view: Membership) -> None:
        for engine in self.router.engines.apply(view):
            self._care.admit(engine)
            self._prefixes.adopt(engine)
        for engine in self.router.engines:
            if engine.state == "announced":  # also one that was readmitted, or lost, and is back
                self._care.admit(engine)
        if self._exact is not None:
            self._exact.follow_all()
        self.router.engines_changed()

    def _proved(self, engine: EngineView, why: str) -> None:
        """An engine passed its admission: tell the registry, which tells all routers."""
        self._in_background(self._prove(engine, why))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._background.add(task)  # the loop itself would let it be collected
        task.add_done_callback(self._background.discard)

    async def _prove(self, engine: EngineView, why: str) -> None:
        try:
            await asyncio.to_thread(self._registry.change_state, engine.name, Event.PROVE, why)
        except FleetError as error:
            logger.warning("engine %s works, but the registry does not take that: %s", engine.name, error)
            await asyncio.sleep(1.0)
            self._care.admit(engine)

    async def _tick(self) -> None:
        count, pulse = 0, Pulse.asked_for()
        while True:
            await asyncio.sleep(TICK_S)
            now_s = self._loop.time()
            try:
                self.router.tick(now_s)
                count += 1
                if count % SLOW_TICKS == 0:
                    pulse.beat()
                    self.router.slow_tick(now_s)
                    self._save_prefixes(now_s)
                    if self._exact is not None:
                        self._exact.tick()
                self.telemetry.tick(now_s)
                if self._learner is not None:
                    self._learner.tick()
                self._status.tick()
            except Exception:  # supervision: without ticks no deadline would ever pass
                logger.exception("a tick failed; the next one follows")

    def _save_prefixes(self, now_s: float) -> None:
        if self._settings.prefix_save_s and now_s >= self._prefixes_saved_s + self._settings.prefix_save_s:
            self._prefixes_saved_s = now_s
            engines = self._prefixes.to_save(self.router.engines)
            if engines is not None:
                self._in_background(asyncio.to_thread(self._prefixes.save, engines))

    def reload(self) -> None:
        """Read the list of engines again now, whether its file looks changed or not."""
        if self._list is not None:
            self._list.reload()

    async def stop(self) -> None:
        """Take nothing new, let what is under way finish within ``drain_s``, then close everything."""
        if self._server is not None:
            self._server.close()
        self.router.drain()
        until_s = self._loop.time() + self._settings.drain_s
        while not self.router.at_rest and self._loop.time() < until_s:
            await asyncio.sleep(TICK_S)
        if self.router.under_way:
            logger.warning("%d requests were still under way after %g s", self.router.under_way, self._settings.drain_s)
        if self._ticker is not None:
            self._ticker.cancel()
        self._care.close()
        if self._learner is not None:
            self._learner.close()
        if self._exact is not None:
            self._exact.close()
        engines = self._prefixes.to_save(self.router.engines)
        self.router.close()
        await asyncio.sleep(0)  # connections learn of their end
        if engines is not None:
            await asyncio.to_thread(self._prefixes.save, engines)
        await asyncio.to_thread(self._close_files)

    def _close_files(self) -> None:
        if self._list is not None:
            self._list.close()
        self.telemetry.close()
        close: Callable[[], None] | None = getattr(self._registry, "close", None)
        if close is not None:
            close()


def _learner(settings: RouterSettings) -> PrefixLearner | None:
    if not settings.explain_prompts:
        return None
    return PrefixLearner(settings.explain_prompts, excerpts=settings.explain_contents)


def _prefix_file(settings: RouterSettings) -> Path | None:
    if not settings.prefix_save_s:
        return None
    if settings.prefix_file:
        return Path(settings.prefix_file)
    return (Path(settings.registry_file) if settings.registry_file else default_file()).with_name("prefixes")


@asynccontextmanager
async def running_router(
    settings: RouterSettings, *, config: Path | None = None, listener: Listener = ignore
) -> AsyncIterator[RouterApp]:
    """A router that serves until the block ends. Raises :class:`ConfigError` and :class:`KveikError`."""
    registry = await asyncio.to_thread(open_registry, settings, listener)
    app = RouterApp(settings, registry, config, listener)
    try:
        await app.start()
        gc.freeze()  # what is there now stays; collecting it again and again costs time
        yield app
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            await app.stop()
