"""What tries to fool ``kveik bench``: proxies, other clients, engines that hang. All of it is found out."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kveik.bench.clients import SteadyClients
from kveik.cli.main import main
from kveik.config import SimEngineSettings
from kveik.engine.client import EngineClient
from kveik.simulate.behaviour import Behaviour
from kveik.simulate.server import SimServer
from tests.agents import wait_until
from tests.bench_runs import leave_out_a_busy_machine
from tests.meddling_proxy import MeddlingProxy, shortened, with_instructions, without_salt
from tests.routers import RouterThread

SMALL = ["--documents=2", "--questions=3", "--document-tokens=256", "--question-tokens=16", "--answer-tokens=4"]

Bench = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def behaviour() -> Behaviour:
    return Behaviour(has_connector=False)


@pytest.fixture
def engine(behaviour: Behaviour) -> Iterator[SimServer]:
    with SimServer(SimEngineSettings(port=0, prefill_tokens_s=4096.0), behaviour=behaviour) as server:
        yield server


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Ask for documents at an address; the exit code and the document. Nobody waits long for counters."""
    monkeypatch.setattr("kveik.bench.measuring.COUNT_S", 1.0)
    monkeypatch.setattr("kveik.bench.measuring.REST_S", 5.0)
    leave_out_a_busy_machine(monkeypatch)

    def run(url: str, *words: str) -> tuple[int, dict[str, Any]]:
        file = tmp_path / "result.json"
        code = main(["bench", "documents", "--url", url, *SMALL, "--concurrency=2", f"--json={file}", *words])
        document: dict[str, Any] = json.loads(file.read_text())
        return code, document

    return run


def grades(document: dict[str, Any]) -> dict[str, str]:
    """All findings by name, but for those of a busy machine."""
    found = {finding["kind"]: finding["grade"] for finding in document["findings"]}
    return {kind: grade for kind, grade in found.items() if kind not in ("client_late", "unsteady")}


def test_a_gateway_that_drops_the_salt_leaves_no_side_without_cache(bench: Bench, engine: SimServer) -> None:
    with MeddlingProxy(engine.url, without_salt, hidden=("/fleet",)) as proxy:
        code, document = bench(proxy.url, "--compare", "--rounds=1")
    assert code == 1
    assert document["verdict"] == "void"
    assert grades(document)["salt_ignored"] == "void"


def test_a_second_run_through_such_a_gateway_is_warm_although_its_salt_is_new(bench: Bench, engine: SimServer) -> None:
    with MeddlingProxy(engine.url, without_salt) as proxy:
        assert bench(proxy.url)[1]["verdict"] == "measured"
        code, document = bench(proxy.url)
        assert bench(proxy.url, "--seed=2")[1]["verdict"] == "measured"
        assert bench(proxy.url, "--no-salt")[1]["verdict"] == "measured"
    assert code == 1
    assert grades(document)["warm"] == "warm"
    assert document["headline"].startswith("WARM")


@pytest.mark.parametrize(
    ("change", "kind"), [(shortened, "other_length"), (with_instructions, "other_prompt")], ids=["short", "longer"]
)
def test_a_gateway_that_changes_lengths_is_found_out(bench: Bench, engine: SimServer, change: Any, kind: str) -> None:
    with MeddlingProxy(engine.url, change) as proxy:
        code, document = bench(proxy.url)
    assert code == 1
    assert grades(document)[kind] == "void"


def test_where_nobody_tells_what_was_cached_the_result_says_that_nobody_checked(
    bench: Bench, engine: SimServer, behaviour: Behaviour
) -> None:
    behaviour.reports_cached_tokens = False
    with MeddlingProxy(engine.url) as proxy:
        code, document = bench(proxy.url)
        assert code == 0
        assert grades(document) == {"cache_unseen": "note", "engines_unwatched": "note", "few": "note"}
        (side,) = document["sides"]
        assert side["cached_tokens"] == -1
        named = bench(proxy.url, "--engine", engine.url)[1]
    assert grades(named) == {"few": "note"}
    assert named["sides"][0]["cached_tokens"] > 0


