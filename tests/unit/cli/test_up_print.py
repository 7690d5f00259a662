"""`kveik up --print`: files for other keepers, and nothing is started."""

from pathlib import Path

import pytest
import yaml

from kveik.cli.main import main

FLEET = '[fleet]\nname = "demo"\nstate_folder = "{0}/state"\nengines = 2\n[engine]\nmodel = "/models/m"\n'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "kveik.toml"
    file.write_text(FLEET.format(tmp_path))
    return file


@pytest.mark.parametrize("kind", ["systemd", "kubernetes", "compose"])
def test_files_are_printed_and_nothing_is_started_or_made(
    config: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", "--config", str(config), "--print", kind]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in ("engine-1", "engine-2", "agent", "router", "watchdog"))
    if kind != "systemd":
        assert all(isinstance(document, dict) for document in yaml.safe_load_all(told))
    assert [path.name for path in config.parent.iterdir()] == ["kveik.toml"]


def test_an_unknown_form_and_a_bad_file_are_wrong_use(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["up", "--config", str(config), "--print", "nomad"])
    config.write_text("[engine]\nmodle = 1\n")
    assert main(["up", "--config", str(config), "--print", "compose"]) == 2
    assert "unknown setting 'modle'" in capsys.readouterr().err
