"""`kveik init`: what it writes, what it says, and what it never overwrites."""

import json
from pathlib import Path

import pytest

from kveik.cli.main import main
from kveik.launch.fleet_spec import read_fleet
from tests.unit.launch.test_model_facts import SMOLLM2


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "smollm2"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SMOLLM2))
    (folder / "model.safetensors").write_bytes(bytes(1000))
    return folder


def test_it_writes_a_file_that_fits_and_says_what_comes_next(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kveik.toml"
    assert main(["init", "--model", str(model), "-o", str(file), "--engines", "1", "--python", "/opt/python"]) == 0
    (engine,) = read_fleet(file, {}).engines
    assert (engine.settings.model, engine.settings.python) == (str(model), "/opt/python")
    told = capsys.readouterr().out
    assert "engines  1: " in told
    assert f"next     kveik up --config {file}" in told


def test_a_file_that_is_there_is_replaced_by_force_only(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kveik.toml"
    file.write_text("mine")
    command = ["init", "--model", str(model), "-o", str(file)]
    assert main(command) == 3
    assert file.read_text() == "mine"
    assert "is there already; --force replaces it" in capsys.readouterr().err
    assert main([*command, "--force"]) == 0
    assert "[engine]" in file.read_text()


def test_the_engines_python_comes_from_the_environment_where_this_one_has_no_vllm(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVEIK_ENGINE_PYTHON", "/opt/vllm/python")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    file = tmp_path / "kveik.toml"
    assert main(["init", "--model", str(model), "-o", str(file)]) == 0
    assert read_fleet(file, {}).engines[0].settings.python == "/opt/vllm/python"


def test_without_a_model_it_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "-o", str(tmp_path / "kveik.toml")]) == 0
    assert "missing  set engine.model to the folder of a model" in capsys.readouterr().out


def test_a_folder_without_a_model_and_too_many_engines_are_wrong_use(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kveik.toml"
    assert main(["init", "--model", str(tmp_path), "-o", str(file)]) == 2
    assert "is no model folder" in capsys.readouterr().err
    assert main(["init", "--model", str(model), "-o", str(file), "--engines", "100000"]) == 2
    assert "100000 engines are wanted" in capsys.readouterr().err
    assert not file.exists()


def test_a_folder_that_is_not_there_to_write_into_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "-o", str(tmp_path / "no" / "kveik.toml")]) == 3
    assert "No such file or directory" in capsys.readouterr().err
