"""How much of a hit is loaded, decided from plain values."""

import math
from collections.abc import Mapping

import pytest

from kveik.agent.protocol import TierRate
from kveik.connector.load_choice import (
    ALL,
    CUTS_MAX,
    NONE,
    PART,
    SOUND_AFTER_S,
    SOUND_BLOCKS_MAX,
    UNKNOWN,
    Cut,
    Knowledge,
    choose,
    cuts,
    load_seconds,
    refused_places,
    sounding_blocks,
)
from kveik.connector.plan import Found, LookupPart, Shape
from kveik.kv.groups import GroupKind, GroupSpec
from kveik.learned_cost import Cost

BLOCK = 16
SIZE = 4096  # payload of a block; its frame is twice that
ONE = Shape((GroupSpec(0, GroupKind.FULL, BLOCK),), BLOCK)
TWO = Shape((GroupSpec(0, GroupKind.FULL, BLOCK), GroupSpec(1, GroupKind.SLIDING_WINDOW, BLOCK, 33)), BLOCK)
MIB = 1 << 20
ARENA, NEAR, FAR = 1, 2, 3


def found(*places: str, local_tokens: int = 0) -> Found:
    """From a string of digits a group: the place of each block after the engine's own hit."""
    first = local_tokens // BLOCK
    parts = tuple(
        LookupPart(group, first, [bytes([group, index % 256]) for index in range(len(row))])
        for group, row in enumerate(places)
    )
    return Found(local_tokens, parts, tuple(bytes(int(digit) for digit in row) for row in places))


