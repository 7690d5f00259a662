import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kveik.agent.client import AgentClient
from kveik.agent.node import NodeAgent
from kveik.cli import main
from kveik.cli.cache import Held, choose
from kveik.errors import ConfigError
from kveik.kv.namespace import REQUIRED_FACTS, Namespace
from tests.agents import PAYLOAD_BYTES, connected, running_agent, some_keys, store_blocks, wait_until

ONE = Namespace(dict.fromkeys(REQUIRED_FACTS, "x") | {"dtype": "bfloat16", "hash_block_size_tokens": "16"}, "model one")
TWO = Namespace(dict.fromkeys(REQUIRED_FACTS, "y"), "model two")


class Node:
    """An agent with a folder, and two models whose engines saved three blocks and one."""

    def __init__(self, folder: Path, agent: NodeAgent) -> None:
        self.folder = folder
        self.agent = agent
        self.config = folder / "kveik.toml"
        self.config.write_text(f'[agent]\nsocket = "{folder}/agent.sock"\nfilesystem = "{folder}/tier"\n')
        self.clients: list[AgentClient] = []
        for namespace, count in ((ONE, 3), (TWO, 1)):
            client = connected(folder, "engine", label=namespace.label, facts=dict(namespace.facts))
            store_blocks(client, some_keys(count, namespace.digest))
            self.clients.append(client)
        assert agent.lower.drain(20.0)
        wait_until(lambda: len(list(folder.glob("tier/kveik-1/*/namespace.json"))) == 2, "both models are described")

    def run(self, *arguments: str) -> int:
        return main.main(["cache", *arguments, "--config", str(self.config)])

    def files(self) -> int:
        return len(list(self.folder.glob("tier/kveik-1/*/??/??/*.kvb")))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with running_agent(tmp_path, filesystem=str(tmp_path / "tier"), probe_period_s=0.0) as agent:
        made = Node(tmp_path, agent)
        yield made
        for client in made.clients:
            client.close()


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_ls_shows_models_with_their_facts_by_tier(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert node.run("ls", "--json") == 0

    held = document(capsys)["held"]
    assert [(row["label"], row["tier"], row["blocks"]) for row in held] == [
        ("model one", "arena", 3),
        ("model one", "filesystem", 3),
        ("model two", "arena", 1),
        ("model two", "filesystem", 1),
    ]
    assert all(row["facts"]["dtype"] == ("bfloat16" if row["label"] == "model one" else "y") for row in held)
    assert node.run("ls") == 0
    assert ONE.digest.hex()[:12] in capsys.readouterr().out


def test_du_shows_each_tier_against_its_limit(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert node.run("du", "--json") == 0

    told = document(capsys)
    arena, folder = told["tiers"]
    assert (arena["name"], arena["blocks"], arena["bytes"]) == ("arena", 4, 4 * PAYLOAD_BYTES)
    assert (folder["name"], folder["blocks"], folder["bytes"]) == ("filesystem", 4, 4 * (PAYLOAD_BYTES + 4096))
    assert node.run("du") == 0
    assert "no limit" in capsys.readouterr().out


def test_without_an_agent_the_folder_is_shown_alone(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert node.run("ls", "--json", "--socket", str(node.folder / "nobody.sock")) == 0

    told = document(capsys)
    assert {row["tier"] for row in told["held"]} == {"filesystem"}
    assert "no agent at" in str(told["notes"])


def test_drop_deletes_one_namespace_everywhere(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert node.run("drop", ONE.digest.hex()[:10], "--yes", "--json") == 0

    assert document(capsys)["dropped"] == {"arena": 3, "filesystem": 3}
    assert node.files() == 1


def test_drop_finds_a_model_by_its_name(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert node.run("drop", "--model", "model two", "--yes") == 0

    assert "dropped 1 blocks of the arena tier, 1 blocks of the filesystem tier" in capsys.readouterr().out
    assert node.files() == 3


def test_drop_asks_first_and_no_is_an_answer(
    node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert node.run("drop", "--model", "model two") == 2
    assert "say --yes" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: "n")
    assert node.run("drop", "--model", "model two") == 1
    assert "model two" in capsys.readouterr().out
    assert node.files() == 4


def test_wrong_use_exits_with_2_and_nobody_there_with_3(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert node.run("drop", "--yes") == 2
    assert node.run("drop", "ffffffff", "--yes") == 2
    assert node.run("drop", "--model", "other", "--yes") == 2
    assert "known: model one, model two" in capsys.readouterr().err
    assert node.run("drop", "--model", "model one", "--yes", "--socket", str(node.folder / "nobody.sock")) == 3
    assert main.main(["cache", "ls", "--socket", str(node.folder / "nobody.sock")]) == 3


def test_a_beginning_that_fits_several_namespaces_is_refused() -> None:
    rows = [Held("arena", digest, "m", 1, 1) for digest in ("aabb" + "0" * 28, "aacc" + "0" * 28)]

    assert choose(rows, "AAB", "") == ["aabb" + "0" * 28]
    assert len(choose(rows, "", "m")) == 2
    with pytest.raises(ConfigError, match="beginning of 2 namespaces"):
        choose(rows, "aa", "")
