import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kveik.cli import main
from kveik.simulate.engine import SimulatedEngine
from tests.agents import running_agent

LONG = "the same words again and again " * 40


@pytest.fixture(scope="module")
def engine() -> Iterator[SimulatedEngine]:
    with SimulatedEngine() as running:
        yield running


def test_prompts_are_sent_and_what_was_there_is_told(
    engine: SimulatedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps(LONG) + "\n" + json.dumps({"messages": [{"role": "user", "content": LONG}]}) + "\n")
    command = ["cache", "warm", str(file), "--engine", engine.url, "--json", "--socket", str(tmp_path / "agent.sock")]

    with running_agent(tmp_path):
        assert main.main(command) == 0
        first = json.loads(capsys.readouterr().out)
        assert main.main(command) == 0
        again = json.loads(capsys.readouterr().out)

    assert (first["answered"], first["failed"]) == (2, [])
    assert first["stored"] == {"blocks": 0, "bytes": 0}, "the simulated engine saves nothing"
    assert again["cached_tokens"] > first["cached_tokens"]
    assert again["computed_tokens"] + again["cached_tokens"] == again["prompt_tokens"] == first["prompt_tokens"]


def test_a_text_is_one_prompt_unless_lines_are_asked_for(
    engine: SimulatedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "system prompt.txt"
    file.write_text("one\ntwo\nthree\n")

    assert main.main(["cache", "warm", str(file), "--engine", engine.url, "--socket", str(tmp_path / "none")]) == 0
    assert "1 of 1 answered" in capsys.readouterr().out
    assert main.main(["cache", "warm", str(file), "--engine", engine.url, "--lines", "--concurrency", "2"]) == 0
    assert "3 of 3 answered" in capsys.readouterr().out


def test_requests_that_fail_exit_with_1(
    engine: SimulatedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "x", "model": "no such model"}\n"fine"\n')

    assert main.main(["cache", "warm", str(file), "--engine", engine.url]) == 1
    assert "failed: line 1: " in capsys.readouterr().err


def test_wrong_use_exits_with_2_and_nobody_there_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("{\n")
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")

    assert main.main(["cache", "warm", str(file)]) == 2
    assert "line 1 is no JSON" in capsys.readouterr().err
    assert main.main(["cache", "warm", str(empty)]) == 2
    assert main.main(["cache", "warm", str(tmp_path / "nowhere")]) == 2
    assert main.main(["cache", "warm", str(empty), "--concurrency", "0"]) == 2
    file.write_text('"x"\n')
    assert main.main(["cache", "warm", str(file), "--engine", "http://127.0.0.1:9"]) == 3
