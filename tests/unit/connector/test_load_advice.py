"""An engine learns what loading and computing cost, and what that means for the next hit."""

import math
from dataclasses import dataclass, field

import pytest

from kveik.agent.lookup import tier_rate
from kveik.agent.protocol import TierGain, TierRate
from kveik.clock import FakeClock
from kveik.connector.load_advice import PATH_FORGOTTEN_S, TELL_EVERY_S, EngineFacts, EngineLoad, LoadAdvice, token_bytes
from kveik.connector.load_choice import ALL, NONE, UNKNOWN
from kveik.connector.plan import Found, LookupPart, Shape
from kveik.kv.groups import GroupKind, GroupSpec
from kveik.store.tier_rates import TierRates

BLOCK, MIB = 16, 1 << 20
SHAPE = Shape((GroupSpec(0, GroupKind.FULL, BLOCK),), BLOCK)
PAYLOAD = MIB - 4096  # a frame is one MiB
FACTS = EngineFacts({0: PAYLOAD}, 1, 2048)
BLOCKS = 128
TOKENS = BLOCKS * BLOCK
ARENA, TIER = 1, 2
COLD_S = 2.0
#: The rate of a tier at which loading takes as long as computing.
EVEN_MIB_PER_S = BLOCKS / COLD_S


def found(place: int) -> Found:
    return Found(0, (LookupPart(0, 0, [bytes([n]) for n in range(BLOCKS)]),), (bytes([place] * BLOCKS),))


@dataclass
class World:
    """An engine, an agent and one tier, on a clock that only moves when somebody works."""

    mib_per_s: float
    clock: FakeClock = field(default_factory=FakeClock)
    advice: LoadAdvice = field(default_factory=lambda: LoadAdvice(SHAPE))
    reasons: list[str] = field(default_factory=list)
    sounded: int = 0

    def __post_init__(self) -> None:
        self.rates = TierRates(1, self.clock)
        self.advice.learn_facts(FACTS)
        for _ in range(3):
            self.compute(0)

    def compute(self, start: int) -> float:
        """The engine computes from there to the prompt's end."""
        seconds = COLD_S * (TOKENS - start) / TOKENS
        if seconds > 0:
            self.advice.prefill.step_begins(self.clock.monotonic(), [(start, TOKENS - start)])
            self.clock.advance(seconds)
            self.advice.prefill.step_ends(self.clock.monotonic())
        return seconds

    def read(self, blocks: int, longest_s: float = math.inf) -> tuple[float, int]:
        """The agent reads so many blocks: seconds, and how many came before the deadline."""
        needed_s = blocks / self.mib_per_s
        seconds = min(needed_s, longest_s)
        came = blocks if seconds == needed_s else int(seconds * self.mib_per_s)
        self.rates.began(0, blocks * MIB)
        self.clock.advance(seconds)
        self.rates.ended(0, blocks * MIB, came * MIB, (blocks - came) * MIB)
        return seconds, came

    def ask(self, place: int = TIER) -> float:
        """One request whose whole prompt lies there; seconds to its first token."""
        advice, answer, now_s = self.advice, found(place), self.clock.monotonic()
        told = tier_rate(0, self.rates.rate(0))
        advice.hear([told] if told is not None else [])
        options = advice.options(answer, TOKENS, frozenset())
        choice = advice.choose(options, 0, TOKENS, EngineLoad(), now_s)
        self.reasons.append(choice.reason)
        if choice.reason == NONE:
            cold_s = self.compute(0)
            for blocks in advice.sounding([place], now_s).values():
                self.sounded += blocks
                self.read(blocks)  # beside the computing: nobody waits for it
            return cold_s
        load = advice.begin(answer, 0, choice.tokens, now_s)
        assert load is not None
        deadline_s = advice.prefill.deadline_s(0, choice.tokens, 30.0, now_s)
        seconds, came = self.read(BLOCKS, deadline_s)
        advice.ended(load, came * BLOCK, seconds, lambda place: f"tier-{place}", self.clock.monotonic())
        return seconds + self.compute(came * BLOCK)

    def total_s(self, requests: int, pause_s: float = 3.0) -> float:
        total_s = 0.0
        for _ in range(requests):
            total_s += self.ask()
            self.clock.advance(pause_s)
        return total_s


class TestInTheLongRun:
    @pytest.mark.parametrize("share", [1 / 16, 1 / 4, 1 / 2, 0.8, 1.25, 2.0, 4.0, 16.0])
    def test_after_learning_time_is_that_of_the_better_way(self, share: float) -> None:
        world = World(share * EVEN_MIB_PER_S)
        world.total_s(3)
        better_s = min(COLD_S, COLD_S / share)
        assert world.total_s(50) <= 1.05 * 50 * better_s

    def test_learning_that_a_tier_is_slow_costs_two_loads_at_most(self) -> None:
        world = World(EVEN_MIB_PER_S / 4)
        assert world.total_s(50) <= 1.05 * 50 * COLD_S + 2 * COLD_S
        assert world.reasons.count(UNKNOWN) <= 2
        assert set(world.reasons[2:]) == {NONE}

    def test_a_tier_that_became_fast_is_found_again(self) -> None:
        world = World(EVEN_MIB_PER_S / 4)
        world.total_s(10)
        world.mib_per_s = 4 * EVEN_MIB_PER_S
        world.total_s(15)
        assert world.total_s(20) <= 1.05 * 20 * COLD_S / 4
        assert world.reasons[-20:] == [ALL] * 20

    def test_a_tier_that_became_slow_is_left_after_few_loads(self) -> None:
        world = World(4 * EVEN_MIB_PER_S)
        world.total_s(20)
        world.mib_per_s = EVEN_MIB_PER_S / 4
        world.total_s(5)
        assert world.total_s(30) <= 1.05 * 30 * COLD_S
        assert world.reasons[20:].count(ALL) <= 3

    def test_looking_at_a_slow_tier_is_rare_and_little(self) -> None:
        world = World(EVEN_MIB_PER_S / 16)
        world.total_s(60)
        assert 0 < world.sounded <= 30
        assert world.reasons[-50:] == [NONE] * 50


