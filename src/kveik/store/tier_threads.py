"""Threads that may hang: a bounded set of daemon threads for the calls of one tier.

A thread in a hung system call can't be cancelled. So the callers never wait for a thread but
for a future, with a deadline; the threads are daemons, so that they never hold up the end of
the process; and there are never more of them than agreed, so that a hung tier costs a known
number of threads. (``concurrent.futures.ThreadPoolExecutor`` joins its threads at exit.)
"""

import threading
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any, TypeVar

from kveik.clock import SYSTEM_CLOCK, Clock

_T = TypeVar("_T")


class TierThreads:
    """At most ``limit`` daemon threads, started when needed; urgent calls go first."""

    def __init__(self, name: str, limit: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self._name = name
        self._limit = limit
        self._clock = clock
        self._condition = threading.Condition()
        self._urgent: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._normal: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._started = 0
        self._idle = 0
        self._running: dict[Future[Any], float] = {}
        self._closed = False

    def __repr__(self) -> str:
        with self._condition:
            waiting = len(self._urgent) + len(self._normal)
            return f"TierThreads({self._name!r}, {len(self._running)} of {self._limit} running, {waiting} waiting)"

    def submit(self, call: Callable[[], _T], *, urgent: bool = False) -> Future[_T]:
        """Run ``call`` on one of the threads; after :meth:`close` the future is cancelled at once."""
        future: Future[_T] = Future()
        with self._condition:
            if not self._closed:
                (self._urgent if urgent else self._normal).append((future, call))
                if self._idle >= len(self._urgent) + len(self._normal):
                    self._condition.notify()
                elif self._started < self._limit:
                    self._start_thread()
                return future
        future.cancel()
        future.set_running_or_notify_cancel()  # so that nobody waits for it
        return future

    def _start_thread(self) -> None:
        self._started += 1
        threading.Thread(target=self._work, name=f"kveik-{self._name}-{self._started}", daemon=True).start()

    def overdue(self, longer_than_s: float) -> int:
        """How many calls have been running for longer than that."""
        limit_s = self._clock.monotonic() - longer_than_s
        with self._condition:
            return sum(started_s < limit_s for started_s in self._running.values())

    @property
    def limit(self) -> int:
        """The largest number of threads."""
        return self._limit

    def cancel(self, futures: Collection[Future[Any]]) -> None:
        """Cancel those of ``futures`` that have not begun, and forget their calls."""
        wanted = set(futures)
        self._cancel(lambda future: future in wanted)

    def cancel_waiting(self) -> int:
        """Cancel all calls that have not begun; their callbacks run on this thread."""
        return self._cancel(lambda _: True)

    def _cancel(self, wanted: Callable[[Future[Any]], bool]) -> int:
        cancelled: list[Future[Any]] = []
        with self._condition:
            for queue in (self._urgent, self._normal):
                entries = list(queue)
                queue.clear()
                for entry in entries:
                    if wanted(entry[0]):
                        cancelled.append(entry[0])
                    else:
                        queue.append(entry)
        for future in cancelled:
            future.cancel()
            future.set_running_or_notify_cancel()
        return len(cancelled)

    def close(self) -> None:
        """Cancel what has not begun and let idle threads end. Never waits for a running call."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        self.cancel_waiting()

    def _work(self) -> None:
        while (entry := self._next()) is not None:
            self._run(*entry)
            del entry  # an idle thread must not hold on to the last caller's buffers

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._condition:
            self._idle += 1
            self._condition.wait_for(lambda: self._closed or self._urgent or self._normal)
            self._idle -= 1
            if self._closed:
                return None
            future, call = (self._urgent or self._normal).popleft()
            future.set_running_or_notify_cancel()
            self._running[future] = self._clock.monotonic()
            return future, call

    def _run(self, future: Future[Any], call: Callable[[], Any]) -> None:
        # The future carries whatever happened to whoever reads it, as in any executor.
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001
            self._ended(future)
            future.set_exception(error)
        else:
            self._ended(future)
            future.set_result(result)

    def _ended(self, future: Future[Any]) -> None:
        with self._condition:
            del self._running[future]