def test_another_client_of_the_engine_makes_the_figures_void(bench: Bench, engine: SimServer) -> None:
    prompts = [tuple(range(n, n + 300)) for n in range(5)]
    with SteadyClients(EngineClient(engine.url), "simulated", prompts, count=1) as others:
        wait_until(lambda: len(others.tally.asked) > 2, "others ask")
        code, document = bench(engine.url)
    assert code == 1
    assert {"foreign_traffic", "busy_before"} & grades(document).keys()
    assert document["verdict"] == "void"


def test_an_engine_behind_the_router_that_nobody_watches_is_noticed(
    bench: Bench, engine: SimServer, tmp_path: Path
) -> None:
    with SimServer(engine.settings) as other, RouterThread(tmp_path, [other.url]) as router:
        code, document = bench(router.url, "--engine", engine.url)
    assert code == 1
    assert grades(document)["engines_unseen"] == "void"


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"stall_after_chunks": 1}, "no answer within 1 s"),
        ({"die_after_chunks": 2, "die_by": "fin", "every": 5}, "the stream ended before [DONE]"),
        ({"close_unanswered": True, "every": 5}, "POST"),
    ],
    ids=["stalled", "cut", "closed"],
)
def test_an_engine_that_fails_after_it_was_warmed_up_is_told_with_its_failure(
    bench: Bench, engine: SimServer, fault: dict[str, Any], told: str
) -> None:
    """The fault comes with the first request of the run: the engine has answered all before."""
    engine.call(lambda: engine.app.change_faults({**fault, "containing": "-on-1"}))
    code, document = bench(engine.url, "--timeout=1")
    assert code == 1
    assert grades(document)["failed"] == "void"
    (failed,) = (finding for finding in document["findings"] if finding["kind"] == "failed")
    assert told in failed["text"]


def test_requests_that_wait_here_for_a_place_are_counted_as_waiting(bench: Bench, engine: SimServer) -> None:
    code, document = bench(engine.url, "--rate=60", "--concurrency=1")
    assert code == 0
    assert grades(document)["queued_here"] == "note"
    (side,) = document["sides"]
    assert side["ttft_s"]["value"] > side["sent_ttft_s"]["value"]
    requests = document["runs"][0]["requests"]
    assert max(one["sent_s"] - one["intended_s"] for one in requests) > 0.05


def test_an_address_that_answers_for_no_engine_is_measured_with_what_is_known(bench: Bench, engine: SimServer) -> None:
    """A gateway that hides everything but what clients need."""
    hidden = ("/metrics", "/fleet", "/version", "/health")
    with MeddlingProxy(engine.url, hidden=hidden) as proxy:
        code, document = bench(proxy.url)
    assert code == 0
    assert document["how"]["versions"] == {"on": ""}
    assert document["runs"][0]["engines"] == []


def test_a_service_that_does_not_tokenize_cannot_be_measured(
    engine: SimServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with MeddlingProxy(engine.url, hidden=("/tokenize",)) as proxy:
        assert main(["bench", "documents", "--url", proxy.url, *SMALL]) == 3
    assert "/tokenize: HTTP 404" in capsys.readouterr().err


def test_a_plot_without_matplotlib_is_refused_before_anything_is_measured(
    engine: SimServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["bench", "documents", "--url", engine.url, "--plot=plot.png"]) == 2
    assert "--plot needs matplotlib" in capsys.readouterr().err
    assert engine.seen.requests["/v1/completions"] == 0


def test_a_key_is_sent_and_a_wrong_one_is_told(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (key := tmp_path / "key").write_text("secret-of-the-day\n")
    with SimServer(SimEngineSettings(port=0, prefill_tokens_s=4096.0, api_key="secret-of-the-day")) as server:
        code, document = bench(server.url, "--api-key-file", str(key))
        assert code == 0
        assert "secret-of-the-day" not in json.dumps(document)
        assert main(["bench", "documents", "--url", server.url]) == 3
    assert "HTTP 401" in capsys.readouterr().err
