import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kveik.agent.node import NodeAgent, default_arena_path
from kveik.clock import Deadline
from kveik.errors import AgentError, StoreError
from kveik.records import Record, StateRecord
from kveik.store import filesystem
from kveik.store.canary import PROBE_NAMESPACE
from kveik.store.filesystem_files import check_root
from tests.agents import (
    MIB,
    NAMESPACE,
    connected,
    load_blocks,
    running_agent,
    settings_in,
    some_keys,
    store_blocks,
    wait_until,
)


def whys(records: list[Record]) -> list[str]:
    return [record.why for record in records if isinstance(record, StateRecord)]


def test_it_says_what_it_opened_and_when_all_pages_are_there(tmp_path: Path) -> None:
    records: list[Record] = []
    with running_agent(tmp_path, listener=records.append):
        wait_until(lambda: len(whys(records)) == 2, "the pages are faulted in")
    assert f"{16 * MIB} bytes in" in whys(records)[0]
    assert "faulted in" in whys(records)[1] or "does not fault" in whys(records)[1]


def test_the_next_agent_says_what_it_found(tmp_path: Path) -> None:
    keys = some_keys(3)
    with running_agent(tmp_path):
        client = connected(tmp_path)
        store_blocks(client, keys)
        client.close()
    records: list[Record] = []
    with running_agent(tmp_path, listener=records.append):
        client = connected(tmp_path)
        assert load_blocks(client, keys) == ["hit"] * 3
        client.close()
    assert "found 3 blocks of an earlier agent" in whys(records)[0]


def test_an_arena_of_another_size_is_replaced_with_a_line_in_the_log(tmp_path: Path) -> None:
    with running_agent(tmp_path):
        pass
    records: list[Record] = []
    with running_agent(tmp_path, listener=records.append, arena_bytes=8 * MIB):
        pass
    assert "its blocks are given up: its arena size is" in whys(records)[0]


def test_blocks_go_down_to_the_filesystem_and_come_up_again(tmp_path: Path) -> None:
    keys = some_keys(4)
    with running_agent(tmp_path, filesystem=str(tmp_path / "tier")) as agent:
        client = connected(tmp_path)
        store_blocks(client, keys)
        assert agent.lower.drain(10)
        agent.arena.drop_namespace(b"")
        hashes = [key.block_hash for key in keys]
        assert client.lookup(NAMESPACE, [0], [(0, hashes)], Deadline.after(5)) == [bytes([2] * 4)]
        assert load_blocks(client, keys) == ["hit"] * 4
        assert client.drop(NAMESPACE, Deadline.after(5)) == 4
        assert client.lookup(NAMESPACE, [0], [(0, hashes)], Deadline.after(5)) == [bytes(4)]
        client.close()


def test_an_agent_that_was_never_started_closes_and_gives_everything_back(tmp_path: Path) -> None:
    NodeAgent(settings_in(tmp_path, filesystem=str(tmp_path / "tier"))).close()
    assert not (tmp_path / "agent.sock").exists()
    with running_agent(tmp_path):
        pass


def test_an_agent_that_cannot_have_its_socket_gives_its_arena_back(tmp_path: Path) -> None:
    (tmp_path / "agent.sock").write_text("no socket")
    with pytest.raises(AgentError):
        NodeAgent(settings_in(tmp_path))
    (tmp_path / "agent.sock").unlink()
    with running_agent(tmp_path):
        pass


def test_a_filesystem_tier_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "tier").write_text("no folder")
    with pytest.raises(StoreError):
        NodeAgent(settings_in(tmp_path, filesystem=str(tmp_path / "tier")))


