import logging
import threading
import time
from collections.abc import Callable

import pytest

from kveik.clock import Deadline
from kveik.router.background import BackgroundWriter


class Lines:
    """A sink over a list, whose writing can be held up or made to fail."""

    name = "lines"

    def __init__(self) -> None:
        self.collected: list[str] = []
        self.written: list[str] = []
        self.lost: list[str] = []
        self.error: Exception | None = None
        self.may_write = threading.Event()
        self.may_write.set()
        self.threads: set[str] = set()

    def take(self) -> list[str] | None:
        taken, self.collected = self.collected, []
        return taken or None

    def write(self, batch: list[str]) -> None:
        self.threads.add(threading.current_thread().name)
        self.may_write.wait(60)
        if self.error is not None:
            raise self.error
        self.written += batch

    def not_written(self, batch: list[str]) -> None:
        self.lost += batch


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = Deadline.after(60)
    while not holds():
        assert not deadline.passed
        time.sleep(0.001)


def settle(writer: BackgroundWriter) -> None:
    """Tick until nothing is being written any more."""

    def settled() -> bool:
        writer.tick()
        return "busy=[]" in repr(writer)

    wait_until(settled)


def test_what_was_collected_is_written_on_another_thread() -> None:
    lines = Lines()
    writer = BackgroundWriter([lines])
    lines.collected = ["a", "b"]
    writer.tick()
    wait_until(lambda: lines.written == ["a", "b"])
    writer.close()
    assert lines.threads == {"kveik-telemetry"}


def test_a_slow_sink_is_left_alone_until_it_is_done_and_holds_no_tick_up() -> None:
    lines = Lines()
    writer = BackgroundWriter([lines])
    lines.may_write.clear()
    lines.collected = ["a"]
    writer.tick()
    lines.collected = ["b"]
    writer.tick()
    assert lines.collected == ["b"]
    lines.may_write.set()
    writer.close()
    assert lines.written == ["a", "b"]


def test_a_failure_gives_the_batch_back_and_is_told_once_until_it_works_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lines = Lines()
    writer = BackgroundWriter([lines])
    with caplog.at_level(logging.WARNING):
        for line, error in zip(
            "abcd", (OSError("disk full"), OSError("disk full"), None, OSError("gone")), strict=True
        ):
            lines.error = error
            lines.collected = [line]
            settle(writer)
        writer.close()
    assert lines.lost == ["a", "b", "d"]
    assert lines.written == ["c"]
    assert caplog.messages == ["cannot write the lines: disk full", "cannot write the lines: gone"]


def test_a_defect_is_not_hidden() -> None:
    lines = Lines()
    writer = BackgroundWriter([lines])
    lines.error = ValueError("a defect")
    lines.collected = ["a"]
    writer.tick()
    with pytest.raises(ValueError, match="a defect"):
        writer.close()


def test_closing_does_not_wait_for_a_disk_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
    lines = Lines()
    writer = BackgroundWriter([lines])
    lines.may_write.clear()
    lines.collected = ["a"]
    writer.tick()
    writer.close(timeout_s=0.05)
    assert "not written within 0.05 s" in caplog.text
    lines.may_write.set()
