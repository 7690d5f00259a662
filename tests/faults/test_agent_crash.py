"""Real processes that are killed and stopped: the agent, and clients that hold leases."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kveik.agent import link
from kveik.agent.client import AgentClient
from kveik.agent.link import AgentLink
from kveik.clock import Deadline
from kveik.errors import AgentError
from kveik.kv.frame import HEADER_BYTES
from kveik.kv.keys import BlockKey
from kveik.store.arena_file import ArenaRequest, open_arena_file
from tests.agents import (
    MIB,
    NAMESPACE,
    PAYLOAD_BYTES,
    AgentProcess,
    connected,
    load_blocks,
    some_keys,
    store_blocks,
    wait_until,
)

ROOT = Path(__file__).resolve().parents[2]

#: A client in its own process: does what it is told, says "done", and then waits to be killed.
HOLDER = """
import sys, time
from kveik.clock import Deadline
from kveik.kv.keys import BlockKey
from tests.agents import connected, PAYLOAD_BYTES
from pathlib import Path
client = connected(Path(sys.argv[1]), "holder")
keys = [BlockKey.parse(text) for text in sys.argv[3:]]
if sys.argv[2] == "read":
    assert all(grant.status == "hit" for grant in client.read(keys, PAYLOAD_BYTES, Deadline.after(10)).grants)
else:
    assert all(grant.status == "stored" for grant in client.reserve(keys, PAYLOAD_BYTES, Deadline.after(10)).grants)
