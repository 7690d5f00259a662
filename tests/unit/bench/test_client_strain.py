"""What is seen of the client itself."""

import time

from kveik.bench.client_strain import StrainMeter
from tests.agents import wait_until


def test_a_client_that_works_is_busy_and_one_that_waits_is_not() -> None:
    with StrainMeter() as working:
        until_s = time.process_time() + 0.2
        while time.process_time() < until_s:
            pass
        busy = working.strain
    with StrainMeter() as idle:
        wait_until(lambda: len(idle._late_s) > 5, "some ticks")
        at_rest = idle.strain
    assert busy.busy > at_rest.busy
    assert busy.late_s >= 0.0
    assert abs(at_rest.clock_moved_s) < 1.0


def test_before_the_first_tick_nothing_was_late() -> None:
    with StrainMeter() as meter:
        assert meter.strain.late_s >= 0.0
