"""Clients that ask a service without a pause, and notice everything that goes wrong."""

import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from kveik.engine.client import Completion, CompletionRequest, EngineClient, EngineStreamError
from kveik.errors import EngineError


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: when it was sent and over (monotonic seconds), and why it failed, empty if it did not.

    ``cut``: it failed when its stream had begun, which is honest where the engine that sent it has died.
    """

    sent_s: float
    over_s: float
    ttft_s: float = 0.0
    failure: str = ""
    cut: bool = False
    wrong: str = ""


@dataclass(frozen=True, slots=True)
class Tally:
    """All requests so far. ``wrong``: answers that differ from the first one to the same prompt."""

    asked: Sequence[Asked] = field(default_factory=tuple)

    @property
    def failures(self) -> list[str]:
        """Why requests failed, streams that had begun among them."""
        return [one.failure for one in self.asked if one.failure]

    @property
    def lost(self) -> list[str]:
        """Why requests failed of which nothing had been answered."""
        return [one.failure for one in self.asked if one.failure and not one.cut]

    @property
    def cuts(self) -> list[str]:
        """How streams ended that had begun."""
        return [one.failure for one in self.asked if one.cut]

    @property
    def wrong(self) -> list[str]:
        """What differed in answers that were not as before."""
        return [one.wrong for one in self.asked if one.wrong]

    @property
    def slowest_s(self) -> float:
        """The longest time from sending to the end of the answer."""
        return max((one.over_s - one.sent_s for one in self.asked), default=0.0)

    def between(self, begin_s: float, end_s: float) -> "Tally":
        """Only what was over within this time."""
        return Tally(tuple(one for one in self.asked if begin_s <= one.over_s <= end_s))


class SteadyClients:
    """``count`` clients in threads, each with one request under way at any time. A context manager.

    ``expected`` has the right token ids for each prompt; without it the first answer to a prompt is
    taken for right. Only whole answers are answers.
    """

    def __init__(
        self,
        client: EngineClient,
        model: str,
        prompts: Sequence[tuple[int, ...]],
        *,
        count: int = 4,
        answer_tokens: int = 16,
        expected: Mapping[tuple[int, ...], tuple[int, ...]] | None = None,
    ) -> None:
        self._client = client
        self._model = model
        self._answer_tokens = answer_tokens
        self._prompts = itertools.cycle(prompts)
        self._expected = dict(expected or {})
        self._asked: list[Asked] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, name=f"client-{n}", daemon=True) for n in range(count)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> Tally:
        """Let running requests end; everything that was asked."""
        self._over.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        return self.tally

    @property
    def tally(self) -> Tally:
        """What is over by now."""
        with self._lock:
            return Tally(tuple(self._asked))

    def _run(self) -> None:
        while not self._over.is_set():
            with self._lock:
                prompt = next(self._prompts)
            asked = self._ask(prompt)
            with self._lock:
                self._asked.append(asked)
            if asked.failure:
                self._over.wait(0.2)  # a service that refuses at once must not be flooded

    def _ask(self, prompt: tuple[int, ...]) -> Asked:
        sent_s = time.monotonic()
        try:
            answer = self._client.complete(CompletionRequest(prompt, self._answer_tokens), self._model)
        except EngineError as error:
            return Asked(sent_s, time.monotonic(), failure=str(error), cut=isinstance(error, EngineStreamError))
        return Asked(sent_s, time.monotonic(), answer.ttft_s, wrong=self._difference(prompt, answer))

    def _difference(self, prompt: tuple[int, ...], answer: Completion) -> str:
        with self._lock:
            right = self._expected.setdefault(prompt, answer.token_ids)
        if answer.token_ids == right:
            return ""
        return f"prompt of {len(prompt)} tokens: answered {list(answer.token_ids)}, expected {list(right)}"
