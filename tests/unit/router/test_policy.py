"""What every policy promises whatever the engines look like, and what each is for."""

import dataclasses
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.config import RouterSettings, rows
from kveik.router.facts import RequestFacts
from kveik.router.policy import (
    FEW,
    POLICIES,
    Candidate,
    Choice,
    Costs,
    bound,
    cache_aware,
    chance,
    copy_weight,
    expected_cost_s,
    expected_costs_s,
    least_load,
    prefix_hash,
    rate_of,
    round_robin,
    session,
    within_bound,
)

COSTS = Costs()


def engine(slot: int, **state: float) -> Candidate:
    """An idle engine that holds nothing, unless said otherwise."""
    idle = Candidate(slot, 0, 0, 0, 0, 8000.0, 1.0, slot, identity=slot * 7919)
    for name, value in state.items():
        assert hasattr(idle, name)
        setattr(idle, name, value)
    return idle


def changed(candidate: Candidate, **state: float) -> Candidate:
    return replace(candidate, **state)  # type: ignore[arg-type]


def prompt(tokens: int = 4000, session: str = "", keys: Sequence[int] = ()) -> RequestFacts:
    return RequestFacts(prompt_tokens=tokens, session=session, keys=np.array(keys, np.uint64))


@st.composite
def engines(draw: st.DrawFn, tokens: int = 4000, known_rates: bool = False) -> list[Candidate]:
    rates = st.floats(1.0, 1e6) if known_rates else st.just(0.0) | st.floats(1.0, 1e6)
    count = draw(st.integers(1, 10))
    orders = draw(st.permutations(range(count)))
    made = []
    for slot in range(count):
        cached = draw(st.integers(0, tokens))
        made.append(
            Candidate(
                slot,
                draw(st.integers(0, 40)),
                draw(st.integers(0, 100_000)),
                cached,
                draw(st.integers(0, tokens - cached)),
                draw(rates),
                draw(st.sampled_from([1.0, 1.0, 0.1, 0.5])),
                orders[slot],
                draw(st.integers(0, 1 << 63)),
            )
        )
    return made


everything = pytest.mark.parametrize("name", POLICIES)
facts_of_all_kinds = st.builds(
    prompt,
    st.just(4000),
    st.sampled_from(["", "alice", "bob"]),
    st.lists(st.integers(1, (1 << 64) - 1), max_size=6),
)


def most_allowed(name: str, candidates: Sequence[Candidate], fair: float, others: float) -> int:
    deviations, bunch = chance_of(candidates) if name == "cache-aware" else (4.0, 0.0)
    by_chance = deviations * math.sqrt(others)
    most = math.ceil(max(1.25 * fair, others + by_chance + min(by_chance, bunch)) - 1e-9) + 1
    return max(most, FEW) if name == "cache-aware" else most


def chance_of(candidates: Sequence[Candidate], prompt_tokens: int = 4000) -> tuple[float, float]:
    held = max(c.cached_tokens for c in candidates)
    return chance(prompt_tokens, held, count_holders(candidates), len(candidates))


@everything
@given(candidates=engines(), facts=facts_of_all_kinds)
def test_every_policy_chooses_a_candidate_within_its_bound(
    name: str, candidates: list[Candidate], facts: RequestFacts
) -> None:
    choice = POLICIES[name](candidates, facts, COSTS)
    chosen = {c.slot: c for c in candidates}[choice.slot]
    in_flight = sum(c.in_flight for c in candidates) + 1
    shares = sum(c.share for c in candidates)
    fair, rest = in_flight * chosen.share / shares, shares - chosen.share
    others = (in_flight - chosen.in_flight) * chosen.share / rest if len(candidates) > 1 else fair
    assert chosen.in_flight + 1 <= most_allowed(name, candidates, fair, others)
    assert choice.expected_cached_tokens == chosen.cached_tokens
    assert 0 <= choice.expected_compute_tokens <= facts.prompt_tokens
    assert choice.reason


@everything
@given(candidates=engines(), facts=facts_of_all_kinds, seed=st.randoms())
def test_no_policy_depends_on_the_order_in_which_engines_are_listed(
    name: str, candidates: list[Candidate], facts: RequestFacts, seed: object
) -> None:
    choice = POLICIES[name](candidates, facts, COSTS)
    seed.shuffle(candidates)  # type: ignore[attr-defined]
    assert POLICIES[name](candidates, facts, COSTS) == choice


