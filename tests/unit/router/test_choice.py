"""Choices with the index behind them: one decision at a time, and whole fleets on plain values."""

import random
from collections.abc import Iterator, Sequence
from itertools import count

import pytest

from kveik.config import RouterSettings
from kveik.router.choice import KEPT, MODELS_KEPT, Chooser
from kveik.router.engines import EngineView
from kveik.router.facts import RequestFacts
from kveik.router.policy import POLICIES
from kveik.router.prefix_keys import PrefixHasher
from kveik.router.prompt import PromptReader
from kveik.router.records import RequestRecord
from tests.unit.router.fleet_simulation import Fleet, Outcome, SimEngine, chat, text, view
from tests.unit.router.rig import interpreted_only

reader = PromptReader(PrefixHasher(secret=3))
dice = random.Random(7)
LONG = text(8000, dice)


def facts(prompt: str = LONG) -> RequestFacts:
    return reader(b"/v1/chat/completions", chat(prompt))


@pytest.fixture
def chooser() -> Chooser:
    return Chooser(RouterSettings())


def send(chooser: Chooser, told: RequestFacts, engines: Sequence[EngineView], now_s: float = 1.0) -> EngineView:
    """Choose as the router does; the engine is idle again afterwards."""
    engine, _ = chooser.choose(told, engines, now_s)
    chooser.learn(told, engine, now_s)
    engine.chosen = max(other.chosen for other in engines) + 1
    return engine


# -- one decision -----------------------------------------------------------------------------------


def test_a_prompt_goes_back_to_where_it_was_and_new_ones_take_turns(chooser: Chooser) -> None:
    engines = [view(slot) for slot in range(3)]
    prompts = [facts(text(2000, dice)) for _ in range(6)]
    homes = [send(chooser, prompt, engines).slot for prompt in prompts]
    assert homes == [0, 1, 2, 0, 1, 2]
    assert [send(chooser, prompt, engines).slot for prompt in reversed(prompts)] == homes[::-1]


def test_the_choice_says_what_is_expected(chooser: Chooser) -> None:
    engines = [view(0), view(1)]
    told = facts()
    home = send(chooser, told, engines)
    engine, choice = chooser.choose(facts(LONG + " and more"), engines, 2.0)
    assert engine is home
    assert choice.reason == "prefix"
    assert 0.95 * told.prompt_tokens < choice.expected_cached_tokens <= told.prompt_tokens
    assert choice.expected_compute_tokens < 0.1 * told.prompt_tokens


def test_slots_that_are_excluded_are_not_chosen(chooser: Chooser) -> None:
    engines = [view(slot) for slot in range(3)]
    home = send(chooser, facts(), engines)
    other, _ = chooser.choose(facts(), engines, 1.0, excluded=1 << home.slot)
    assert other is not home
    with pytest.raises(ValueError, match="no engine"):
        chooser.choose(facts(), engines, 1.0, excluded=0b111)


def test_an_engine_with_too_short_a_window_comes_last(chooser: Chooser) -> None:
    small, large, unknown = view(0, window=1000), view(1, window=100_000), view(2)
    told = facts()
    assert send(chooser, told, [small]) is small, "nobody else is there: it says itself what is wrong"
    assert send(chooser, told, [small, large]) is large
    assert send(chooser, told, [small, unknown]) is unknown
    assert send(chooser, RequestFacts(prompt_tokens=100, max_tokens=2000), [small, large]) is large
    assert send(chooser, facts("hi"), [small, large]) is small
    wider = view(3, window=1500)
    assert send(chooser, told, [small, wider]) is wider
    all_of_them = [small, wider, large]
    for prompt, homes in (("hi", {0, 1, 3}), (LONG[:5000], {1, 3}), (LONG, {1})):
        assert {send(chooser, facts(prompt + str(n)), all_of_them).slot for n in range(0, 90, 10)} <= homes


def test_without_engines_there_is_no_choice(chooser: Chooser) -> None:
    for told in (facts(), RequestFacts()):
        with pytest.raises(ValueError, match="no engine"):
            chooser.choose(told, (), 1.0)


def test_models_with_fleets_of_their_own_take_turns_without_disturbing_each_other(chooser: Chooser) -> None:
    fleets = {f"m{number}": [view(2 * number), view(2 * number + 1)] for number in range(20)}
    for _ in range(3):
        for model, engines in fleets.items():
            assert send(chooser, RequestFacts(model=model), engines) in engines
    many = [view(0)]
    for number in range(3 * MODELS_KEPT):
        assert send(chooser, RequestFacts(model=f"other {number}"), many) is many[0]


