"""The agent over its socket: foreign, broken and slow clients harm nobody else."""

import errno
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
from kveik.agent.protocol import (
    MAX_MESSAGE_BYTES,
    PROTOCOL_VERSION,
    Answer,
    Commit,
    Hello,
    Lookup,
    Refused,
    Report,
    Request,
    Reserve,
    Stats,
    Welcome,
)
from kveik.agent.service import AgentService, Job, Session
from kveik.agent.tally import Tally
from kveik.clock import Deadline
from kveik.kv.keys import BlockKey
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
        places = client.lookup(b"n" * 16, [0], [(0, [key.block_hash for key in some_keys(4)])], Deadline.after(3))
        assert time.monotonic() - start_s < 5
        assert places == [bytes(4)]
        assert not any(read.done() for read in reads)
    client.close()
    serving.close()
    lower.close()
    arena.close()


def test_a_defect_met_by_one_request_ends_that_connection_with_a_word_and_is_logged(
    agent: NodeAgent, client: AgentClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sound = agent.service.begin

    def begin(session: Session, request: Request) -> Answer | Job:
        if session.role == "raw":
            raise RuntimeError("a defect of the agent")
        return sound(session, request)

    monkeypatch.setattr(agent.service, "begin", begin)
    with raw_connection(agent, greeted=True) as sock:
        sock.sendall(wire.encode(Stats(7)))
        assert answer_of(sock) == Refused(0, "the agent failed on this request; its log says why")
        assert has_ended(sock)
    assert client.stats(Deadline.after(5))
    assert "a defect of the agent" in caplog.text


def test_a_defect_in_slow_work_refuses_that_request_and_the_connection_goes_on(
    agent: NodeAgent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def check(key: BlockKey) -> bool:
        raise RuntimeError("a defect while checking")

    monkeypatch.setattr(agent.service, "_check", check)
    with raw_connection(agent, greeted=True) as sock:
        sock.sendall(wire.encode(Report(5, [bytes(key) for key in some_keys(1)], "checksum")))
        assert answer_of(sock) == Refused(5, "the agent failed on this request; its log says why")
        sock.sendall(wire.encode(Stats(6)))
        assert answer_of(sock).id == 6
    assert "Report failed" in caplog.text


def test_slots_are_tidied_up_although_one_round_failed(
    agent: NodeAgent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rounds: list[int] = []

    def take_back() -> int:
        rounds.append(len(rounds))
        if len(rounds) == 1:
            raise RuntimeError("a defect while tidying")
        return 0

    monkeypatch.setattr(server, "TIDY_EVERY_S", 0.01)
    monkeypatch.setattr(agent.service, "take_back", take_back)
    wait_until(lambda: len(rounds) >= 3, "rounds go on")
    assert "tidying up failed; trying again" in caplog.text


def test_another_user_is_refused_by_what_the_kernel_says(agent: NodeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = os.geteuid() + 4711
    monkeypatch.setattr(server, "peer_of", lambda _: (os.getpid(), stranger))
    with raw_connection(agent) as sock:
        answer = answer_of(sock)
        assert answer == Refused(0, f"user {stranger} may not use the agent of user {os.geteuid()}")
        assert has_ended(sock)
    assert agent.service.state()["connections"] == []


def test_a_client_that_leaves_without_a_word_leaves_nothing_behind(agent: NodeAgent) -> None:
    for _ in range(5):
        raw_connection(agent).close()
    wait_until(lambda: "0 connections" in repr(agent._server), "all connections are forgotten")
    assert agent.service.state()["connections"] == []


def test_a_client_that_is_gone_before_it_is_welcomed_holds_no_session(
    agent: NodeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = threading.Event()
    sound = agent.service.greet

    def greet(peer_pid: int, hello: Hello) -> tuple[Session, Welcome]:
        assert left.wait(10)
        return sound(peer_pid, hello)

    monkeypatch.setattr(agent.service, "greet", greet)
    descriptors = len(os.listdir("/proc/self/fd"))
    sock = raw_connection(agent)
    sock.sendall(wire.encode(Hello(0, PROTOCOL_VERSION, "raw", os.getpid())))
    sock.close()
    left.set()
    wait_until(lambda: "0 connections" in repr(agent._server), "the connection is forgotten")
    assert agent.service.state()["connections"] == []
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors, "the arena's descriptor is closed")


def test_an_agent_out_of_descriptors_accepts_again_when_there_are_some(
    agent: NodeAgent, client: AgentClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listening = agent._server._socket

    class Exhausted:
        """The listening socket, short of descriptors for its first two connections."""

        def __init__(self, sock: socket.socket) -> None:
            self.sock = sock
            self.failures = 2

        def accept(self) -> tuple[socket.socket, object]:
            if self.failures:
                self.failures -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return self.sock.accept()

        def __getattr__(self, name: str) -> object:
            return getattr(self.sock, name)

    exhausted = Exhausted(listening.sock)
    listening.sock = exhausted  # type: ignore[assignment]
    for _ in range(2):  # the first wakes the thread that is in the real accept
        connected(tmp_path).close()
    assert exhausted.failures == 0
    assert "cannot accept a connection: [Errno 24] Too many open files" in caplog.text
    assert client.stats(Deadline.after(5))


def test_a_client_that_stops_reading_in_the_middle_of_an_answer_is_cut_off(
    agent: NodeAgent, client: AgentClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "SEND_S", 0.2)
    hashes = [number.to_bytes(16, "little") for number in range(400_000)]
    with raw_connection(agent, greeted=True) as deaf:
        deaf.sendall(wire.encode(Lookup(1, b"n" * 16, [0], [(0, hashes)], 5.0)))  # its answer fits no socket buffer
        wait_until(lambda: "in the middle of a message" in caplog.text, "the client is cut off")
        wait_until(lambda: len(agent.service.state()["connections"]) == 1, "its session has ended")  # type: ignore[arg-type]
    assert client.stats(Deadline.after(5))


def test_closing_the_agent_ends_every_connection(tmp_path: Path) -> None:
    with running_agent(tmp_path):
        client = connected(tmp_path)
    assert client.broken.wait(5)
    client.close()
    assert not (tmp_path / "agent.sock").exists()
