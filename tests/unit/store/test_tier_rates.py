"""Tiers are timed by what they do while they are busy."""

import pytest

from kveik.clock import FakeClock
from kveik.store.tier_rates import STRETCH_S, Busy, TierRates

MIB = 1 << 20


class Timed:
    """One tier's rates on a clock that the test moves."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.rates = TierRates(2, self.clock)

    def read(self, size: int, seconds: float, *, moved: int | None = None, late: int = 0) -> None:
        self.rates.began(0, size)
        self.clock.advance(seconds)
        self.rates.ended(0, size, size if moved is None else moved, late)

    def seconds(self, size: int) -> float:
        rate = self.rates.rate(0)
        assert rate.get is not None
        return rate.get.seconds(1, size)


@pytest.fixture
def timed() -> Timed:
    return Timed()


def test_nothing_is_known_at_first(timed: Timed) -> None:
    rate = timed.rates.rate(0)
    assert (rate.get, rate.lookup, rate.waiting_bytes) == (None, None, 0)


def test_reads_tell_what_a_byte_costs(timed: Timed) -> None:
    for _ in range(3):
        timed.read(8 * MIB, 0.5)
    assert timed.seconds(16 * MIB) == pytest.approx(1.0, rel=0.05)
    assert timed.rates.rate(1).get is None


def test_batches_at_once_are_timed_together(timed: Timed) -> None:
    """Three that share a disk for a second each are three in one second, not one a second."""
    for _ in range(3):
        timed.rates.began(0, 10 * MIB)
    assert timed.rates.rate(0).waiting_bytes == 30 * MIB
    timed.clock.advance(1.0)
    for _ in range(3):
        timed.rates.ended(0, 10 * MIB, 10 * MIB, 0)
    assert timed.seconds(30 * MIB) == pytest.approx(1.0)


def test_a_tier_that_is_never_idle_is_timed_in_stretches(timed: Timed) -> None:
    timed.rates.began(0, 1 * MIB)
    for _ in range(40):
        timed.rates.began(0, 1 * MIB)
        timed.clock.advance(STRETCH_S / 10)
        timed.rates.ended(0, 1 * MIB, 1 * MIB, 0)
    assert timed.rates.rate(0).waiting_bytes == 1 * MIB
    assert timed.seconds(10 * MIB) == pytest.approx(STRETCH_S, rel=0.15)


def test_what_came_late_counts_as_at_least_so_slow(timed: Timed) -> None:
    timed.read(8 * MIB, 0.1)
    timed.read(8 * MIB, 2.0, moved=2 * MIB, late=6 * MIB)
    timed.read(8 * MIB, 2.0, moved=2 * MIB, late=6 * MIB)
    timed.read(8 * MIB, 2.0, moved=2 * MIB, late=6 * MIB)
    assert timed.seconds(8 * MIB) > 1.0


def test_a_deadline_that_came_early_does_not_make_a_slow_tier_fast(timed: Timed) -> None:
    timed.read(8 * MIB, 4.0)
    timed.read(8 * MIB, 0.1, moved=0, late=8 * MIB)
    assert timed.seconds(8 * MIB) == pytest.approx(4.0)


def test_misses_say_nothing(timed: Timed) -> None:
    timed.read(8 * MIB, 0.001, moved=0)
    assert timed.rates.rate(0).get is None


def test_the_age_of_a_rate_is_told(timed: Timed) -> None:
    timed.read(MIB, 0.1)
    timed.clock.advance(12.0)
    assert timed.rates.rate(0).age_s == pytest.approx(12.0)


def test_lookups_are_timed_by_their_keys(timed: Timed) -> None:
    for keys in (10, 100, 1000):
        timed.rates.looked_up(0, keys, 0.001 + keys * 1e-5)
    lookup = timed.rates.rate(0, with_lookup=True).lookup
    assert lookup is not None
    assert lookup.seconds(1, 500) == pytest.approx(0.006, rel=0.1)
    assert timed.rates.rate(0).lookup is None


def test_a_rate_has_plain_values_for_people(timed: Timed) -> None:
    timed.read(MIB, 0.1)
    plain = timed.rates.rate(0).plain
    assert plain["lookup"] is None
    assert plain["get"] == pytest.approx({"fixed_s": 0.0, "each_s": 0.1 / MIB, "sigma": 0.3536, "samples": 1}, rel=0.01)


def test_a_stretch_begins_where_the_last_one_ended() -> None:
    busy = Busy().begun(10, 0.0).begun(10, 1.0)
    rest, stretch = busy.ended(10, 10, 0, STRETCH_S)
    assert stretch == Busy(10, 0.0, 10, 0)
    assert rest == Busy(10, STRETCH_S)
