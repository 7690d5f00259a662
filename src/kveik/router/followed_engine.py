"""One engine that is answered for exactly, or is to be: its events, its rendering, and what is known of both."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence

from kveik.errors import EngineError, RenderError
from kveik.kv.events import BlockStored, EventBatch, salt_of, short_hash
from kveik.router.engines import EngineView
from kveik.router.event_feed import EventFeed
from kveik.router.exact_index import CombinedIndex
from kveik.router.exactness import Exactness
from kveik.router.fetch import fetch
from kveik.router.parity import DIFFERS, SAME, check_parity
from kveik.router.rendering import Renders
from kveik.router.upstream import EnginePool

logger = logging.getLogger(__name__)

READY_POLL_S = 0.1
#: An engine's rendering is compared without its events if they can't be followed after so long.
EVENTS_WAIT_S = 3.0
STORED_WAIT_S, STORED_SETTLE_S = 1.0, 0.05
RETRY_S, RETRY_MAX_S = 1.0, 30.0
METRICS_S = 2.0
_CACHE_BLOCKS = re.compile(rb'^vllm:cache_config_info\{[^}]*num_gpu_blocks="(\d{1,9})"', re.MULTILINE)


class _Probe:
    """Collects the tokens that are stored under one salt."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.last: int | None = None
        self.came = asyncio.Event()


class FollowedEngine:
    """Told of the engine's events by its feed. ``changed`` is called when more, or less, is known of it."""

    def __init__(
        self,
        engine: EngineView,
        index: CombinedIndex,
        changed: "Callable[[FollowedEngine], None]",
        rendering_for: Callable[[EngineView], Awaitable[Renders]],
        deadline_s: float,
    ) -> None:
        self.engine = engine
        self.model_path = model_path(engine)
        self.exactness = Exactness()
        self.rendering: Renders | None = None
        self.feed: EventFeed | None = None
        self.told_why = "?"
        self._index, self._changed, self._rendering_for, self._deadline_s = index, changed, rendering_for, deadline_s
        self._probes: dict[str, _Probe] = {}
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"FollowedEngine({self.engine.name}, {self.told_why or 'exact'})"

    def began(self, *, restarted: bool) -> None:
        """Whatever was known of the engine's blocks is void."""
        self._index.exact.clear(self.engine.slot)
        if restarted:  # perhaps with another model or template
            self._index.approximate.forget_engine(self.engine.slot)
            self.compare()

    def took(self, batch: EventBatch) -> str:
        """The next batch."""
        if self._probes:
            for event in batch.events:
                if isinstance(event, BlockStored):
                    self._collect(event)
        return self._index.exact.apply(self.engine.slot, batch)

    def settled(self, why: str) -> None:
        """All that the engine holds is known, or why not."""
        self.exactness.events_why = why
        self._changed(self)
        if not why and self.exactness.wants_word:  # they could not be followed when its rendering was compared
            self.compare()

    def _collect(self, event: BlockStored) -> None:
        salt = salt_of(event)
        probe = self._probes.get(salt) if salt else None
        if probe is None and event.parent_block_hash is not None:
            parent = short_hash(event.parent_block_hash)
            probe = next((one for one in self._probes.values() if one.last == parent), None)
        if probe is not None and event.block_hashes:
            probe.tokens += event.token_ids
            probe.last = short_hash(event.block_hashes[-1])
            probe.came.set()

    def _watch(self, salt: str) -> Callable[[], Awaitable[Sequence[int]]]:
        probe = self._probes.setdefault(salt, _Probe())

        async def stored() -> Sequence[int]:
            try:
                async with asyncio.timeout(STORED_WAIT_S):
                    await probe.came.wait()
                await asyncio.sleep(STORED_SETTLE_S)  # long prompts are stored in several steps
            except TimeoutError:
                pass
            self._probes.pop(salt, None)
            return probe.tokens

        return stored

    def compare(self) -> None:
        """Compare its rendering with ours, as soon as it works."""
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.get_running_loop().create_task(self._compare())
        self._task.add_done_callback(self._compared)

    def _compared(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            # Supervision: a fault here must not leave an engine approximate for ever without a word.
            logger.error("engine %s: comparing its rendering failed", self.engine.name, exc_info=error)

    async def _compare(self) -> None:
        self.exactness.verdicts = None
        self._changed(self)
        pause_s = RETRY_S
        while True:
            await self._engine_ready()
            await self._find_rendering()
            assert self.engine.pool is not None
            self._index.exact.reserve(self.engine.slot, await cache_blocks(self.engine.pool))
            verdicts = await check_parity(
                self.engine.pool, base_models(self.engine)[0], self.rendering, self._watch, self._deadline_s
            )
            self._probes.clear()
            if any(verdict.result in (SAME, DIFFERS) for verdict in verdicts) or self.rendering is None:
                break
            await asyncio.sleep(pause_s)  # perhaps it is only starting
            pause_s = min(2 * pause_s, RETRY_MAX_S)
        self.exactness.verdicts = verdicts
        self._changed(self)

    async def _engine_ready(self) -> None:
        while self.engine.state != "ready" or not self.engine.models or self.engine.pool is None:
            await asyncio.sleep(READY_POLL_S)
        try:
            async with asyncio.timeout(EVENTS_WAIT_S):
                while self.exactness.events_why:
                    await asyncio.sleep(READY_POLL_S)
        except TimeoutError:
            pass

    async def _find_rendering(self) -> None:
        try:
            self.rendering = await self._rendering_for(self.engine)
            self.exactness.rendering, self.exactness.rendering_why = self.rendering.fingerprint, ""
        except RenderError as error:
            self.rendering = None
            self.exactness.rendering, self.exactness.rendering_why = "", str(error)

    def close(self) -> None:
        """Follow it no longer."""
        if self._task is not None:
            self._task.cancel()
        if self.feed is not None:
            self.feed.close()


def model_path(engine: EngineView) -> str:
    """The label by which an engine announces where the router finds its model's folder; empty if it doesn't."""
    return engine.announcement.labels.get("model_path", "")


def base_models(engine: EngineView) -> list[str]:
    """Its models that aren't adapters, whose blocks can't be told apart by their names."""
    adapters = {card["id"] for card in engine.cards if card.get("parent")}
    return [model for model in engine.models if model not in adapters] or list(engine.models[:1])


async def cache_blocks(pool: EnginePool) -> int:
    """How many blocks the engine's own cache has room for, as its metrics say; 0 if they don't."""
    try:
        _, text = await fetch(pool, b"GET", b"/metrics", deadline_s=METRICS_S)
    except EngineError:
        return 0
    found = _CACHE_BLOCKS.search(text)
    return int(found.group(1)) if found else 0
