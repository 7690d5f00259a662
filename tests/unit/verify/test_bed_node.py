"""One node of a testbed: an agent that is waited for, killed and started again."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kveik.agent.client import AgentClient
from kveik.clock import Deadline
from kveik.errors import VerifyError
from kveik.verify.bed_node import BedNode
from tests.agents import MIB, load_blocks, some_keys, store_blocks


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BedNode]:
    settings = {
        "socket": str(tmp_path / "a.sock"),
        "arena": str(tmp_path / "arena"),
        "arena_bytes": 16 * MIB,
        "filesystem": str(tmp_path / "blocks"),
    }
    made = BedNode("agent-x", sys.executable, settings, tmp_path, patience_s=60.0)
    yield made
    made.stop()


def connected(node: BedNode) -> AgentClient:
    return AgentClient.connect(node.socket, role="test", prefault=False)


def test_what_was_written_survives_the_agent_and_what_was_in_its_arena_does_not(node: BedNode) -> None:
    node.wait_tiers()
    keys = some_keys(8)
    client = connected(node)
    assert store_blocks(client, keys) == ["stored"] * 8
    node.wait_written()
    client.close()

    node.kill_and_restart()

    again = connected(node)
    assert again.stats(Deadline.after(10))["arena"]["blocks"] == 0
    assert load_blocks(again, keys) == ["hit"] * 8
    again.close()


def test_an_agent_that_is_gone_is_told_with_its_log_after_all_patience(node: BedNode) -> None:
    node.stop()
    node._patience_s = 0.3
    with pytest.raises(VerifyError, match=r"agent-x: after 0.3 s it does not say how it is: .*agent-x\.log"):
        node.wait_tiers()


def test_a_tier_that_does_not_open_is_named(tmp_path: Path) -> None:
    config = tmp_path / "stores.toml"
    config.write_text('[redis]\naddress = "127.0.0.1:1"\nconnect_s = 0.1\n')
    settings = {"socket": str(tmp_path / "b.sock"), "arena": str(tmp_path / "arena"), "arena_bytes": 16 * MIB}
    node = BedNode("agent-y", sys.executable, settings, tmp_path, config=config, patience_s=0.5)
    try:
        with pytest.raises(VerifyError, match="redis is o"):
            node.wait_tiers()
    finally:
        node.stop()
