"""The agent over its socket: foreign, broken and slow clients harm nobody else."""

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kveik.agent import server, wire
from kveik.agent.client import AgentClient
from kveik.agent.node import NodeAgent
from kveik.agent.protocol import MAX_MESSAGE_BYTES, PROTOCOL_VERSION, Answer, Commit, Hello, Refused, Reserve, Stats
from kveik.agent.service import AgentService
from kveik.agent.tally import Tally
from kveik.clock import Deadline
from kveik.records import ignore
from kveik.store.arena import Arena
from kveik.store.arena_file import ArenaRequest, open_arena_file
from kveik.store.faulty import FaultyStore
from kveik.store.memory import MemoryStore
from kveik.store.tiered import LowerTiers
from tests.agents import connected, load_blocks, running_agent, some_keys, store_blocks, wait_until


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[NodeAgent]:
    with running_agent(tmp_path) as agent:
        yield agent


@pytest.fixture
def client(agent: NodeAgent, tmp_path: Path) -> Iterator[AgentClient]:
    client = connected(tmp_path)
    yield client
    client.close()


def raw_connection(agent: NodeAgent, *, greeted: bool = False) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(10)
    sock.connect(agent.socket_path)
    if greeted:
        sock.sendall(wire.encode(Hello(0, PROTOCOL_VERSION, "raw", os.getpid())))
        body, descriptor = wire.receive_with_descriptor(sock)
        assert descriptor is not None
        os.close(descriptor)
        assert not isinstance(wire.decode_answer(body), Refused)
    return sock


def answer_of(sock: socket.socket) -> Answer:
    body = wire.receive_body(sock)
    assert body is not None
    return wire.decode_answer(body)


def has_ended(sock: socket.socket) -> bool:
    """Whether the agent closes the connection, whatever it says before."""
    try:
        while sock.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


def test_several_clients_share_blocks(agent: NodeAgent, client: AgentClient, tmp_path: Path) -> None:
    keys = some_keys(3)
    assert store_blocks(client, keys) == ["stored"] * 3
    other = connected(tmp_path)
    assert load_blocks(other, keys) == ["hit"] * 3
    other.close()
    wait_until(lambda: len(agent.service.state()["connections"]) == 1, "the other is gone")  # type: ignore[arg-type]


def test_a_client_that_says_anything_before_hello_is_refused(agent: NodeAgent) -> None:
    with raw_connection(agent) as sock:
        sock.sendall(wire.encode(Stats(1)))
        answer = answer_of(sock)
        assert isinstance(answer, Refused)
        assert "before Hello" in answer.reason
        assert has_ended(sock)


def test_a_client_of_another_version_is_told_both_versions(agent: NodeAgent) -> None:
    with raw_connection(agent) as sock:
        sock.sendall(wire.encode(Hello(1, 42, "old", 1)))
        answer = answer_of(sock)
        assert isinstance(answer, Refused)
        assert "42" in answer.reason
        assert str(PROTOCOL_VERSION) in answer.reason


def test_a_message_that_is_too_long_is_refused(agent: NodeAgent) -> None:
    with raw_connection(agent, greeted=True) as sock:
        sock.sendall(struct.pack("<I", MAX_MESSAGE_BYTES + 1))
        assert isinstance(answer_of(sock), Refused)
        assert has_ended(sock)


def test_a_request_that_no_client_sends_ends_the_connection_and_frees_its_slots(agent: NodeAgent) -> None:
    with raw_connection(agent, greeted=True) as sock:
        sock.sendall(wire.encode(Reserve(1, [bytes(key) for key in some_keys(1)], 1000)))
        answer_of(sock)
        sock.sendall(wire.encode(Reserve(2, [b"nonsense"], 1000)))
        answer = answer_of(sock)
        assert isinstance(answer, Refused)
        assert answer.id == 2
        assert has_ended(sock)
    wait_until(lambda: agent.arena.stats().reserved == 0, "the reserved slot is given up")


def test_a_refused_commit_leaves_the_connection_usable(agent: NodeAgent) -> None:
    with raw_connection(agent, greeted=True) as sock:
        sock.sendall(wire.encode(Commit(1, 999, [])) + wire.encode(Stats(2)))
        assert [type(answer_of(sock)).__name__ for _ in range(2)] == ["Refused", "StatsAnswer"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.booleans(), st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=4), st.booleans())
def test_any_bytes_end_one_connection_and_harm_no_other(
    agent: NodeAgent, client: AgentClient, greeted: bool, pieces: list[bytes], framed: bool
) -> None:
    with raw_connection(agent, greeted=greeted) as sock:
        try:
            for piece in pieces:
                sock.sendall(struct.pack("<I", len(piece)) + piece if framed else piece)
            sock.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError, OSError):
            pass  # refused already
        assert has_ended(sock)
    assert client.stats(Deadline.after(5))["arena"]["reserved"] == 0


def test_a_client_that_reads_nothing_is_cut_off_and_holds_up_nobody(
    agent: NodeAgent, client: AgentClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SEND_S", 0.2)
    with raw_connection(agent, greeted=True) as deaf:
        flood = wire.encode(Stats(1)) * 5000
        sender = threading.Thread(target=lambda: _send_what_goes(deaf, flood))
        sender.start()
        start_s = time.monotonic()
        assert client.stats(Deadline.after(5))
        assert time.monotonic() - start_s < 2
        wait_until(lambda: len(agent.service.state()["connections"]) == 1, "the deaf client is cut off")  # type: ignore[arg-type]
        sender.join()


def _send_what_goes(sock: socket.socket, data: bytes) -> None:
    try:
        sock.sendall(data)
    except OSError:
        pass


def test_a_client_that_never_greets_is_cut_off(agent: NodeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HELLO_S", 0.1)
    with raw_connection(agent) as sock:
        assert has_ended(sock)


def test_more_connections_than_allowed_are_closed_at_once(
    agent: NodeAgent, client: AgentClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 1)
    with raw_connection(agent) as sock:
        assert has_ended(sock)
    assert client.stats(Deadline.after(5))


def test_lookups_keep_their_deadline_while_reads_hang_in_a_lower_tier(tmp_path: Path) -> None:
    arena = Arena(open_arena_file(ArenaRequest(str(tmp_path / "arena"), 16 << 20)))
    below = FaultyStore(MemoryStore())
    lower = LowerTiers([below], threads=2, queue_bytes=0, hang_s=60)
    service = AgentService(arena, lower, listener=ignore, tally=Tally())
    serving = server.AgentServer(service, str(tmp_path / "agent.sock"), slow_threads=2).start()
    client = connected(tmp_path)
    with below.hung("get") as gate:
        reads = [client.submit_read(some_keys(1), 1000, 20) for _ in range(6)]
        assert gate.wait_held()
        start_s = time.monotonic()
        places = client.lookup(b"n" * 16, [0], [(0, [key.block_hash for key in some_keys(4)])], Deadline.after(0.5))
        assert time.monotonic() - start_s < 0.6
        assert places == [bytes(4)]
        assert not any(read.done() for read in reads)
    client.close()
    serving.close()
    lower.close()
    arena.close()


def test_closing_the_agent_ends_every_connection(tmp_path: Path) -> None:
    with running_agent(tmp_path):
        client = connected(tmp_path)
    assert client.broken.wait(5)
    client.close()
    assert not (tmp_path / "agent.sock").exists()
