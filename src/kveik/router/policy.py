"""Which engine gets a request: pure functions over plain values.

All policies keep one promise: no engine gets a request beyond its *bound*: a quarter more than its share of
all requests in flight, or what chance explains beside what the others have, whichever is more, and one
(``cache-aware``: beyond that and ``FEW``, and chance explains less the more engines hold the prefix). The
engine with the least is always below its bound. An engine that comes back slowly (``share`` below 1) has a
smaller share of the load, and a smaller bound.

``cache-aware`` sends a request where its first token is expected soonest. What an engine would
compute although another one holds it counts several times, since whoever comes next waits for that too:
counting it once, requests leave a busy engine so readily that all engines compute all prefixes, and
near saturation most of the fleet's work is copies. A hot prefix spreads nevertheless: the engine
that holds it reaches its bound, or computing it once more becomes cheaper than waiting, and
each copy makes the next one cheaper.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import xxhash

from kveik.router.facts import RequestFacts

#: An engine has at most this many times its fair share of the requests in flight, and one more,
BOUND: Final = 1.25
#: or so many standard deviations more than the others have, and one, if requests came to engines at random. A bound
#: that chance exceeds again and again copies most prefixes to most engines, however little there is to do. It is
#: the others that are looked at: where nearly all that is in flight wants one prefix, they have little, and it spreads.
DEVIATIONS: Final = 4.0
#: So many more where one engine alone holds most of the prompt, but not more than chance explains. Requests come to
#: that engine in bunches: those behind one that it has to compute wait with it, and a copy costs more than letting
#: the bunch pass. All of it falls as the weight of a copy does: a prefix in demand spreads.
BUNCH: Final = 4.0
#: So few requests in flight do not make an engine busy: ``cache-aware`` copies no prefix because of them.
FEW: Final = 6
#: A token that is computed although another engine holds it counts as much as so many that a request waits for.
#: That many: near saturation all who come later wait for it too, and its block displaces another one.
COPY_WEIGHT: Final = 30.0
#: How quickly that falls with the part of the engines that do not hold the prefix: a prefix that its bound has
#: driven to a second and a third engine is in demand, and goes to all of them.
COPY_FALL: Final = 12
#: The same where all engines hold the prefix: hardly anything, but of equal engines the longer prefix wins.
COPY_WEIGHT_MIN: Final = 0.02
#: ``prefix-hash`` looks at so many blocks, about 250 tokens: the system prompt, or the start of a conversation.
HASHED_BLOCKS: Final = 4


@dataclass(init=False, slots=True)
class Candidate:
    """One engine that could take the request now.

    ``cached_tokens``: prompt tokens that this engine is expected to hold; ``shared_tokens``: those
    beyond them that the shared cache holds for its group. ``order`` breaks ties: the engine that
    was chosen longest ago has the lowest. ``identity`` stays the same over restarts of the router
    and in all routers; only policies that hash need it.
    """

    slot: int
    in_flight: int
    waiting_tokens: int
    cached_tokens: int
    shared_tokens: int
    prefill_tokens_s: float
    share: float
    order: int
    identity: int

    def __init__(  # by hand, since what dataclasses make is never compiled, and this is made for each engine each time
        self,
        slot: int,
        in_flight: int,
        waiting_tokens: int,
        cached_tokens: int,
        shared_tokens: int,
        prefill_tokens_s: float,
        share: float,
        order: int,
        identity: int = 0,
    ) -> None:
        self.slot, self.in_flight, self.waiting_tokens = slot, in_flight, waiting_tokens
        self.cached_tokens, self.shared_tokens = cached_tokens, shared_tokens
        self.prefill_tokens_s, self.share = prefill_tokens_s, share
        self.order, self.identity = order, identity


@dataclass(init=False, slots=True)
class Choice:
    """The decision: which engine, why (a short word: a metric label), and what was expected.

    ``expected_compute_tokens`` is what the engine will have to compute for the prompt: the load to book.
    """

    slot: int
    reason: str
    expected_cached_tokens: int
    expected_compute_tokens: int

    def __init__(  # by hand, as that of a candidate
        self, slot: int, reason: str, expected_cached_tokens: int = 0, expected_compute_tokens: int = 0
    ) -> None:
        self.slot, self.reason = slot, reason
        self.expected_cached_tokens, self.expected_compute_tokens = expected_cached_tokens, expected_compute_tokens


@dataclass(frozen=True, slots=True)
class Costs:
    """What takes how long where nothing better is known. All times in seconds.

    ``prefill_tokens_s``: for engines whose rate isn't known and no other engine's is. ``load_tokens_s``:
    from the shared cache. ``in_flight_s``: how much later a first token comes for each request that
    the engine is working on already.
    """

    prefill_tokens_s: float = 8000.0
    load_tokens_s: float = 40000.0
    in_flight_s: float = 0.01


Policy = Callable[[Sequence[Candidate], RequestFacts, Costs], Choice]


def copy_weight(holders: int, engines: int) -> float:
    """How often it counts to compute what other engines hold, when ``holders`` of all engines do.

    The more hold a prefix, the hotter it has proved to be, and the sooner one more copy pays for itself.
    """
    return COPY_WEIGHT * _rarity(holders, engines) + COPY_WEIGHT_MIN


def chance(prompt_tokens: int, held: int, holders: int, engines: int) -> tuple[float, float]:
    """Deviations and bunch of :func:`bound`, when ``holders`` of all engines hold ``held`` tokens of a prompt.

    Where most of the prompt is cached there is a copy to lose, or it is hot; else neither.
    """
    if held * 2 < prompt_tokens:
        return DEVIATIONS, 0.0
    rarity = _rarity(holders, engines)
    return DEVIATIONS * rarity, BUNCH * rarity


def _rarity(holders: int, engines: int) -> float:
    """1 for a prefix that one engine holds, 0 for one that all hold, and little soon after 1."""
    others: float = (engines - holders) / max(1, engines - 1)
    rarity: float = others**COPY_FALL
    return rarity


def expected_cost_s(
    candidate: Candidate, prompt_tokens: int, held_tokens: int, weight: float, rate: float, costs: Costs
) -> float:
    """When the first token is expected: what stands before the request, then loading and computing.

    What the engine would compute although another one holds it (up to ``held_tokens``) counts ``weight``
    times. ``rate``: prompt tokens a second that the engine computes. Tokens of the shared cache are
    loaded only where that is quicker. A part of an engine (``share``) takes as much longer.
    """
    ready = candidate.cached_tokens
    cost_s = candidate.in_flight * costs.in_flight_s
    if candidate.shared_tokens and costs.load_tokens_s > rate:
        ready += candidate.shared_tokens
        cost_s += candidate.shared_tokens / costs.load_tokens_s
    compute = float(candidate.waiting_tokens + prompt_tokens - ready)
    if held_tokens > ready:
        compute += (weight - 1.0) * (held_tokens - ready)
    return (cost_s + compute / rate) / candidate.share


def expected_costs_s(candidates: Sequence[Candidate], prompt_tokens: int, costs: Costs) -> dict[int, float]:
    """What ``cache-aware`` compares, by slot."""
    held = max(c.cached_tokens for c in candidates)
    weight = copy_weight(_holders(candidates, held), len(candidates))
    return {
        c.slot: expected_cost_s(c, prompt_tokens, held, weight, rate_of(c, candidates, costs), costs)
        for c in candidates
    }


def bound(
    in_flight: int, own: int, share: float, shares: float, deviations: float = DEVIATIONS, bunch: float = 0.0
) -> int:
    """Most requests in flight that one engine may have, when all have ``in_flight`` with the new one.

    What chance explains, so many ``deviations``, is measured by what the other engines have, beside the
    ``own`` ones of this engine. ``bunch``: so many requests more, where chance explains as many.
    """
    fair, rest = in_flight * share / shares, shares - share
    others = (in_flight - own) * share / rest if rest > 0 else fair
    explained = deviations * math.sqrt(others)
    explained += min(bunch, explained)
    return math.ceil(max(BOUND * fair, others + explained) - 1e-9) + 1


def within_bound(
    candidates: Sequence[Candidate], deviations: float = DEVIATIONS, bunch: float = 0.0
) -> list[Candidate]:
    """The engines that one more request doesn't bring above their bound: never none."""
    in_flight = 1 + sum(candidate.in_flight for candidate in candidates)
    shares = sum(candidate.share for candidate in candidates)
    return [c for c in candidates if c.in_flight < bound(in_flight, c.in_flight, c.share, shares, deviations, bunch)]


