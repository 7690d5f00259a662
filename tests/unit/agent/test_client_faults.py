"""The client against agents that greet wrongly, answer something else, or stop reading."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kveik.agent import wire
from kveik.agent.client import AgentClient
from kveik.agent.protocol import PROTOCOL_VERSION, Answer, Done, Report, Settled, StatsAnswer, Welcome
from kveik.clock import Deadline
from kveik.errors import AgentError, AgentTimeoutError, AgentUnavailableError, ProtocolError
from kveik.kv.keys import BlockKey
from tests.agents import running_agent, some_keys, store_blocks, wait_until

ARENA_BYTES = 1 << 20
WELCOME = Welcome(0, PROTOCOL_VERSION, "odd", ARENA_BYTES, ["", "arena"], [])
Script = Callable[[socket.socket], None]


class OddAgent:
    """Greets as it is told to, and then runs a script on the connection."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "odd.sock")
        self.answers: list[bytes] = []
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(self.path)
        self._listening.listen()
        self.arena = os.open(folder / "arena", os.O_RDWR | os.O_CREAT, 0o600)
        os.truncate(self.arena, ARENA_BYTES)
        self._threads: list[threading.Thread] = []

    def connect(self, greeting: bytes, *, descriptor: bool = True, then: Script = lambda _: None) -> AgentClient:
        thread = threading.Thread(target=self._serve, args=(greeting, descriptor, then), daemon=True)
        self._threads.append(thread)
        thread.start()
        return AgentClient.connect(self.path, role="test", deadline_s=2.0, prefault=False)

    def _serve(self, greeting: bytes, descriptor: bool, then: Script) -> None:
        sock, _ = self._listening.accept()
        with sock:
            wire.receive_body(sock)
            socket.send_fds(sock, [greeting], [self.arena] if descriptor else [])
            then(sock)

    def close(self) -> None:
        for thread in self._threads:
            thread.join(5)
        self._listening.close()
        os.close(self.arena)


@pytest.fixture
def odd(tmp_path: Path) -> Iterator[OddAgent]:
    agent = OddAgent(tmp_path)
    yield agent
    agent.close()


@pytest.mark.parametrize(
    ("greeting", "descriptor", "complaint"),
    [
        (WELCOME, False, "unexpected Welcome"),
        (Welcome(0, PROTOCOL_VERSION + 1, "new", ARENA_BYTES, [], []), True, "unexpected Welcome"),
        (Done(0), True, "unexpected Done"),
    ],
    ids=["no arena", "another version", "no welcome"],
)
def test_a_greeting_that_is_none_is_refused_and_leaves_no_descriptor(
    odd: OddAgent, greeting: Answer, descriptor: bool, complaint: str
) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ProtocolError, match=f"did not welcome us: {complaint}"):
        odd.connect(wire.encode(greeting), descriptor=descriptor)
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors, "both ends of the connection are closed")


@pytest.mark.parametrize("nonsense", [b"\x05\0\0\0hello", b"\xff\xff\xff\xffhello", b"\x09\0\0\0short", b"\x01"])
def test_a_greeting_that_is_no_message_leaves_no_descriptor(odd: OddAgent, nonsense: bytes) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ProtocolError):
        odd.connect(nonsense)
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors, "both ends of the connection are closed")


def test_an_agent_that_says_nothing_costs_the_deadline(odd: OddAgent) -> None:
    with pytest.raises(AgentTimeoutError, match="did not answer in time"):
        AgentClient.connect(odd.path, role="test", deadline_s=0.1, prefault=False)


def reply_with(make: Callable[[int], Answer]) -> Script:
    """Answer the first request with what ``make`` gives for its id, and wait until the client leaves."""

    def serve(sock: socket.socket) -> None:
        body = wire.receive_body(sock)
        assert body is not None
        sock.sendall(wire.encode(make(wire.decode_request(body).id)))
        sock.recv(1)

    return serve


def test_an_answer_to_another_kind_of_request_is_told(odd: OddAgent) -> None:
    client = odd.connect(wire.encode(WELCOME), then=reply_with(Done))
    with pytest.raises(ProtocolError, match="the agent answered Done, expected StatsAnswer"):
        client.stats(Deadline.after(5))
    client.close()


@pytest.mark.parametrize("document", ["[]", "7", '"text"', "", "{", "no"])
def test_a_state_that_is_no_object_is_told(odd: OddAgent, document: str) -> None:
    client = odd.connect(wire.encode(WELCOME), then=reply_with(lambda number: StatsAnswer(number, document)))
    with pytest.raises(ProtocolError, match="no JSON"):
        client.stats(Deadline.after(5))
    client.close()


def test_an_answer_to_nobody_is_passed_over(odd: OddAgent) -> None:
    def serve(sock: socket.socket) -> None:
        sock.sendall(wire.encode(Done(123_456, 1)))
        reply_with(lambda number: StatsAnswer(number, '{"sound": true}'))(sock)

    client = odd.connect(wire.encode(WELCOME), then=serve)
    assert client.stats(Deadline.after(5)) == {"sound": True}
    client.close()


def test_an_agent_that_stops_reading_in_the_middle_of_a_request_breaks_the_connection(odd: OddAgent) -> None:
    over = threading.Event()

    def read_nothing(_: socket.socket) -> None:
        over.wait(20)

    client = odd.connect(wire.encode(WELCOME), then=read_nothing)
    hashes = [number.to_bytes(16, "little") for number in range(200_000)]  # more than a socket holds
    with pytest.raises(AgentError, match="in the middle of a message"):
        client.lookup(b"n" * 16, [0], [(0, hashes)], Deadline.after(0.3))
    assert client.broken.wait(5), "half a message is on its way: nothing sensible can follow"
    with pytest.raises(AgentUnavailableError, match="connection is gone"):
        client.stats(Deadline.after(5))
    over.set()
    client.close()


def test_words_that_nobody_waits_for_are_safe_on_a_broken_connection(odd: OddAgent) -> None:
    client = odd.connect(wire.encode(WELCOME))
    assert client.broken.wait(5)
    client.report(some_keys(1), "checksum")
    client.settle([1, 2])
    client.release(7)
    with pytest.raises(AgentError):
        client.drop(b"", Deadline.after(1))
    client.close()


def test_reports_and_settled_connections_reach_the_agent_in_order(odd: OddAgent) -> None:
    heard: list[object] = []

    def listen(sock: socket.socket) -> None:
        while (body := wire.receive_body(sock)) is not None:
            heard.append(wire.decode_request(body))

    client = odd.connect(wire.encode(WELCOME), then=listen)
    keys = some_keys(2)
    client.report(keys, "checksum")
    client.settle([3])
    wait_until(lambda: len(heard) == 2, "both have arrived")
    report, settled = heard
    assert isinstance(report, Report)
    assert (report.keys, report.reason) == ([bytes(key) for key in keys], "checksum")
    assert isinstance(settled, Settled)
    assert settled.connections == [3]
    client.close()


def test_a_reported_block_that_is_wrong_is_gone_for_everybody(tmp_path: Path) -> None:
    with running_agent(tmp_path) as agent:
        client = AgentClient.connect(str(tmp_path / "agent.sock"), role="test", prefault=False)
        sound, wrong = some_keys(2)
        store_blocks(client, [sound, wrong])
        (slot,) = agent.arena.locate([wrong])
        agent.arena.view(slot)[-1] ^= 1
        client.report([sound, wrong], "checksum")

        def held() -> list[BlockKey]:
            return sorted(agent.arena.keys())

        wait_until(lambda: held() == [sound], "the wrong one is given up, the sound one stays")
        client.close()
