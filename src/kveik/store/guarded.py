"""Keep a slow, hung or failing tier from hurting anybody: deadlines and a breaker.

Calls run on the tier's own threads (:mod:`kveik.store.tier_threads`). A caller gets its answer
at the deadline at the latest: keys that are not done by then are FAILED ``timeout``, and their
``buffer_busy`` stays true until the store call has really ended. A tier that fails several
times in a row, or one call of which runs much longer than any call should, is left out by the
breaker (FAILED ``breaker_open``, nothing is found) and tried again later.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, TypeVar

from kveik.breaker import DEFAULT_POLICY, OPEN, Breaker, BreakerPolicy
from kveik.clock import SYSTEM_CLOCK, Clock, Deadline
from kveik.errors import StoreError
from kveik.kv.keys import BlockKey
from kveik.records import FailureRecord, Listener, StateRecord, ignore
from kveik.store.base import BlockResult, BlockStore, Status, failed
from kveik.store.tier_threads import TierThreads
from kveik.store.wrapper import StoreWrapper

#: Reasons that tell against the tier itself; others concern one block, or are the tier's normal life.
TIER_FAILURES = frozenset({"timeout", "io_error", "unavailable", "injected"})
#: Keys of one lookup job: what is known at the deadline is known in steps of this.
LOOKUP_KEYS = 32

_T = TypeVar("_T")
_Transfer = Callable[[Sequence[BlockKey], Sequence[memoryview], Deadline], list[BlockResult]]
_log = logging.getLogger(__name__)


class GuardedStore(StoreWrapper):
    """``inner`` behind a breaker, on ``threads`` reading and half as many writing threads.

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
        self._lock = threading.Lock()
        self._breaker = Breaker(policy)
        self._overdue_seen = 0
        self._closed = False

    def __repr__(self) -> str:
        return f"GuardedStore({self._inner!r}, breaker {self.breaker_state}, {self.stuck_threads} threads stuck)"

    @property
    def breaker_state(self) -> str:
        """``closed``, ``open`` or ``half-open``."""
        return self._breaker.state

    @property
    def stuck_threads(self) -> int:
        """How many threads are in a call that has been running for longer than ``hang_s``."""
        return self._readers.overdue(self._hang_s) + self._writers.overdue(self._hang_s)

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
            self._note("")
        elif not all(job.cancelled() for job in jobs):
            self._note("no lookup was answered in time")
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
        return self._begin("put", self._inner.put, self._writers, keys, frames, deadline)()

    def begin_get(
        self, keys: Sequence[BlockKey], buffers: Sequence[memoryview], deadline: Deadline
    ) -> Callable[[], list[BlockResult]]:
        """Start reading and return at once; the answer, when called, waits for the results."""
        return self._begin("get", self._inner.get, self._readers, keys, buffers, deadline)

    def _begin(
        self,
        direction: str,
        call: _Transfer,
        threads: TierThreads,
        keys: Sequence[BlockKey],
        buffers: Sequence[memoryview],
        deadline: Deadline,
    ) -> Callable[[], list[BlockResult]]:
        refusal = failed("timeout") if deadline.passed else self._refusal(threads)
        if refusal is not None:
            self._report(direction, refused := [refusal] * len(keys))
            return lambda: refused
        pairs = zip(keys, buffers, strict=True)
        jobs = [threads.submit(partial(call, [key], [buffer], deadline)) for key, buffer in pairs]
        return lambda: self._finish(direction, threads, jobs, deadline)

    def _finish(
        self, direction: str, threads: TierThreads, jobs: Sequence["Future[list[BlockResult]]"], deadline: Deadline
    ) -> list[BlockResult]:
        wait(jobs, timeout=deadline.remaining_s)
        threads.cancel(jobs)
        results = [self._result(job) for job in jobs]
        self._report(direction, [result for job, result in zip(jobs, results, strict=True) if not _served(job)])
        self._note_results([result for job, result in zip(jobs, results, strict=True) if not job.cancelled()])
        return results

    def _result(self, job: "Future[list[BlockResult]]") -> BlockResult:
        if job.cancelled():
            return failed("closed") if self._closed else failed("timeout", "no thread of the tier was free")
        if not job.done():
            return BlockResult(
                Status.FAILED,
                reason="timeout",
                detail=f"{self.name} did not answer in time",
                still_running=partial(_still_running, job),
            )
        answer = _answer(job)
        return failed("io_error", repr(job.exception())) if answer is None else answer[0]

    def write_behind(self, key: BlockKey, sealed: memoryview, ended: Callable[[BlockResult], None]) -> None:
        """Store a frame when a thread is free; ``ended`` is called once, from one of the tier's threads.

        It may be called from :meth:`check` or :meth:`close` instead, when the frame was never
        touched because the tier is left out or closed.
        """
        job = self._writers.submit(partial(self._write, key, sealed))
        job.add_done_callback(partial(self._write_ended, ended))

    def _write_ended(self, ended: Callable[[BlockResult], None], job: "Future[BlockResult]") -> None:
        if not job.cancelled():
            ended(job.result())
            return
        refusal = failed("closed" if self._closed else "breaker_open")
        self._report("put", [refusal])
        ended(refusal)

    def run_behind(self, call: Callable[[], None]) -> None:
        """Run something of the tier on one of its writing threads; nobody waits for it."""
        self._writers.submit(call).add_done_callback(_log_unexpected)

    def _write(self, key: BlockKey, sealed: memoryview) -> BlockResult:
        refusal = self._refusal(None)
        if refusal is not None:
            self._report("put", [refusal])
            return refusal
        try:
            result = self._inner.put([key], [sealed], Deadline.after(self._hang_s, self._clock))[0]
        except Exception as error:  # noqa: BLE001
            # Supervision: a defect of one store must not end the tier's writing or leave a slot pinned.
            _log.exception("%s tier: unexpected error while storing %s", self.name, key)
            result = failed("io_error", repr(error))
            self._report("put", [result])
        self._note_results([result])
        return result

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
            self._note(f"nothing was answered within {self._hang_s:g} s")
            return failed("timeout")
        error = job.exception()
        if error is None:
            self._note("")
            return job.result()
        self._note(str(error) or repr(error))
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
        if self._breaker.state == OPEN:
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
        with self._lock:
            before = self._breaker
            self._breaker, permitted = before.permit(self._clock.monotonic())
            after = self._breaker
        self._report_change(before, after, "trying again")
        return None if permitted else failed("breaker_open")

    def _note_overdue(self) -> None:
        overdue = self.stuck_threads
        with self._lock:
            more, self._overdue_seen = overdue > self._overdue_seen, overdue
        if more:
            self._note(f"{overdue} calls have been running for more than {self._hang_s:g} s", timed_out=True)

    def _note_results(self, results: Sequence[BlockResult]) -> None:
        against = [result for result in results if result.reason in TIER_FAILURES]
        if len(against) < len(results):
            self._note("")
        elif against:
            self._note(against[0].detail or against[0].reason)

    def _note(self, failure: str, *, timed_out: bool = False) -> None:
        with self._lock:
            before = self._breaker
            now_s = self._clock.monotonic()
            self._breaker = before.failed(now_s, timed_out=timed_out) if failure else before.succeeded()
            after = self._breaker
        self._report_change(before, after, failure or "it answers again")

    def _report_change(self, before: Breaker, after: Breaker, why: str) -> None:
        if before.state != after.state:
            self._listener(StateRecord(f"{self.name}.breaker", before.state, after.state, why))

    def _report(self, direction: str, results: Sequence[BlockResult]) -> None:
        """Tell the listener about failures that the inner store does not know of."""
        for reason, blocks in Counter(result.reason for result in results).items():
            self._listener(FailureRecord(self.name, direction, Status.FAILED.value, reason, blocks))


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


def _served(job: "Future[list[BlockResult]]") -> bool:
    return job.done() and not job.cancelled() and job.exception() is None


def _still_running(job: "Future[list[BlockResult]]") -> bool:
    if not job.done():
        return True
    return _served(job) and job.result()[0].buffer_busy
