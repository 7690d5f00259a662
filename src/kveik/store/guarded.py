"""Keep a slow, hung, failing or lying tier from hurting anybody: deadlines, a retry budget, a breaker and a fence.

Calls run on the tier's own threads (:mod:`kveik.store.tier_threads`), each for as many blocks as one call of the
store moves best (:mod:`kveik.store.batching`). A caller gets its answer at the deadline at the latest: keys that
are not done by then are FAILED ``timeout``, and their ``buffer_busy`` stays true until the store call has really
ended. A tier that fails several times in a row, or one call of which runs much longer than any call should, is left
out by the breaker (FAILED ``breaker_open``, nothing is found) and tried again later; one that a probe found lying is
fenced (FAILED ``fenced``) until probes find it sound (:mod:`kveik.store.standing`).
"""

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from kveik.breaker import DEFAULT_POLICY, OPEN, BreakerPolicy
from kveik.clock import SYSTEM_CLOCK, Clock, Deadline
from kveik.errors import StoreError
from kveik.kv.keys import BlockKey
from kveik.records import FailureRecord, Listener, ignore
from kveik.store.base import BlockResult, BlockStore, Status, failed
from kveik.store.batching import batches, take
from kveik.store.retry_budget import RetryBudget
from kveik.store.standing import FENCED, Standing
from kveik.store.tier_threads import TierThreads
from kveik.store.wrapper import StoreWrapper

#: Reasons that tell against the tier itself; others concern one block, or are the tier's normal life.
TIER_FAILURES = frozenset({"timeout", "io_error", "unavailable", "injected"})
#: Reasons after which the same block may be tried a second time at once, as far as the retry budget goes.
RETRIED = frozenset({"io_error", "unavailable"})
#: Keys of one lookup job: what is known at the deadline is known in steps of this.
LOOKUP_KEYS = 32

_T = TypeVar("_T")
_Transfer = Callable[[Sequence[BlockKey], Sequence[memoryview], Deadline], list[BlockResult]]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Write:
    """A frame that waits for being written; the future carries the result to whoever queued it."""

    key: BlockKey
    sealed: memoryview
    future: "Future[BlockResult]" = field(default_factory=Future)


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """One store call under way, and which keys of the caller's it moves."""

    keys: range
    job: "Future[list[BlockResult]]"

    @property
    def served(self) -> bool:
        """Whether the store answered, and thereby told the listener itself."""
        return self.job.done() and not self.job.cancelled() and self.job.exception() is None