@everything
@given(candidates=engines(), facts=facts_of_all_kinds)
def test_a_decision_changes_nothing_and_comes_out_the_same_again(
    name: str, candidates: list[Candidate], facts: RequestFacts
) -> None:
    before = [astuple(c) for c in candidates]
    assert POLICIES[name](candidates, facts, COSTS) == POLICIES[name](candidates, facts, COSTS)
    assert [astuple(c) for c in candidates] == before


@given(engines())
def test_somebody_is_always_within_the_bound(candidates: list[Candidate]) -> None:
    assert within_bound(candidates)


@pytest.mark.parametrize(("fair", "most"), [(1, 6), (4, 13), (9, 22), (25, 46), (100, 141), (400, 501)])
def test_the_bound_is_what_chance_brings_about_or_a_quarter_above_the_mean_and_one(fair: int, most: int) -> None:
    assert bound(8 * fair, fair, 1.0, 8.0) == most
    assert bound(8 * fair, fair, 0.5, 4.0) == most, "half engines have half of the load"


def test_the_bound_is_tight_where_one_engine_has_nearly_all() -> None:
    assert bound(8, 7, 1.0, 8.0) < bound(8, 1, 1.0, 8.0)
    assert bound(32, 31, 1.0, 8.0) == 6, "ceil(1.25 x 4) + 1"
    assert bound(5, 4, 1.0, 1.0) > 4, "an engine alone takes all"


@everything
def test_requests_of_one_hot_prefix_stay_within_the_bound_as_they_pile_up(name: str) -> None:
    candidates = [engine(slot) for slot in range(8)]
    candidates[3].cached_tokens = 4000
    for sent in range(1, 65):
        choice = POLICIES[name](candidates, prompt(session="one", keys=[5]), COSTS)
        chosen = candidates[choice.slot]
        others = (sent - chosen.in_flight) / 7
        allowed = most_allowed(name, candidates, sent / 8, others)
        chosen.in_flight += 1
        chosen.order = 100 + sent
        assert chosen.in_flight <= allowed


