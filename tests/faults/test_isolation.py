"""A stopped engine is isolated under load: what it had not begun to answer is answered by the other one."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from kveik.engine.client import Completion, CompletionRequest, EngineClient
from kveik.fleet.client import FleetClient
from tests.agents import wait_until
from tests.routers import RouterProcess, SimProcess

CLIENTS = 20


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[tuple[list[SimProcess], RouterProcess]]:
    """Two engines, and a router that would wait for their first bytes for as long as it takes."""
    with ExitStack() as stack:
        engines = [stack.enter_context(SimProcess(tmp_path)) for _ in range(2)]
        router = stack.enter_context(
            RouterProcess(tmp_path, first_byte_s=3000, policy="round-robin", attempts_max=2, slow_start_s=0)
        )
        router.join(*engines)
        yield engines, router


def test_requests_that_a_stopped_engine_has_not_answered_finish_on_the_other_one(
    fleet: tuple[list[SimProcess], RouterProcess],
) -> None:
    (stopped, good), router = fleet
    name = stopped.url.removeprefix("http://")
    client = EngineClient(router.url, read_timeout_s=60.0)

    def ask(number: int) -> Completion:
        return client.complete(CompletionRequest((number, 2, 3), 8), "simulated")

    def waiting() -> int:
        return next(int(engine["in_flight"]) for engine in router.get("/fleet")["engines"] if engine["id"] == name)

    with ThreadPoolExecutor(CLIENTS) as clients:
        stopped.signal(signal.SIGSTOP)
        calls = [clients.submit(ask, number) for number in range(1, CLIENTS + 1)]
        # About half of them: who has many more under way than the other is passed over.
        wait_until(lambda: sum(call.done() for call in calls) + waiting() == CLIENTS, "the rest wait", 30)
        assert waiting() >= CLIENTS / 4
        FleetClient(router.url).hold(name, "isolate", "hung")
        answers = [call.result(60) for call in calls]
    assert [len(answer.token_ids) for answer in answers] == [8] * CLIENTS
    assert waiting() == 0
    states = {engine["url"]: (engine["fleet_state"], engine["breaker"]) for engine in router.get("/fleet")["engines"]}
    assert states == {stopped.url: ("isolated", "closed"), good.url: ("ready", "closed")}


def test_an_engine_that_goes_on_after_its_isolation_is_trusted_when_it_is_readmitted(
    fleet: tuple[list[SimProcess], RouterProcess],
) -> None:
    (stopped, _), router = fleet
    name = stopped.url.removeprefix("http://")
    fleet_client = FleetClient(router.url)
    stopped.signal(signal.SIGSTOP)
    fleet_client.hold(name, "isolate", "hung")
    stopped.signal(signal.SIGCONT)
    assert sorted(router.states()) == ["isolated", "ready"], "nobody but who isolated it ends that"
    fleet_client.hold(name, "readmit", "")
    wait_until(lambda: router.states() == ["ready", "ready"], "it is ready again", 30)
