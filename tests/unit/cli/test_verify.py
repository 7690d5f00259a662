"""``kveik verify`` from the command line: exit codes and output, over simulated engines."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kveik.cli.main import main
from kveik.cli.verify import DOES_NOT_HOLD, HOLDS, NOT_CARRIED_OUT, WRONG_USE, _restart
from kveik.engine.client import EngineClient
from kveik.engine.process import free_port
from kveik.errors import VerifyError
from kveik.simulate.engine import SimulatedEngine
from kveik.verify.proof import Subject

QUICK = ["--lengths", "40", "--answer-tokens", "2", "--mode", "single"]


@pytest.fixture
def engines() -> Iterator[tuple[SimulatedEngine, SimulatedEngine]]:
    shared: set[bytes] = set()
    with SimulatedEngine(shared) as first, SimulatedEngine(shared) as second:
        yield first, second


def verify(engines: tuple[SimulatedEngine, ...], *arguments: str) -> int:
    urls = [part for engine in engines for part in ("--engine", engine.url)]
    return main(["verify", *urls, *QUICK, *arguments])


def test_engines_that_agree_give_zero_and_a_table(
    engines: tuple[SimulatedEngine, SimulatedEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(engines, "--skip", "restart") == HOLDS == 0
    out, err = capsys.readouterr()
    assert "All 4 legs hold" in out
    assert "left out on request: restart" in out
    assert "engine 2: other, single" in err


def test_a_leg_that_cannot_be_carried_out_never_gives_zero(
    engines: tuple[SimulatedEngine, SimulatedEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(engines) == NOT_CARRIED_OUT == 3
    assert "--skip restart" in capsys.readouterr().err
    assert verify(engines[:1], "--skip", "restart") == NOT_CARRIED_OUT
    assert "--skip other" in capsys.readouterr().err


def test_wrong_answers_give_one(engines: tuple[SimulatedEngine, SimulatedEngine]) -> None:
    engines[1].behaviour.wrong_after_shared_hit = True
    assert verify(engines, "--skip", "restart") == DOES_NOT_HOLD == 1


def test_json_goes_to_stdout_alone(
    engines: tuple[SimulatedEngine, SimulatedEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(engines, "--skip", "restart", "--json") == HOLDS
    document = json.loads(capsys.readouterr().out)
    assert document["holds"] is True
    assert [leg["leg"] for leg in document["legs"]] == ["cold", "local", "reset", "other"]
    assert document["about"]["prompts"] == ["en-40", "zh-40"]


def test_the_restart_command_is_run_between_the_legs(
    engines: tuple[SimulatedEngine, SimulatedEngine], tmp_path: object
) -> None:
    marker = f"{tmp_path}/restarted"
    # The command leaves the simulated engine's own cache alone, and the proof notices that.
    assert verify(engines, "--restart-command", f"touch {marker}") == DOES_NOT_HOLD
    with open(marker):
        pass


def test_a_restart_command_that_fails_ends_the_proof(
    engines: tuple[SimulatedEngine, SimulatedEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(engines, "--restart-command", "exit 7") == NOT_CARRIED_OUT
    assert "code 7" in capsys.readouterr().err


def test_an_engine_that_does_not_come_back_is_waited_for_and_then_named() -> None:
    subject = Subject("engine 1", EngineClient(f"http://127.0.0.1:{free_port()}"), "simulated")
    with pytest.raises(VerifyError, match=r"engine 1 does not serve 0 s after its restart: .*refused"):
        _restart(subject, "true", timeout_s=0)


def test_a_restart_is_over_with_the_first_inference(engines: tuple[SimulatedEngine, SimulatedEngine]) -> None:
    _restart(Subject("engine 1", EngineClient(engines[0].url), "simulated"), "true")
    assert [request["max_tokens"] for request in engines[0].requests] == [1]


def test_an_engine_that_is_away_gives_three(capsys: pytest.CaptureFixture[str]) -> None:
    with SimulatedEngine() as gone:
        url = gone.url
    assert main(["verify", "--engine", url, *QUICK]) == NOT_CARRIED_OUT
    assert "could not be carried out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "either --engine"),
        (["--start", "--engine", "http://x"], "either --engine"),
        (["--start"], "--start needs --model"),
        (["--engine", "a", "--engine", "b", "--engine", "c"], "3 engines given"),
        (["--engine", "a", "--plant-fault", "swap_layers"], "--plant-fault needs --start"),
        (["--engine", "a", "--answer-tokens", "0"], "--answer-tokens is 0"),
        (["--engine", "a", "--skip", "reset", "--skip", "other", "--skip", "restart"], "nothing could be proved"),
        (["--start", "--model", "/nowhere", "--engine-python", "p", "--skip", "read-back"], "for running engines"),
        (["--start", "--model", "/nowhere", "--engine-python", "p"], "config.json"),
    ],
)
def test_wrong_use_gives_two_and_says_why(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", *arguments]) == WRONG_USE == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("lengths", ["1", "12,x", ""])
def test_lengths_that_are_none_are_wrong_use(lengths: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["verify", "--engine", "a", "--lengths", lengths])
    assert caught.value.code == WRONG_USE


def test_the_help_names_the_exit_codes_and_hides_the_test_switch(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["verify", "--help"])
    text = capsys.readouterr().out
    assert "exit codes:" in text
    assert "plant" not in text


def test_nodes_and_stores_are_for_engines_that_it_starts(
    engines: tuple[SimulatedEngine, SimulatedEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(engines, "--nodes", "2") == WRONG_USE
    assert "--nodes and --store-config are for --start" in capsys.readouterr().err


def test_a_file_that_names_no_store_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "kveik.toml"
    config.write_text("[agent]\narena_bytes = 1073741824\n")
    what = ["--start", "--model", str(tmp_path), "--engine-python", "/nowhere"]
    assert main(["verify", *what, "--nodes", "2", "--store-config", str(config)]) == WRONG_USE
    assert f"{config} names no store" in capsys.readouterr().err