@pytest.fixture
def hung_mount(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Whoever touches the tier's folder is held until the event is set."""
    answers = threading.Event()

    def held(root: Path) -> bool:
        assert answers.wait(60)
        return check_root(root)

    monkeypatch.setattr(filesystem, "check_root", held)
    yield answers
    answers.set()


def test_an_agent_starts_and_serves_its_arena_while_the_mount_of_its_tier_hangs(
    tmp_path: Path, hung_mount: threading.Event
) -> None:
    keys = some_keys(3)
    records: list[Record] = []
    with running_agent(
        tmp_path, listener=records.append, filesystem=str(tmp_path / "tier"), tier_deadline_s=0.05
    ) as agent:
        client = connected(tmp_path)
        assert store_blocks(client, keys) == ["stored"] * 3
        assert load_blocks(client, keys) == ["hit"] * 3
        assert load_blocks(client, some_keys(1)) != ["hit"]
        (tier,) = client.stats(Deadline.after(5))["tiers"]
        assert (tier["name"], tier["state"], tier["durable"]) == ("filesystem", "opening", True)
        assert "did not open within 0.05 s" in " ".join(tier["notes"])
        assert not (tmp_path / "tier").exists()

        hung_mount.set()
        wait_until(lambda: client.stats(Deadline.after(5))["tiers"][0]["state"] == "ready", "the tier has joined")
        late = some_keys(2)
        store_blocks(client, late)
        assert agent.lower.drain(10)
        wait_until(lambda: client.stats(Deadline.after(5))["tiers"][0]["blocks"] == 2, "new blocks are written down")
        client.close()
    part = [(record.after, record.why) for record in records if isinstance(record, StateRecord)]
    assert [after for after, _ in part if after in ("opening", "ready")].count("opening") == 1


def test_an_agent_stops_although_the_mount_of_its_tier_hangs(tmp_path: Path, hung_mount: threading.Event) -> None:
    with running_agent(tmp_path, filesystem=str(tmp_path / "tier"), tier_deadline_s=0.05):
        start_s = time.monotonic()
    assert time.monotonic() - start_s < 10


def test_the_arena_lies_in_shared_memory_unless_told_otherwise() -> None:
    assert default_arena_path() == f"/dev/shm/kveik-{os.getuid()}.arena"


def test_a_tier_that_lost_everything_is_fenced_and_comes_back_by_itself(tmp_path: Path) -> None:
    tier = tmp_path / "tier"

    def lost() -> bool:
        for file in tier.rglob(f"*{PROBE_NAMESPACE.hex()}*"):
            if file.is_file():
                file.unlink(missing_ok=True)
        return bool(agent.lower.stats()[0]["fence"])

    with running_agent(tmp_path, filesystem=str(tier), probe_period_s=0.3) as agent:
        wait_until(lambda: bool(list(tier.rglob(f"*{PROBE_NAMESPACE.hex()}*"))), "the tier is probed")
        wait_until(lost, "the tier is fenced", 60.0)
        wait_until(lambda: agent.lower.stats()[0]["breaker"] == "closed", "it is used again", 60.0)
        assert agent.lower.stats()[0]["outages"]
    assert not [file for file in tier.rglob(f"*{PROBE_NAMESPACE.hex()}*") if file.is_file()]


def test_two_nodes_on_one_folder_see_each_other_and_leave_nothing_there(tmp_path: Path) -> None:
    tier = tmp_path / "tier"

    def sees(agent: NodeAgent) -> list[tuple[str, str]]:
        roll_call: Any = agent.lower.stats()[0]["roll_call"]
        return [(entry["node"], entry["presence"]) for entry in roll_call["nodes"]]

    given: dict[str, Any] = {"probe_period_s": 0.1, "fleet": "f", "nodes": "n0,n1"}
    given["filesystem"] = str(tier)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    one_node = running_agent(tmp_path / "a", node="n0", **given)
    with one_node as one, running_agent(tmp_path / "b", node="n1", **given) as two:
        both = [("n0", "here"), ("n1", "here")]
        wait_until(lambda: sees(one) == sees(two) == both, "each sees both", 60.0)
    assert not [file for file in tier.rglob(f"*{PROBE_NAMESPACE.hex()}*") if file.is_file()]


def test_a_node_without_a_name_is_seen_by_itself_alone(tmp_path: Path) -> None:
    with running_agent(tmp_path, filesystem=str(tmp_path / "tier"), probe_period_s=60.0) as agent:
        roll_call: Any = agent.lower.stats()[0]["roll_call"]
        (entry,) = roll_call["nodes"]
        assert str(tmp_path) in entry["node"]
    with running_agent(tmp_path, filesystem=str(tmp_path / "tier")) as agent:
        assert agent.lower.stats()[0]["roll_call"] is None, "it is off"


def test_only_wanted_blocks_go_down_where_that_is_set(tmp_path: Path) -> None:
    keys = some_keys(3)
    with running_agent(tmp_path, filesystem=str(tmp_path / "tier"), admission="second_touch") as agent:
        client = connected(tmp_path)
        store_blocks(client, keys)
        assert load_blocks(client, keys) == ["hit"] * 3
        client.lookup(NAMESPACE, [0], [(0, [keys[1].block_hash])], Deadline.after(10))
        assert agent.lower.drain(10)
        assert agent.lower.lookup(keys, Deadline.after(10)) == [-1, 0, -1]
        client.close()


def test_what_goes_down_is_held_to_its_rate(tmp_path: Path) -> None:
    keys = some_keys(6)
    with running_agent(tmp_path, filesystem=str(tmp_path / "tier"), cascade_bytes_per_s=1) as agent:
        client = connected(tmp_path)
        store_blocks(client, keys)
        wait_until(lambda: agent.lower.lookup(keys, Deadline.after(10)).count(0) == 1, "what was saved up is written")
        assert agent.lower.waiting == 5
        client.close()
