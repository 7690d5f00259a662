"""Slow decay is told with its figures, and what only goes up and down is not."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given as for_all
from hypothesis import settings as examples
from hypothesis import strategies as st

from kveik.watchdog.leaks import SPAN_MIN_S, VITALS_PERIOD_S, WARN_DAYS, Decay, Limits, Vitals, decays, rising

GIB = 1 << 30
DAY_S = 86_400.0
HOURS = 12
NO_LIMITS = Limits()


def points(value: Callable[[float], float], hours: float = HOURS) -> list[tuple[float, float]]:
    """The quantity at each minute, from its hour."""
    return [(minute * 60.0, value(minute / 60)) for minute in range(round(hours * 60))]


def noise(seed: int, size: float) -> Callable[[float], float]:
    source = random.Random(seed)
    return lambda hour: source.uniform(0, size)


# -- slopes ----------------------------------------------------------------------------------------


def test_a_leak_is_measured_with_its_uncertainty_through_the_noise_of_use() -> None:
    busy = noise(1, 2.0)
    slope = rising(points(lambda hour: 10 + hour / 24 + busy(hour)))
    assert slope is not None
    assert slope.low < 1.0 < slope.high
    assert slope.a_day == pytest.approx(1.0, rel=0.3)
    likely, soonest, latest = slope.days_to(20.0)
    assert soonest < likely < latest
    assert likely == pytest.approx(9.5, rel=0.35)


@examples(max_examples=40, deadline=None)
@for_all(st.integers(0, 10**6), st.floats(0.0, 5.0), st.integers(2, 48))
def test_noise_is_no_leak(seed: int, size: float, hours: int) -> None:
    wild = noise(seed, size)
    assert rising(points(lambda hour: 10 + wild(hour), hours)) is None


def test_a_random_walk_is_hardly_ever_a_leak() -> None:
    told = 0
    for seed in range(60):
        source, value, walk = random.Random(seed), 100.0, []
        for minute in range(HOURS * 60):
            value += source.gauss(0, 0.05)
            walk.append((minute * 60.0, value))
        told += rising(walk) is not None
    assert told <= 6


@examples(max_examples=30, deadline=None)
@for_all(st.integers(0, 10**6), st.floats(0.5, 20.0))
def test_a_leak_is_found_whatever_the_noise_if_it_is_larger(seed: int, a_day: float) -> None:
    busy = noise(seed, a_day / 24)  # what leaks in an hour
    slope = rising(points(lambda hour: 10 + a_day * hour / 24 + busy(hour)))
    assert slope is not None
    assert slope.a_day == pytest.approx(a_day, rel=0.2)


@pytest.mark.parametrize(
    "shape",
    [
        lambda hour: 10 + min(hour, 4) / 4,  # a cache that fills, and is full
        lambda hour: 10 + 3 * (1 - 2 ** (-hour / 1.5)),  # ever slower
        lambda hour: 10 + (hour % 3),  # work that comes and goes
        lambda hour: 12 - hour / 24,  # falls
        lambda hour: 10 + hour / 2400,  # less than a hundredth of itself
    ],
)
def test_what_ends_falls_or_hardly_moves_is_no_leak(shape: Callable[[float], float]) -> None:
    assert rising(points(shape)) is None


def test_an_hour_is_needed() -> None:
    assert rising([]) is None
    assert rising(points(lambda hour: 10 + hour, hours=SPAN_MIN_S / 3600 - 0.1)) is None
    assert rising(points(lambda hour: 10 + hour, hours=2)) is not None


# -- an engine's vitals ----------------------------------------------------------------------------


def lived(hours: float, **quantities: Callable[[float], float | None]) -> list[Vitals]:
    """Vitals at each minute; each quantity from its hour."""
    minutes = range(round(hours * 3600 / VITALS_PERIOD_S))
    return [
        Vitals(at_s=500.0 + n * VITALS_PERIOD_S, **{name: value(n / 60) for name, value in quantities.items()})  # type: ignore[arg-type]
        for n in minutes
    ]


def only(found: list[Decay]) -> Decay:
    (decay,) = found
    return decay


def test_host_memory_is_told_with_days_to_exhaustion() -> None:
    busy = noise(3, 0.2 * GIB)
    vitals = lived(8, host_bytes=lambda hour: 20 * GIB + 3 * GIB * hour / 24 + busy(hour))
    decay = only(decays(vitals, Limits(host_bytes=36 * GIB)))
    assert decay.kind == "host memory"
    assert decay.days == pytest.approx(5.0, rel=0.2)
    assert decay.told.startswith("host memory of 20.")
    assert "GiB a day (seen over 7.5 h): used up in" in decay.told


def test_a_far_end_or_an_unknown_limit_is_not_told() -> None:
    vitals = lived(8, host_bytes=lambda hour: 20 * GIB + 3 * GIB * hour / 24)
    assert decays(vitals, Limits(host_bytes=20 * GIB + 3 * GIB * (WARN_DAYS + 2))) == []
    assert decays(vitals, NO_LIMITS) == []


def test_the_first_half_hour_is_no_leak() -> None:
    vitals = lived(3, host_bytes=lambda hour: 10 * GIB * (0.5 + min(hour, 0.5)))
    assert decays(vitals, Limits(host_bytes=11 * GIB)) == []


def test_device_memory_and_kv_cache_are_told_too() -> None:
    vitals = lived(
        6,
        device_bytes=lambda hour: 60 * GIB + GIB * hour,
        kv_share=lambda hour: None if int(hour * 60) % 3 else 0.1 + 0.02 * hour,
    )
    device, cache = decays(vitals, Limits(device_bytes=80 * GIB))
    assert device.kind == "device memory"
    assert device.days == pytest.approx(14 / 24, rel=0.1)
    assert "without any request, 21." in cache.told
    assert "48.0% more a day" in cache.told
    assert cache.days == pytest.approx(0.79 / 0.48, rel=0.1)


def test_nothing_is_told_of_an_engine_without_vitals() -> None:
    assert decays([], NO_LIMITS) == []
    assert decays([Vitals(0.0)], NO_LIMITS) == []


def serving(ttft_s: Callable[[float], float], tokens: Callable[[float], float], hours: float = 6) -> list[Vitals]:
    """An engine with 10 requests a minute."""
    found, prompts, sums, count = [], 0.0, 0.0, 0
    for minute in range(round(hours * 60)):
        found.append(Vitals(60.0 * minute, prompt_tokens=prompts, ttft_sum_s=sums, ttft_count=count))
        count += 10
        sums += 10 * ttft_s(minute / 60)
        prompts += 10 * tokens(minute / 60)
    return found


def test_a_slower_engine_is_told_against_its_own_beginning() -> None:
    decay = only(decays(serving(lambda hour: 0.2 if hour < 4 else 0.5, lambda hour: 800), NO_LIMITS))
    assert decay.kind == "TTFT"
    assert "TTFT after the queue is 0.500 s, 2.5 times the 0.200 s at its beginning" in decay.told
    assert decay.days is None


def test_longer_prompts_and_a_rush_are_no_decay() -> None:
    assert decays(serving(lambda hour: 0.2 + 0.1 * hour, lambda hour: 800 + 500 * hour), NO_LIMITS) == []
    assert decays(serving(lambda hour: 2.0 if 5.6 < hour < 5.9 else 0.2, lambda hour: 800), NO_LIMITS) == []


def test_few_requests_show_nothing() -> None:
    assert decays(serving(lambda hour: 0.2 + hour, lambda hour: 800, hours=1), NO_LIMITS) == []


def drafting(rate: Callable[[float], float]) -> list[Vitals]:
    """An engine that drafts 500 tokens a minute."""
    found, accepted = [], 0.0
    for minute in range(6 * 60):
        found.append(Vitals(60.0 * minute, draft_tokens=500.0 * minute, accepted_tokens=accepted))
        accepted += 500 * rate(minute / 60)
    return found


def test_an_acceptance_rate_that_fell_is_told() -> None:
    decay = only(decays(drafting(lambda hour: 0.7 if hour < 3 else 0.3), NO_LIMITS))
    assert decay.kind == "acceptance"
    assert decay.told == "30.0% of drafted tokens are accepted, 70.0% were at its beginning"


def test_an_acceptance_rate_that_sways_is_not() -> None:
    sways = noise(5, 0.2)
    assert decays(drafting(lambda hour: 0.6 + sways(hour)), NO_LIMITS) == []
    assert decays(drafting(lambda hour: 0.6), NO_LIMITS) == []


def test_counters_that_began_anew_are_compared_with_themselves() -> None:
    vitals = drafting(lambda hour: 0.6)
    again = [
        Vitals(one.at_s + DAY_S, draft_tokens=one.draft_tokens, accepted_tokens=one.accepted_tokens) for one in vitals
    ]
    assert decays(vitals + again, NO_LIMITS) == []
