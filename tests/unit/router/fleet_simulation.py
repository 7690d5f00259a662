"""A fleet on plain values: engines with queues and prefix caches, clients that wait for their answers, no clock."""

import heapq
import json
import random
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kveik.config import RouterSettings
from kveik.fleet.announcement import EngineAnnouncement
from kveik.router.choice import Chooser
from kveik.router.engines import EngineView
from kveik.router.facts import RequestFacts
from kveik.router.prefix_keys import PrefixHasher
from kveik.router.prompt import PromptReader

WORDS = [f"w{number:03}" for number in range(1000)]


def view(slot: int, *, group: str = "", window: int = 0) -> EngineView:
    """An idle engine as the router sees it."""
    said = EngineAnnouncement(
        url=f"http://10.0.0.{slot + 1}:8000", engine_id=f"gpu-{slot}", max_model_tokens=window, namespace=group
    )
    return EngineView(said, slot, group=group)


def text(size: int, dice: random.Random) -> str:
    """Words that nobody else has in this order."""
    return " ".join(dice.choices(WORDS, k=size // 5))


def chat(prompt: str) -> bytes:
    """The body of a chat with one message."""
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": prompt}]}).encode()


@dataclass
class SimEngine:
    """``capacity`` requests at once; each takes ``base_s``, and ``block_s`` for a block that isn't cached."""

    view: EngineView
    capacity: int = 4
    base_s: float = 0.002
    block_s: float = 0.004
    cached: set[int] = field(default_factory=set)
    queue: deque["Sent"] = field(default_factory=deque)
    running: int = 0
    served: int = 0
    most_in_flight: int = 0


@dataclass
class Sent:
    """One request under way."""

    facts: RequestFacts
    engine: SimEngine
    booked_tokens: int
    group: int
    sent_s: float


@dataclass
class Outcome:
    """What a run came to."""

    engines: Sequence[SimEngine]
    hit_share: float
    waits_s: list[float]
    groups: dict[int, set[int]]
    reasons: Counter[str]

    @property
    def served(self) -> list[int]:
        """Requests by engine."""
        return [engine.served for engine in self.engines]

    @property
    def copies(self) -> float:
        """Engines that a prefix group went to, on average."""
        return sum(map(len, self.groups.values())) / len(self.groups)

    @property
    def p95_s(self) -> float:
        """The wait that 95 % of all requests stay below."""
        return sorted(self.waits_s)[int(len(self.waits_s) * 0.95)]


class Fleet:
    """Engines behind one chooser."""

    def __init__(self, engines: Sequence[SimEngine], policy: str = "cache-aware", **settings: float) -> None:
        self.engines = engines
        self.chooser = Chooser(RouterSettings(policy=policy, **settings))  # type: ignore[arg-type]
        self._views = [engine.view for engine in engines]
        self._by_slot = {engine.view.slot: engine for engine in engines}
        self._reader = PromptReader(PrefixHasher(secret=5))
        self._now_s = 0.0
        self._events: list[tuple[float, int, Sent]] = []
        self._number = 0
        self._hits = self._blocks = 0
        self._outcome = Outcome(engines, 0.0, [], {}, Counter())

    def closed_loop(self, prompts: Iterable[tuple[int, str]], clients: int) -> Outcome:
        """So many clients, each of which sends the next ``(group, prompt)`` when it has its answer."""
        waiting = iter(prompts)
        for group, prompt in [pair for _, pair in zip(range(clients), waiting, strict=False)]:
            self._send(group, prompt)
        while self._events:
            self._next()
            for group, prompt in waiting:
                self._send(group, prompt)
                break
        return self._told()

    def open_loop(self, prompts: Iterable[tuple[int, str]], every_s: float) -> Outcome:
        """One prompt after the other, whatever has become of those before."""
        for number, (group, prompt) in enumerate(prompts):
            while self._events and self._events[0][0] <= number * every_s:
                self._next()
            self._now_s = number * every_s
            self._send(group, prompt)
        while self._events:
            self._next()
        return self._told()

    def _told(self) -> Outcome:
        self._outcome.hit_share = self._hits / max(1, self._blocks)
        return self._outcome

    def _send(self, group: int, prompt: str) -> None:
        facts = self._reader(b"/v1/chat/completions", chat(prompt))
        chosen, choice = self.chooser.choose(facts, self._views, self._now_s)
        self.chooser.learn(facts, chosen, self._now_s)
        self._number += 1
        chosen.chosen = self._number
        chosen.in_flight += 1
        chosen.waiting_tokens += choice.expected_compute_tokens
        engine = self._by_slot[chosen.slot]
        engine.served += 1
        engine.most_in_flight = max(engine.most_in_flight, chosen.in_flight)
        self._outcome.groups.setdefault(group, set()).add(chosen.slot)
        self._outcome.reasons[choice.reason] += 1
        engine.queue.append(Sent(facts, engine, choice.expected_compute_tokens, group, self._now_s))
        self._start(engine)

    def _start(self, engine: SimEngine) -> None:
        while engine.queue and engine.running < engine.capacity:
            sent = engine.queue.popleft()
            engine.running += 1
            keys = sent.facts.keys.tolist()
            known = sum(key in engine.cached for key in keys)
            self._hits += known
            self._blocks += len(keys)
            engine.cached.update(keys)
            self._number += 1
            done_s = self._now_s + engine.base_s + (len(keys) - known) * engine.block_s
            heapq.heappush(self._events, (done_s, self._number, sent))

    def _next(self) -> None:
        self._now_s, _, sent = heapq.heappop(self._events)
        sent.engine.running -= 1
        sent.engine.view.in_flight -= 1
        sent.engine.view.waiting_tokens -= sent.booked_tokens
        self._outcome.waits_s.append(self._now_s - sent.sent_s)
        self._start(sent.engine)