@pytest.mark.parametrize("clients", [16, 32, 64])
def test_a_hot_prefix_of_which_the_copies_are_known_stays_within_a_quarter_above_the_mean(clients: int) -> None:
    """As the router sees it: an engine that got such a request holds the prefix; requests end in any order."""
    candidates, under_way, dice = [engine(slot) for slot in range(8)], list[Candidate](), random.Random(clients)
    for sent in range(2000):
        while len(under_way) >= clients - dice.randrange(clients // 2):
            under_way.pop(dice.randrange(len(under_way))).in_flight -= 1
        chosen = candidates[cache_aware(candidates, prompt(), COSTS).slot]
        chosen.cached_tokens, chosen.order, chosen.in_flight = 4000, 100 + sent, chosen.in_flight + 1
        under_way.append(chosen)
        assert chosen.in_flight <= max(math.ceil(1.25 * clients / 8) + 1, FEW)


@pytest.mark.parametrize(("prompt_tokens", "held", "holders", "explained"), [
    (1000, 900, 1, (4.0, 4.0)),
    (1000, 500, 1, (4.0, 4.0)),
    (1000, 499, 1, (4.0, 0.0)),  # little is lost by computing it elsewhere
    (1000, 0, 1, (4.0, 0.0)),
    (1000, 900, 8, (0.0, 0.0)),
])  # fmt: skip
def test_what_chance_explains_follows_from_who_holds_how_much(
    prompt_tokens: int, held: int, holders: int, explained: tuple[float, float]
) -> None:
    assert chance(prompt_tokens, held, holders, 8) == explained


def test_chance_explains_less_the_more_engines_hold_the_prefix() -> None:
    explained = [sum(chance(1000, 900, holders, 8)) for holders in range(1, 9)]
    assert explained == sorted(explained, reverse=True)
    assert explained[1] < 2.0, "a second copy proves that the prefix is in demand"


@pytest.mark.parametrize(("others", "more"), [(0, 0), (7, 4), (140, 4)])
def test_a_bunch_is_a_few_requests_and_none_where_the_others_have_none(others: int, more: int) -> None:
    plain, bunched = (bound(others + 3, 3, 1.0, 8.0, 4.0, bunch) for bunch in (0.0, 4.0))
    assert bunched - plain == more


def test_a_few_requests_in_flight_do_not_copy_a_prefix() -> None:
    holder, others = engine(0, cached_tokens=1000, in_flight=FEW - 1), [engine(slot) for slot in range(1, 8)]
    assert bound(FEW, FEW - 1, 1.0, 8.0) < FEW
    assert cache_aware([holder, *others], prompt(1000), COSTS).slot == 0
    holder.in_flight = FEW
    assert cache_aware([holder, *others], prompt(1000), COSTS).reason == "spread"


# -- cache-aware and least-load ---------------------------------------------------------------------


@given(engines())
def test_cache_aware_goes_where_the_first_token_is_expected_soonest(candidates: list[Candidate]) -> None:
    for candidate in candidates:
        candidate.in_flight %= FEW  # nobody is busy
    costs_s = expected_costs_s(candidates, 4000, COSTS)
    soonest = min(candidates, key=lambda c: (costs_s[c.slot], c.order))
    assert cache_aware(candidates, prompt(4000), COSTS).slot == soonest.slot


@given(engines())
def test_with_equal_load_the_engine_with_the_longest_prefix_gets_the_request(candidates: list[Candidate]) -> None:
    for candidate in candidates:
        candidate.in_flight, candidate.waiting_tokens, candidate.shared_tokens = 2, 300, 0
        candidate.prefill_tokens_s, candidate.share = 8000.0, 1.0
    choice = cache_aware(candidates, prompt(), COSTS)
    longest = max(c.cached_tokens for c in candidates)
    assert choice.expected_cached_tokens == longest
    assert choice.slot == min((c for c in candidates if c.cached_tokens == longest), key=lambda c: c.order).slot


@given(engines())
def test_with_nothing_cached_cache_aware_is_least_load(candidates: list[Candidate]) -> None:
    for candidate in candidates:
        candidate.cached_tokens = candidate.shared_tokens = 0
    assert cache_aware(candidates, prompt(), COSTS) == least_load(candidates, prompt(), COSTS)


@given(engines(known_rates=True), st.sampled_from([0.25, 0.5, 2.0, 1024.0]))
def test_faster_clocks_do_not_change_the_choice(candidates: list[Candidate], factor: float) -> None:
    """All rates times a factor and all times divided by it: the same world in another unit of time."""
    other = [changed(c, prefill_tokens_s=c.prefill_tokens_s * factor) for c in candidates]
    costs = Costs(COSTS.prefill_tokens_s * factor, COSTS.load_tokens_s * factor, COSTS.in_flight_s / factor)
    assert cache_aware(other, prompt(), costs) == cache_aware(candidates, prompt(), COSTS)


def count_holders(candidates: Sequence[Candidate]) -> int:
    longest = max(c.cached_tokens for c in candidates)
    return sum(c.cached_tokens * 2 >= longest for c in candidates) if longest else 1


@given(engines(), st.data())
def test_the_chosen_engine_stays_chosen_when_it_holds_more(candidates: list[Candidate], data: st.DataObject) -> None:
    choice = cache_aware(candidates, prompt(), COSTS)
    chosen, holders = candidates[choice.slot], count_holders(candidates)

    def keeps_holders(tokens: int) -> bool:
        return count_holders([changed(c, cached_tokens=tokens) if c is chosen else c for c in candidates]) == holders

    # A prefix that more engines hold is worth one more copy sooner, and what it shares is not to change: both stay.
    more = range(chosen.cached_tokens, 4001 - chosen.shared_tokens, 25)
    chosen.cached_tokens = data.draw(st.sampled_from([tokens for tokens in more if keeps_holders(tokens)]))
    assert cache_aware(candidates, prompt(), COSTS).slot == choice.slot


@given(engines(known_rates=True))
def test_cache_aware_takes_the_shortest_wait_of_those_within_the_bound(candidates: list[Candidate]) -> None:
    choice = cache_aware(candidates, prompt(), COSTS)
    costs_s = expected_costs_s(candidates, 4000, COSTS)
    soonest = min(candidates, key=lambda c: (costs_s[c.slot], c.order))
    allowed = [soonest] if soonest.in_flight < FEW else within_bound(candidates, *chance_of(candidates))
    assert costs_s[choice.slot] == min(costs_s[c.slot] for c in allowed)


def test_a_miss_goes_by_load_and_not_to_the_first_engine() -> None:
    candidates = [engine(0, in_flight=2), engine(1, in_flight=1), engine(2, in_flight=2)]
    assert cache_aware(candidates, prompt(), COSTS).slot == 1


def test_of_equal_engines_the_one_chosen_longest_ago_is_next() -> None:
    candidates = [engine(slot) for slot in range(3)]
    turns = []
    for number in range(9):
        choice = cache_aware(candidates, prompt(), COSTS)
        turns.append(choice.slot)
        candidates[choice.slot].order = 10 + number
    assert turns == [0, 1, 2] * 3


def test_a_hot_prefix_spreads_when_waiting_for_it_is_longer_than_computing_it() -> None:
    """With one of eight engines holding them, computing 4,000 tokens counts as waiting for 120,080."""
    holder, idle = engine(0, cached_tokens=4000, waiting_tokens=120_000), [engine(slot) for slot in range(1, 8)]
    assert cache_aware([holder, *idle], prompt(), COSTS) == Choice(0, "prefix", 4000, 0)
    holder.waiting_tokens = 120_100
    assert cache_aware([holder, *idle], prompt(), COSTS) == Choice(1, "spread", 0, 4000)


def test_requests_in_flight_count_as_waiting_too() -> None:
    """Computing 400 tokens again counts as 1.501 s: as much as 150 requests in flight."""
    crowd = [engine(slot, in_flight=145) for slot in range(2, 10)]
    holder, idle = engine(0, cached_tokens=400, in_flight=149), engine(1)
    assert cache_aware([holder, idle, *crowd], prompt(400), COSTS).slot == 0
    holder.in_flight = 152
    assert cache_aware([holder, idle, *crowd], prompt(400), COSTS).slot == 1


def test_the_more_engines_hold_a_prefix_the_sooner_one_more_computes_it() -> None:
    weights = [copy_weight(holders, 8) for holders in range(1, 9)]
    assert weights[0] == pytest.approx(30.0, abs=0.03)
    assert weights == sorted(weights, reverse=True)
    assert weights[2] < 1.0, "two copies more prove that it is in demand"
    assert 0.0 < weights[-1] == copy_weight(1, 1) < 0.1
    seven = [engine(slot, cached_tokens=4000, in_flight=2) for slot in range(7)]
    assert cache_aware([*seven, engine(7)], prompt(), COSTS) == Choice(7, "spread", 0, 4000)


def test_a_short_prefix_is_worth_less_than_a_free_engine() -> None:
    holder, idle = engine(0, cached_tokens=10, in_flight=5), engine(1)
    assert cache_aware([holder, idle], prompt(80), COSTS).slot == 1


def test_the_shared_cache_makes_another_engine_nearly_as_good() -> None:
    """Loading 4,000 tokens takes 0.1 s, computing them 0.5 s, which counts as 15 s: spreading begins earlier."""
    holder = engine(0, cached_tokens=4000, waiting_tokens=1000)
    other = engine(1, shared_tokens=4000)
    assert cache_aware([holder, other], prompt(), COSTS).slot == 1
    other.shared_tokens = 0
    assert cache_aware([holder, other], prompt(), COSTS).slot == 0


def test_reasons_say_what_decided() -> None:
    assert cache_aware([engine(0), engine(1, cached_tokens=9)], prompt(), COSTS).reason == "prefix"
    assert cache_aware([engine(0), engine(1)], prompt(), COSTS).reason == "load"
    assert cache_aware([engine(0, shared_tokens=9), engine(1, shared_tokens=9)], prompt(), COSTS).reason == "shared"
    assert least_load([engine(0)], prompt(), COSTS).reason == "load"
    assert round_robin([engine(0)], prompt(), COSTS).reason == "turn"


def test_tokens_of_a_slow_shared_cache_are_computed_instead() -> None:
    slow = Costs(load_tokens_s=100.0)
    assert expected_cost_s(engine(0, shared_tokens=4000), 4000, 0, 1.0, 8000.0, slow) == 0.5


def test_an_engine_without_a_known_rate_is_taken_for_as_fast_as_the_best() -> None:
    unknown, slow, fast = engine(0, prefill_tokens_s=0.0), engine(1, prefill_tokens_s=50.0), engine(2)
    assert rate_of(unknown, [unknown, slow, fast], COSTS) == 8000.0
    assert rate_of(unknown, [unknown], Costs(prefill_tokens_s=123.0)) == 123.0
    assert cache_aware([slow, unknown], prompt(), COSTS).slot == 0


def test_a_slow_engine_gets_less() -> None:
    """One engine has a quarter of the rate: it computes about a ninth of the prompts of four."""
    candidates = [engine(slot) for slot in range(3)] + [engine(3, prefill_tokens_s=2000.0)]
    sent: Counter[int] = Counter()
    for number in range(400):
        choice = cache_aware(candidates, prompt(), COSTS)
        sent[choice.slot] += 1
        chosen = candidates[choice.slot]
        chosen.order = 10 + number
        chosen.waiting_tokens += 4000
        for candidate in candidates:  # a time in which they compute 4,000 tokens together
            done = int(candidate.prefill_tokens_s * 4000 / 26_000)
            candidate.waiting_tokens = max(0, candidate.waiting_tokens - done)
    assert sent[3] < 400 * 0.15
    assert min(sent.values()) > 0


def test_an_engine_that_comes_back_gets_its_share_and_no_more() -> None:
    candidates = [engine(0, share=0.1), *(engine(slot) for slot in range(1, 4))]
    for number in range(31):
        choice = cache_aware(candidates, prompt(), COSTS)
        candidates[choice.slot].in_flight += 1
        candidates[choice.slot].waiting_tokens += 4000
        candidates[choice.slot].order = 10 + number
    assert candidates[0].in_flight in (0, 1)
    assert all(c.in_flight in (10, 11) for c in candidates[1:])


# -- the others -------------------------------------------------------------------------------------


@given(engines())
def test_least_load_does_not_care_what_is_cached(candidates: list[Candidate]) -> None:
    blind = [changed(c, cached_tokens=0, shared_tokens=0) for c in candidates]
    assert least_load(candidates, prompt(), COSTS).slot == least_load(blind, prompt(), COSTS).slot


def test_round_robin_takes_turns() -> None:
    candidates = [engine(slot, cached_tokens=slot * 1000, waiting_tokens=slot * 999) for slot in range(4)]
    turns = []
    for number in range(8):
        choice = round_robin(candidates, prompt(), COSTS)
        turns.append(choice.slot)
        candidates[choice.slot].order = 10 + number
    assert turns == [0, 1, 2, 3] * 2


def test_a_session_stays_with_its_engine_and_sessions_spread_evenly() -> None:
    candidates = [engine(slot) for slot in range(4)]
    homes = {name: session(candidates, prompt(session=name), COSTS).slot for name in map(str, range(4000))}
    busy = [changed(c, waiting_tokens=50_000, order=9 - c.order) for c in candidates]
    assert homes == {name: session(busy, prompt(session=name), COSTS).slot for name in homes}
    assert all(850 <= count <= 1150 for count in Counter(homes.values()).values())


def test_an_engine_that_leaves_moves_only_its_own_sessions() -> None:
    candidates = [engine(slot) for slot in range(4)]
    for name in map(str, range(300)):
        before = session(candidates, prompt(session=name), COSTS).slot
        after = session(candidates[:3], prompt(session=name), COSTS).slot
        assert before in (after, 3)


def test_engines_are_told_apart_by_identity_not_by_slot() -> None:
    """After a restart of the router an engine may have another slot: its sessions find it nevertheless."""
    candidates = [engine(slot) for slot in range(4)]
    moved = [changed(c, slot=(c.slot + 1) % 4) for c in candidates]
    for name in map(str, range(100)):
        before = session(candidates, prompt(session=name), COSTS).slot
        assert session(moved, prompt(session=name), COSTS).slot == (before + 1) % 4


def test_an_engine_with_half_a_share_gets_about_half_as_many_sessions() -> None:
    candidates = [engine(0, share=0.5), engine(1), engine(2)]
    homes = Counter(session(candidates, prompt(session=str(n)), COSTS).slot for n in range(5000))
    assert 0.8 * 1000 < homes[0] < 1.2 * 1000


def test_without_a_session_or_keys_the_load_decides() -> None:
    candidates = [engine(0, waiting_tokens=10), engine(1)]
    assert session(candidates, prompt(), COSTS) == Choice(1, "load", 0, 4000)
    assert prefix_hash(candidates, prompt(), COSTS) == Choice(1, "load", 0, 4000)


def test_prefix_hash_sends_prompts_with_the_same_beginning_to_the_same_engine() -> None:
    candidates = [engine(slot) for slot in range(4)]
    beginning = [11, 12, 13, 14]
    homes = {prefix_hash(candidates, prompt(keys=[*beginning, n, n + 1]), COSTS).slot for n in range(1, 50)}
    assert len(homes) == 1
    others = Counter(prefix_hash(candidates, prompt(keys=[n * 7919]), COSTS).slot for n in range(1, 2001))
    assert all(400 <= count <= 600 for count in others.values())


# -- one table --------------------------------------------------------------------------------------


def test_the_setting_knows_the_same_policies() -> None:
    row = next(row for row in rows("router") if row.name == "policy")
    assert set(row.choices) == set(POLICIES)
    defaults = RouterSettings()
    assert Costs() == Costs(defaults.prefill_tokens_s, defaults.load_tokens_s, defaults.in_flight_s)
    assert dataclasses.is_dataclass(defaults)
