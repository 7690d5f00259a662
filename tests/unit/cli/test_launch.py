"""`kveik launch` says what it writes, and its exit codes say what came of a check."""

import io
import json
from pathlib import Path

import pytest

from kveik.cli.main import main

GLM = ["launch", "--hardware", "a3", "--model", "glm-5"]


def test_a_launch_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GLM, "--tier", "yuanrong"]) == 0
    printed = capsys.readouterr().out
    assert "# file: node-0/start.sh" in printed
    assert "--kv-transfer-config" in printed


def test_a_launch_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GLM, "--output", str(tmp_path), "--form", "compose", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [str(tmp_path / "node-0/compose.yaml")]


def test_what_should_be_known_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--hardware", "cuda", "--model", "glm-5", "--json"]) == 0
    told = capsys.readouterr()
    assert "derived" in told.err
    assert list(json.loads(told.out)) == ["node-0/start.sh", "node-0/stop.sh"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["launch"], "give --hardware and --model"),
        (["launch", "--hardware", "cpu", "--model", "glm-5"], "372 GB"),
        ([*GLM, "--nodes", "2", "--address", "10.0.0.1"], "expected once for each"),
    ],
)
def test_what_does_not_fit_together_is_wrong_use(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert told in capsys.readouterr().err


def test_what_there_is_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--list"]) == 0
    assert "deepseek-v4.1-flash" in capsys.readouterr().out
    assert main(["launch", "--list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tiers"][0]["name"] == "none"


def test_a_line_that_fits_and_one_that_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for line, code in (("vllm serve /m --max-num-seqs 8", 0), ("vllm serve /m --enable-metrics", 1)):
        monkeypatch.setattr("sys.stdin", io.StringIO(line))
        assert main(["launch", "--check", "-"]) == code
    assert "instead: scrape" in capsys.readouterr().out


def test_a_check_is_a_document_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.sh"
    file.write_text("export VLLM_USE_V1=1\nvllm serve /m\n")
    assert main(["launch", "--check", str(file), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["name"] == "VLLM_USE_V1"


def test_a_line_for_an_older_vllm_ascend_is_judged_by_it(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text("export DS_WORKER_ADDR=h:1\nvllm serve /m\n")
    assert main(["launch", "--check", str(file), "--ascend", "0.26.0rc1"]) == 0


def test_what_cannot_be_read_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--check", str(tmp_path / "none.sh")]) == 3
    assert "cannot read" in capsys.readouterr().err
    file = tmp_path / "run.sh"
    file.write_text("vllm serve /m\n")
    assert main(["launch", "--check", str(file), "--python", "/bin/false"]) == 3
    assert "/bin/false cannot say" in capsys.readouterr().err
