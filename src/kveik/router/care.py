"""What is done for engines beside the requests: admitting them, looking after silent ones, trying out lost ones."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from kveik.breaker import CLOSED
from kveik.config import RouterSettings
from kveik.errors import EngineError
from kveik.router.engines import EngineView
from kveik.router.health import Seen, look, read_models, try_out

logger = logging.getLogger(__name__)

ADMIT_PAUSE_S, ADMIT_PAUSE_MAX_S = 0.25, 2.0


class Cared(Protocol):
    """What care needs of the router."""

    def engine_moves(self, engine: EngineView) -> None:
        """The engine is busy, not stuck."""

    def engine_stuck(self, engine: EngineView, why: str) -> None:
        """The engine does nothing."""

    def bring_back(self, engine: EngineView) -> None:
        """The engine has passed a trial."""

    def engines_changed(self) -> None:
        """An engine's models or state changed."""


class EngineCare:
    """One for each router. ``proved`` is told when an announced engine has passed its admission."""

    def __init__(self, settings: RouterSettings, router: Cared, proved: Callable[[EngineView, str], None]) -> None:
        self._settings = settings
        self._router = router
        self._proved = proved
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        return f"EngineCare({', '.join(f'{kind} slot {slot}' for kind, slot in self._tasks)})"

    def admit(self, engine: EngineView) -> None:
        """A new engine: read what it serves; if it has not proved itself yet, let it."""
        self._start("admit", engine, self._admit)

    def look_after(self, engine: EngineView) -> None:
        """A silent engine: find out whether it works."""
        self._start("look", engine, self._look)

    def revive(self, engine: EngineView) -> None:
        """An engine without requests: try it until it passes."""
        self._start("revive", engine, self._revive)

    def _start(self, kind: str, engine: EngineView, work: Callable[[EngineView], Coroutine[Any, Any, None]]) -> None:
        key = kind, id(engine)
        if key not in self._tasks:
            self._tasks[key] = task = asyncio.get_running_loop().create_task(work(engine))
            task.add_done_callback(lambda done: self._ended(key, engine, done))

    def _ended(self, key: tuple[str, int], engine: EngineView, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(key, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Supervision: a fault here must not leave an engine out for ever without a word.
            logger.error("care (%s) of engine %s failed", key[0], engine.name, exc_info=error)

    async def _admit(self, engine: EngineView) -> None:
        assert engine.pool is not None
        pause_s = ADMIT_PAUSE_S
        while engine.state in ("announced", "ready"):
            try:
                cards = await read_models(engine.pool, self._settings.probe_deadline_s)
                engine.cards = cards
                engine.models = tuple(dict.fromkeys([*engine.announcement.models, *(card["id"] for card in cards)]))
                if engine.state == "announced":
                    await try_out(engine, self._settings.probe_deadline_s)
            except EngineError as error:
                if engine.why != str(error):
                    logger.warning("engine %s is not ready: %s", engine.name, error)
                engine.why = str(error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, ADMIT_PAUSE_MAX_S)
                continue
            engine.why = ""
            if engine.state == "announced":
                self._proved(engine, "it answered a request")
            self._router.engines_changed()
            return

    async def _look(self, engine: EngineView) -> None:
        assert engine.pool is not None
        seen = await look(engine.pool)
        if seen is Seen.UNKNOWN:  # no counters to look at: only an answer tells
            try:
                await try_out(engine, min(1.5, self._settings.probe_deadline_s))
                seen = Seen.MOVING
            except EngineError:
                seen = Seen.STILL
        if engine.breaker.state != CLOSED:
            return
        if seen is Seen.MOVING:
            self._router.engine_moves(engine)
        else:
            self._router.engine_stuck(engine, _STUCK[seen])

    async def _revive(self, engine: EngineView) -> None:
        loop = asyncio.get_running_loop()
        logger.warning("engine %s gets no more requests: %s", engine.name, engine.why)
        while engine.breaker.state != CLOSED and engine.state != "gone":
            await asyncio.sleep(max(0.05, engine.breaker.until_s - loop.time()))
            engine.breaker, permitted = engine.breaker.permit(loop.time())
            if not permitted:
                continue
            try:
                await try_out(engine, self._settings.probe_deadline_s)
            except EngineError as error:
                engine.why = str(error)
                engine.breaker = engine.breaker.failed(loop.time(), timed_out=True)
                continue
            logger.info("engine %s passed a trial and gets requests again", engine.name)
            self._router.bring_back(engine)
            return

    def close(self) -> None:
        """Stop everything."""
        for task in list(self._tasks.values()):
            task.cancel()


_STUCK = {
    Seen.STILL: "requests wait and its counters stand still",
    Seen.SILENT: "requests wait and it does not tell its counters",
}
