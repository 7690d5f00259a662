"""Threads that may hang: bounded, urgent calls first, and never waited for."""

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, wait
from functools import partial

import pytest

from kveik.clock import FakeClock
from kveik.store.tier_threads import TierThreads


class Held:
    """A call that runs until it is let go."""

    def __init__(self) -> None:
        self.running = threading.Event()
        self.go = threading.Event()

    def __call__(self) -> str:
        self.running.set()
        self.go.wait(10.0)
        return "done"


class Threads(TierThreads):
    """Two threads with a clock that tests move."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        super().__init__("test", 2, self.clock)


@pytest.fixture
def threads() -> Iterator[Threads]:
    pool = Threads()
    yield pool
    pool.close()


def hold(threads: TierThreads, count: int) -> list[tuple[Held, Future[str]]]:
    calls = [Held() for _ in range(count)]
    futures = [threads.submit(call) for call in calls]
    for call in calls[: threads.limit]:
        assert call.running.wait(10.0)
    return list(zip(calls, futures, strict=True))


def test_a_call_gives_its_result_through_the_future(threads: Threads) -> None:
    assert threads.submit(lambda: 42).result(10.0) == 42


def test_an_error_of_a_call_comes_out_of_its_future_and_the_thread_lives_on(threads: Threads) -> None:
    def broken() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        threads.submit(broken).result(10.0)
    assert threads.submit(lambda: "next").result(10.0) == "next"


def test_no_more_calls_run_at_once_than_there_are_threads(threads: Threads) -> None:
    held = hold(threads, 3)

    assert repr(threads) == "TierThreads('test', 2 of 2 running, 1 waiting)"
    assert not held[2][0].running.is_set()
    for call, _ in held:
        call.go.set()
    assert [future.result(10.0) for _, future in held] == ["done"] * 3


def test_an_urgent_call_goes_before_those_that_wait(threads: Threads) -> None:
    held = hold(threads, 2)
    order: list[str] = []
    waiting = threads.submit(lambda: order.append("normal"))
    urgent = threads.submit(lambda: order.append("urgent"), urgent=True)

    held[0][0].go.set()
    wait([waiting, urgent], 10.0)

    assert order == ["urgent", "normal"]
    held[1][0].go.set()


def test_a_waiting_call_can_be_cancelled_and_a_running_one_cannot(threads: Threads) -> None:
    held = hold(threads, 3)
    futures = [future for _, future in held]

    threads.cancel(futures)

    assert [future.cancelled() for future in futures] == [False, False, True]
    for call, _ in held:
        call.go.set()
    wait(futures, 10.0)
    assert not held[2][0].running.is_set()


def test_all_waiting_calls_can_be_cancelled_at_once(threads: Threads) -> None:
    held = hold(threads, 5)

    assert threads.cancel_waiting() == 3

    assert [future.cancelled() for _, future in held] == [False, False, True, True, True]
    for call, _ in held:
        call.go.set()


def test_calls_that_run_for_long_are_counted(threads: Threads) -> None:
    held = hold(threads, 2)
    threads.clock.advance(5.0)

    assert (threads.overdue(4.9), threads.overdue(5.1)) == (2, 0)

    for call, future in held:
        call.go.set()
        future.result(10.0)
    assert threads.overdue(4.9) == 0


def test_closing_does_not_wait_for_a_running_call(threads: Threads) -> None:
    held = hold(threads, 3)

    threads.close()

    assert held[2][1].cancelled()
    assert threads.submit(lambda: 1).cancelled()
    assert not held[0][1].done()
    held[0][0].go.set()
    assert held[0][1].result(10.0) == "done"
    held[1][0].go.set()


def test_an_idle_thread_holds_on_to_nothing_of_its_last_call(threads: Threads) -> None:
    class Buffer:
        pass

    buffer = Buffer()
    seen = weakref.ref(buffer)
    threads.submit(partial(id, buffer)).result(10.0)
    threads.submit(lambda: None).result(10.0)  # the thread came back to its loop
    del buffer
    gc.collect()

    assert seen() is None


def test_a_stuck_thread_does_not_keep_the_process_from_ending() -> None:
    program = """
import threading
from kveik.store.tier_threads import TierThreads
stuck = threading.Event()
TierThreads("test", 1).submit(lambda: (stuck.set(), threading.Event().wait()))
stuck.wait()
"""
    ended = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)

    assert ended.returncode == 0


def test_nobody_waits_for_a_call_that_came_after_the_end(threads: Threads) -> None:
    threads.close()
    late = threads.submit(lambda: 42)
    assert wait([late], timeout=20.0).done == {late}
    assert late.cancelled()
