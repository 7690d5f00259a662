"""``kveik explain log``."""

import io
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kveik.cli.main import main
from tests.agents import wait_until
from tests.log_samples import LOGS

FAULTY = str(LOGS / "faulty_vllm_no_memory.log")
CLEAN = str(LOGS / "clean_vllm_two_ranks.log")


def test_a_log_with_a_fault_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "log", FAULTY]) == 1
    assert "1. fatal, vLLM: Weights and working memory leave no room" in capsys.readouterr().out


def test_a_clean_log_gives_zero_and_so_does_one_with_notes_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "log", CLEAN]) == 0
    assert "nothing found" in capsys.readouterr().out
    assert main(["explain", "log", str(LOGS / "clean_mooncake_client.log")]) == 0


def test_programs_get_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "log", FAULTY, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["id"] == "vllm-no-room-for-kv"


def test_standard_input_is_read_where_no_file_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"RuntimeError: NPU out of memory. Tried to\n")))
    assert main(["explain", "log"]) == 1
    assert "standard input: 1 lines" in capsys.readouterr().out


def test_a_pipe_that_is_followed_is_told_of_as_it_comes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = b"ERROR: EI0006\n" * 12 + b"ERROR: no flux\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    assert main(["explain", "log", "-", "--follow"]) == 1
    told = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in told] == ["line 1", "line 10", "line 13"]


def test_what_cannot_be_read_and_what_cannot_be_asked_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "log", str(tmp_path / "no.log")]) == 3
    assert "No such file" in capsys.readouterr().err
    assert main(["explain", "log", str(tmp_path)]) == 3
    assert main(["explain", "log", FAULTY, "--follow", "--json"]) == 2


class Terminal(io.StringIO):
    """Standard error as a person sees it."""

    def isatty(self) -> bool:
        return True


def test_a_person_sees_how_far_a_long_log_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "x.log"
    log.write_text("INFO: all is well\n" * 5000)
    seen = Terminal()
    seconds = itertools.count()
    monkeypatch.setattr(sys, "stderr", seen)
    monkeypatch.setattr("kveik.cli.explain_log.monotonic", lambda: float(next(seconds)))
    assert main(["explain", "log", str(log)]) == 0
    assert "% read" in seen.getvalue()
    assert "5,000 lines" in capsys.readouterr().out


def test_a_reader_of_our_words_that_went_away_is_no_fault(tmp_path: Path) -> None:
    shell = f"{sys.executable} -m kveik.cli.main explain log {FAULTY} | true"
    ended = subprocess.run(["/bin/sh", "-c", shell], capture_output=True, text=True, check=False)
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("name", ["clean_vllm", "faulty_etcd_full", "faulty_vllm_no_compiler"])
def test_the_two_forms_of_a_report_agree(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    log = str(LOGS / f"{name}.log")
    code = main(["explain", "log", log])
    text = capsys.readouterr().out
    assert main(["explain", "log", log, "--json"]) == code
    values = json.loads(capsys.readouterr().out)
    assert values["trouble"] is (code == 1)
    assert [finding["id"] for finding in values["findings"] if f"({finding['id']}" not in text] == []


def test_a_file_is_followed_until_a_signal(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("INFO: all is well\n")
    command = [sys.executable, "-m", "kveik.cli.main", "explain", "log", str(log), "--follow"]
    told = tmp_path / "told"
    with told.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as process:
        with log.open("a") as file:
            file.write("ERROR 11-30 01:00:22 [a.py:1] no flux\nERROR: EI0006\n")
        wait_until(lambda: "hccl-connect" in told.read_text(), "the known fault", 90)
        wait_until(lambda: "unknown: no flux" in told.read_text(), "the unknown fault", 90)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(60) == 1
