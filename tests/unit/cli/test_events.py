import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from kveik.cli import events, main
from kveik.clock import FakeClock, SystemClock
from kveik.supervise.node_folder import NodeFolder
from kveik.telemetry.events import EventLog
from tests.agents import wait_until


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "kveik.toml"
    file.write_text(f'[fleet]\nstate_folder = "{tmp_path}/state"\n')
    (tmp_path / "state" / "local").mkdir(parents=True)
    return file


def log_of(config: Path, clock: FakeClock | SystemClock | None = None) -> EventLog:
    folder = NodeFolder(config.parent / "state" / "local")
    return EventLog(folder.events, bytes_max=1 << 20, node="local", clock=clock or SystemClock())


def shown(config: Path, *flags: str) -> int:
    return main.main(["events", f"--config={config}", *flags])


def test_events_are_shown_one_line_each_oldest_first(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = log_of(config)
    log.tell("isolated", "engine-1", "it is hung")
    log.tell("readmitted", "engine-1", "it is well")
    assert shown(config) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("engine-1: it is hung")
    assert second.endswith("engine-1: it is well")


def test_programs_get_json_and_the_last_ones_are_enough(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = log_of(config)
    for number in range(5):
        log.tell("x", "p", str(number), number=number)
    assert shown(config, "--json", "-n", "2") == 0
    assert [json.loads(line)["fields"]["number"] for line in capsys.readouterr().out.splitlines()] == [3, 4]


def test_only_the_last_hours_are_shown(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log_of(config, FakeClock(1000.0)).tell("x", "p", "long ago")
    log_of(config).tell("x", "p", "now")
    assert shown(config, "--since", "1h") == 0
    assert "long ago" not in capsys.readouterr().out
    assert shown(config) == 0
    assert "long ago" in capsys.readouterr().out


def test_no_events_are_said(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(config, "--since", "30m") == 1
    assert "since 30m" in capsys.readouterr().err


@pytest.mark.parametrize("since", ["soon", "-3h", "3w", "m"])
def test_a_time_that_is_none_is_refused(config: Path, capsys: pytest.CaptureFixture[str], since: str) -> None:
    assert shown(config, f"--since={since}") == 2
    assert "expected a number with s, m, h or d" in capsys.readouterr().err


def test_a_configuration_that_is_wrong_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(tmp_path / "none.toml") == 2
    assert "cannot read" in capsys.readouterr().err


def test_without_a_configuration_the_users_state_folder_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = NodeFolder(tmp_path / "kveik" / "kveik" / "local")
    folder.root.mkdir(parents=True)
    EventLog(folder.events, bytes_max=1 << 20).tell("x", "p", "here")
    assert main.main(["events"]) == 0
    assert "here" in capsys.readouterr().out


def test_new_ones_are_shown_as_they_come(config: Path, tmp_path: Path) -> None:
    log = log_of(config)
    log.tell("x", "p", "before")
    output = tmp_path / "output"
    with output.open("wb") as out:
        command = [sys.executable, "-m", "kveik.cli.main", "events", f"--config={config}", "--follow"]
        process = subprocess.Popen(command, stdout=out)
    try:
        wait_until(lambda: "before" in output.read_text(), "the old one is shown", 60)
        log.tell("x", "p", "after")
        wait_until(lambda: "after" in output.read_text(), "the new one is shown", 60)
    finally:
        process.terminate()
        process.wait(20)


def test_its_help_names_the_exit_codes() -> None:
    parser = argparse.ArgumentParser()
    events.add_arguments(parser)
    assert "exit codes:" in parser.format_help()
