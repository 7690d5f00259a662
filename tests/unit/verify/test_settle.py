"""Waiting for counters: long enough, and never for ever."""

import threading
from collections.abc import Iterator

import pytest

from kveik.engine.client import CompletionRequest, EngineClient
from kveik.errors import VerifyError
from kveik.simulate.engine import SimulatedEngine
from kveik.verify.settle import wait_counted, wait_saved

REQUEST = CompletionRequest(tuple(range(100)), 1)


@pytest.fixture
def engine() -> Iterator[SimulatedEngine]:
    with SimulatedEngine() as running:
        yield running


def test_counters_that_come_late_are_waited_for(engine: SimulatedEngine) -> None:
    client = EngineClient(engine.url)
    before = client.metrics()
    late = threading.Timer(0.2, client.complete, (REQUEST, "simulated"))
    late.start()
    assert wait_counted(client, before, 100, timeout_s=10).evidence.prompt == 100
    late.join()


def test_counters_that_never_come_end_the_wait_with_what_there_is(engine: SimulatedEngine) -> None:
    client = EngineClient(engine.url)
    before = client.metrics()
    client.complete(REQUEST, "simulated")
    assert wait_counted(client, before, 500, timeout_s=0.1).evidence.prompt == 100


def test_saves_that_come_late_are_waited_for(engine: SimulatedEngine) -> None:
    client = EngineClient(engine.url)
    before = client.metrics()
    late = threading.Timer(0.2, client.complete, (REQUEST, "simulated"))
    late.start()
    wait_saved(client, before, blocks=6, timeout_s=10, quiet_s=0)
    late.join()
    assert len(engine.shared) == 6


def test_saves_that_never_come_are_an_error(engine: SimulatedEngine) -> None:
    client = EngineClient(engine.url)
    with pytest.raises(VerifyError, match=r"saved 0 blocks in 0\.1 s, expected at least 6"):
        wait_saved(client, client.metrics(), blocks=6, timeout_s=0.1)


def test_dropped_blocks_are_an_error_at_once(engine: SimulatedEngine) -> None:
    engine.behaviour.drops_saves = True
    client = EngineClient(engine.url)
    before = client.metrics()
    client.complete(REQUEST, "simulated")
    with pytest.raises(VerifyError, match=r"dropped 6 blocks .*no_room"):
        wait_saved(client, before, blocks=6, timeout_s=10)
