"""One thread that ticks all parts, whatever one of them does."""

import threading

import pytest

from kveik.store.ticking import Ticking
from tests.agents import wait_until


class Part:
    def __init__(self, *, breaks: bool = False) -> None:
        self.breaks = breaks
        self.ticks = 0
        self.closed = False

    def tick(self) -> None:
        self.ticks += 1
        if self.breaks:
            raise RuntimeError("a mistake")

    def close(self) -> None:
        self.closed = True


def test_a_part_that_breaks_holds_up_no_other_and_is_ticked_again(caplog: pytest.LogCaptureFixture) -> None:
    broken, sound = Part(breaks=True), Part()
    ticking = Ticking("ticks", [broken, sound])
    ticking.start()
    wait_until(lambda: broken.ticks >= 2 and sound.ticks >= 2, "both tick on", 60.0)
    ticking.close()
    ticks = sound.ticks
    assert broken.closed
    assert sound.closed
    assert "unexpected error" in caplog.text
    assert "ticks" not in [thread.name for thread in threading.enumerate()]
    assert sound.ticks == ticks


def test_without_parts_there_is_no_thread() -> None:
    ticking = Ticking("idle", [])
    ticking.start()
    assert "idle" not in [thread.name for thread in threading.enumerate()]
    ticking.close()


def test_what_was_never_started_is_closed_all_the_same() -> None:
    part = Part()
    Ticking("early", [part]).close()
    assert part.closed
