"""``kveik doctor mount``, ``stores`` and ``pairs`` as people type them."""

import json
from pathlib import Path
from typing import Any

import pytest

from kveik.cli import main
from tests.agents import running_agent, wait_until


def doctor(*words: str) -> int:
    return main.main(["doctor", *words])


def answers(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return {answer["check"]: answer for answer in json.loads(capsys.readouterr().out)}


def config_in(folder: Path) -> str:
    """A configuration of one node whose agent is in the folder."""
    file = folder / "kveik.toml"
    file.write_text(
        f'[fleet]\nname = "f"\nstate_folder = "{folder}/state"\n[engine]\nsimulated = true\n'
        f'[agent]\nsocket = "{folder}/agent.sock"\nfilesystem = "{folder}/tier"\nfilesystem_reserve_bytes = 0\n'
    )
    return str(file)


def test_one_folder_is_looked_at_without_a_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor("mount", "--folder", str(tmp_path)) == 0
    told = capsys.readouterr().out
    assert str(tmp_path) in told
    assert "a rename replaces at once" in told


def test_a_folder_that_is_a_file_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("x")
    assert doctor("mount", "--folder", str(tmp_path / "file")) == 1
    assert "ENOTDIR" in capsys.readouterr().out


@pytest.mark.parametrize("check", ["stores", "pairs"])
def test_what_looks_at_a_fleet_has_to_be_told_which(
    check: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert doctor(check) == 2
    assert "--config FILE" in capsys.readouterr().err


def test_before_the_start_the_folder_is_missing_and_nobody_is_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor("stores", "pairs", "--config", config_in(tmp_path), "--json") == 0
    found = answers(capsys)
    assert found["stores"]["outcome"] == "beware"
    assert "a mount is missing" in json.dumps(found["stores"])
    assert found["pairs"]["outcome"] == "unknown"


def test_with_its_agent_a_node_serves_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_in(tmp_path)
    given: dict[str, Any] = {"filesystem": str(tmp_path / "tier"), "probe_period_s": 0.2, "fleet": "f", "node": "local"}
    with running_agent(tmp_path, **given) as agent:

        def is_here() -> bool:
            roll_call: Any = agent.lower.stats()[0]["roll_call"]
            return all(entry["presence"] == "here" for entry in roll_call["nodes"])

        wait_until(is_here, "the node sees itself", 60.0)
        assert doctor("stores", "pairs", "--config", config, "--json") == 0
    found = answers(capsys)
    assert [found[name]["outcome"] for name in ("stores", "pairs")] == ["well", "well"]
    assert "local reads what it put there" in json.dumps(found["pairs"])
