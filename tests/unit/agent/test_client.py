import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kveik.agent import wire
from kveik.agent.client import AgentClient
from kveik.agent.node import NodeAgent
from kveik.agent.protocol import Committed, Grant, Granted, Release, Reserved, Welcome
from kveik.clock import Deadline
from kveik.errors import (
    AgentError,
    AgentTimeoutError,
    AgentUnavailableError,
    FrameCorruptError,
    FrameForeignError,
    ProtocolError,
)
from kveik.kv.frame import HEADER_BYTES, payload_digest
from kveik.kv.keys import BlockKey
from tests.agents import (
    NAMESPACE,
    PAYLOAD_BYTES,
    connected,
    load_blocks,
    payload_of,
    running_agent,
    some_keys,
    store_blocks,
    wait_until,
)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[NodeAgent]:
    with running_agent(tmp_path) as agent:
        yield agent


@pytest.fixture
def client(agent: NodeAgent, tmp_path: Path) -> Iterator[AgentClient]:
    client = connected(tmp_path)
    yield client
    client.close()


class FakeAgent:
    """Welcomes one client and then does what the test says."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "fake.sock")
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(self.path)
        self._listening.listen()
        self.arena = os.open(folder / "arena", os.O_RDWR | os.O_CREAT, 0o600)
        os.truncate(self.arena, 1 << 20)
        self.sock: socket.socket | None = None

    def connect(self) -> AgentClient:
        accepting = threading.Thread(target=self._welcome)
        accepting.start()
        client = AgentClient.connect(self.path, role="test", prefault=False)
        accepting.join()
        return client

    def _welcome(self) -> None:
        self.sock, _ = self._listening.accept()
        wire.receive_body(self.sock)
        welcome = wire.encode(Welcome(0, 1, "fake", 1 << 20, ["", "arena"], []))
        socket.send_fds(self.sock, [welcome], [self.arena])

    def close(self) -> None:
        for thing in (self.sock, self._listening):
            if thing is not None:
                thing.close()
        os.close(self.arena)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeAgent]:
    fake = FakeAgent(tmp_path)
    yield fake
    fake.close()


def test_blocks_written_by_one_client_are_read_by_another(client: AgentClient, tmp_path: Path) -> None:
    keys = some_keys(4)
    assert store_blocks(client, keys) == ["stored"] * 4
    assert store_blocks(client, keys) == ["exists"] * 4
    other = connected(tmp_path)
    assert load_blocks(other, [*keys, *some_keys(1)]) == ["hit"] * 4 + ["miss"]
    other.close()


def test_a_lookup_says_where_each_block_is(client: AgentClient) -> None:
    keys = some_keys(2)
    store_blocks(client, keys)
    hashes = [key.block_hash for key in (*keys, *some_keys(1))]
    assert client.lookup(NAMESPACE, [0], [(0, hashes), (1, hashes[:1])], Deadline.after(5)) == [bytes([1, 1, 0]), b"\0"]
    assert client.welcome.places == ["", "arena"]


def test_many_requests_of_several_threads_get_their_own_answers(client: AgentClient) -> None:
    stored = [some_keys(3) for _ in range(8)]
    wrong: list[object] = []

    def work(keys: list[BlockKey]) -> None:
        for _ in range(20):
            store_blocks(client, keys, 5000)
            if load_blocks(client, keys, 5000) != ["hit"] * 3:
                wrong.append(keys)

    threads = [threading.Thread(target=work, args=(keys,)) for keys in stored]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_cancelled_lookup_leaves_nothing_behind(client: AgentClient) -> None:
    future = client.submit_lookup(NAMESPACE, [0], [(0, [])], 5)
    future.cancel()
    client.stats(Deadline.after(5))
    assert "0 requests under way" in repr(client)


def test_nobody_listening_is_told(tmp_path: Path) -> None:
    with pytest.raises(AgentUnavailableError, match="no agent at"):
        connected(tmp_path)


def test_a_refused_hello_says_why(agent: NodeAgent, tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="facts missing"):
        connected(tmp_path, facts={"dtype": "x"})


def test_a_refused_request_raises_and_the_connection_stays(client: AgentClient) -> None:
    with pytest.raises(AgentError, match="no open write lease"):
        client.commit(4711, [], Deadline.after(5))
    assert client.stats(Deadline.after(5))


def test_an_agent_that_never_answers_costs_the_deadline(fake: FakeAgent) -> None:
    client = fake.connect()
    start_s = time.monotonic()
    with pytest.raises(AgentTimeoutError):
        client.read(some_keys(1), 100, Deadline.after(0.1))
    assert 0.1 <= time.monotonic() - start_s < 1
    client.close()


def test_an_agent_that_reads_nothing_costs_the_deadline_too(fake: FakeAgent) -> None:
    client = fake.connect()
    start_s = time.monotonic()
    keys = some_keys(2000)
    for _ in range(20):
        with pytest.raises((AgentTimeoutError, AgentUnavailableError)):
            client.read(keys, 100, Deadline.after(0.05))
    assert time.monotonic() - start_s < 5
    client.close()


@pytest.mark.parametrize("kind", [Granted, Reserved])
def test_a_lease_that_comes_too_late_is_given_back(fake: FakeAgent, kind: type[Granted] | type[Reserved]) -> None:
    client = fake.connect()
    assert fake.sock is not None
    call = client.read if kind is Granted else client.reserve
    with pytest.raises(AgentTimeoutError):
        call(some_keys(1), 100, Deadline.after(0.05))
    request = wire.decode_request(wire.receive_body(fake.sock) or b"")
    fake.sock.sendall(wire.encode(kind(request.id, 55, [Grant("hit")])))
    release = wire.decode_request(wire.receive_body(fake.sock) or b"")
    assert isinstance(release, Release)
    assert release.lease == 55
    client.close()


def test_a_broken_connection_fails_everything_that_waits(fake: FakeAgent) -> None:
    client = fake.connect()
    futures = [client.submit_lookup(NAMESPACE, [0], [(0, [])], 5) for _ in range(3)]
    assert fake.sock is not None
    fake.sock.close()
    for future in futures:
        with pytest.raises(AgentUnavailableError):
            future.result(5)
    assert not client.connected
    with pytest.raises(AgentUnavailableError):
        client.submit_lookup(NAMESPACE, [0], [(0, [])], 5).result(0)
    client.close()


def test_an_answer_that_makes_no_sense_ends_the_connection(fake: FakeAgent) -> None:
    client = fake.connect()
    assert fake.sock is not None
    fake.sock.sendall(b"\x03\0\0\0abc")
    assert client.broken.wait(5)
    assert "not an answer" in repr(client)
    client.close()


def test_a_slot_that_was_reused_during_a_copy_is_noticed(agent: NodeAgent, client: AgentClient) -> None:
    (key,) = some_keys(1)
    store_blocks(client, [key])
    granted = client.read([key], PAYLOAD_BYTES, Deadline.after(5))
    slot = client.slot(granted.grants[0])
    copy = memoryview(bytearray(PAYLOAD_BYTES))
    slot.copy_to(key, copy)
    assert copy == payload_of(key)
    client.release(granted.lease)
    wait_until(lambda: agent.arena.drop([key]) == ["deleted"], "the lease is released")
    assert not slot.unchanged()
    with pytest.raises(FrameForeignError, match="reused"):
        slot.copy_to(key, copy)


def test_a_copy_with_a_wrong_bit_is_noticed(client: AgentClient) -> None:
    (key,) = some_keys(1)
    store_blocks(client, [key])
    granted = client.read([key], PAYLOAD_BYTES, Deadline.after(5))
    slot = client.slot(granted.grants[0])
    copy = memoryview(bytearray(PAYLOAD_BYTES))
    with pytest.raises(FrameForeignError):
        slot.copy_to(some_keys(1)[0], copy)
    slot.payload[100] ^= 1
    with pytest.raises(FrameCorruptError):
        slot.copy_to(key, copy)


def test_a_closed_client_keeps_the_memory_of_a_copy_under_way(client: AgentClient) -> None:
    (key,) = some_keys(1)
    store_blocks(client, [key])
    granted = client.read([key], PAYLOAD_BYTES, Deadline.after(5))
    slot = client.slot(granted.grants[0])
    under_way = np.frombuffer(slot.payload, np.uint8)
    client.close()
    assert bytes(under_way) == payload_of(key)
    with pytest.raises(AgentUnavailableError, match="closed"):
        client.slot(granted.grants[0])


def test_a_client_is_settled_when_its_connection_and_its_writes_are_over(client: AgentClient) -> None:
    reserved = client.reserve(some_keys(1), PAYLOAD_BYTES, Deadline.after(5))
    assert not client.settled
    client.disconnect()
    assert not client.settled  # its caller may still be writing
    with pytest.raises(AgentUnavailableError):
        client.commit(reserved.lease, [], Deadline.after(1))
    assert client.settled


def test_the_arena_of_client_and_agent_is_the_same_memory(agent: NodeAgent, client: AgentClient) -> None:
    reserved = client.reserve(some_keys(1), 100, Deadline.after(5))
    client.payload(reserved.grants[0], 100)[:5] = b"hello"
    start = reserved.grants[0].offset + HEADER_BYTES
    assert bytes(agent.arena.file.view[start : start + 5]) == b"hello"
    client.release(reserved.lease)


def test_a_reserve_that_nobody_waits_for_gives_its_slots_back(agent: NodeAgent, client: AgentClient) -> None:
    for _ in range(20):  # some are answered before they are cancelled, some after
        future = client.submit_reserve(some_keys(4), PAYLOAD_BYTES, 5)
        if not future.cancel():
            client.release(future.result().lease)
    wait_until(lambda: agent.arena.stats().reserved == 0, "all slots were given back")
    client.disconnect()
    wait_until(lambda: client.settled, "nothing counts as being written")


def test_the_next_reserve_travels_while_the_last_commit_does(client: AgentClient) -> None:
    keys = [some_keys(2) for _ in range(3)]
    reserving = [client.submit_reserve(part, PAYLOAD_BYTES, 5) for part in keys]
    committing = []
    for part, future in zip(keys, reserving, strict=True):
        reserved = client.wait(future, Reserved, Deadline.after(5))
        for key, grant in zip(part, reserved.grants, strict=True):
            client.payload(grant, PAYLOAD_BYTES)[:] = payload_of(key)
        digests = [(index, payload_digest(payload_of(key))) for index, key in enumerate(part)]
        committing.append(client.submit_commit(reserved.lease, digests, 5))
    assert [client.wait(future, Committed, Deadline.after(5)).statuses for future in committing] == [["stored"] * 2] * 3
    assert load_blocks(client, [key for part in keys for key in part]) == ["hit"] * 6