@pytest.fixture
def world() -> World:
    return World(10 * EVEN_MIB_PER_S)


def ended_load(world: World, seconds: float, used: int = TOKENS, place: int = ARENA) -> dict[str, TierGain]:
    now_s = world.clock.monotonic()
    load = world.advice.begin(found(place), 0, TOKENS, now_s)
    assert load is not None
    return world.advice.ended(load, used, seconds, lambda where: f"tier-{where}", now_s + seconds)


def test_a_load_saves_computing_less_its_own_time(world: World) -> None:
    (tier, gain) = next(iter(ended_load(world, 0.5).items()))
    assert tier == "tier-1"
    assert gain.tokens == TOKENS
    assert [gain.saved_s, gain.lost_s] == pytest.approx([1.5, 0.0], rel=0.01)


def test_a_load_that_failed_is_a_loss(world: World) -> None:
    assert ended_load(world, 0.5, used=0)["tier-1"] == TierGain(0, 0.0, 0.5)


def test_gains_are_told_once(world: World) -> None:
    ended_load(world, 0.5)
    ended_load(world, 0.5)
    now_s = world.clock.monotonic()
    news = world.advice.news(now_s)
    assert news is not None
    assert news.gains["tier-1"].tokens == 2 * TOKENS
    assert news.token_bytes == MIB / BLOCK
    assert news.prefill_steps == 3
    assert world.advice.news(now_s + TELL_EVERY_S / 2) is None
    later = world.advice.news(now_s + TELL_EVERY_S)
    assert later is not None
    assert later.gains == {}


def test_the_engines_own_way_from_the_arena_is_learned_from_loads_of_it_alone(world: World) -> None:
    for _ in range(3):
        ended_load(world, 0.4, place=ARENA)
        ended_load(world, 3.0, place=TIER)
    news = world.advice.news(world.clock.monotonic())
    assert news is not None
    assert news.path == pytest.approx([0.0, 0.4 / (BLOCKS * MIB)])


def test_an_arena_that_looked_slow_is_tried_again_after_a_while(world: World) -> None:
    options = world.advice.options(found(ARENA), TOKENS, frozenset())

    def choice() -> str:
        return world.advice.choose(options, 0, TOKENS, EngineLoad(), world.clock.monotonic()).reason

    for _ in range(3):
        ended_load(world, 5.0)
    assert choice() == NONE
    world.clock.advance(PATH_FORGOTTEN_S + 5.0)
    assert choice() == ALL


def test_loads_that_take_longer_than_expected_make_their_tier_count_as_late_for_a_while(world: World) -> None:
    world.advice.hear([TierRate(TIER, 0.0, 0.5 / (BLOCKS * MIB), 0.1, 9)])
    options = world.advice.options(found(TIER), TOKENS, frozenset())

    def choice() -> str:
        return world.advice.choose(options, 0, TOKENS, EngineLoad(), world.clock.monotonic()).reason

    assert choice() == ALL
    for _ in range(3):
        ended_load(world, 6.0, place=TIER)
    assert choice() == NONE
    world.clock.advance(600.0)
    assert choice() == ALL


def test_without_facts_of_the_engine_nothing_is_judged() -> None:
    advice = LoadAdvice(SHAPE)
    assert advice.options(found(TIER), TOKENS, frozenset()) == []
    assert advice.begin(found(TIER), 0, TOKENS, 0.0) is None
    assert advice.news(0.0) is None
    assert advice.sounding([TIER], 0.0) == {}


def test_what_the_engine_does_before_makes_a_slow_load_worth_while(world: World) -> None:
    world.advice.hear([TierRate(TIER, 0.0, 3.0 / (BLOCKS * MIB), 0.1, 9)])
    options, now_s = world.advice.options(found(TIER), TOKENS, frozenset()), world.clock.monotonic()
    assert world.advice.choose(options, 0, TOKENS, EngineLoad(), now_s).reason == NONE
    busy = EngineLoad(ahead=[(0, TOKENS), (0, TOKENS)], generating=4)
    assert world.advice.choose(options, 0, TOKENS, busy, now_s).reason == ALL


def test_windows_do_not_grow_with_a_hit() -> None:
    shape = Shape((GroupSpec(0, GroupKind.FULL, 16), GroupSpec(1, GroupKind.SLIDING_WINDOW, 16, 512)), 16)
    assert token_bytes(shape, EngineFacts({0: 4096, 1: 1 << 30}, 2, 1)) == 2 * 8192 / 16
    assert "3 prefill steps" in repr(World(1.0).advice)
