"""The simulated engine keeps the promises of the interface that it stands in for."""

from collections.abc import Iterator

import pytest

from kveik.engine.client import CompletionRequest, EngineClient
from kveik.engine.metrics import Metric, grown, grown_by, parse_metrics, token_evidence
from kveik.simulate.engine import SimulatedEngine

PROMPT = tuple(range(100, 150))


@pytest.fixture
def engines() -> Iterator[tuple[SimulatedEngine, SimulatedEngine]]:
    shared: set[bytes] = set()
    with SimulatedEngine(shared) as first, SimulatedEngine(shared) as second:
        yield first, second


def test_answers_depend_on_the_prompt_only(engines: tuple[SimulatedEngine, SimulatedEngine]) -> None:
    request = CompletionRequest(PROMPT, 4, top_logprobs=20)
    answers = [EngineClient(engine.url).complete(request, "simulated") for engine in (*engines, *engines)]
    assert len({answer.token_ids for answer in answers}) == 1
    assert len({answer.logprobs for answer in answers}) == 1


def test_another_prompt_gives_another_answer(engines: tuple[SimulatedEngine, SimulatedEngine]) -> None:
    client = EngineClient(engines[0].url)
    answers = {client.complete(CompletionRequest((*PROMPT, last), 4), "simulated").token_ids for last in range(5)}
    assert len(answers) == 5


def test_sources_of_prompt_tokens_always_add_up(engines: tuple[SimulatedEngine, SimulatedEngine]) -> None:
    for engine in (*engines, *engines):
        client = EngineClient(engine.url)
        before = client.metrics()
        client.complete(CompletionRequest(PROMPT, 1), "simulated")
        found = token_evidence(before, client.metrics())
        assert found.prompt == len(PROMPT) == found.computed + found.local + found.external
        assert found.used == found.external


def test_hits_come_from_the_own_cache_first_and_then_from_the_shared_one(
    engines: tuple[SimulatedEngine, SimulatedEngine],
) -> None:
    first, second = engines
    assert (first.admit(PROMPT, "").local, first.admit(PROMPT, "").local) == (0, 48)
    hit = second.admit(PROMPT, "")
    assert (hit.local, hit.shared) == (0, 48)
    longer = second.admit((*PROMPT, *range(32)), "")
    assert (longer.local, longer.shared) == (48, 0)


def test_a_restart_forgets_the_own_cache_and_counters_but_not_the_shared_cache(
    engines: tuple[SimulatedEngine, SimulatedEngine],
) -> None:
    first, _ = engines
    first.admit(PROMPT, "")
    first.restart()
    assert parse_metrics(first.metrics_text()).total(Metric.PROMPT_TOKENS) == 0
    hit = first.admit(PROMPT, "")
    assert (hit.local, hit.shared) == (0, 48)


def test_an_unknown_route_is_404(engines: tuple[SimulatedEngine, SimulatedEngine]) -> None:
    client = EngineClient(engines[0].url)
    for method in ("GET", "POST"):
        with pytest.raises(Exception, match="404"):
            client._call(method, "/nonsense")


def test_a_connector_counts_each_step_from_asked_to_used(engines: tuple[SimulatedEngine, SimulatedEngine]) -> None:
    first, second = engines
    before = parse_metrics(second.metrics_text())
    first.admit(PROMPT, "")
    second.behaviour.refuses_loads = True
    assert second.admit(PROMPT, "").shared == 0
    second.forget_local_blocks()
    second.behaviour.refuses_loads = False
    assert second.admit(PROMPT, "").shared == 48
    after = parse_metrics(second.metrics_text())
    steps = (
        Metric.KVEIK_TOKENS_ASKED,
        Metric.KVEIK_TOKENS_FOUND,
        Metric.KVEIK_TOKENS_ALLOWED,
        Metric.KVEIK_TOKENS_USED,
    )
    assert [grown(before, after, step) for step in steps] == [96, 96, 48, 48]
    assert grown_by(before, after, Metric.KVEIK_LOOKUPS, "outcome") == {"hit": 2}


def test_a_connector_without_an_agent_asks_nobody(engines: tuple[SimulatedEngine, SimulatedEngine]) -> None:
    first, second = engines
    first.admit(PROMPT, "")
    second.behaviour.detached = True
    assert second.admit(PROMPT, "").shared == 0
    seen = parse_metrics(second.metrics_text())
    assert seen.total(Metric.KVEIK_ATTACHED) == 0
    assert seen.by_label(Metric.KVEIK_LOOKUPS, "outcome") == {"detached": 1}