def test_engines_that_come_go_or_change_are_seen(chooser: Chooser) -> None:
    engines = [view(0), view(1)]
    home = send(chooser, facts(), engines)
    rest = [engine for engine in engines if engine is not home]
    assert send(chooser, facts(), rest) is rest[0]
    newcomer = view(5)
    assert send(chooser, facts("new"), [*engines, newcomer]) in (*engines, newcomer)


def test_an_engine_that_is_forgotten_holds_nothing(chooser: Chooser) -> None:
    engines = [view(0), view(1)]
    home = send(chooser, facts(), engines)
    chooser.forget_engine(home.slot)
    engine, choice = chooser.choose(facts(), engines, 1.0)
    assert engine is not home
    assert choice.reason == "load"


def test_what_one_engine_of_a_group_was_sent_the_shared_cache_has_for_the_others(chooser: Chooser) -> None:
    engines = [view(0, group="a"), view(1, group="a"), view(2, group="b"), view(3)]
    told = facts()
    send(chooser, told, engines[:1])
    engines[0].in_flight = 6  # above its bound, so that another one has to take it
    engine, choice = chooser.choose(told, engines, 1.0)
    assert engine is engines[1]
    assert choice.expected_cached_tokens == 0
    assert choice.expected_compute_tokens < 0.1 * told.prompt_tokens


def test_engines_without_a_namespace_share_nothing(chooser: Chooser) -> None:
    engines = [view(0), view(1)]
    send(chooser, facts(), engines[:1])
    _, choice = chooser.choose(facts(), engines, 1.0, excluded=1)
    assert choice.expected_compute_tokens == facts().prompt_tokens


def test_engines_of_another_model_are_never_expected_to_hold_the_prompt(chooser: Chooser) -> None:
    """The model is part of every key."""
    engines = [view(0), view(1)]
    send(chooser, facts(), engines)
    other = reader(b"/v1/chat/completions", chat(LONG).replace(b'"m"', b'"other"'))
    assert chooser.choose(other, engines, 1.0)[1].expected_cached_tokens == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_each_policy_can_be_chosen_by_name(policy: str) -> None:
    chooser = Chooser(RouterSettings(policy=policy))
    engines = [view(slot) for slot in range(4)]
    told = facts()
    told.session = "alice"
    homes = {send(chooser, told, engines).slot for _ in range(8)}
    assert len(homes) == (1 if policy in ("cache-aware", "session", "prefix-hash") else 4)


def test_sessions_find_their_engine_after_a_restart_with_other_slots() -> None:
    settings = RouterSettings(policy="session")
    before, after = [view(slot) for slot in range(4)], [view(slot) for slot in range(4)]
    for engine in after:
        engine.slot = 3 - engine.slot
    for session in map(str, range(30)):
        told = RequestFacts(session=session)
        homes = [Chooser(settings).choose(told, engines, 1.0)[0].name for engines in (before, after)]
        assert homes[0] == homes[1]


def test_the_last_choices_are_told_with_their_reasons(chooser: Chooser) -> None:
    engines = [view(0), view(1)]
    assert chooser.last_choices() == []
    for now_s in range(2 * KEPT):
        send(chooser, facts(), engines, float(now_s))
    told = chooser.last_choices()
    assert len(told) == KEPT
    assert [choice["before_latest_s"] for choice in told[:3]] == [0.0, 1.0, 2.0]
    latest = told[0]
    assert (latest["model"], latest["engine"], latest["reason"]) == ("m", "gpu-0", "prefix")
    assert set(latest["engines"]) == {"gpu-0", "gpu-1"}
    assert latest["engines"]["gpu-0"]["cached_tokens"] > 1500
    assert latest["engines"]["gpu-0"]["expected_cost_s"] < latest["engines"]["gpu-1"]["expected_cost_s"]


def test_expected_and_real_hits_are_counted(chooser: Chooser) -> None:
    engine = send(chooser, facts(), [view(0)])
    for cached in (900, -1, 10):
        record = RequestRecord("r", "POST", "/", engine=engine.name, facts=facts())
        record.expected_cached_tokens, record.cached_tokens = 1000, cached
        chooser.feed_back(record)
    document = chooser.index_document()
    assert (document["expected_cached_tokens"], document["cached_tokens"]) == (2000, 910)
    assert document["entries"] == len(facts().keys)
    assert document["bytes"] == chooser.index.memory_bytes


# -- whole fleets -----------------------------------------------------------------------------------


def one_prefix(prompts: int) -> Iterator[tuple[int, str]]:
    """Prompts of 8,000 letters with the same beginning, and a question of their own."""
    return ((0, LONG + text(300, dice)) for _ in range(prompts))


