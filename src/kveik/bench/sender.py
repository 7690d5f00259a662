"""Sends planned requests, each at its moment or as soon as there is a free place, and keeps what became of each.

Times count from the moment a request was *meant* to be sent: where the service or this client is behind, whoever
waits is counted as waiting. Measuring from the real sending would leave out just the slow part (coordinated omission).
"""

import heapq
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

from kveik.bench.planned import Workload
from kveik.engine.client import Completion, CompletionRequest, EngineClient
from kveik.errors import EngineError

#: Requests under way at once where nothing else limits them: each has a thread of its own.
PLACES_MAX = 256
#: How often it is looked whether any thread is left to wait for.
_LOOK_S = 1.0

#: The salt of a request, by its number.
Salt = Callable[[int], str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request. Moments in monotonic seconds; ``first_s`` is -1 without a first token.

    ``cached_tokens`` is -1 where the service does not say. ``failure``: why there is no whole answer.
    """

    intended_s: float
    sent_s: float
    over_s: float
    first_s: float = -1.0
    prompt_tokens: int = 0
    cached_tokens: int = -1
    token_ids: tuple[int, ...] = ()
    failure: str = ""

    @property
    def ttft_s(self) -> float:
        """From the moment it was meant to be sent to its first token."""
        return self.first_s - self.intended_s

    @property
    def sent_ttft_s(self) -> float:
        """From its sending to its first token, which is what ``vllm bench serve`` calls TTFT."""
        return self.first_s - self.sent_s

    @property
    def late_s(self) -> float:
        """How long after its moment it was sent."""
        return self.sent_s - self.intended_s

    @property
    def token_s(self) -> float:
        """Seconds a token after the first one; 0 for an answer of one."""
        return (self.over_s - self.first_s) / max(1, len(self.token_ids) - 1) if len(self.token_ids) > 1 else 0.0


class Sender:
    """Sends all requests of a workload once. ``places``: requests under way at once, 0 for as many as are due.

    ``told`` is called now and then with the number of requests that are over.
    """

    def __init__(
        self, client: EngineClient, model: str, workload: Workload, salt: Salt, places: int, told: Callable[[int], None]
    ) -> None:
        self._client = client
        self._model = model
        self._workload = workload
        self._salt = salt
        self._places = min(places or PLACES_MAX, len(workload.requests))
        self._told = told
        self._news = threading.Condition()
        self._waiting: list[tuple[float, int]] = []  # when, number
        self._outcomes: dict[int, Outcome] = {}
        self._ready: SimpleQueue[tuple[float, int] | None] = SimpleQueue()
        self._followers: dict[int, list[int]] = {}
        for number, request in enumerate(workload.requests):
            if request.after >= 0:
                self._followers.setdefault(request.after, []).append(number)

    def run(self) -> list[Outcome]:
        """Send all; what became of them, in the order of the workload."""
        began_s = time.monotonic()
        requests = self._workload.requests
        for number, request in enumerate(requests):
            if request.after < 0:
                heapq.heappush(self._waiting, (began_s + request.due_s if self._workload.timed else began_s, number))
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self._places)]
        for thread in threads:
            thread.start()
        try:
            told = 0
            while told < len(requests) and any(thread.is_alive() for thread in threads):
                over = self._hand_out(told)
                if over > told:
                    self._told(over)
                told = over
        finally:
            for _ in threads:
                self._ready.put(None)
        return [self._outcomes.get(number) or _lost() for number in range(len(requests))]

    def _hand_out(self, told: int) -> int:
        """Hand out what is due, and wait for the next moment or for news; how many requests are over."""
        with self._news:
            now_s = time.monotonic()
            while self._waiting and self._waiting[0][0] <= now_s:
                self._ready.put(heapq.heappop(self._waiting))
            if len(self._outcomes) == told:
                self._news.wait(min(self._waiting[0][0] - now_s, _LOOK_S) if self._waiting else _LOOK_S)
            return len(self._outcomes)

    def _work(self) -> None:
        while (job := self._ready.get()) is not None:
            due_s, number = job
            outcome = _lost()
            try:
                outcome = self._ask(number, due_s)
            finally:  # whatever happens to this thread, nobody may wait for its request for ever
                self._end(number, outcome)

    def _end(self, number: int, outcome: Outcome) -> None:
        with self._news:
            self._outcomes[number] = outcome
            for follower in self._followers.get(number, ()):
                think_s = self._workload.requests[follower].think_s
                heapq.heappush(self._waiting, (outcome.over_s + think_s, follower))
            self._news.notify()

    def _ask(self, number: int, due_s: float) -> Outcome:
        planned = self._workload.requests[number]
        sent_s = time.monotonic()
        # Without a moment of its own a request is meant to be sent when its place became free.
        intended_s = due_s if self._workload.timed else sent_s
        request = CompletionRequest(planned.prompt, planned.answer_tokens, cache_salt=self._salt(number))
        try:
            answer = self._client.complete(request, self._model)
        except EngineError as error:
            return Outcome(intended_s, sent_s, time.monotonic(), failure=str(error) or type(error).__name__)
        return _outcome(answer, intended_s, sent_s)


def _lost() -> Outcome:
    now_s = time.monotonic()
    return Outcome(now_s, now_s, now_s, failure="this client itself failed, see its error above")


def _outcome(answer: Completion, intended_s: float, sent_s: float) -> Outcome:
    return Outcome(
        intended_s,
        sent_s,
        sent_s + answer.total_s,
        sent_s + answer.ttft_s,
        answer.prompt_tokens,
        answer.cached_tokens,
        answer.token_ids,
    )
