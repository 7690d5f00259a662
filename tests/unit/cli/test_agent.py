import argparse
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from kveik.cli import agent, main
from kveik.cli.settings_flags import given_settings
from kveik.config import AgentSettings, rows
from kveik.engine.process import free_port
from tests.agents import connected, running_agent, some_keys, store_blocks


@pytest.fixture
def unused_port() -> int:
    return free_port()


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    agent.add_arguments(parser)
    return parser.parse_args(arguments)


def test_every_setting_has_a_flag_and_only_given_flags_count() -> None:
    names = {row.name for row in rows("agent")}
    assert {name.removeprefix("set_") for name in vars(parsed()) if name.startswith("set_")} == names
    args = parsed("--arena-bytes", "2 GiB", "--filesystem-fsync", "true")
    assert given_settings(args) == {"arena_bytes": "2 GiB", "filesystem_fsync": "true"}


def test_a_setting_that_is_not_valid_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["agent", "--arena-bytes", "plenty"]) == 2
    assert "arena_bytes is 'plenty'" in capsys.readouterr().err


def test_a_config_file_that_is_not_there_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["agent", "--config", str(tmp_path / "none.toml")]) == 2
    assert "none.toml" in capsys.readouterr().err


def test_an_agent_that_cannot_start_exits_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["agent", "--arena", str(tmp_path / "nowhere" / "arena")]) == 3
    assert "nowhere" in capsys.readouterr().err


def test_metrics_are_served_on_loopback(tmp_path: Path, unused_port: int) -> None:
    registry = CollectorRegistry()
    with running_agent(tmp_path, listener=agent._listener(registry), metrics_port=unused_port) as node:
        agent._serve_metrics(AgentSettings(metrics_port=unused_port), node, registry)
        client = connected(tmp_path)
        store_blocks(client, some_keys(2))
        with urllib.request.urlopen(f"http://127.0.0.1:{unused_port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        client.close()
    assert 'kveik_agent_blocks_total{direction="put",tier="arena"} 2.0' in text
    assert "kveik_agent_arena_blocks 2.0" in text


def test_a_metrics_port_that_is_taken_exits_with_3_and_leaves_nothing_running(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = [f"--socket={tmp_path / 'agent.sock'}", f"--arena={tmp_path / 'arena'}", "--arena-bytes=16 MiB"]
        command = [sys.executable, "-m", "kveik.cli.main", "agent", *flags, f"--metrics-port={port}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert f"cannot serve metrics on port {port}: Address already in use" in done.stderr
    assert not (tmp_path / "agent.sock").exists()
    with running_agent(tmp_path):  # the arena is free as well
        pass


def test_settings_come_from_file_environment_and_flags_in_that_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kveik.toml"
    file.write_text("[agent]\narena = '/nowhere/from-file'\n")
    assert main.main(["agent", "--config", str(file)]) == 3
    monkeypatch.setenv("KVEIK_AGENT_ARENA", "/nowhere/from-environment")
    assert main.main(["agent", "--config", str(file)]) == 3
    assert main.main(["agent", "--config", str(file), "--arena", "/nowhere/from-flag"]) == 3
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("kveik agent: ")]
    assert [line.split("/nowhere/from-")[1].split(":")[0] for line in told] == ["file", "environment", "flag"]