def zipf_prefixes(prompts: int, groups: int = 50, seed: int = 11) -> list[tuple[int, str]]:
    chance = random.Random(seed)
    beginnings = [text(8000, chance) for _ in range(groups)]
    weights = [1 / (rank + 1) for rank in range(groups)]
    return [
        (group, beginnings[group] + text(300, chance)) for group in chance.choices(range(groups), weights, k=prompts)
    ]


def eight(policy: str, prompts: Sequence[tuple[int, str]] | Iterator[tuple[int, str]], clients: int = 32) -> Outcome:
    return Fleet([SimEngine(view(slot)) for slot in range(8)], policy).closed_loop(prompts, clients)


def test_one_hot_prefix_uses_all_engines_and_stays_within_the_bound() -> None:
    aware, blind = eight("cache-aware", one_prefix(400)), eight("least-load", one_prefix(400))
    assert max(engine.most_in_flight for engine in aware.engines) <= 6, "ceil(1.25 x 4) + 1"
    assert aware.hit_share >= 0.85
    assert aware.p95_s <= blind.p95_s
    assert max(aware.served) <= 1.5 * 400 / 8


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_many_prefixes_of_different_popularity_stay_with_few_engines(seed: int) -> None:
    prompts = zipf_prefixes(400, seed=seed)
    aware, blind = eight("cache-aware", prompts), eight("least-load", prompts)
    assert max(engine.most_in_flight for engine in aware.engines) <= 14, "what chance explains beside three others each"
    assert aware.hit_share >= blind.hit_share + 0.25
    assert aware.copies < blind.copies / 2
    assert aware.p95_s <= blind.p95_s


@interpreted_only
def test_counting_copies_several_times_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weighed once, a request leaves its busy engine as soon as another would be quicker for this one request."""
    prompts = zipf_prefixes(400)
    weighed = eight("cache-aware", prompts)
    monkeypatch.setattr("kveik.router.policy.COPY_WEIGHT", 1.0)
    greedy = eight("cache-aware", prompts)
    assert weighed.hit_share >= greedy.hit_share + 0.03
    assert weighed.copies < greedy.copies
    assert sum(weighed.waits_s) < sum(greedy.waits_s)


def test_an_engine_that_others_keep_busy_gets_less_than_its_share() -> None:
    engines = [SimEngine(view(slot)) for slot in range(8)]
    engines[2].view.in_flight = 12
    engines[2].view.waiting_tokens = 30_000
    served = Fleet(engines).closed_loop(((n, text(2000, dice)) for n in range(400)), 32).served
    assert served[2] < 0.5 * 400 / 8
    assert min(count for slot, count in enumerate(served) if slot != 2) > 0.5 * 400 / 8


def test_thirty_clients_with_one_prefix_share_three_engines_fairly() -> None:
    engines = [SimEngine(view(slot), capacity=64, base_s=0.2) for slot in range(3)]
    outcome = Fleet(engines).closed_loop(one_prefix(900), 30)
    assert max(outcome.served) <= 1.5 * 300
    assert max(engine.most_in_flight for engine in engines) <= 14, "ceil(1.25 x 10) + 1"


def test_thirty_prefix_groups_without_load_have_one_copy_each() -> None:
    """60 requests a second of 0.1 s: two in flight on each of three engines."""
    beginnings = [text(4000, dice) for _ in range(30)]
    engines = [SimEngine(view(slot), capacity=64, base_s=0.1) for slot in range(3)]
    prompts = ((n % 30, beginnings[n % 30] + text(40, dice)) for n in range(480))
    outcome = Fleet(engines).open_loop(prompts, every_s=1 / 60)
    assert outcome.copies <= 1.1
    assert max(outcome.served) <= 1.2 * 160


def test_groups_in_any_order_keep_far_fewer_copies_than_without_an_index() -> None:
    beginnings = [text(4000, dice) for _ in range(30)]
    order = [dice.randrange(30) for _ in range(480)]

    def run(policy: str) -> Outcome:
        engines = [SimEngine(view(slot), capacity=64, base_s=0.1) for slot in range(3)]
        return Fleet(engines, policy).open_loop(((n, beginnings[n] + text(40, dice)) for n in order), every_s=1 / 60)

    aware, blind = run("cache-aware"), run("least-load")
    assert aware.copies <= 1.6
    assert blind.copies >= 2.8
    assert max(aware.served) <= 1.3 * 160


def test_conversations_stay_where_they_began() -> None:
    turns = [LONG[: 600 * turn] for turn in range(2, 9)]
    chooser = Chooser(RouterSettings())
    engines = [view(slot) for slot in range(4)]
    names = count()
    for _ in range(5):
        name = f"conversation {next(names)}: "
        assert len({send(chooser, facts(name + turn), engines).slot for turn in turns}) == 1
