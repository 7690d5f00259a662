"""Readings of device memory that nobody waits for."""

import threading

from kveik.clock import FakeClock
from kveik.engine.device_tools import DeviceUse
from kveik.watchdog.device_memory import DeviceMemory
from kveik.watchdog.leaks import VITALS_PERIOD_S
from tests.agents import wait_until


def use(used: int) -> DeviceUse:
    return DeviceUse({"gpu": 100}, {"gpu": {7: used}})


def test_a_reading_is_taken_beside_and_renewed_once_a_minute() -> None:
    clock, readings = FakeClock(), [use(10), use(20)]
    memory = DeviceMemory(lambda: readings.pop(0), clock)
    assert memory() == DeviceUse()
    wait_until(lambda: memory().of({7}) == 10, "the first reading", 60.0)
    assert len(readings) == 1, "it is not asked for with every look"
    clock.advance(VITALS_PERIOD_S)
    wait_until(lambda: memory().of({7}) == 20, "the second reading", 60.0)


def test_a_tool_that_hangs_holds_nobody_and_the_last_reading_counts() -> None:
    clock, hangs, begun = FakeClock(), threading.Event(), threading.Event()
    readings = [use(10)]

    def read() -> DeviceUse:
        if readings:
            return readings.pop()
        begun.set()
        assert hangs.wait(60)
        return use(30)

    memory = DeviceMemory(read, clock)
    wait_until(lambda: memory().of({7}) == 10, "the first reading", 60.0)
    clock.advance(VITALS_PERIOD_S)
    memory()
    assert begun.wait(60)
    clock.advance(10 * VITALS_PERIOD_S)
    assert memory().of({7}) == 10
    hangs.set()
    wait_until(lambda: memory().of({7}) == 30, "it goes on", 60.0)
