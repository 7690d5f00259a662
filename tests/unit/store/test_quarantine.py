"""When a slot that might still be written may be used again."""

import os
import subprocess
import sys

import pytest

from kveik.store.quarantine import UNSEEN_WRITER_S, Quarantine
from kveik.store.writer import Writer

SINCE_S = 100.0


def test_a_slot_without_writer_and_call_is_free_at_once() -> None:
    assert Quarantine(SINCE_S).over(SINCE_S)


@pytest.mark.parametrize("later_s", [0.0, UNSEEN_WRITER_S, 1e9])
def test_a_store_call_keeps_its_slot_however_long_it_takes(later_s: float) -> None:
    assert not Quarantine(SINCE_S, running=lambda: True).over(SINCE_S + later_s)
    assert Quarantine(SINCE_S, running=lambda: False).over(SINCE_S + later_s)


def test_a_store_call_counts_also_when_the_writer_is_gone() -> None:
    gone = Writer(2**22 + 1, 1)  # no process has that number
    assert not Quarantine(SINCE_S, writer=gone, running=lambda: True).over(SINCE_S)


def test_a_writing_process_keeps_its_slot_until_it_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    quarantine = Quarantine(SINCE_S, writer=Writer.of(process.pid))
    assert not quarantine.over(SINCE_S + 10 * UNSEEN_WRITER_S), "time alone frees nothing of a process that is seen"
    process.kill()
    process.wait()
    assert quarantine.over(SINCE_S)


def test_another_process_of_that_number_holds_nothing() -> None:
    now = Writer.of(os.getpid())
    assert Quarantine(SINCE_S, writer=Writer(now.pid, now.started - 1)).over(SINCE_S)


def test_a_writer_that_nobody_can_see_is_given_time() -> None:
    quarantine = Quarantine(SINCE_S, writer=Writer(0, 0))
    assert not quarantine.over(SINCE_S + UNSEEN_WRITER_S)
    assert quarantine.over(SINCE_S + UNSEEN_WRITER_S + 1.0)
