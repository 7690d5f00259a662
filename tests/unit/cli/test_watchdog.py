import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kveik.cli import main, watchdog
from kveik.cli.watchdog import Source, read_setup
from kveik.errors import ConfigError
from kveik.supervise.client import ControlClient
from kveik.supervise.messages import ProcessView
from kveik.watchdog.state_file import StateFile
from tests.agents import wait_until

FILE = """
[fleet]
state_folder = "{folder}/state"

[router]
port = 8123

[watchdog]
probe_period_s = 2.0

[[launch]]
name = "a"
port = 8001

[[engines]]
url = "http://10.0.0.7:8000"
restart = ["docker", "restart", "seven"]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "kveik.toml"
    file.write_text(FILE.format(folder=tmp_path))
    return file


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    watchdog.add_arguments(parser)
    return parser.parse_args(arguments)


def source(config: Path, *flags: str) -> Source:
    return Source(read_setup(parsed(f"--config={config}", *flags), {}), ControlClient("/none"))


def names(found: Source, *kept: str) -> list[str]:
    views = {name: ProcessView(name=name, kind="engine", state="ready") for name in kept}
    return [patient.name for patient in found(views)]


def test_settings_come_from_the_file_and_flags_and_the_router_is_the_files(config: Path, tmp_path: Path) -> None:
    setup = read_setup(parsed(f"--config={config}", "--good-probes=7"), {"KVEIK_ENGINE_API_KEY": "k"})
    assert (setup.settings.probe_period_s, setup.settings.good_probes) == (2.0, 7)
    assert setup.routers == ("http://127.0.0.1:8123",)
    assert setup.folder.root == tmp_path / "state" / "local"
    assert setup.agent_socket == str(tmp_path / "state" / "local" / "agent.sock")
    assert setup.api_key == "k"


def test_engines_that_the_supervisor_keeps_and_listed_ones_are_watched(config: Path) -> None:
    assert names(source(config), "a", "router") == ["a", "10.0.0.7:8000"]
    assert names(source(config)) == ["10.0.0.7:8000"], "nobody has started it"
    assert names(source(config, "--engine=127.0.0.1:9"), "a") == ["a", "10.0.0.7:8000", "127.0.0.1:9"]


def test_without_a_file_engines_are_given_by_address() -> None:
    setup = read_setup(parsed("--engine=127.0.0.1:9", "--routers=http://r:1,http://s:2"), {})
    assert setup.routers == ("http://r:1", "http://s:2")
    assert names(Source(setup, ControlClient("/none"))) == ["127.0.0.1:9"]


def test_a_file_that_changes_is_read_again_and_one_that_is_wrong_is_told(config: Path) -> None:
    found = source(config)
    new = config.with_suffix(".new")
    new.write_text(config.read_text() + '\n[[engines]]\nurl = "http://10.0.0.8:8000"\n')
    new.replace(config)
    assert names(found) == ["10.0.0.7:8000", "10.0.0.8:8000"]
    new.write_text("[[engines")
    new.replace(config)
    for _ in range(2):
        with pytest.raises(ConfigError, match="is not valid TOML"):
            found({})


def test_of_several_nodes_the_first_looks_after_what_is_nobodys(config: Path) -> None:
    nodes = '[[nodes]]\nname = "n0"\n[[nodes]]\nname = "n1"\naddress = "10.0.0.2"\n'
    config.write_text(nodes + FILE.format(folder=config.parent).replace('name = "a"', 'name = "a"\nnode = "n1"'))
    assert names(source(config, "--node=n0"), "a") == ["10.0.0.7:8000"]
    assert names(source(config, "--node=n1"), "a") == ["a"]
    with pytest.raises(ConfigError, match="expected one of n0, n1"):
        read_setup(parsed(f"--config={config}"), {})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--probe-period-s=0"], "probe_period_s is '0', expected at least 0.1"),
        (["--config=/no/such/file"], "cannot read /no/such/file"),
        (["--engine=nonsense"], "url is 'http://nonsense'"),
        (["--routers=ftp://x"], "is no address of a router"),
    ],
)
def test_what_is_not_valid_is_refused_before_anything_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert main.main(["watchdog", *flags]) == 2
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert message in capsys.readouterr().err
    assert not list(tmp_path.rglob("watchdog.json"))


def run(config: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "kveik.cli.main", "watchdog", f"--config={config}"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})


def test_it_runs_until_a_signal_comes(config: Path) -> None:
    process = run(config)
    assert process.stderr is not None
    line = process.stderr.readline()
    while line and "watching node local, routers http://127.0.0.1:8123" not in line:
        line = process.stderr.readline()
    assert line, "it says what it watches"
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "engines and routers go on" in errors


def test_a_second_one_on_the_same_state_is_refused(config: Path, tmp_path: Path) -> None:
    state = StateFile(tmp_path / "state" / "local" / "watchdog.json")
    process = run(config)
    _, errors = process.communicate(timeout=60)
    state.close()
    assert process.returncode == 3
    assert "another watchdog uses" in errors
    wait_until(lambda: process.poll() is not None, "it has ended")