class GuardedStore(StoreWrapper):
    """``inner`` behind a breaker and a fence, on ``threads`` reading and half as many writing threads.

    ``hang_s`` is how long a single call may run before the tier counts as hung.
    """

    def __init__(
        self,
        inner: BlockStore,
        *,
        threads: int = 4,
        policy: BreakerPolicy = DEFAULT_POLICY,
        hang_s: float = 5.0,
        listener: Listener = ignore,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(inner)
        self._hang_s = hang_s
        self._listener = listener
        self._clock = clock
        self._readers = TierThreads(f"{inner.name}-read", threads, clock)
        self._writers = TierThreads(f"{inner.name}-write", max(1, threads // 2), clock)
        self.standing = Standing(inner.name, policy=policy, listener=listener, clock=clock)
        self._lock = threading.Lock()
        self._budgets = {"get": RetryBudget(), "put": RetryBudget()}
        self._behind: deque[_Write] = deque()
        self._overdue_seen = 0
        self._last_hit: tuple[BlockKey, int] | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"GuardedStore({self._inner!r}, breaker {self.breaker_state}, {self.stuck_threads} threads stuck)"

    @property
    def breaker_state(self) -> str:
        """``closed``, ``open``, ``half-open`` or ``fenced``."""
        return self.standing.breaker_state

    @property
    def stuck_threads(self) -> int:
        """How many threads are in a call that has been running for longer than ``hang_s``."""
        return self._readers.overdue(self._hang_s) + self._writers.overdue(self._hang_s)

    @property
    def last_hit(self) -> tuple[BlockKey, int] | None:
        """A block that the tier served, and its bytes: what can be asked for again to see whether it still serves."""
        return self._last_hit

    def lookup(self, keys: Sequence[BlockKey], deadline: Deadline) -> list[bool]:
        """Lookup; what is not answered at the deadline, or while the breaker is open, counts as absent."""
        if not keys or deadline.passed or self._refusal(self._readers) is not None:
            return [False] * len(keys)
        chunks = [keys[start : start + LOOKUP_KEYS] for start in range(0, len(keys), LOOKUP_KEYS)]
        jobs = [self._readers.submit(partial(self._inner.lookup, chunk, deadline), urgent=True) for chunk in chunks]
        wait(jobs, timeout=deadline.remaining_s)
        self._readers.cancel(jobs)
        answers = [_answer(job) for job in jobs]
        if any(answer is not None for answer in answers):
            self.standing.note("")
        elif not all(job.cancelled() for job in jobs):
            self.standing.note("no lookup was answered in time")
        return [
            present
            for chunk, answer in zip(chunks, answers, strict=True)
            for present in (answer if answer is not None else [False] * len(chunk))
        ]

    def get(self, keys: Sequence[BlockKey], buffers: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        """Get, in parallel; see the module's text for what happens at the deadline."""
        return self.begin_get(keys, buffers, deadline)()

    def put(self, keys: Sequence[BlockKey], frames: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        """Put, in parallel; see the module's text for what happens at the deadline."""
        return self._begin("put", self._writers, keys, frames, deadline)()

    def begin_get(
        self, keys: Sequence[BlockKey], buffers: Sequence[memoryview], deadline: Deadline
    ) -> Callable[[], list[BlockResult]]:
        """Start reading and return at once; the answer, when called, waits for the results."""
        return self._begin("get", self._readers, keys, buffers, deadline)

    def _begin(
        self,
        direction: str,
        threads: TierThreads,
        keys: Sequence[BlockKey],
        buffers: Sequence[memoryview],
        deadline: Deadline,
    ) -> Callable[[], list[BlockResult]]:
        refusal = failed("timeout") if deadline.passed else self._refusal(threads)
        if refusal is not None:
            self._report(direction, refused := [refusal] * len(keys))
            self._cost(direction, refused)
            return lambda: refused
        sizes = [len(buffer) for buffer, _ in zip(buffers, keys, strict=True)]
        begun = []
        can = self.capabilities
        for part in batches(sizes, can.batch_keys, threads.limit, can.batch_bytes):
            span = slice(part.start, part.stop)
            job = threads.submit(partial(self._move, direction, keys[span], buffers[span], deadline))
            begun.append(_Batch(part, job))
        return lambda: self._finish(direction, threads, begun, keys, deadline)

    def _move(
        self, direction: str, keys: Sequence[BlockKey], buffers: Sequence[memoryview], deadline: Deadline
    ) -> list[BlockResult]:
        """One call of the store, and a second one for what deserves it. Runs on one of the tier's threads."""
        call: _Transfer = self._inner.get if direction == "get" else self._inner.put
        results = _complete(call(keys, buffers, deadline), keys)
        again = self._retries(direction, results, deadline)
        if again:
            chosen = [keys[index] for index in again]
            second = _complete(call(chosen, [buffers[index] for index in again], deadline), chosen)
            for index, result in zip(again, second, strict=True):
                results[index] = result
        return results

    def _retries(self, direction: str, results: Sequence[BlockResult], deadline: Deadline) -> list[int]:
        wanted = [index for index, result in enumerate(results) if result.reason in RETRIED and not result.buffer_busy]
        now_s = self._clock.monotonic()
        with self._lock:
            budget = self._budgets[direction].called(len(results), now_s)
            allowed = 0
            if wanted and not deadline.passed and self.standing.usable:
                budget, allowed = budget.granted(len(wanted), now_s)
            self._budgets[direction] = budget
        return wanted[:allowed]

    def _finish(
        self,
        direction: str,
        threads: TierThreads,
        begun: Sequence[_Batch],
        keys: Sequence[BlockKey],
        deadline: Deadline,
    ) -> list[BlockResult]:
        jobs = [batch.job for batch in begun]
        wait(jobs, timeout=deadline.remaining_s)
        threads.cancel(jobs)
        results, untold, tried = [], [], []
        for batch in begun:
            found = self._results(batch)
            results += found
            if not batch.served:
                untold += found
            if not batch.job.cancelled():
                tried += found
        self._report(direction, untold)
        self._note_results(tried)
        self._cost(direction, results)
        if direction == "get":
            self._remember(keys, results)
        return results

    def _results(self, batch: _Batch) -> list[BlockResult]:
        job = batch.job
        if job.cancelled():
            refusal = failed("closed") if self._closed else failed("timeout", "no thread of the tier was free")
            return [refusal] * len(batch.keys)
        if job.done():
            answer = _answer(job)
            return [failed("io_error", repr(job.exception()))] * len(batch.keys) if answer is None else answer
        return [
            BlockResult(
                Status.FAILED,
                reason="timeout",
                detail=f"{self.name} did not answer in time",
                still_running=partial(_still_running, batch, place),
            )
            for place in range(len(batch.keys))
        ]

    def _remember(self, keys: Sequence[BlockKey], results: Sequence[BlockResult]) -> None:
        for key, result in zip(keys, results, strict=True):
            if result.status is Status.HIT:
                self._last_hit = (key, result.bytes)
                return

    def write_behind(self, key: BlockKey, sealed: memoryview, ended: Callable[[BlockResult], None]) -> None:
        """Store a frame when a thread is free; ``ended`` is called once, from one of the tier's threads.

        A thread that becomes free takes as many waiting frames as one call of the store moves best.
        ``ended`` may be called from :meth:`check` or :meth:`close` instead, when the frame was never
        touched because the tier is left out or closed.
        """
        write = _Write(key, sealed)
        write.future.add_done_callback(lambda future: ended(future.result()))
        with self._lock:
            self._behind.append(write)
        # A job a frame, each of which takes one frame or more: so there are never fewer jobs than frames.
        self._writers.submit(self._write_some).add_done_callback(self._writing_ended)

    def _writing_ended(self, job: "Future[None]") -> None:
        if not job.cancelled():
            return
        with self._lock:
            write = self._behind.popleft() if self._behind else None
        if write is not None:
            refusal = failed("closed") if self._closed else self.standing.refused()
            self._report("put", [refusal])
            self._cost("put", [refusal])
            write.future.set_result(refusal)

    def _write_some(self) -> None:
        batch_keys = self.capabilities.batch_keys
        with self._lock:
            sizes = [len(write.sealed) for write, _ in zip(self._behind, range(batch_keys), strict=False)]
            writes = [self._behind.popleft() for _ in range(take(sizes, batch_keys))]
        if writes:
            for write, result in zip(writes, self._write(writes), strict=True):
                write.future.set_result(result)

    def run_behind(self, call: Callable[[], None]) -> None:
        """Run something of the tier on one of its writing threads; nobody waits for it."""
        self._writers.submit(call).add_done_callback(_log_unexpected)

    def _write(self, writes: Sequence[_Write]) -> list[BlockResult]:
        refusal = self._refusal(None)
        if refusal is not None:
            self._report("put", refused := [refusal] * len(writes))
            self._cost("put", refused)
            return refused
        keys, frames = [write.key for write in writes], [write.sealed for write in writes]
        try:
            results = self._move("put", keys, frames, Deadline.after(self._hang_s, self._clock))
        except Exception as error:  # noqa: BLE001
            # Supervision: a defect of one store must not end the tier's writing or leave a slot pinned.
            _log.exception("%s tier: unexpected error while storing %s", self.name, keys[0])
            self._report("put", results := [failed("io_error", repr(error))] * len(writes))
        self._note_results(results)
        self._cost("put", results)
        return results

    def delete(self, keys: Sequence[BlockKey]) -> list[BlockResult]:
        """Delete, waiting at most ``hang_s``."""
        answer = self.run(partial(self._inner.delete, keys))
        return [answer] * len(keys) if isinstance(answer, BlockResult) else answer

    def run(self, call: Callable[[], _T]) -> _T | BlockResult:
        """Run something of the tier on one of its writing threads: what it gave, or why it gave nothing.

        Waits at most ``hang_s``. A ``StoreError`` of the call becomes a FAILED ``unavailable``.
        """
        refusal = self._refusal(self._writers)
        if refusal is not None:
            return refusal
        job = self._writers.submit(call)
        wait([job], timeout=self._hang_s)
        self._writers.cancel([job])
        if not job.done() or job.cancelled():
            self.standing.note(f"nothing was answered within {self._hang_s:g} s")
            return failed("timeout")
        error = job.exception()
        if error is None:
            self.standing.note("")
            return job.result()
        self.standing.note(str(error) or repr(error))
        if isinstance(error, StoreError):
            return failed("unavailable", str(error))
        _log_unexpected(job)
        return failed("io_error", repr(error))

    def check(self) -> None:
        """Look after the tier; to be called a few times a second by whoever queues writes.

        A call that runs longer than ``hang_s`` opens the breaker, even when nobody waits for
        it; an open breaker ends all queued writes, so that their frames are free again.
        """
        self._note_overdue()
        if self.breaker_state in (OPEN, FENCED):
            self._writers.cancel_waiting()

    def close(self) -> None:
        """Close the inner store, waiting at most ``hang_s`` for it and not at all for stuck calls."""
        self._closed = True
        self._readers.close()
        self._writers.close()
        closing = threading.Thread(target=self._inner.close, name=f"kveik-{self.name}-close", daemon=True)
        closing.start()
        closing.join(self._hang_s)

    def _refusal(self, threads: TierThreads | None) -> BlockResult | None:
        """Why a call may not go through now, if so. Takes the breaker's one trial when it is due."""
        if self._closed:
            return failed("closed")
        self._note_overdue()
        if threads is not None and threads.overdue(self._hang_s) >= threads.limit:
            return failed("breaker_open", f"all {threads.limit} threads of the tier are stuck")
        return self.standing.refusal()

    def _note_overdue(self) -> None:
        overdue = self.stuck_threads
        with self._lock:
            more, self._overdue_seen = overdue > self._overdue_seen, overdue
        if more:
            self.standing.note(f"{overdue} calls have been running for more than {self._hang_s:g} s", timed_out=True)

    def _note_results(self, results: Sequence[BlockResult]) -> None:
        against = [result for result in results if result.reason in TIER_FAILURES]
        if len(against) < len(results):
            self.standing.note("")
        elif against:
            self.standing.note(against[0].detail or against[0].reason)

    def _report(self, direction: str, results: Sequence[BlockResult]) -> None:
        """Tell the listener about failures that the inner store does not know of."""
        for reason, blocks in Counter(result.reason for result in results).items():
            self._listener(FailureRecord(self.name, direction, Status.FAILED.value, reason, blocks))

    def _cost(self, direction: str, results: Sequence[BlockResult]) -> None:
        """Blocks that could not be moved are what an outage costs, whoever refused them."""
        lost = sum(result.status is Status.FAILED for result in results)
        if lost:
            self.standing.cost(**{"not_stored" if direction == "put" else "not_read": lost})


def _answer(job: "Future[list[_T]]") -> "list[_T] | None":
    """What the store said, if it said something in time."""
    if not job.done() or job.cancelled() or _log_unexpected(job):
        return None
    return job.result()


def _log_unexpected(job: "Future[Any]") -> bool:
    error = None if job.cancelled() else job.exception()
    if error is not None:
        _log.error("unexpected error in a store call", exc_info=error)
    return error is not None


def _still_running(batch: _Batch, place: int) -> bool:
    """Whether the store may still touch the buffer at that place of a call that was given up."""
    if not batch.job.done():
        return True
    return batch.served and batch.job.result()[place].buffer_busy


def _complete(results: list[BlockResult], keys: Sequence[BlockKey]) -> list[BlockResult]:
    """The results, if there is one for each key. Raises ``StoreError`` otherwise: whose they are is unknown."""
    if len(results) != len(keys):
        raise StoreError(f"the store gave {len(results)} results for {len(keys)} keys")
    return results
