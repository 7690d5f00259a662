"""From measurements to rows: medians, speed-ups, equality."""

from hypothesis import given
from hypothesis import strategies as st

from kveik.bench.workload import DEMO_LENGTHS, Measurement, Route, cold_repeats, rows
from kveik.engine.client import Completion


def answer(token: int = 1, logprob: float = -0.5) -> Completion:
    return Completion((token,), "", (logprob,), ({token: logprob},), 0.1, 0.2, 10, 0, "length")


def measured(tokens: int, route: Route, ttfts_s: list[float], *answers: Completion) -> Measurement:
    return Measurement(tokens, route, ttfts_s, answers or (answer(),), 0)


def test_rows_are_ordered_by_length_and_compare_medians() -> None:
    found = rows(
        [
            measured(2048, Route.COLD, [4.0]),
            measured(512, Route.COLD, [1.0, 9.0, 2.0]),
            measured(2048, Route.OTHER, [0.2, 0.1, 0.4]),
            measured(512, Route.OTHER, [0.1]),
        ]
    )
    assert [row.tokens for row in found] == [512, 2048]
    assert found[0].ttft_s(Route.COLD) == 2.0
    assert found[1].speedup(Route.OTHER) == 20.0
    assert all(row.equal for row in found)


def test_one_other_token_in_one_repeat_makes_the_row_unequal() -> None:
    [row] = rows(
        [measured(512, Route.COLD, [1.0]), measured(512, Route.RESTART, [0.1] * 3, answer(), answer(token=2), answer())]
    )
    assert not row.equal
    assert row.differences[Route.RESTART].diverged_at == 0


def test_a_far_log_probability_makes_the_row_unequal_too() -> None:
    [row] = rows([measured(512, Route.COLD, [1.0]), measured(512, Route.LOCAL, [0.1], answer(logprob=-0.6))])
    assert not row.equal
    assert row.differences[Route.LOCAL].same_ids


@given(st.integers(1, 100_000))
def test_cold_runs_are_repeated_where_they_are_cheap(tokens: int) -> None:
    assert 1 <= cold_repeats(tokens) <= 3
    assert cold_repeats(tokens) >= cold_repeats(tokens + 1)


def test_the_longest_prompt_runs_cold_once() -> None:
    assert cold_repeats(max(DEMO_LENGTHS)) == 1


def test_only_routes_over_the_shared_cache_are_shared() -> None:
    assert [route for route in Route if route.shared] == [Route.OTHER, Route.RESTART]
