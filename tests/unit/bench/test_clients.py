"""Clients that notice everything: over simulated engines."""

from collections.abc import Iterator

import pytest

from kveik.bench.clients import Asked, SteadyClients, Tally
from kveik.engine.client import EngineClient
from kveik.simulate.engine import SimulatedEngine
from tests.agents import wait_until

PROMPTS = [(1, 2, 3), (4, 5, 6, 7)]


@pytest.fixture
def engine() -> Iterator[SimulatedEngine]:
    with SimulatedEngine() as engine:
        yield engine


def test_every_client_asks_again_and_again_and_nothing_fails(engine: SimulatedEngine) -> None:
    with SteadyClients(EngineClient(engine.url), "simulated", PROMPTS, count=3, answer_tokens=2) as clients:
        wait_until(lambda: len(clients.tally.asked) >= 12, "twelve answers")
    tally = clients.tally
    assert tally.failures == tally.wrong == []
    assert 0 < tally.slowest_s < 60
    assert all(one.ttft_s <= one.over_s - one.sent_s for one in tally.asked)


def test_what_fails_is_told_with_its_reason(engine: SimulatedEngine) -> None:
    client = EngineClient(engine.url, connect_timeout_s=0.5)
    with SteadyClients(client, "another-model", PROMPTS, count=1) as clients:
        wait_until(lambda: len(clients.tally.failures) >= 2, "two failures")
    assert "404" in clients.tally.failures[0]


def test_an_answer_that_is_not_the_right_one_is_noticed(engine: SimulatedEngine) -> None:
    right: dict[tuple[int, ...], tuple[int, ...]] = {PROMPTS[0]: (99, 98)}
    with SteadyClients(
        EngineClient(engine.url), "simulated", PROMPTS[:1], count=1, answer_tokens=2, expected=right
    ) as clients:
        wait_until(lambda: bool(clients.tally.asked), "an answer")
    assert "prompt of 3 tokens" in clients.tally.wrong[0]
    assert "expected [99, 98]" in clients.tally.wrong[0]


def test_a_stream_that_had_begun_is_a_failure_too_and_can_be_told_from_a_lost_request() -> None:
    tally = Tally((Asked(0.0, 1.0), Asked(0.0, 1.0, failure="refused"), Asked(0.0, 1.0, failure="ended", cut=True)))
    assert tally.failures == ["refused", "ended"]
    assert (tally.lost, tally.cuts) == (["refused"], ["ended"])


def test_a_tally_can_be_cut_out_by_time() -> None:
    tally = Tally((Asked(0.0, 1.0), Asked(1.0, 4.0, failure="refused"), Asked(4.0, 6.0)))
    assert tally.slowest_s == 3.0
    assert tally.between(2.0, 5.0).failures == ["refused"]
    assert tally.between(5.0, 9.0).failures == []
