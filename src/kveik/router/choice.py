"""Chooses an engine for each request: looks up who holds its prefix, and lets a policy decide.

Books nothing: the engines' loads are counted where requests are sent and end.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import xxhash

from kveik.config import RouterSettings
from kveik.router.engines import SLOTS_MAX, EngineView
from kveik.router.facts import RequestFacts
from kveik.router.policy import LOOKS_AT_CACHE, POLICIES, Candidate, Choice, Costs, expected_costs_s
from kveik.router.prefix_index import ApproximateIndex, PrefixIndex
from kveik.router.records import RequestRecord

#: Decisions that are kept with all that they were made from.
KEPT: Final = 32
#: An engine that had so many tokens less than expected is told to the index: fewer may be the rest of a block.
LOST_TOKENS_MIN: Final = 256

#: Models of which the fleet is kept as it was looked at.
MODELS_KEPT: Final = 256

_UNKNOWN_WINDOW: Final = 1 << 62

#: One decision with all that it was made from: time, model, prompt tokens, candidates, fleet, choice.
_Decision = tuple[float, str, int, Sequence[Candidate], "_Fleet", Choice]


class Chooser:
    """Chooses by one policy and one prefix index."""

    def __init__(self, settings: RouterSettings, now_s: float = 0.0, index: PrefixIndex | None = None) -> None:
        """``index`` is by default an approximate one of the size that the settings say."""
        self.index: PrefixIndex = index or ApproximateIndex(
            settings.prefix_blocks_max, settings.prefix_expire_min * 60, now_s
        )
        self._name = settings.policy
        self._policy = POLICIES[settings.policy]
        self._looks_at_cache = settings.policy in LOOKS_AT_CACHE
        self._costs = Costs(settings.prefill_tokens_s, settings.load_tokens_s, settings.in_flight_s)
        self._last: deque[_Decision] = deque(maxlen=KEPT)
        self._by_slot: list[EngineView | None] = [None] * SLOTS_MAX
        self._expected_tokens = self._cached_tokens = 0
        self._fleets: dict[str, _Fleet] = {}

    def __repr__(self) -> str:
        return f"Chooser({self._name}, {self.index!r})"

    def choose(
        self, facts: RequestFacts, engines: Sequence[EngineView], now_s: float, excluded: int = 0
    ) -> tuple[EngineView, Choice]:
        """One of ``engines``, which all serve the model and work, but not in one of the slots ``excluded`` (bits).

        Give the same sequence until engines come, go or change: what follows from it is kept. Engines
        whose window is too short for the request come last. Raises :class:`ValueError` if none is left.
        """
        if excluded:
            fleet = _Fleet([engine for engine in engines if not excluded >> engine.slot & 1])
        else:
            known = self._fleets.get(facts.model)
            fleet = known if known is not None and known.engines is engines else self._look_at(engines, facts.model)
        needed_tokens = facts.prompt_tokens + facts.max_tokens
        if needed_tokens > fleet.narrowest:
            fleet = fleet.wide_enough(needed_tokens)
        candidates = self._candidates(facts, fleet, now_s)
        choice = self._policy(candidates, facts, self._costs)
        self._last.append((now_s, facts.model, facts.prompt_tokens, candidates, fleet, choice))
        return fleet.by_slot[choice.slot], choice

    def _candidates(self, facts: RequestFacts, fleet: "_Fleet", now_s: float) -> list[Candidate]:
        cached = self.index.match(facts, now_s) if self._looks_at_cache else None
        if not cached:
            return [
                Candidate(e.slot, e.in_flight, e.waiting_tokens, 0, 0, e.prefill.tokens_s, e.share, e.chosen, identity)
                for e, identity in fleet.identified
            ]
        held = cached.get
        most = self._most_by_group(cached, fleet)
        if not most:
            return [
                Candidate(
                    e.slot, e.in_flight, e.waiting_tokens, held(e.slot, 0), 0, e.prefill.tokens_s, e.share, e.chosen, i
                )
                for e, i in fleet.identified
            ]
        shared = most.get
        return [
            Candidate(
                e.slot,
                e.in_flight,
                e.waiting_tokens,
                (own := held(e.slot, 0)),
                shared(e.group, own) - own,
                e.prefill.tokens_s,
                e.share,
                e.chosen,
                identity,
            )
            for e, identity in fleet.identified
        ]

    def learn(self, facts: RequestFacts, engine: EngineView, now_s: float) -> None:
        """The request is sent to this engine, which will hold its prefix."""
        self._by_slot[engine.slot] = engine
        if self._looks_at_cache:
            self.index.learn(facts, engine.slot, now_s)

    def feed_back(self, record: RequestRecord) -> None:
        """Listens to what became of requests: how many cached tokens were expected, and how many there were."""
        expected, cached = record.expected_cached_tokens, record.cached_tokens
        if cached < 0:
            return
        self._expected_tokens += expected
        self._cached_tokens += cached
        if expected - cached < LOST_TOKENS_MIN or record.facts is None:
            return
        for engine in self._by_slot:
            if engine is not None and engine.name == record.engine:
                self.index.correct(record.facts, engine.slot, cached)

    def forget_engine(self, slot: int) -> None:
        """The engine in this slot restarted, lost its cache or is gone."""
        self._by_slot[slot] = None
        self.index.forget_engine(slot)

    # -- for people -----------------------------------------------------------------------------

    def last_choices(self) -> list[dict[str, Any]]:
        """The last decisions, the latest first, with what each engine looked like then."""
        latest_s = self._last[-1][0] if self._last else 0.0
        return [self._explained(decision, latest_s) for decision in reversed(self._last)]

    def index_document(self) -> dict[str, Any]:
        """The prefix index in figures."""
        return {
            "policy": self._name,
            "kind": type(self.index).__name__,
            "entries": self.index.size,
            "bytes": self.index.memory_bytes,
            "expected_cached_tokens": self._expected_tokens,
            "cached_tokens": self._cached_tokens,
        }

    def _explained(self, decision: _Decision, latest_s: float) -> dict[str, Any]:
        now_s, model, prompt_tokens, candidates, fleet, choice = decision
        names = {slot: engine.name for slot, engine in fleet.by_slot.items()}
        costs_s = expected_costs_s(candidates, prompt_tokens, self._costs)
        return {
            "before_latest_s": round(latest_s - now_s, 3),
            "model": model,
            "prompt_tokens": prompt_tokens,
            "engine": names[choice.slot],
            "reason": choice.reason,
            "engines": {
                names[candidate.slot]: {
                    "expected_cost_s": round(costs_s[candidate.slot], 4),
                    "cached_tokens": candidate.cached_tokens,
                    "shared_tokens": candidate.shared_tokens,
                    "in_flight": candidate.in_flight,
                    "waiting_tokens": candidate.waiting_tokens,
                    "share": candidate.share,
                }
                for candidate in candidates
            },
        }

    def _most_by_group(self, cached: Mapping[int, int], fleet: "_Fleet") -> Mapping[str, int]:
        """What one engine of a group was sent is in the shared cache for all of the group."""
        most: dict[str, int] = {}
        for slot, tokens in cached.items():
            holder = fleet.by_slot.get(slot) or self._by_slot[slot]  # it may be out, and its group still has it
            if holder is not None and holder.group and most.get(holder.group, 0) < tokens:
                most[holder.group] = tokens
        return most

    def _look_at(self, engines: Sequence[EngineView], model: str) -> "_Fleet":
        if len(self._fleets) >= MODELS_KEPT:
            self._fleets.clear()
        fleet = self._fleets[model] = _Fleet(engines)
        return fleet


class _Fleet:
    """What follows from a sequence of engines, so that it need not be found out for each request."""

    __slots__ = ("_parts", "_windows", "by_slot", "engines", "identified", "narrowest")

    def __init__(self, engines: Sequence[EngineView]) -> None:
        self.engines = engines
        self.by_slot = {engine.slot: engine for engine in engines}
        self.identified = [(engine, xxhash.xxh3_64_intdigest(engine.name.encode())) for engine in engines]
        self._windows = sorted({_window(engine) for engine in engines})
        self.narrowest = self._windows[0] if engines else -1
        self._parts: dict[int, _Fleet] = {}

    def wide_enough(self, tokens: int) -> "_Fleet":
        """The engines that take so many tokens; if there are none those that take the most, which then say so."""
        if not self._windows:
            raise ValueError("there is no engine to choose from")
        limit = next((window for window in self._windows if window >= tokens), self._windows[-1])
        if limit not in self._parts:
            self._parts[limit] = _Fleet([engine for engine in self.engines if _window(engine) >= limit])
        return self._parts[limit]


def _window(engine: EngineView) -> int:
    return engine.max_model_tokens or _UNKNOWN_WINDOW