print("done", flush=True)
time.sleep(600)
"""


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    agent = AgentProcess(tmp_path)
    yield agent
    agent.close()


@pytest.fixture
def holders() -> Iterator[list["subprocess.Popen[str]"]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def holder(folder: Path, what: str, keys: list[BlockKey]) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", HOLDER, str(folder), what, *(key.text for key in keys)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "done\n"
    return process


def arena_state(client: AgentClient) -> dict[str, int]:
    state: dict[str, int] = client.stats(Deadline.after(10))["arena"]
    return state


def lookup(client: AgentClient, keys: list[BlockKey], seconds: float = 5) -> list[int]:
    places = client.lookup(NAMESPACE, [0], [(0, [key.block_hash for key in keys])], Deadline.after(seconds))
    return list(places[0])


@pytest.mark.parametrize("what", ["read", "reserve"])
def test_a_killed_client_frees_its_leases(
    agent: AgentProcess, holders: list["subprocess.Popen[str]"], tmp_path: Path, what: str
) -> None:
    client = connected(tmp_path)
    keys = some_keys(4)
    if what == "read":
        store_blocks(client, keys)
    holders.append(holder(tmp_path, what, keys))
    assert arena_state(client)["pinned" if what == "read" else "reserved"] == 4
    holders[0].kill()
    wait_until(
        lambda: not any(arena_state(client)[name] for name in ("pinned", "reserved", "quarantined")), "all is free"
    )
    client.close()


def test_a_killed_agent_loses_no_committed_block(agent: AgentProcess, tmp_path: Path) -> None:
    small, large, half = some_keys(20), some_keys(3), some_keys(2)
    client = connected(tmp_path)
    store_blocks(client, small)
    store_blocks(client, large, MIB)
    client.reserve(half, PAYLOAD_BYTES, Deadline.after(5))
    agent.restart()
    again = connected(tmp_path)
    state = arena_state(again)
    assert state["recovered_blocks"] == 23
    assert state["quarantined"] == 2  # this process reserved them and is alive
    assert load_blocks(again, small) == ["hit"] * 20
    assert load_blocks(again, large, MIB) == ["hit"] * 3
    assert load_blocks(again, half) == ["miss"] * 2
    assert "found 23 blocks of an earlier agent" in agent.log
    wait_until(lambda: arena_state(again)["unverified"] == 0, "the rest is checked in the background")
    client.close()
    again.close()


def test_a_bit_that_flips_while_no_agent_runs_makes_one_miss(agent: AgentProcess, tmp_path: Path) -> None:
    keys = some_keys(6)
    client = connected(tmp_path)
    store_blocks(client, keys)
    granted = client.read(keys, PAYLOAD_BYTES, Deadline.after(5))
    client.close()
    agent.kill()
    file = open_arena_file(ArenaRequest(str(tmp_path / "arena")))
    file.view[granted.grants[2].offset + HEADER_BYTES + 777] ^= 4
    file.close()
    agent.restart()
    client = connected(tmp_path)
    assert load_blocks(client, keys) in (
        ["hit", "hit", "corrupt", "hit", "hit", "hit"],
        ["hit", "hit", "miss", "hit", "hit", "hit"],  # the background check was faster
    )
    assert load_blocks(client, keys[2:3]) == ["miss"]
    assert client.stats(Deadline.after(5))["counters"]["arena.get_corrupt.checksum"] == 1
    assert store_blocks(client, keys[2:3]) == ["stored"]
    client.close()


def test_a_stopped_agent_costs_no_call_more_than_its_deadline(agent: AgentProcess, tmp_path: Path) -> None:
    client = connected(tmp_path)
    keys = some_keys(4)
    store_blocks(client, keys)
    agent.signal(signal.SIGSTOP)
    calls = (
        lambda: lookup(client, keys, 0.05),
        lambda: client.read(keys, PAYLOAD_BYTES, Deadline.after(0.2)),
        lambda: client.reserve(some_keys(1), PAYLOAD_BYTES, Deadline.after(0.2)),
        lambda: connected(tmp_path, deadline_s=0.2),
    )
    for call in calls:
        start_s = time.monotonic()
        with pytest.raises(AgentError):
            call()
        assert time.monotonic() - start_s < 2
    agent.signal(signal.SIGCONT)
    wait_until(lambda: lookup(client, keys) == [1] * 4, "it answers again")
    assert load_blocks(client, keys) == ["hit"] * 4
    # What was granted too late came back by itself.
    wait_until(lambda: not arena_state(client)["pinned"] and not arena_state(client)["reserved"], "no lease leaks")
    client.close()


def test_a_stopped_client_with_leases_holds_up_nobody(
    agent: AgentProcess, holders: list["subprocess.Popen[str]"], tmp_path: Path
) -> None:
    client = connected(tmp_path)
    read, written = some_keys(4), some_keys(4)
    store_blocks(client, read)
    holders.append(holder(tmp_path, "read", read))
    holders.append(holder(tmp_path, "reserve", written))
    for process in holders:
        process.send_signal(signal.SIGSTOP)
    for _ in range(3):  # far more than the arena holds
        assert set(store_blocks(client, some_keys(150))) == {"stored"}
    assert load_blocks(client, read) == ["hit"] * 4
    assert arena_state(client)["reserved"] == 4
    client.close()


def test_two_writers_of_one_block_leave_one_sound_block(agent: AgentProcess, tmp_path: Path) -> None:
    keys = some_keys(30)
    outcomes: list[list[str]] = []

    def write() -> None:
        client = connected(tmp_path)
        outcomes.append([store_blocks(client, [key])[0] for key in keys])
        client.close()

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for of_one_key in zip(*outcomes, strict=True):
        assert sorted(of_one_key) == ["exists", "exists", "exists", "stored"]
    client = connected(tmp_path)
    assert load_blocks(client, keys) == ["hit"] * 30
    client.close()


def test_agents_that_are_killed_under_load_give_every_reader_right_bytes(
    agent: AgentProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "RETRY_MIN_S", 0.05)
    monkeypatch.setattr(link, "RETRY_MAX_S", 0.1)
    keys = some_keys(80)
    stop = threading.Event()
    hits, wrong = [0], []
    links = [AgentLink(str(tmp_path / "agent.sock"), role=f"load {n}", prefault=False).start() for n in range(3)]

    def work(linked: AgentLink, offset: int) -> None:
        while not stop.is_set():
            for start in range(0, len(keys), 8):
                some = keys[(start + offset) % len(keys) :][:8]
                client = linked.client
                if client is None:
                    stop.wait(0.02)
                    continue
                try:
                    store_blocks(client, some)
                    hits[0] += load_blocks(client, some).count("hit")
                except AgentError:
                    continue  # an engine computes then
                except AssertionError as error:
                    wrong.append(error)

    threads = [threading.Thread(target=work, args=(linked, 5 * n)) for n, linked in enumerate(links)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        before = hits[0]
        wait_until(lambda before=before: hits[0] > before + 50, "blocks are served", 30)  # type: ignore[misc]
        agent.restart()
    before = hits[0]
    wait_until(lambda: hits[0] > before + 50, "blocks are served after the last restart", 30)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    client = connected(tmp_path)
    store_blocks(client, keys)
    assert load_blocks(client, keys) == ["hit"] * 80
    client.close()
    for linked in links:
        linked.close()


def test_a_promoted_block_survives_the_kill_of_agent_and_arena(tmp_path: Path) -> None:
    agent = AgentProcess(tmp_path, filesystem=str(tmp_path / "tier"))
    keys = some_keys(5)
    client = connected(tmp_path)
    store_blocks(client, keys)
    wait_until(lambda: arena_state(client)["pinned"] == 0, "all is written down")
    client.close()
    agent.kill()
    (tmp_path / "arena").unlink()
    agent.restart()
    client = connected(tmp_path)
    assert client.welcome.places == ["", "arena", "filesystem"]
    assert lookup(client, keys) == [2] * 5
    assert load_blocks(client, keys) == ["hit"] * 5
    assert lookup(client, keys) == [1] * 5
    client.close()
    agent.close()


def test_a_second_agent_is_refused_with_the_reason(agent: AgentProcess, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kveik.cli.main", "agent"]
    flags = [f"--arena={tmp_path / 'arena'}", f"--socket={tmp_path / 'other.sock'}"]
    second = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=30, check=False)
    assert second.returncode == 3
    assert "another agent uses the arena" in second.stderr
    flags = [f"--arena={tmp_path / 'other'}", f"--socket={tmp_path / 'agent.sock'}", "--arena-bytes=16 MiB"]
    third = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=30, check=False)
    assert third.returncode == 3
    assert "another agent listens at" in third.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_agent_cleanly(agent: AgentProcess, tmp_path: Path, number: signal.Signals) -> None:
    client = connected(tmp_path)
    store_blocks(client, some_keys(2))
    agent.signal(number)
    assert agent.process.wait(timeout=10) == 0
    assert client.broken.wait(5)
    assert not (tmp_path / "agent.sock").exists()
    assert "has stopped; its blocks stay in the arena" in agent.log
    client.close()


def test_stats_are_shown_as_text_and_as_json(agent: AgentProcess, tmp_path: Path) -> None:
    client = connected(tmp_path)
    (key,) = some_keys(1)
    store_blocks(client, [key])
    command = [sys.executable, "-m", "kveik.cli.main", "stats", f"--socket={tmp_path / 'agent.sock'}"]
    shown = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=30, check=True)
    assert json.loads(shown.stdout)["arena"]["blocks"] == 1
    text = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert NAMESPACE.hex() in text.stdout
    client.close()
