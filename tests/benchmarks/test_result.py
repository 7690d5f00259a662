from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.result import BenchmarkError, Claim, Group, Machine, Result, Round, judge, side, sides, summarise

MACHINE = Machine(processor="test", cores=2, memory_gib=4.0, system="Linux", versions={"kveik": "0"})
values = st.floats(min_value=1e-6, max_value=1e6)


def group_of(*rounds: dict[str, list[float]], name: str = "g") -> Group:
    return Group(name=name, unit="s", rounds=[Round(samples=samples) for samples in rounds])


def result_of(group: Group, *claims: Claim) -> Result:
    return Result(
        benchmark="b",
        question="q",
        conditions={},
        machine=MACHINE,
        started="now",
        finished="now",
        load_average_before=0.0,
        groups=[group],
        claims=list(claims),
    )


def claim(direction: str = "at most", bound: float = 1.3, kind: str = "ratio") -> Claim:
    return Claim(group="g", first="a", second="b", direction=direction, bound=bound, kind=kind)  # type: ignore[arg-type]


def test_a_slow_round_hits_both_sides_and_leaves_the_ratio_alone() -> None:
    group = group_of({"a": [1.2], "b": [1.0]}, {"a": [12.0], "b": [10.0]}, {"a": [1.2], "b": [1.0]})
    verdict = judge(result_of(group), claim())
    assert verdict.holds
    assert verdict.measured.low == verdict.measured.high == pytest.approx(1.2)


def test_a_claim_is_judged_on_the_median_over_rounds_not_on_the_best_one() -> None:
    group = group_of({"a": [1.0], "b": [1.0]}, {"a": [1.5], "b": [1.0]}, {"a": [1.6], "b": [1.0]})
    verdict = judge(result_of(group), claim(bound=1.3))
    assert verdict.measured.median == pytest.approx(1.5)
    assert verdict.measured.low == pytest.approx(1.0)
    assert not verdict.holds


@pytest.mark.parametrize(
    ("direction", "bound", "holds"),
    [("at most", 2.0, True), ("at most", 1.9, False), ("at least", 2.0, True), ("at least", 2.1, False)],
)
def test_the_bound_itself_is_allowed_in_both_directions(direction: str, bound: float, holds: bool) -> None:
    assert judge(result_of(group_of({"a": [2.0], "b": [1.0]})), claim(direction, bound)).holds is holds


def test_a_difference_is_taken_within_each_round() -> None:
    group = group_of({"a": [11.0], "b": [10.0]}, {"a": [31.0], "b": [30.0]})
    verdict = judge(result_of(group), claim(bound=2.0, kind="difference"))
    assert verdict.measured.median == pytest.approx(1.0)
    assert verdict.holds


def test_several_samples_of_one_round_count_by_their_median() -> None:
    group = group_of({"a": [1.0, 2.0, 90.0], "b": [1.0]})
    assert judge(result_of(group), claim()).measured.median == pytest.approx(2.0)


def test_rounds_that_lack_one_side_are_no_comparison() -> None:
    group = group_of({"a": [5.0]}, {"a": [1.0], "b": [1.0]})
    assert judge(result_of(group), claim()).measured.count == 1
    with pytest.raises(BenchmarkError, match="a and b were never measured together in g"):
        judge(result_of(group_of({"a": [5.0]})), claim())


def test_sides_keep_the_order_in_which_they_were_measured_first() -> None:
    assert sides(group_of({"cold": [1.0]}, {"hit": [2.0], "cold": [1.0]})) == ["cold", "hit"]


@given(st.lists(values, min_size=1))
def test_a_summary_holds_all_values_between_its_extremes(samples: list[float]) -> None:
    summary = summarise(samples)
    assert summary.low <= summary.median <= summary.high
    assert summary.median == median(samples)
    assert summary.count == len(samples)


@given(st.lists(st.tuples(values, values), min_size=1))
def test_swapping_the_sides_of_a_single_round_inverts_the_ratio(pairs: list[tuple[float, float]]) -> None:
    first, second = pairs[0]
    there = judge(result_of(group_of({"a": [first], "b": [second]})), claim()).measured.median
    back = judge(result_of(group_of({"a": [second], "b": [first]})), claim()).measured.median
    assert there * back == pytest.approx(1.0)


def test_a_round_collects_samples_and_the_last_hit_of_each_side() -> None:
    one = Round()
    one.add("hit", 0.2, 384)
    one.add("hit", 0.3, 512)
    one.add("cold", 4.0)
    assert one.samples == {"hit": [0.2, 0.3], "cold": [4.0]}
    assert one.hit_tokens == {"hit": 512, "cold": 0}
    assert side(Group(name="g", unit="s", rounds=[one, one]), "hit").count == 4


def test_a_claim_about_a_value_alone_needs_no_other_side() -> None:
    group = group_of({"a": [29.0]}, {"a": [31.0]}, {"a": [28.0], "b": [1.0]})
    alone = Claim(group="g", first="a", direction="at most", bound=30.0, kind="value")
    verdict = judge(result_of(group, alone), alone)
    assert (verdict.measured.median, verdict.measured.high, verdict.holds) == (29.0, 31.0, True)


def test_a_value_that_was_never_measured_is_no_verdict() -> None:
    alone = Claim(group="g", first="c", direction="at most", bound=30.0, kind="value")
    with pytest.raises(BenchmarkError, match=r"^c were never"):
        judge(result_of(group_of({"a": [1.0]}), alone), alone)
