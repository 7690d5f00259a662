"""Keeps exact answers going: follows engines' events, compares renderings, and finds prompts' tokens for requests.

What takes time runs beside the loop: tokenizers in a process of their own, which threads wait for, and
comparing with engines in tasks. A request waits for its tokens a bounded time at most, and is then
answered for approximately.
"""

import asyncio
import contextlib
import importlib
import logging
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import zmq

from kveik.config import RouterSettings
from kveik.errors import RenderError
from kveik.router.engines import EngineView
from kveik.router.event_feed import EventFeed
from kveik.router.exact_index import CombinedIndex
from kveik.router.facts import RequestFacts, TokenPrompt
from kveik.router.followed_engine import FollowedEngine, base_models, model_path
from kveik.router.records import RequestRecord
from kveik.router.rendering import Renders, Unfinished, given_ids
from kveik.router.tokenizer_process import TokenizerProcess

logger = logging.getLogger(__name__)

NO_EVENTS: Final = "it announces no address for KV events"
#: Bodies up to this are rendered on the loop: below a millisecond.
INLINE_BODY_BYTES: Final = 16 << 10
#: Prompts that wait for a thread; of more, the rest is answered for approximately.
WAITING_MAX: Final = 64
THREADS: Final = 2
#: A thread that computes in Python gives the loop its turn after so long.
SWITCH_S: Final = 0.0005


