import os
import subprocess
import sys

from kveik.store.writer import Writer


def test_this_process_may_still_write() -> None:
    assert Writer.of(os.getpid()).may_still_write()


def test_a_process_that_ended_cannot_write() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    writer = Writer.of(process.pid, 7)
    assert writer.may_still_write()
    process.kill()
    process.wait()
    assert not writer.may_still_write()


def test_a_zombie_has_no_memory_to_write_from() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    writer = Writer.of(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, but not reaped
    assert not writer.may_still_write()
    process.wait()


def test_a_later_process_with_the_same_pid_is_another_writer() -> None:
    now = Writer.of(os.getpid())
    assert not Writer(now.pid, now.started - 1).may_still_write()


def test_a_pid_that_cannot_be_seen_belongs_to_nobody_known() -> None:
    assert Writer.of(0) == Writer(0, 0)
    assert not Writer.of(0).may_still_write()
