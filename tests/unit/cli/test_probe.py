"""``kveik probe cache`` from the command line: exit codes and output, over simulated engines."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kveik.cli.main import main
from kveik.cli.probe import DOES_NOT, NOT_DONE, WORKS, WRONG_USE
from kveik.config import SimEngineSettings
from kveik.diagnose import cache_probe
from kveik.engine.process import free_port
from kveik.simulate.behaviour import Behaviour
from kveik.simulate.engine import SimulatedEngine
from kveik.simulate.server import SimServer
from tests.routers import RouterThread

QUICK = ["--prompt-tokens", "400", "--answer-tokens", "2"]


@pytest.fixture(autouse=True)
def _engines_that_count_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_probe, "QUIET_S", 0.02)
    monkeypatch.setattr(cache_probe, "QUIET_UNSURE_S", 0.02)


@pytest.fixture
def engines() -> Iterator[tuple[SimulatedEngine, SimulatedEngine]]:
    shared: set[bytes] = set()
    slow: dict[str, Any] = {"cache_blocks": 64, "prefill_tokens_s": 4000.0}
    with SimulatedEngine(shared, **slow) as first, SimulatedEngine(shared, **slow) as second:
        yield first, second


def probe(engines: tuple[SimulatedEngine, ...], *arguments: str) -> int:
    urls = [part for engine in engines for part in ("--engine", engine.url)]
    return main(["probe", "cache", *urls, *QUICK, *arguments])


def test_a_cache_that_works_gives_zero_and_says_so_first(capsys: pytest.CaptureFixture[str]) -> None:
    with SimulatedEngine(prefill_tokens_s=200.0) as engine:  # two seconds for what a hit has at once
        assert probe((engine,), "--push-out", "reset") == WORKS == 0
    out, err = capsys.readouterr()
    assert out.startswith("works: 384 of 400 tokens came from the shared cache")
    assert "engine 1: again, 400 tokens" in err


def test_progress_is_told_while_the_prompt_is_pushed_out(
    engines: tuple[SimulatedEngine, SimulatedEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    probe(engines[:1])
    assert "engine 1: push out, prompt 1 of 4" in capsys.readouterr().err


def test_one_that_does_not_gives_one_and_what_to_do(
    engines: tuple[SimulatedEngine, SimulatedEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    engines[0].behaviour.drops_saves = True
    assert probe(engines[:1]) == DOES_NOT == 1
    out = capsys.readouterr().out
    assert out.startswith("not stored:")
    assert "\ndo: " in out


def test_two_engines_are_probed_across_and_json_is_all_of_stdout(
    engines: tuple[SimulatedEngine, SimulatedEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    engines[1].behaviour.wrong_after_shared_hit = True
    assert probe(engines, "--json") == DOES_NOT
    document = json.loads(capsys.readouterr().out)
    assert (document["result"], document["across"]) == ("wrong", True)
    assert document["answer"]["complaint"]


def test_engines_are_found_behind_a_router(
    engines: tuple[SimulatedEngine, SimulatedEngine], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RouterThread(tmp_path, [engine.url for engine in engines]) as router:
        main(["probe", "cache", "--router", router.url, *QUICK, "--json"])
        found = json.loads(capsys.readouterr().out)
        assert (found["across"], found["used_tokens"]) == (True, 384)
        assert main(["probe", "cache", "--router", router.url, "--model", "another", *QUICK]) == NOT_DONE
        assert "no engine that is ready and serves another" in capsys.readouterr().err
        assert main(["probe", "cache", "--engine", router.url, *QUICK]) == NOT_DONE
        assert "--router URL" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "--router URL"),
        (["--engine", "http://a", "--router", "http://b"], "give either"),
        (["--engine", "http://a"] * 3, "expected one or two"),
        (["--engine", "http://a", "--model", "m"], "needs --router"),
        (["--engine", "http://a", "--limit", "0"], "--limit is 0"),
        (["--engine", "http://a", "--answer-tokens", "0"], "--answer-tokens is 0"),
        (["--engine", "http://a", "--prompt-tokens", "-5"], "at least 1"),
        (["--engine", "http://a", "--log", "/no/such/file"], "--log /no/such/file cannot be read"),
    ],
)
def test_wrong_use_is_told(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "cache", *arguments]) == WRONG_USE == 2
    assert told in capsys.readouterr().err


def test_an_engine_that_is_away_gives_three(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "cache", "--engine", f"http://127.0.0.1:{free_port()}"]) == NOT_DONE == 3
    assert "could not be carried out" in capsys.readouterr().err


def test_a_page_on_which_a_store_counts_is_read_too(capsys: pytest.CaptureFixture[str]) -> None:
    quick: dict[str, Any] = {"cache_blocks": 64, "prefill_tokens_s": 2000.0}
    bare = SimulatedEngine(behaviour=Behaviour(has_connector=False), **quick)
    with SimulatedEngine(**quick) as store, bare as engine:
        assert probe((engine,), "--store-metrics", f"{store.url}/metrics", "--json") == DOES_NOT
    assert json.loads(capsys.readouterr().out)["connector"] == "kveik", "counters of both pages are one reading"


def test_a_log_is_read_and_its_silence_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "engine.log"
    log.write_text("INFO 11-30 01:00:22 [core.py:133] all is well\n")
    with SimulatedEngine(behaviour=Behaviour(has_connector=False)) as engine:
        assert probe((engine,), "--push-out", "reset", "--log", str(log)) == DOES_NOT
    out = capsys.readouterr().out
    assert out.startswith("not connected: vLLM asked no connector")
    assert "no line of the log told of a lookup" in out


def test_the_key_of_the_engines_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = SimEngineSettings(port=0, api_key="secret-of-engines", block_tokens=16)
    with SimServer(settings, behaviour=Behaviour(), shared=set()) as server:
        where = ["probe", "cache", "--engine", server.url, *QUICK, "--push-out", "reset", "--json"]
        assert main(where) == NOT_DONE
        monkeypatch.setenv("KVEIK_ENGINE_API_KEY", "secret-of-engines")
        assert main(where) in {WORKS, DOES_NOT}
    told = capsys.readouterr()
    assert json.loads(told.out)["used_tokens"] == 384
    assert "secret-of-engines" not in told.out + told.err


def test_the_help_teaches_what_it_does_and_costs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["probe", "--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    for part in ("kveik probe cache --engine", "exit codes:", "It costs", "never a hit for others"):
        assert part in told