class ExactRouting:
    """One for each router. All methods belong to the thread of its loop."""

    def __init__(
        self,
        settings: RouterSettings,
        index: CombinedIndex,
        engines: Callable[[], Iterable[EngineView]],
        load: Callable[[Path], Renders] | None = None,
    ) -> None:
        self._settings, self._index, self._engines = settings, index, engines
        self._tokenizers = TokenizerProcess()
        self._load = load or partial(_load_rendering, self._tokenizers)
        self._loop = asyncio.get_running_loop()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._followed: dict[int, FollowedEngine] = {}
        self._by_model: dict[str, Renders | None] = {}
        self._loading: dict[tuple[Path, tuple[int, ...]], asyncio.Task[Renders]] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._waiting = 0

    def __repr__(self) -> str:
        return f"ExactRouting({len(self._followed)} engines followed, {self._waiting} prompts waiting)"

    # -- engines --------------------------------------------------------------------------------

    def follow_all(self) -> None:
        """Engines came, left or changed: follow those that announce events."""
        for engine in self._engines():
            known = self._followed.get(engine.slot)
            if known is not None and (known.engine is not engine or known.model_path != model_path(engine)):
                self.forget(engine.slot)
                known = None
            if known is None and (engine.announcement.events or model_path(engine)):
                self._follow(engine)
        self._sort_models()

    def _follow(self, engine: EngineView) -> None:
        followed = self._followed[engine.slot] = FollowedEngine(
            engine, self._index, self._changed, self._rendering_for, self._settings.probe_deadline_s
        )
        announced = engine.announcement
        self._index.exact.open(engine.slot, announced.block_tokens)
        try:
            if announced.events:
                followed.feed = EventFeed(self._context, announced.events, announced.replay, followed)
            else:
                followed.exactness.events_why = NO_EVENTS
        except zmq.ZMQError as error:
            followed.exactness.events_why = f"cannot connect to {announced.events}: {error}"
        followed.compare()

    def forget(self, slot: int) -> None:
        """The engine in this slot is gone."""
        followed = self._followed.pop(slot, None)
        if followed is None:
            return
        followed.close()
        self._index.trust(slot, frozenset())
        self._index.exact.close(slot)
        self._sort_models()

    def _changed(self, followed: FollowedEngine) -> None:
        """What is known of an engine's exactness changed."""
        engine, exactness = followed.engine, followed.exactness
        now_s = self._loop.time()
        before = followed.told_why
        followed.told_why = exactness.why(now_s)
        if followed.told_why != before:
            logger.info("engine %s: its prefix index is %s", engine.name, followed.told_why or "exact")
        engine.exact = not followed.told_why
        self._index.trust(engine.slot, exactness.renderings(now_s))
        # Engines that make other tokens of a prompt share nothing for it, whatever their namespace says.
        engine.group = "" if exactness.mismatch else engine.announcement.namespace
        self._sort_models()

    def document(self, engine: EngineView) -> dict[str, Any]:
        """What /fleet shows of an engine's prefix index."""
        followed = self._followed.get(engine.slot)
        if followed is None:
            return {"kind": "approximate", "why": NO_EVENTS}
        feed = followed.feed
        return {
            **followed.exactness.document(self._loop.time()),
            **self._index.exact.document(engine.slot),
            "event_batches": feed.batches if feed is not None else 0,
            "replays": feed.replays if feed is not None else 0,
        }

    def _sort_models(self) -> None:
        """Which rendering each model has; None where only prompts of token ids can be looked up."""
        now_s = self._loop.time()
        by_model: dict[str, Renders | None] = {}
        for followed in self._followed.values():
            if not followed.exactness.renderings(now_s):
                continue
            for model in ("", *base_models(followed.engine)):
                by_model[model] = by_model.get(model) or followed.rendering
        self._by_model = by_model

    # -- model folders --------------------------------------------------------------------------

    async def _rendering_for(self, engine: EngineView) -> Renders:
        """The rendering of the engine's model. Raises :class:`RenderError`."""
        folder = self._folder(engine)
        state = folder, await asyncio.to_thread(_files_state, folder)
        task = self._loading.get(state)
        if task is None:
            sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_S))
            task = self._loading[state] = self._loop.create_task(asyncio.to_thread(self._load, folder))
        try:
            loaded = await asyncio.shield(task)
        except RenderError:
            self._loading.pop(state, None)
            raise
        for followed in self._followed.values():  # one for all that are alike, so that they share what is tokenized
            if followed.rendering is not None and followed.rendering.fingerprint == loaded.fingerprint:
                return followed.rendering
        return loaded

    def _folder(self, engine: EngineView) -> Path:
        label = model_path(engine)
        if self._settings.models_folder:
            root = Path(self._settings.models_folder).resolve()
            folder = (root / (label or (engine.models or ("",))[0])).resolve()
            if not folder.is_relative_to(root):
                raise RenderError(f"the folder {label!r} of its model is not in {root}")
            return folder
        if not label:
            raise RenderError("no folder with its model's tokenizer is known (label model_path, router.models_folder)")
        return Path(label)

    # -- requests -------------------------------------------------------------------------------

    def prepare(self, target: bytes, body: bytes, facts: RequestFacts, then: Callable[[], None]) -> bool:
        """Find the prompt's tokens, where that is of use: True if that is done, or ``then`` is called when it is."""
        if facts.model not in self._by_model:
            return True
        rendering = self._by_model[facts.model]
        try:
            if rendering is None:
                _set(facts, given_ids(target, body))
                return True
            if len(body) > INLINE_BODY_BYTES:
                return self._later(rendering, lambda: _rendered(rendering, target, body), facts, then)
            begun = rendering.begin(target, body)
        except RenderError:
            return True
        if isinstance(begun, TokenPrompt):
            _set(facts, begun)
        elif begun.missing_chars:
            return self._later(rendering, lambda: _encoded(rendering, begun), facts, then)
        else:
            _set(facts, rendering.finish(begun))
        return True

    def _later(
        self,
        rendering: Renders,
        work: Callable[[], TokenPrompt | Unfinished],
        facts: RequestFacts,
        then: Callable[[], None],
    ) -> bool:
        if self._waiting >= WAITING_MAX:
            return True
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, "kveik-render")
        self._waiting += 1
        patience = self._loop.call_later(self._settings.render_deadline_s, then)

        def done(future: "Future[TokenPrompt | Unfinished]") -> None:
            if not future.cancelled():
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    self._loop.call_soon_threadsafe(settle, future)

        def settle(future: "Future[TokenPrompt | Unfinished]") -> None:
            self._waiting -= 1
            error = future.exception()
            if error is not None and not isinstance(error, RenderError):
                logger.error("rendering a prompt failed", exc_info=error)
            in_time = patience.when() > self._loop.time()
            if error is None:
                result = future.result()
                prompt = result if isinstance(result, TokenPrompt) else rendering.finish(result)
                if in_time:
                    _set(facts, prompt)
            if in_time:
                patience.cancel()
                then()

        self._threads.submit(work).add_done_callback(done)
        return False

    def finished(self, record: RequestRecord) -> None:
        """Learn from what became of a request whether the prediction was right."""
        prompt = record.facts.prompt if record.facts is not None else None
        if prompt is None or record.outcome != "ok" or record.cached_tokens < 0:
            return
        for followed in self._followed.values():
            engine = followed.engine
            if engine.name == record.engine and self._index.is_exact(engine.slot, prompt):
                self._judge(followed, prompt, record)
                return

    def _judge(self, followed: FollowedEngine, prompt: TokenPrompt, record: RequestRecord) -> None:
        now_s, slot = self._loop.time(), followed.engine.slot
        predictions = followed.exactness.predictions
        if record.prompt_tokens >= 0 and record.prompt_tokens != len(prompt):
            predictions.lengths_differ(len(prompt), record.prompt_tokens, now_s)
        elif not prompt.guessed >> slot & 1:
            predictions.add(
                expected=record.expected_cached_tokens,
                real=record.cached_tokens,
                slack=self._index.exact.block_tokens(slot),
                now_s=now_s,
                more_is_fine=bool(followed.engine.group),  # a shared cache adds to what it holds itself
            )
        if bool(followed.told_why) != bool(followed.exactness.why(now_s)):
            self._changed(followed)

    def tick(self) -> None:
        """Called about once a second: engines that were distrusted get another chance in time."""
        self._tokenizers.end_if_stuck()
        now_s = self._loop.time()
        for followed in self._followed.values():
            if followed.told_why != followed.exactness.why(now_s):
                self._changed(followed)

    def close(self) -> None:
        """End everything."""
        for followed in self._followed.values():
            followed.close()
        self._followed.clear()
        for task in self._loading.values():
            task.cancel()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        self._tokenizers.close()
        self._context.term()


def _files_state(folder: Path) -> tuple[int, ...]:
    """When the files that matter were written: a folder whose files changed is loaded anew. Raises RenderError."""
    files = [folder / name for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")]
    try:
        return tuple(file.stat().st_mtime_ns if file.exists() else 0 for file in files)
    except OSError as error:
        raise RenderError(f"cannot read {folder}: {error.strerror or error}") from error


def _load_rendering(tokenizers: TokenizerProcess, folder: Path) -> Renders:
    """Imports what it takes only when an engine needs it, since it takes memory."""
    loaded: Renders = importlib.import_module("kveik.router.model_folder").Rendering(folder, tokenizers)
    return loaded


def _set(facts: RequestFacts, prompt: TokenPrompt) -> None:
    facts.prompt, facts.prompt_tokens = prompt, len(prompt)


def _rendered(rendering: Renders, target: bytes, body: bytes) -> TokenPrompt | Unfinished:
    begun = rendering.begin(target, body)
    return begun if isinstance(begun, TokenPrompt) else _encoded(rendering, begun)


def _encoded(rendering: Renders, unfinished: Unfinished) -> Unfinished:
    rendering.encode(unfinished)
    return unfinished