def cache_aware(candidates: Sequence[Candidate], facts: RequestFacts, costs: Costs) -> Choice:
    """Where the first token is expected soonest.

    Reasons: ``prefix`` (it holds most of the prompt), ``shared`` (none holds it, the shared cache
    does), ``load`` (nothing is cached), ``spread`` (another holds more, but is too busy).
    """
    in_flight, shares, held = 1, 0.0, 0
    for candidate in candidates:  # by hand: max() and sum() cost more than all the rest of a decision
        in_flight += candidate.in_flight
        shares += candidate.share
        if candidate.cached_tokens > held:  # noqa: PLR1730
            held = candidate.cached_tokens
    best = _soonest(candidates, facts.prompt_tokens, held, costs)
    # Who has no more than its fair share is below its bound.
    if best.in_flight >= FEW and best.in_flight * shares > in_flight * best.share:
        deviations, bunch = chance(facts.prompt_tokens, held, _holders(candidates, held), len(candidates))
        if best.in_flight >= bound(in_flight, best.in_flight, best.share, shares, deviations, bunch):
            costs_s = expected_costs_s(candidates, facts.prompt_tokens, costs)
            best = min(within_bound(candidates, deviations, bunch), key=lambda c: (costs_s[c.slot], c.order))
    if held > best.cached_tokens:
        reason = "spread"
    elif held:
        reason = "prefix"
    else:
        reason = "shared" if best.shared_tokens else "load"
    return _choice(best, reason, facts)


