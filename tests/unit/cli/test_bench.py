"""``kveik bench``: whole runs against simulated engines, which say so in every result."""

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kveik.cli.main import main
from kveik.config import SimEngineSettings
from kveik.simulate.behaviour import Behaviour
from kveik.simulate.server import SimServer
from tests.agents import wait_until
from tests.bench_runs import leave_out_a_busy_machine
from tests.conftest import HAS_VLLM
from tests.routers import RouterThread

#: Four prefixes of 448 tokens, three requests each; a cold prompt takes an eighth of a second.
SMALL = ["--requests=12", "--prefixes=4", "--prefix-tokens=448", "--suffix-tokens=64", "--answer-tokens=4"]


def settings(**changed: Any) -> SimEngineSettings:
    return SimEngineSettings(**{"port": 0, "prefill_tokens_s": 4096.0, "decode_s": 0.001, **changed})


@pytest.fixture
def engine() -> Iterator[SimServer]:
    with SimServer(settings(), behaviour=Behaviour(), shared=set()) as server:
        yield server


class Called:
    """One call: its code, what it printed, and its JSON file."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> None:
        file = folder / "result.json"
        file.unlink(missing_ok=True)
        self.code = main(["bench", *words, f"--json={file}"])
        self.out, self.err = capsys.readouterr()
        self.document: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}

    @property
    def kinds(self) -> set[str]:
        return {finding["kind"] for finding in self.document["findings"]}

    def side(self, name: str) -> dict[str, Any]:
        (found,) = (side for side in self.document["sides"] if side["side"] == name)
        return dict(found)


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    leave_out_a_busy_machine(monkeypatch)
    return lambda *words: Called(tmp_path, capsys, *words)


def test_on_against_off_by_salt_shows_what_the_cache_saves(bench: Any, engine: SimServer, tmp_path: Path) -> None:
    plot = tmp_path / "plot.png"
    called = bench("prefix", "--url", engine.url, "--compare", "--rounds=2", *SMALL, "--plot", str(plot))
    assert called.code == 0, called.out
    on, off = called.side("on"), called.side("off")
    assert off["cached_tokens"] == 0
    assert 0 < on["cached_tokens"] <= on["reusable_tokens"]
    assert called.document["gains"]["ttft"]["value"] > 1.2
    assert called.document["simulated"] is True
    assert called.out.startswith("cold at its start, SIMULATED engines")
    assert "times as fast" in called.out
    assert "round 2 of 2, off: 12 of 12 requests" in called.err
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_second_run_under_the_same_salt_is_warm_and_says_so_first(bench: Any, engine: SimServer) -> None:
    words = ("documents", "--url", engine.url, "--salt=mine", "--documents=2", "--questions=2", "--answer-tokens=2")
    assert bench(*words).code == 0
    again = bench(*words)
    assert again.code == 1
    assert again.out.startswith("WARM")
    assert again.document["verdict"] == "warm"


def test_two_services_are_compared_in_turn(bench: Any, engine: SimServer) -> None:
    with SimServer(settings(block_tokens=4096)) as other:  # no prompt fills a block
        called = bench("prefix", "--url", engine.url, "--off-url", other.url, "--rounds=2", *SMALL)
    assert called.code == 0, called.out
    assert called.document["how"]["addresses"] == {"on": engine.url, "off": other.url}
    assert [(run["round"], run["side"]) for run in called.document["runs"]] == [
        (1, "on"),
        (1, "off"),
        (2, "off"),
        (2, "on"),
    ]
    assert called.side("off")["cached_tokens"] == 0


def test_an_engine_that_fails_some_requests_makes_the_figures_void(bench: Any, engine: SimServer) -> None:
    stop = after_completions(engine, 4, lambda: engine.call(lambda: engine.app.change_faults({"status": 503})))
    called = bench("prefix", "--url", engine.url, "--concurrency=1", *SMALL)
    stop.join()
    assert called.code == 1
    assert called.out.startswith("VOID")
    assert "failed" in called.kinds
    assert "HTTP 503" in called.out


def test_an_engine_that_is_restarted_meanwhile_makes_the_figures_void(bench: Any, engine: SimServer) -> None:
    def restart() -> None:
        engine.crash()
        engine.restart()

    stop = after_completions(engine, 6, restart)
    called = bench("prefix", "--url", engine.url, "--concurrency=1", *SMALL)
    stop.join()
    assert called.code == 1
    assert {"failed", "restarted"} & called.kinds


def after_completions(engine: SimServer, count: int, act: Any) -> threading.Thread:
    """Do something once the engine has been asked so often."""

    def run() -> None:
        wait_until(lambda: engine.seen.requests["/v1/completions"] >= count, "some requests", 60)
        act()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_chats_at_a_rate_go_through_a_router_whose_engines_are_watched(
    bench: Any, engine: SimServer, tmp_path: Path
) -> None:
    with SimServer(settings()) as other, RouterThread(tmp_path, [engine.url, other.url]) as router:
        called = bench(
            "chats", "--url", router.url, "--rate=8", "--chats=4", "--turns=3", "--answer-tokens=4", "--think=0.1"
        )
    assert called.code == 0, called.out
    assert sorted(called.document["runs"][0]["engines"]) == sorted([engine.url, other.url])
    assert called.document["workload"]["requests"] == 12
    assert called.side("on")["cached_tokens"] > 0


def test_a_made_up_trace_is_written_and_played(bench: Any, engine: SimServer, tmp_path: Path) -> None:
    trace = tmp_path / "sample.jsonl"
    assert main(["bench", "trace", "--make-trace", str(trace), "--requests=20"]) == 0
    called = bench("trace", "--url", engine.url, "--trace", str(trace), "--requests=15", "--shorter=32", "--speed=4")
    assert called.code == 0, called.out
    assert called.document["workload"]["parameters"]["file"] == "sample.jsonl"
    assert called.document["workload"]["requests"] == 15
    assert called.side("on")["reusable_tokens"] > 0


def test_the_document_can_go_to_standard_output(engine: SimServer, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--documents=1", "--questions=2", "--document-tokens=32", "--answer-tokens=1"]
    main(["bench", "documents", "--url", engine.url, *words, "--json=-"])
    assert json.loads(capsys.readouterr().out)["workload"]["name"] == "documents"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["prefix"], "--url is missing"),
        (["prefix", "--url=http://127.0.0.1:9", "--documents=3"], "--documents is not for prefix"),
        (["trace", "--url=http://127.0.0.1:9"], "--trace is missing"),
        (["trace", "--url=http://127.0.0.1:9", "--trace=x", "--rate=1"], "--rate is not for trace"),
        (["documents", "--make-trace=x"], "--make-trace is for trace"),
        (["prefix", "--url=http://127.0.0.1:9", "--rate=-1"], "--rate is -1, expected 0 to 100000"),
        (["prefix", "--url=http://127.0.0.1:9", "--rate=nan"], "--rate is nan"),
        (["prefix", "--url=http://127.0.0.1:9", "--requests=3"], "3 requests for 10 prefixes"),
        (["chats", "--url=http://127.0.0.1:9", "--also-vllm"], "--also-vllm is for prefix"),
        (["chats", "--url=http://127.0.0.1:9", "--api-key-file=/none"], "cannot read --api-key-file /none"),
        (["chats", "--url=http://127.0.0.1:9", "--plot=/none/x.png"], "there is no folder /none"),
    ],
    ids=lambda value: "-".join(value)[:40] if isinstance(value, list) else "",
)
def test_wrong_use_is_told_before_anything_is_asked(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["bench", *words])
    assert message in capsys.readouterr().err
    assert code == 2


def test_a_trace_that_is_broken_or_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (trace := tmp_path / "t.jsonl").write_text('{"timestamp": 0}\n')
    words = ["bench", "trace", "--url=http://127.0.0.1:9", "--trace"]
    assert main([*words, str(trace)]) == 2
    assert "line 1 is none of a Mooncake trace" in capsys.readouterr().err
    assert main([*words, str(tmp_path / "none")]) == 3


def test_an_environment_without_vllm_is_told_before_anything_is_measured(
    engine: SimServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "prefix", "--url", engine.url, "--also-vllm", "--vllm-python"]
    assert main([*words, sys.executable if not HAS_VLLM else str(tmp_path)]) == 2
    assert main([*words, str(tmp_path / "none")]) == 2
    assert "expected a Python that has vLLM" in capsys.readouterr().err
    assert engine.seen.requests["/v1/completions"] == 0


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "no address at all"])
def test_a_service_that_is_not_there_is_told(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "prefix", "--url", url]) == 3
    assert "could not be carried out" in capsys.readouterr().err


def test_our_own_figures_are_there_when_vllm_s_benchmark_fails(bench: Any, engine: SimServer, tmp_path: Path) -> None:
    (python := tmp_path / "python").write_text(
        '#!/bin/sh\ncase "$2" in *find_spec*) exit 0;; esac\necho no such flag >&2\nexit 2\n'
    )
    python.chmod(0o755)
    called = bench("prefix", "--url", engine.url, "--also-vllm", "--vllm-python", str(python), *SMALL)
    assert called.code == 3
    assert "vllm bench serve ended with 2: no such flag" in called.err
    assert called.document["verdict"] == "measured"
    assert called.document["vllm_bench_serve"] is None
