"""When the tokens of each request are ready: a small model of an engine's scheduler. Pure.

At most ``capacity`` requests run, more wait in order of arrival. Prompts are computed one after
the other at ``prefill_tokens_s``, roughly as chunked prefill does; answers grow side by side, each
by one token every ``decode_s``. A rate of 0 takes no time. Moments are exact however late
:meth:`Schedule.advance` is called: whatever follows starts when its cause happened.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

NEVER_S = math.inf


@dataclass(slots=True, eq=False)
class Sequence:
    """One request in the schedule. Times in seconds; -1 while something has not happened.

    ``answer_tokens`` are at least 1. ``owner`` is whatever the caller wants to find again.
    """

    answer_tokens: int
    owner: Any = None
    arrived_s: float = -1.0
    started_s: float = -1.0
    first_s: float = -1.0
    emitted: int = 0
    ended: bool = False


class Schedule:
    """The requests of one engine.

    ``uncached`` says how many tokens of a prompt have to be computed; it is asked once, when the
    prompt's turn has come, so a prompt finds what the ones before it left in the cache.
    """

    def __init__(
        self, capacity: int, prefill_tokens_s: float, decode_s: float, uncached: Callable[[Sequence], int]
    ) -> None:
        self.capacity = capacity
        self.prefill_tokens_s = prefill_tokens_s
        self.decode_s = decode_s
        self._uncached = uncached
        self._queue: deque[Sequence] = deque()
        self._prompts: deque[Sequence] = deque()
        self._prefilling: Sequence | None = None
        self._due: list[tuple[float, int, Sequence]] = []
        self._order = count()
        self.running = 0

    @property
    def waiting(self) -> int:
        """Requests that wait for one that runs to end."""
        return len(self._queue)

    @property
    def next_s(self) -> float:
        """When :meth:`advance` has something to say; :data:`NEVER_S` if nothing is under way."""
        due = self._due
        while due and due[0][2].ended:
            heapq.heappop(due)
        return due[0][0] if due else NEVER_S

    def submit(self, sequence: Sequence, now_s: float) -> None:
        """Take in a request."""
        sequence.arrived_s = now_s
        self._queue.append(sequence)
        self._fill(now_s)

    def abort(self, sequence: Sequence, now_s: float) -> None:
        """Give a request up, wherever it stands; those behind it move up. A second time does nothing."""
        if sequence.ended:
            return
        if sequence.started_s < 0:
            sequence.ended = True
            self._queue.remove(sequence)
            return
        if sequence in self._prompts:
            self._prompts.remove(sequence)
        if self._prefilling is sequence:
            self._prefilling = None
        self._end(sequence, now_s)
        self._begin_prefill(now_s)

    def advance(self, now_s: float) -> list[tuple[Sequence, int]]:
        """Which requests have got how many more tokens by ``now_s``, in the order in which they were ready."""
        ready: list[tuple[Sequence, int]] = []
        due = self._due
        while due and due[0][0] <= now_s:
            at_s, _, sequence = heapq.heappop(due)
            if sequence.ended:
                continue
            if sequence.first_s < 0:
                sequence.first_s = at_s
                self._prefilling = None
                if self._prompts:
                    self._begin_prefill(at_s)
            ready.append((sequence, self._grow(sequence, now_s)))
        return ready

    def _grow(self, sequence: Sequence, now_s: float) -> int:
        """Let an answer grow to what it is by ``now_s``, and plan what comes next."""
        step_s, first_s, total = self.decode_s, sequence.first_s, sequence.answer_tokens
        # The margin keeps a token whose time is now from being missed by a rounding error.
        grown = total if step_s <= 0 else min(total, int((now_s - first_s) / step_s + 1e-6) + 1)
        more = max(grown - sequence.emitted, 1)
        sequence.emitted += more
        if sequence.emitted >= total:
            self._end(sequence, first_s + (total - 1) * step_s)
        else:
            heapq.heappush(self._due, (first_s + sequence.emitted * step_s, next(self._order), sequence))
        return more

    def _end(self, sequence: Sequence, at_s: float) -> None:
        sequence.ended = True
        self.running -= 1
        if self._queue:
            self._fill(at_s)

    def _fill(self, at_s: float) -> None:
        while self._queue and self.running < self.capacity:
            sequence = self._queue.popleft()
            sequence.started_s = max(at_s, sequence.arrived_s)
            self.running += 1
            self._prompts.append(sequence)
        self._begin_prefill(at_s)

    def _begin_prefill(self, at_s: float) -> None:
        if self._prefilling is not None or not self._prompts:
            return
        sequence = self._prefilling = self._prompts.popleft()
        tokens = self._uncached(sequence)
        took_s = tokens / self.prefill_tokens_s if self.prefill_tokens_s > 0 else 0.0
        heapq.heappush(self._due, (max(at_s, sequence.started_s) + took_s, next(self._order), sequence))
