"""``kveik down`` where there is nothing, and where a supervisor answers."""

import os
import threading
from pathlib import Path

import pytest

from kveik.cli.main import main
from kveik.supervise.supervisor import Supervisor
from tests.agents import wait_until
from tests.fleets import SimFleet
from tests.supervised import Changes, a_part


def test_nothing_that_runs_is_nothing_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = SimFleet(tmp_path)
    assert main(["down", "--config", str(fleet.config)]) == 0
    assert "nothing of node local runs" in capsys.readouterr().out


def test_a_configuration_that_is_not_valid_is_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["down", "--config", str(tmp_path / "none.toml")]) == 2
    assert "kveik down: cannot read" in capsys.readouterr().err


def test_a_node_is_found_though_the_rest_of_the_file_is_not_valid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = SimFleet(tmp_path, tables="no_such_setting = 1")
    assert main(["up", "--config", str(fleet.config)]) == 2
    assert main(["down", "--config", str(fleet.config)]) == 0
    assert "nothing of node local runs" in capsys.readouterr().out


def test_a_state_that_is_not_understood_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = SimFleet(tmp_path)
    folder = fleet.launch.folder
    folder.root.mkdir(parents=True)
    folder.supervisor.write_text("{")
    assert main(["down", "--config", str(fleet.config)]) == 3
    assert "supervisor.json is damaged" in capsys.readouterr().err


def test_the_arena_is_given_back_on_demand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = SimFleet(tmp_path)
    (tmp_path / "arena").touch()
    assert main(["down", "--config", str(fleet.config)]) == 0
    assert (tmp_path / "arena").exists()
    assert main(["down", "--config", str(fleet.config), "--forget"]) == 0
    assert not (tmp_path / "arena").exists()
    assert "given back" in capsys.readouterr().out


@pytest.fixture
def supervisor(tmp_path: Path) -> Supervisor:
    """A supervisor of one small part at the place where the fleet's would be."""
    launch = SimFleet(tmp_path).launch
    part = a_part(tmp_path, name="router")
    return launch.make_supervisor(lambda *_: [part], Changes(), tethered=False)


@pytest.mark.parametrize("how", [[], ["--now"]])
def test_a_running_node_is_ended_with_progress(
    tmp_path: Path,
    supervisor: Supervisor,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    how: list[str],
) -> None:
    monkeypatch.setattr("kveik.cli.down._LAST_WORDS_S", 0.0)  # the supervisor's process is this one, which goes on
    supervisor.open()
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    wait_until(lambda: supervisor.status().processes[0].state == "ready", "it runs")
    assert main(["down", "--config", str(tmp_path / "kveik.toml"), *how]) == 0
    thread.join(10)
    assert "all parts of node local have ended" in capsys.readouterr().out


def test_what_a_supervisor_left_is_ended(
    tmp_path: Path, supervisor: Supervisor, capsys: pytest.CaptureFixture[str]
) -> None:
    supervisor.open()
    wait_until(lambda: not supervisor.tick() and supervisor.status().processes[0].state == "ready", "it runs")
    pid = supervisor.status().processes[0].pid
    supervisor.close()
    assert main(["down", "--config", str(tmp_path / "kveik.toml")]) == 0
    assert "ending what one left running" in capsys.readouterr().out
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
