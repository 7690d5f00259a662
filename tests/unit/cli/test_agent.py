import argparse
import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from kveik.cli import agent, main
from kveik.config import AgentSettings, rows
from tests.agents import connected, running_agent, some_keys, store_blocks


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    agent.add_arguments(parser)
    return parser.parse_args(arguments)


def test_every_setting_has_a_flag_and_only_given_flags_count() -> None:
    names = {row.name for row in rows("agent")}
    assert {name.removeprefix("set_") for name in vars(parsed()) if name.startswith("set_")} == names
    args = parsed("--arena-bytes", "2 GiB", "--filesystem-fsync", "true")
    assert agent._given(args) == {"arena_bytes": "2 GiB", "filesystem_fsync": "true"}


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
