"""Requests sent at their moments or as places become free: over simulated engines."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, pairwise

import pytest

from kveik.bench.planned import Planned, Workload
from kveik.bench.sender import Outcome, Sender
from kveik.config import SimEngineSettings
from kveik.engine.client import Completion, CompletionRequest, EngineClient
from kveik.simulate.server import SimServer

PROMPTS = [tuple(range(100 * n, 100 * n + 32)) for n in range(1, 7)]


@pytest.fixture
def engine() -> Iterator[SimServer]:
    """An engine that computes one prompt in 0.08 s, and one at a time."""
    with SimServer(SimEngineSettings(port=0, prefill_tokens_s=400.0, capacity=8), record=True) as server:
        yield server


def send(engine: SimServer, workload: Workload, places: int = 0, salt: str = "s") -> list[Outcome]:
    client = EngineClient(engine.url)
    return Sender(client, "simulated", workload, lambda number: f"{salt}-{number}", places, lambda over: None).run()


def workload(requests: Sequence[Planned], *, timed: bool = False) -> Workload:
    return Workload("prefix", requests, timed=timed)


def test_every_request_is_answered_in_the_order_of_the_workload(engine: SimServer) -> None:
    requests = [Planned(prompt, n) for n, prompt in enumerate(PROMPTS, 1)]
    told: list[int] = []
    client = EngineClient(engine.url)
    outcomes = Sender(client, "simulated", workload(requests), str, 3, told.append).run()
    assert [len(one.token_ids) for one in outcomes] == [1, 2, 3, 4, 5, 6]
    assert [one.prompt_tokens for one in outcomes] == [32] * 6
    assert all(one.failure == "" for one in outcomes)
    assert told == sorted(set(told))
    assert told[-1] == 6
    assert all(one.intended_s == one.sent_s <= one.first_s <= one.over_s for one in outcomes)
    assert outcomes[0].token_s == 0.0


def test_no_more_requests_are_under_way_than_there_are_places(engine: SimServer) -> None:
    outcomes = send(engine, workload([Planned(prompt, 2) for prompt in PROMPTS]), places=1)
    spans = sorted((one.sent_s, one.over_s) for one in outcomes)
    assert all(later[0] >= earlier[1] for earlier, later in pairwise(spans))


def test_requests_have_their_own_salts(engine: SimServer) -> None:
    same = [Planned(PROMPTS[0], 2)] * 3
    assert [one.cached_tokens for one in send(engine, workload(same), places=1)] == [0, 0, 0]
    client = EngineClient(engine.url)
    outcomes = Sender(client, "simulated", workload(same), lambda number: "one", 1, lambda over: None).run()
    assert sorted(one.cached_tokens for one in outcomes) == [0, 16, 16]


def test_a_timed_request_is_sent_when_it_is_due(engine: SimServer) -> None:
    requests = [Planned(prompt, 1, due_s=0.3 * n) for n, prompt in enumerate(PROMPTS[:3])]
    outcomes = send(engine, workload(requests, timed=True))
    began_s = outcomes[0].intended_s
    assert [round(one.intended_s - began_s, 3) for one in outcomes] == [0.0, 0.3, 0.6]
    assert all(one.late_s >= 0 for one in outcomes)


def test_waiting_for_a_place_counts_from_the_moment_a_request_was_due(engine: SimServer) -> None:
    """Six requests are due at once, and one is computed at a time: the last waits for five others."""
    requests = [Planned(prompt, 1, due_s=0.0) for prompt in PROMPTS]
    outcomes = send(engine, workload(requests, timed=True), places=1)
    ttfts_s = sorted(one.ttft_s for one in outcomes)
    assert ttfts_s[-1] > 5 * 0.08
    slowest = max(outcomes, key=lambda one: one.ttft_s)
    assert slowest.ttft_s == pytest.approx(slowest.sent_ttft_s + slowest.late_s)
    assert slowest.sent_ttft_s < slowest.ttft_s / 2


def test_a_turn_waits_for_the_one_before_it_and_for_its_user(engine: SimServer) -> None:
    first, second = PROMPTS[0], (*PROMPTS[0], *PROMPTS[1])
    requests = [Planned(first, 2), Planned(PROMPTS[2], 1), Planned(second, 2, after=0, think_s=0.25)]
    for timed in (False, True):
        outcomes = send(engine, workload(requests, timed=timed), places=2, salt=f"{timed}")
        assert outcomes[2].sent_s >= outcomes[0].over_s + 0.25
        if timed:
            assert outcomes[2].intended_s == pytest.approx(outcomes[0].over_s + 0.25)


def test_a_request_that_fails_is_told_with_its_reason_and_the_others_go_on(engine: SimServer) -> None:
    engine.app.change_faults({"status": 500, "status_body": "no luck", "every": 2})
    outcomes = send(engine, workload([Planned(prompt, 2) for prompt in PROMPTS]), places=1)
    failed = [one for one in outcomes if one.failure]
    assert len(failed) == 3
    assert all("no luck" in one.failure and one.first_s == -1.0 for one in failed)


def test_a_service_that_is_not_there_fails_every_request() -> None:
    client = EngineClient("http://127.0.0.1:9", connect_timeout_s=0.5)
    outcomes = Sender(client, "m", workload([Planned((1, 2), 1)] * 3), str, 2, lambda over: None).run()
    assert [bool(one.failure) for one in outcomes] == [True] * 3


class _BrokenClient(EngineClient):
    """A client with a fault of its own, at each ``every``-th request."""

    def __init__(self, url: str, every: int) -> None:
        super().__init__(url)
        self._asked = count(1)
        self._every = every

    def complete(self, request: CompletionRequest, model: str) -> Completion:
        if next(self._asked) % self._every == 0:
            raise RuntimeError("a fault of the client")
        return super().complete(request, model)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(("every", "failed"), [(1, 6), (3, 2)], ids=["always", "sometimes"])
def test_a_client_that_breaks_ends_with_failed_requests_and_never_hangs(
    engine: SimServer, every: int, failed: int
) -> None:
    requests = [Planned(prompt, 1) for prompt in PROMPTS]
    broken = _BrokenClient(engine.url, every)
    outcomes = Sender(broken, "simulated", workload(requests), str, 6, lambda over: None).run()
    assert [one.failure for one in outcomes if one.failure] == [
        "this client itself failed, see its error above"
    ] * failed


def test_many_requests_at_once_are_all_answered(engine: SimServer) -> None:
    requests = [Planned((n, n + 1, n + 2), 2) for n in range(300)]
    outcomes = send(engine, workload(requests, timed=True))
    assert {len(one.token_ids) for one in outcomes} == {2}
    assert engine.seen.requests["/v1/completions"] == 300


def test_an_outcome_knows_its_times() -> None:
    one = Outcome(10.0, 10.5, 13.0, 11.0, token_ids=(1, 2, 3, 4, 5))
    assert (one.ttft_s, one.sent_ttft_s, one.late_s, one.token_s) == (1.0, 0.5, 0.5, 0.5)
    assert replace(one, token_ids=(1,)).token_s == 0.0
