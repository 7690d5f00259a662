"""Engines behind a real router, chosen one at a time and killed: simulated engines."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kveik.bench.service import RoutedService
from kveik.engine.client import CompletionRequest, EngineClient
from kveik.errors import VerifyError
from kveik.verify.proof import Subject
from tests.routers import RouterThread, SimProcess

ANSWER = CompletionRequest((5, 6, 7), 2)


class Fleet:
    """Two simulated engines behind a router; a killed one is started again as soon as somebody looks."""

    def __init__(self, engines: dict[str, SimProcess], router_url: str, *, restarts: bool = True) -> None:
        self.engines = engines
        self.said: list[str] = []
        first, second = (Subject(name, EngineClient(one.url), "simulated") for name, one in engines.items())
        self.service = RoutedService(
            router_url, (first, second), self.processes if restarts else self.last_processes, self.said.append, 20.0
        )

    def processes(self, name: str) -> list[int]:
        engine = self.engines[name]
        if engine.process.poll() is not None:
            engine.start()
        return [engine.process.pid]

    def last_processes(self, name: str) -> list[int]:
        return [self.engines[name].process.pid]

    def requests_of(self, name: str) -> float:
        text = EngineClient(self.engines[name].url).metrics().samples
        return sum(text.get("vllm:request_success_total", {}).values())


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[dict[str, SimProcess]]:
    with SimProcess(tmp_path) as first, SimProcess(tmp_path) as second:
        yield {f"127.0.0.1:{engine.port}": engine for engine in (first, second)}


@pytest.fixture
def router_url(engines: dict[str, SimProcess], tmp_path: Path) -> Iterator[str]:
    with RouterThread(tmp_path, [engine.url for engine in engines.values()]) as router:
        yield router.url


def test_requests_are_answered_by_the_engine_that_was_chosen(engines: dict[str, SimProcess], router_url: str) -> None:
    fleet = Fleet(engines, router_url)
    for chosen, other in ((fleet.service.first, fleet.service.second), (fleet.service.second, fleet.service.first)):
        before = fleet.requests_of(other.name)
        front = fleet.service.through(chosen)
        for _ in range(3):
            front.complete(ANSWER, "simulated")
        assert fleet.requests_of(other.name) == before


def test_a_killed_engine_costs_no_request_and_comes_back(engines: dict[str, SimProcess], router_url: str) -> None:
    fleet = Fleet(engines, router_url)
    fleet.service.through(fleet.service.second)
    outage = fleet.service.lose(fleet.service.first)
    assert outage.engine == fleet.service.first.name
    assert outage.tally.lost == []
    assert len(outage.tally.asked) >= 8
    assert outage.back_s > 0
    assert "killed with -9" in fleet.said[0]
    assert outage.fine
    assert "0 failed" in fleet.said[1]


def test_an_engine_that_does_not_come_back_is_no_result(engines: dict[str, SimProcess], router_url: str) -> None:
    fleet = Fleet(engines, router_url, restarts=False)
    fleet.service._patience_s = 4.0
    with pytest.raises(VerifyError, match=r"waited 4 s for .* to get requests again; the engines are \{"):
        fleet.service.lose(fleet.service.first)


def test_a_router_that_is_gone_is_told(engines: dict[str, SimProcess]) -> None:
    with pytest.raises(VerifyError, match=r"the router at http://127\.0\.0\.1:1 does not answer"):
        Fleet(engines, "http://127.0.0.1:1").service.ready()
