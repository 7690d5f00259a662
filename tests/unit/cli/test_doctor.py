"""``kveik doctor``."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kveik.cli.main import main
from tests.fleets import SimFleet
from tests.routers import SimProcess

WRONG = "vllm-ascend 0.30.0rc2\nvllm 0.32.0\n"
WELL = "kveik 0.1.0\nvllm 0.32.0\n"


@pytest.fixture
def pasted(tmp_path: Path) -> Path:
    return tmp_path / "list.txt"


def test_versions_that_do_not_fit_give_one_and_a_remedy(pasted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pasted.write_text(WRONG)
    assert main(["doctor", "versions", "--from", str(pasted)]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("versions: wrong\n")
    assert "do: take vLLM 0.30.0" in shown


def test_versions_that_fit_give_zero(pasted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pasted.write_text(WELL)
    assert main(["doctor", "versions", "--from", str(pasted)]) == 0
    assert "well: Kveik 0.1.0 with vLLM 0.32.0" in capsys.readouterr().out


def test_a_list_may_come_from_a_pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(WRONG))
    assert main(["doctor", "versions", "--from", "-", "--json"]) == 1
    (answer,) = json.loads(capsys.readouterr().out)
    assert (answer["check"], answer["outcome"]) == ("versions", "wrong")


def test_the_checks_are_listed_with_their_questions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--list"]) == 0
    shown = capsys.readouterr().out
    assert "versions" in shown
    assert "engines: do all engines of a model give a prompt the same block hashes?" in shown


def test_what_cannot_be_asked_is_said(pasted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "weather"]) == 2
    assert "there is no check 'weather'" in capsys.readouterr().err
    assert main(["doctor", "versions", "--from", str(pasted)]) == 3
    assert main(["doctor", "versions", "--python", "/nonexistent"]) == 3
    assert "not done: versions: cannot ask /nonexistent" in capsys.readouterr().out


def test_without_the_package_that_compares_versions_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['packaging'] = None; sys.modules['packaging.version'] = None\n"
        "from kveik.cli.main import main; sys.exit(main(['doctor', 'versions']))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 3
    assert "pip install 'kveik[doctor]'" in ended.stderr


def test_cann_is_looked_for_where_it_is_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ascend-toolkit" / "latest" / "aarch64-linux" / "ascend_toolkit_install.info"
    file.parent.mkdir(parents=True)
    file.write_text("version=9.1.0\n")
    assert main(["doctor", "versions", "--ascend", str(tmp_path)]) == 0
    assert "CANN 9.1.0" in capsys.readouterr().out


def test_an_environment_is_judged_from_lines(pasted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pasted.write_text("export VLLM_USE_V1=1\nPYTHONHASHSEED=0\n")
    assert main(["doctor", "environment", "--from", str(pasted)]) == 1
    assert "wrong: VLLM_USE_V1: set, and nothing reads it any more" in capsys.readouterr().out


def test_one_text_cannot_answer_two_questions(pasted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pasted.write_text("A=1\n")
    assert main(["doctor", "--from", str(pasted)]) == 2
    assert "name it" in capsys.readouterr().err
    assert main(["doctor", "--group", "settings", "--from", str(pasted)]) == 0
    assert capsys.readouterr().err == ""


def test_a_process_that_is_not_there_cannot_be_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "environment", "--pid", "4194999"]) == 3
    assert "not done: environment: cannot read" in capsys.readouterr().out


def test_all_checks_that_need_no_fleet_run_where_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name != "PATH"]:
        monkeypatch.delenv(name)
    assert main(["doctor", "--json"]) == 0
    shown = capsys.readouterr()
    answers = {answer["check"] for answer in json.loads(shown.out)}
    assert {"versions", "environment"} <= answers
    assert "hashes" not in answers
    assert "checks look at a fleet and are left out: say which" in shown.err


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Two simulated engines, as arguments."""
    folder = tmp_path_factory.mktemp("engines")
    with SimProcess(folder) as one, SimProcess(folder) as two:
        yield ["--engine", one.url, "--engine", two.url]


def test_engines_are_enough_of_a_fleet(engines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--group", "engines", "--json", *engines]) == 0
    answers = {answer["check"]: answer["outcome"] for answer in json.loads(capsys.readouterr().out)}
    assert answers["answers"] == answers["prefix-caching"] == answers["rendering"] == "well"
    assert answers["connector"] == "unknown"  # nobody said whether they should have one


def test_a_file_in_this_folder_is_the_fleet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    SimFleet(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "start", "answers", "ports", "memory", "--json"]) == 0
    answers = {answer["check"]: answer["outcome"] for answer in json.loads(capsys.readouterr().out)}
    assert answers == {"answers": "unknown", "memory": "well", "start": "well", "ports": "unknown"}


def test_a_check_of_a_fleet_needs_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "hashes"]) == 2
    assert "hashes looks at a fleet: say which" in capsys.readouterr().err
    assert main(["doctor", "--group", "engines"]) == 2
    assert main(["doctor", "--config", "nowhere.toml"]) == 2
    assert "there is no nowhere.toml" in capsys.readouterr().err
    assert main(["doctor", "answers", "--engine", "ftp://x"]) == 2
