"""``kveik doctor mount``, ``stores`` and ``pairs`` as people type them."""

import json
import subprocess
import sys
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


def test_before_agents_run_two_nodes_that_ask_at_the_same_time_see_each_other(tmp_path: Path) -> None:
    (tmp_path / "tier").mkdir()
    file = tmp_path / "two.toml"
    nodes = "".join(
        f'[[nodes]]\nname = "n{n}"\naddress = "127.0.0.{n + 2}"\n[[launch]]\nname = "e{n}"\nnode = "n{n}"\n'
        for n in range(2)
    )
    file.write_text(
        f'[fleet]\nname = "f"\nstate_folder = "{tmp_path}/state"\n[engine]\nsimulated = true\n'
        f'[agent]\nfilesystem = "{tmp_path}/tier"\nfilesystem_reserve_bytes = 0\n{nodes}'
    )
    words = [sys.executable, "-m", "kveik.cli.main", "doctor", "pairs", "--config", str(file), "--hold", "60"]
    asked = [
        subprocess.Popen([*words, "--node", node], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for node in ("n0", "n1")
    ]
    for process in asked:
        told, _ = process.communicate(timeout=100)
        assert process.returncode == 0, told
        assert "well: filesystem tier" in told


def test_nobody_holds_the_call_for_hours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor("pairs", "--config", config_in(tmp_path), "--hold", "3600") == 2
    assert "--hold is 3600, expected 0 to 80 s" in capsys.readouterr().err
