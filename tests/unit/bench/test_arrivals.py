"""When requests are due."""

from itertools import pairwise
from statistics import fmean, pstdev

import pytest

from kveik.bench.arrivals import arrival_times_s, at_rate, spread_s
from kveik.bench.planned import Planned, Workload


def test_moments_grow_and_end_exactly_when_the_rate_says() -> None:
    moments = arrival_times_s(50, 4.0, seed=1)
    assert moments == sorted(moments)
    assert moments[0] > 0
    assert moments[-1] == pytest.approx(50 / 4.0)
    assert moments == arrival_times_s(50, 4.0, seed=1)
    assert moments != arrival_times_s(50, 4.0, seed=2)


def test_gaps_vary_as_those_of_independent_arrivals_do() -> None:
    moments = arrival_times_s(5000, 10.0, seed=3)
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    assert fmean(gaps) == pytest.approx(0.1, rel=0.05)
    assert pstdev(gaps) == pytest.approx(0.1, rel=0.1)  # of a Poisson process it is the mean


def test_of_chats_only_first_turns_arrive() -> None:
    requests = [Planned((1,), 1), Planned((2,), 1), Planned((1, 2), 1, after=0), Planned((2, 2), 1, after=1)]
    timed = at_rate(Workload("chats", requests), 2.0, seed=1)
    assert timed.timed
    assert [request.after for request in timed.requests] == [-1, -1, 0, 1]
    assert timed.requests[1].due_s == pytest.approx(1.0)
    assert timed.requests[2].due_s == timed.requests[3].due_s == 0.0


def test_requests_of_one_timestamp_are_spread_until_the_next() -> None:
    assert spread_s([0, 0, 3000, 6000, 6000, 6000], 1.0) == [0.0, 1.5, 3.0, 6.0, 7.0, 8.0]
    assert spread_s([5000, 5000, 8000], 3.0) == [0.0, 0.5, 1.0]


def test_a_single_timestamp_is_one_moment() -> None:
    assert spread_s([27, 27], 1.0) == [0.0, 0.0]