def ends(shape: Shape, answer: Found, hit_blocks: int) -> list[int]:
    return [cut.tokens // BLOCK for cut in cuts(shape, answer, hit_blocks * BLOCK, {0: SIZE, 1: SIZE}, 1)]


class TestCuts:
    def test_a_hit_in_one_place_is_not_cut(self) -> None:
        assert ends(ONE, found("11111"), 5) == [5]
        assert ends(ONE, found("33333"), 5) == [5]

    def test_it_may_end_before_each_slower_stretch(self) -> None:
        assert ends(ONE, found("11221133"), 8) == [2, 6, 8]

    def test_a_faster_stretch_is_no_reason_to_end(self) -> None:
        assert ends(ONE, found("3211"), 4) == [4]

    def test_the_engines_own_hit_is_where_it_begins(self) -> None:
        assert ends(ONE, found("1122", local_tokens=2 * BLOCK), 6) == [4, 6]

    def test_a_cut_needs_the_blocks_of_its_own_window(self) -> None:
        """A window of 33 tokens reaches two blocks back: only a cut at 4 of 8 finds its window's blocks."""
        assert ends(TWO, found("11112222", "00110022"), 8) == [4, 8]
        assert ends(TWO, found("11112222", "00000022"), 8) == [8]

    def test_a_block_that_failed_lately_makes_no_cut(self) -> None:
        answer = found("11112222", "00110022")
        failed = frozenset({(1, bytes([1, 3]))})
        assert [cut.tokens for cut in cuts(TWO, answer, 8 * BLOCK, {0: SIZE, 1: SIZE}, 1, failed)] == [8 * BLOCK]

    def test_bytes_are_those_of_all_groups_and_ranks_by_place(self) -> None:
        cut, whole = cuts(TWO, found("11112222", "00110022"), 8 * BLOCK, {0: SIZE, 1: 2 * SIZE}, 3)
        frame, wide = SIZE + 4096, 2 * SIZE + 4096
        assert cut == Cut(4 * BLOCK, {ARENA: 3 * (4 * frame + 2 * wide)})
        assert whole.bytes_by_place == {ARENA: 3 * 4 * frame, NEAR: 3 * (4 * frame + 2 * wide)}

    def test_blocks_of_different_sizes_are_compared_by_units(self) -> None:
        shape = Shape((GroupSpec(0, GroupKind.FULL, 16), GroupSpec(1, GroupKind.FULL, 32)), 16)
        parts = (LookupPart(0, 0, [b"a"] * 8), LookupPart(1, 0, [b"b"] * 4))
        answer = Found(0, parts, (bytes([1, 1, 1, 2, 1, 1, 1, 1]), bytes([1, 1, 1, 3])))
        assert [cut.tokens for cut in cuts(shape, answer, 128, {0: SIZE, 1: SIZE}, 1)] == [32, 96, 128]

    def test_they_are_not_many(self) -> None:
        assert len(ends(ONE, found("12" * 500), 1000)) == CUTS_MAX + 1


def rate(place: int, mib_per_s: float, *, sigma: float = 0.05, fixed_s: float = 0.0, **given: float) -> TierRate:
    return TierRate(place, fixed_s, 1 / (mib_per_s * MIB), sigma, 10, **given)  # type: ignore[arg-type]


def knowledge(*rates: TierRate, tokens_per_s: float = 1000.0, **given: object) -> Knowledge:
    """Computes so many tokens a second; the arena gives 10 GiB a second."""
    return Knowledge(
        Cost((0.001, 1 / (10240 * MIB)), 0.05, 10, 0.0),
        {each.place: each for each in rates},
        lambda start, end: (end - start) / tokens_per_s,
        **given,  # type: ignore[arg-type]
    )


def options(*split: Mapping[int, float]) -> list[Cut]:
    """Cuts of 1000 tokens each, with the MiB by place of the part that each adds."""
    made: list[Cut] = []
    sums: dict[int, int] = {}
    for number, part in enumerate(split, 1):
        for place, size in part.items():
            sums[place] = sums.get(place, 0) + int(size * MIB)
        made.append(Cut(1000 * number, dict(sums)))
    return made


class TestChoice:
    def test_what_is_faster_to_load_is_loaded(self) -> None:
        choice = choose(options({NEAR: 100}), 0, 1000, knowledge(rate(NEAR, 400)))
        assert (choice.tokens, choice.reason) == (1000, ALL)
        assert choice.load_s == pytest.approx(0.26, rel=0.02)
        assert choice.cold_s == pytest.approx(1.0)

    def test_what_is_slower_to_load_is_computed(self) -> None:
        choice = choose(options({NEAR: 100}), 0, 1000, knowledge(rate(NEAR, 25)))
        assert (choice.tokens, choice.reason) == (0, NONE)

    def test_of_several_tiers_the_fast_part_is_loaded(self) -> None:
        choice = choose(options({ARENA: 100}, {FAR: 100}), 0, 2000, knowledge(rate(FAR, 25)))
        assert (choice.tokens, choice.reason) == (1000, PART)
        assert choice.first_token_s == pytest.approx(1.01, rel=0.01)

    def test_a_slow_stretch_in_the_middle_may_be_worth_what_follows(self) -> None:
        split = options({ARENA: 100}, {FAR: 50}, {ARENA: 100})
        assert choose(split, 0, 3000, knowledge(rate(FAR, 40))).tokens == 3000
        assert choose(split, 0, 3000, knowledge(rate(FAR, 10))).tokens == 1000

    def test_a_tier_that_others_wait_for_is_slower(self) -> None:
        split = options({NEAR: 100})
        assert choose(split, 0, 1000, knowledge(rate(NEAR, 200))).reason == ALL
        assert choose(split, 0, 1000, knowledge(rate(NEAR, 200, waiting_bytes=200 * MIB))).reason == NONE

    def test_while_the_engine_works_on_others_a_load_costs_nobody_time(self) -> None:
        slow, split = rate(NEAR, 50), options({NEAR: 100})
        assert choose(split, 0, 1000, knowledge(slow)).reason == NONE
        choice = choose(split, 0, 1000, knowledge(slow, ahead_s=5.0))
        assert choice.reason == ALL
        assert choice.first_token_s == pytest.approx(5.0, rel=0.01)

    def test_loads_that_come_before_take_their_time_too(self) -> None:
        split = options({NEAR: 100})
        assert choose(split, 0, 1000, knowledge(rate(NEAR, 200), loads_ahead_s=2.0)).reason == NONE

    def test_an_uncertain_gain_is_left(self) -> None:
        split = options({NEAR: 100})
        assert choose(split, 0, 1000, knowledge(rate(NEAR, 130, sigma=0.05))).reason == ALL
        assert choose(split, 0, 1000, knowledge(rate(NEAR, 130, sigma=0.5))).reason == NONE

    def test_what_came_late_lately_counts_as_slower(self) -> None:
        split = options({NEAR: 100})
        assert choose(split, 0, 1000, knowledge(rate(NEAR, 300), lateness={NEAR: math.log(4)})).reason == NONE

    def test_where_it_makes_no_difference_the_engine_is_left_to_others(self) -> None:
        assert choose(options({NEAR: 1}), 0, 1000, knowledge(rate(NEAR, 100), tokens_per_s=1e6)).reason == ALL

    def test_a_whole_prompt_still_costs_a_token(self) -> None:
        choice = choose(options({ARENA: 1}), 0, 1000, knowledge(tokens_per_s=10.0))
        assert choice.first_token_s == pytest.approx(0.1, rel=0.1)

    @pytest.mark.parametrize(
        "known",
        [
            Knowledge(None, {}, None),
            knowledge(),
            knowledge(TierRate(NEAR, 0.0, 1.0, 0.5, 1)),
        ],
        ids=["no prefill yet", "no rate yet", "one sample only"],
    )
    def test_what_is_not_known_is_loaded(self, known: Knowledge) -> None:
        choice = choose(options({NEAR: 100}), 0, 1000, known)
        assert (choice.tokens, choice.reason) == (1000, UNKNOWN)

    @pytest.mark.parametrize("mib_per_s", [3.0, 20.0, 80.0, 100.0, 130.0, 1000.0])
    @pytest.mark.parametrize("sigma", [0.02, 0.2, 0.6])
    def test_nothing_is_loaded_that_is_expected_to_be_slower(self, mib_per_s: float, sigma: float) -> None:
        choice = choose(
            options({ARENA: 50, NEAR: 50}, {NEAR: 100}), 0, 2000, knowledge(rate(NEAR, mib_per_s, sigma=sigma))
        )
        assert choice.first_token_s <= 1.03 * choice.cold_s + 0.03


def test_uncertainties_of_several_places_add_up_as_independent_ones() -> None:
    cut = options({NEAR: 100, FAR: 100})[0]
    load = load_seconds(cut, Knowledge(None, {NEAR: rate(NEAR, 100, sigma=0.2), FAR: rate(FAR, 100, sigma=0.2)}, None))
    assert load is not None
    assert list(load) == pytest.approx([2.0, 0.2 / math.sqrt(2)])


def test_a_load_of_nothing_takes_no_time() -> None:
    assert load_seconds(Cut(0, {}), Knowledge(None, {}, None)) == (0.0, 0.0)


def test_the_places_that_are_left_out_are_named() -> None:
    split = options({ARENA: 100}, {FAR: 100})
    known = knowledge(rate(FAR, 25))
    assert refused_places(split, choose(split, 0, 2000, known)) == {FAR}
    assert refused_places(split, choose(split, 0, 2000, knowledge(rate(FAR, 2500)))) == set()


class TestSounding:
    def test_a_tier_is_timed_again_when_its_rate_is_old(self) -> None:
        assert sounding_blocks(rate(NEAR, 100, age_s=SOUND_AFTER_S), MIB, math.inf) == SOUND_BLOCKS_MAX
        assert sounding_blocks(rate(NEAR, 100, age_s=SOUND_AFTER_S - 1), MIB, math.inf) == 0

    def test_not_while_an_earlier_look_may_be_under_way(self) -> None:
        assert sounding_blocks(rate(NEAR, 100, age_s=100.0), MIB, 1.0) == 0

    def test_not_while_others_wait_for_it(self) -> None:
        assert sounding_blocks(rate(NEAR, 100, age_s=100.0, waiting_bytes=1), MIB, math.inf) == 0

    def test_of_a_slow_tier_one_block_is_enough(self) -> None:
        assert sounding_blocks(rate(NEAR, 0.1, age_s=100.0), MIB, math.inf) == 1