def _soonest(candidates: Sequence[Candidate], prompt_tokens: int, held: int, costs: Costs) -> Candidate:
    """Of which :func:`expected_cost_s` is least, worked out by hand: calling it for each engine costs twice as much."""
    more = copy_weight(_holders(candidates, held), len(candidates)) - 1.0 if held else 0.0
    in_flight_s, load_rate, unknown_rate = costs.in_flight_s, costs.load_tokens_s, 0.0
    best, least_s = candidates[0], math.inf
    for candidate in candidates:
        rate = candidate.prefill_tokens_s
        if not rate:
            rate = unknown_rate = unknown_rate or _best_rate(candidates) or costs.prefill_tokens_s
        ready = candidate.cached_tokens
        cost_s = candidate.in_flight * in_flight_s
        if candidate.shared_tokens and load_rate > rate:
            ready += candidate.shared_tokens
            cost_s += candidate.shared_tokens / load_rate
        compute = float(candidate.waiting_tokens + prompt_tokens - ready)
        if held > ready:
            compute += more * (held - ready)
        cost_s = (cost_s + compute / rate) / candidate.share
        if cost_s < least_s or (cost_s == least_s and candidate.order < best.order):
            best, least_s = candidate, cost_s
    return best


def least_load(candidates: Sequence[Candidate], facts: RequestFacts, costs: Costs) -> Choice:
    """Where the first token is expected soonest if nothing is cached anywhere."""
    blind = [
        Candidate(c.slot, c.in_flight, c.waiting_tokens, 0, 0, c.prefill_tokens_s, c.share, c.order) for c in candidates
    ]
    costs_s = expected_costs_s(blind, facts.prompt_tokens, costs)
    best = min(within_bound(candidates), key=lambda c: (costs_s[c.slot], c.order))
    return _choice(best, "load", facts)


def round_robin(candidates: Sequence[Candidate], facts: RequestFacts, _costs: Costs) -> Choice:
    """One after the other: the engine that was chosen longest ago."""
    best = min(within_bound(candidates), key=_order)
    return _choice(best, "turn", facts)


def session(candidates: Sequence[Candidate], facts: RequestFacts, costs: Costs) -> Choice:
    """All requests of a session to one engine while it is within its bound; those without one by load."""
    if not facts.session:
        return least_load(candidates, facts, costs)
    return _hashed(candidates, xxhash.xxh3_64_intdigest(facts.session.encode()), "session", facts)


def prefix_hash(candidates: Sequence[Candidate], facts: RequestFacts, costs: Costs) -> Choice:
    """All prompts with the same beginning to one engine while it is within its bound; short ones by load."""
    if not len(facts.keys):
        return least_load(candidates, facts, costs)
    key = int(facts.keys[min(len(facts.keys), HASHED_BLOCKS) - 1])
    return _hashed(candidates, key, "prefix_hash", facts)


#: The policies by name.
POLICIES: Final[Mapping[str, Policy]] = {
    "cache-aware": cache_aware,
    "least-load": least_load,
    "round-robin": round_robin,
    "session": session,
    "prefix-hash": prefix_hash,
}
#: Those that need to know what is cached.
LOOKS_AT_CACHE: Final = frozenset({"cache-aware"})


def rate_of(candidate: Candidate, candidates: Iterable[Candidate], costs: Costs) -> float:
    """Its rate; of an engine that has shown none yet the best of the others, so that it is tried."""
    if candidate.prefill_tokens_s > 0:
        return candidate.prefill_tokens_s
    return _best_rate(candidates) or costs.prefill_tokens_s


def _best_rate(candidates: Iterable[Candidate]) -> float:
    best = 0.0
    for candidate in candidates:  # by hand: see cache_aware
        if candidate.prefill_tokens_s > best:  # noqa: PLR1730
            best = candidate.prefill_tokens_s
    return best


def _holders(candidates: Sequence[Candidate], held: int) -> int:
    """How many engines hold at least half of the longest cached prefix."""
    return len([candidate for candidate in candidates if candidate.cached_tokens * 2 >= held]) if held else 1


def _hashed(candidates: Sequence[Candidate], key: int, reason: str, facts: RequestFacts) -> Choice:
    """By rendezvous hashing: an engine that comes or goes moves only its own keys."""
    best = max(within_bound(candidates), key=lambda candidate: _draw(key, candidate))
    return _choice(best, reason, facts)


def _draw(key: int, candidate: Candidate) -> tuple[float, int]:
    """The higher, the better; an engine with twice the share wins twice as many keys."""
    mixed: int = xxhash.xxh3_64_intdigest(key.to_bytes(8, "little"), candidate.identity)
    return -candidate.share / math.log((mixed + 1) / 2.0**64.000001), -candidate.order


def _order(candidate: Candidate) -> int:
    return candidate.order


def _choice(candidate: Candidate, reason: str, facts: RequestFacts) -> Choice:
    compute = facts.prompt_tokens - candidate.cached_tokens - candidate.shared_tokens
    return Choice(candidate.slot, reason, candidate.cached_tokens, max(0, compute))
