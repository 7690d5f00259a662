"""Learns from requests that ended what breaks their prompts' beginnings, beside the requests and within a bounded time.

On a request's way this costs a look at a queue and one append. The rest is done on a thread, for
:data:`CORE_SHARE` of one processor on average: of much traffic a sample is looked at, of little all. What is queued are
the bodies themselves, for a moment; what is remembered of them are hashes (:mod:`kveik.router.prompt_memory`).
"""

import asyncio
import contextlib
import logging
import secrets
import sys
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.router.break_tally import BreakTally, PrefixesDocument
from kveik.router.prompt_memory import Looked, PromptMemory, Seen
from kveik.router.records import RequestRecord

logger = logging.getLogger(__name__)

#: Time of a processor that looking takes of each second.
CORE_SHARE: Final = 0.01
#: Time that may be saved up. No more, since the loop's thread has to wait for its turn meanwhile.
SAVED_MAX_S: Final = 0.003
#: Requests and bytes that wait to be looked at; what comes meanwhile isn't.
WAITING_MAX: Final = 64
WAITING_BYTES_MAX: Final = 8 << 20
#: A thread that computes in Python gives the loop its turn after so long.
SWITCH_S: Final = 0.0005


class PrefixLearner:
    """One for each router. All methods belong to the thread of its loop; the memory to a thread of its own."""

    def __init__(
        self,
        prompts_max: int,
        *,
        excerpts: bool = False,
        spent: Callable[[], float] = time.thread_time,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """``prompts_max``: remembered of each model. ``spent``: time of a processor that its thread has used."""
        self._memory = PromptMemory(prompts_max, secrets.randbits(64), excerpts=excerpts)
        self._spent, self._clock = spent, clock
        self.tally = BreakTally(clock.wall())
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Seen] = deque()
        self._waiting_bytes = 0
        self._executor: ThreadPoolExecutor | None = None
        # What the thread did; between the end of its work and the next the loop takes it.
        self._busy = False
        self._looked: list[Looked] = []
        self._looked_bytes, self._spent_s = 0, 0.0
        self._allowed_s, self._ticked_s = SAVED_MAX_S, self._loop.time()

    def __repr__(self) -> str:
        return f"PrefixLearner({self.tally!r}, {self._memory!r})"

    def take(self, target: bytes, body: bytes, record: RequestRecord) -> None:
        """A request was answered: look at it later, if there is room."""
        self.tally.requests += 1
        waiting = self._waiting
        if waiting and (len(waiting) >= WAITING_MAX or self._waiting_bytes + len(body) > WAITING_BYTES_MAX):
            return
        self._waiting_bytes += len(body)
        waiting.append(
            Seen(
                target,
                body,
                record.model,
                record.key_name or record.client,
                record.request_id,
                record.prompt_tokens,
                record.cached_tokens,
                record.facts.prompt if record.facts is not None else None,
            )
        )

    def tick(self) -> None:
        """Called some twenty times a second: have the thread look at what waits, if it may."""
        now_s = self._loop.time()
        self._allowed_s = min(SAVED_MAX_S, self._allowed_s + CORE_SHARE * (now_s - self._ticked_s))
        self._ticked_s = now_s
        if self._busy or not self._waiting or self._allowed_s <= 0:
            return
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "kveik-prefixes")
            sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_S))
        self._busy = True
        self._executor.submit(self._look, self._allowed_s).add_done_callback(self._done)

    def _look(self, allowed_s: float) -> None:
        """On the thread: look at as many as there is time for, at one at least."""
        began_s = self._spent()
        while self._waiting and self._spent_s < allowed_s:
            seen = self._waiting.popleft()  # of a deque, which threads may share
            self._looked_bytes += len(seen.body)
            try:
                self._looked.append(self._memory.look(seen))
            finally:
                self._spent_s = self._spent() - began_s

    def _done(self, future: "Future[None]") -> None:
        if not future.cancelled():
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._settle, future)

    def _settle(self, future: "Future[None]") -> None:
        looked, self._looked = self._looked, []
        self._waiting_bytes -= self._looked_bytes
        self._allowed_s -= self._spent_s
        self._looked_bytes, self._spent_s, self._busy = 0, 0.0, False
        self.tally.add(looked, self._clock.wall())
        if error := future.exception():
            logger.error("looking at a prompt's beginning failed", exc_info=error)

    def document(self) -> PrefixesDocument:
        """What ``/fleet/prefixes`` shows."""
        return self.tally.document(len(self._memory), self._memory.size_bytes, self._clock.wall())

    def close(self) -> None:
        """End the thread; what it does not come to is not looked at."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
