"""One call at a time, on a thread of its own, and nobody waits for it."""

import threading

import pytest

from kveik.watchdog.errand import Errand, Result
from tests.agents import wait_until


def result_of(errand: Errand[Result]) -> Result:
    """Wait for the call to end, and take its result."""
    results: list[Result] = []

    def taken() -> bool:
        if (result := errand.take()) is not None:
            results.append(result)
        return bool(results)

    wait_until(taken, "the call ends")
    return results[0]


def test_a_call_is_away_until_its_result_is_taken() -> None:
    errand: Errand[int] = Errand("sum")
    assert not errand.away
    assert errand.take() is None
    go = threading.Event()
    errand.begin(lambda: 41 + go.wait(10), now_s=100.0)
    assert errand.away
    assert errand.take() is None
    assert errand.age_s(107.5) == 7.5
    go.set()
    assert result_of(errand) == 42
    assert not errand.away
    assert errand.age_s(200.0) == 0.0


def test_no_second_call_is_sent_while_the_first_is_away() -> None:
    errand: Errand[bool] = Errand("wait")
    go = threading.Event()
    errand.begin(lambda: go.wait(10), now_s=0.0)
    with pytest.raises(AssertionError):
        errand.begin(lambda: True, now_s=1.0)
    go.set()


def test_what_the_call_raises_is_raised_where_it_is_taken() -> None:
    errand: Errand[float] = Errand("divide")
    errand.begin(lambda: 1 / 0, now_s=0.0)

    with pytest.raises(ZeroDivisionError):
        result_of(errand)
    assert not errand.away


def test_its_thread_bears_its_name_and_holds_nobody_up() -> None:
    errand: Errand[threading.Thread] = Errand("probe-engine-1")
    errand.begin(threading.current_thread, now_s=0.0)
    thread = result_of(errand)
    assert thread.name == "probe-engine-1"
    assert thread.daemon
