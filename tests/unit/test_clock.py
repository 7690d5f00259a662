"""Deadlines, on a clock that tests move."""

import time

from kveik.clock import SYSTEM_CLOCK, Deadline, FakeClock


def test_a_deadline_passes_when_its_time_has_come() -> None:
    clock = FakeClock()
    deadline = Deadline.after(2.0, clock)

    assert (deadline.remaining_s, deadline.passed) == (2.0, False)
    clock.advance(1.5)
    assert (deadline.remaining_s, deadline.passed) == (0.5, False)
    clock.advance(0.5)
    assert (deadline.remaining_s, deadline.passed) == (0.0, True)


def test_what_remains_is_never_negative() -> None:
    clock = FakeClock()
    deadline = Deadline.after(1.0, clock)
    clock.advance(10.0)

    assert deadline.remaining_s == 0.0


def test_a_fake_clock_stands_still() -> None:
    clock = FakeClock(5.0)

    assert (clock.monotonic(), clock.wall()) == (5.0, 5.0)
    clock.advance(1.0)
    assert (clock.monotonic(), clock.wall()) == (6.0, 6.0)


def test_the_system_clock_is_the_machines() -> None:
    assert abs(SYSTEM_CLOCK.wall() - time.time()) < 60
    assert SYSTEM_CLOCK.monotonic() <= time.monotonic()
    assert not Deadline.after(60.0).passed
