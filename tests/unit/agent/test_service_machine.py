"""Any order of requests of several connections, against a model of who holds what."""

import itertools
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from kveik.agent.protocol import (
    PROTOCOL_VERSION,
    Answer,
    Commit,
    Committed,
    Done,
    Drop,
    Dropped,
    Granted,
    Hello,
    Located,
    Lookup,
    Read,
    Refused,
    Release,
    Report,
    Request,
    Reserve,
    Reserved,
    Settled,
)
from kveik.agent.service import READ_LEASE_S, AgentService, Session
from kveik.agent.tally import Tally
from kveik.clock import FakeClock
from kveik.kv.frame import HEADER_BYTES, payload_digest
from kveik.kv.keys import BlockKey
from kveik.records import ignore
from kveik.store.arena import Arena
from kveik.store.arena_file import ArenaRequest, open_arena_file
from kveik.store.memory import MemoryStore
from kveik.store.tiered import LowerTiers
from tests.agents import payload_of

SIZES = (3_000, 20_000)
NAMESPACES = (b"n" * 16, b"o" * 16)
KEYS = [BlockKey.of(namespace, bytes([number]) * 32) for namespace in NAMESPACES for number in range(3)]

some = st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True)
sizes = st.sampled_from(SIZES)


@dataclass(eq=False)
class Peer:
    """A connection and its open leases: those for reading with their offsets, those for writing with their keys."""

    session: Session
    connection: int
    alive: bool = True
    reading: dict[int, list[int]] = field(default_factory=dict)
    writing: dict[int, tuple[int, dict[int, tuple[BlockKey, int]]]] = field(default_factory=dict)


class ServiceMachine(RuleBasedStateMachine):
    """A service with a lower tier. ``stored`` says which blocks must be readable, and how long they are."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = FakeClock()
        request = ArenaRequest(str(Path(self.folder.name) / "arena"), 2 << 20, 256 << 10)
        self.arena = Arena(open_arena_file(request), clock=self.clock)
        self.lower = LowerTiers([MemoryStore()], threads=2, queue_bytes=1 << 20)
        self.service = AgentService(self.arena, self.lower, listener=ignore, tally=Tally(), clock=self.clock)
        self.ids = itertools.count(1)
        self.peers: list[Peer] = []
        self.stored: dict[BlockKey, int] = {}
        self.orphans: dict[int, int] = {}  # slots of an ended connection that its process may still write

    def teardown(self) -> None:
        for peer in self.peers:
            if peer.alive:
                self.service.end(peer.session)
        self.arena.settle(list(self.orphans) + [peer.connection for peer in self.peers])
        assert self.lower.drain(10)
        stats = self.arena.stats()
        assert (stats.pinned, stats.reserved, stats.quarantined) == (0, 0, 0)
        self.lower.close()
        self.arena.close()
        self.folder.cleanup()

    def ask(self, peer: Peer, request: Request) -> Answer:
        answer = self.service.begin(peer.session, request)
        return answer() if callable(answer) else answer

    @property
    def being_written(self) -> set[BlockKey]:
        return {key for peer in self.peers for _, held in peer.writing.values() for key, _ in held.values()}

    connections = Bundle("connections")

    @rule(target=connections)
    def connect(self) -> Peer:
        number = next(self.ids)
        session, _ = self.service.greet(os.getpid(), Hello(number, PROTOCOL_VERSION, "engine", os.getpid(), number))
        self.peers.append(Peer(session, number))
        return self.peers[-1]

    @rule(peer=consumes(connections))
    def disconnect(self, peer: Peer) -> None:
        self.service.end(peer.session)
        peer.alive = False
        self.orphans[peer.connection] = sum(len(held) for _, held in peer.writing.values())
        peer.reading.clear()
        peer.writing.clear()
        # What comes after the end must leave nothing behind.
        assert isinstance(self.ask(peer, Reserve(1, [*KEYS], SIZES[0])), Refused)

    @rule(peer=connections)
    def settle(self, peer: Peer) -> None:
        gone, self.orphans = self.orphans, {}
        assert self.ask(peer, Settled(next(self.ids), list(gone))) == Done(next(self.ids) - 1, sum(gone.values()))

    @rule(peer=connections, keys=some, size=sizes)
    def reserve(self, peer: Peer, keys: list[BlockKey], size: int) -> None:
        busy = self.being_written
        answer = self.ask(peer, Reserve(next(self.ids), list(keys), size))
        assert isinstance(answer, Reserved)
        held: dict[int, tuple[BlockKey, int]] = {}
        for index, (key, grant) in enumerate(zip(keys, answer.grants, strict=True)):
            assert (grant.status == "exists") == (key in self.stored or key in busy), (key, grant)
            if grant.status == "stored":
                held[index] = key, grant.offset
        peer.writing[answer.lease] = size, held

    @precondition(lambda self: any(peer.writing for peer in self.peers))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        peer = data.draw(st.sampled_from([peer for peer in self.peers if peer.writing]))
        lease = data.draw(st.sampled_from(sorted(peer.writing)))
        size, held = peer.writing.pop(lease)
        finished = [index for index in held if data.draw(st.booleans())]
        for index in finished:
            key, offset = held[index]
            self.arena.file.view[offset + HEADER_BYTES : offset + HEADER_BYTES + size] = payload_of(key, size)
        digests = [(index, payload_digest(payload_of(held[index][0], size))) for index in finished]
        answer = self.ask(peer, Commit(next(self.ids), lease, digests))
        assert isinstance(answer, Committed)
        assert answer.statuses == ["stored"] * len(finished)
        self.stored.update({held[index][0]: size for index in finished})

    @rule(peer=connections, keys=some, size=sizes)
    def read(self, peer: Peer, keys: list[BlockKey], size: int) -> None:
        answer = self.ask(peer, Read(next(self.ids), list(keys), [size], 10.0))
        assert isinstance(answer, Granted)
        for key, grant in zip(keys, answer.grants, strict=True):
            if key not in self.stored:
                assert grant.status in ("miss", "failed"), grant
            elif self.stored[key] != size:
                assert (grant.status, grant.reason) == ("failed", "foreign")
            else:
                assert grant.status == "hit", grant
                start = grant.offset + HEADER_BYTES
                assert bytes(self.arena.file.view[start : start + size]) == payload_of(key, size)
        if answer.lease:
            peer.reading[answer.lease] = [grant.offset for grant in answer.grants if grant.status == "hit"]

    @rule(peer=connections, keys=some)
    def lookup(self, peer: Peer, keys: list[BlockKey]) -> None:
        for namespace in NAMESPACES:
            hashes = [key.block_hash for key in keys if key.namespace == namespace]
            answer = self.ask(peer, Lookup(next(self.ids), namespace, [0], [(0, hashes)], 10.0))
            assert isinstance(answer, Located)
            expected = [BlockKey.of(namespace, block_hash) in self.stored for block_hash in hashes]
            assert [place > 0 for place in answer.places[0]] == expected

    @precondition(lambda self: any(peer.reading or peer.writing for peer in self.peers))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        peer = data.draw(st.sampled_from([peer for peer in self.peers if peer.reading or peer.writing]))
        lease = data.draw(st.sampled_from(sorted([*peer.reading, *peer.writing])))
        touched = len(peer.reading.pop(lease)) if lease in peer.reading else len(peer.writing.pop(lease)[1])
        answer = self.ask(peer, Release(next(self.ids), lease))
        assert isinstance(answer, Done)
        assert answer.count == touched
        again = self.ask(peer, Release(next(self.ids), lease))
        assert isinstance(again, Done)
        assert again.count == 0

    @rule(peer=connections, namespace=st.sampled_from([*NAMESPACES, b""]))
    def drop(self, peer: Peer, namespace: bytes) -> None:
        gone = [key for key in self.stored if key.startswith(namespace)]
        answer = self.ask(peer, Drop(next(self.ids), namespace))
        assert isinstance(answer, Dropped)
        assert (answer.count, answer.tiers, answer.notes) == (len(gone), {"memory": len(gone)}, [])
        for key in gone:
            del self.stored[key]

    @rule(peer=connections, keys=some)
    def report_what_is_sound(self, peer: Peer, keys: list[BlockKey]) -> None:
        answer = self.ask(peer, Report(next(self.ids), list(keys), "checksum"))
        assert isinstance(answer, Done)
        assert answer.count == 0

    @rule(seconds=st.sampled_from([1.0, READ_LEASE_S + 1.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        freed = self.service.take_back()
        if seconds > READ_LEASE_S:
            assert freed >= sum(len(offsets) for peer in self.peers for offsets in peer.reading.values())
            for peer in self.peers:
                peer.reading.clear()

    @invariant()
    def only_what_somebody_holds_is_held(self) -> None:
        assert self.lower.drain(10)
        stats = self.arena.stats()
        read = {offset for peer in self.peers for offsets in peer.reading.values() for offset in offsets}
        assert stats.pinned == len(read)
        assert stats.reserved == sum(len(held) for peer in self.peers for _, held in peer.writing.values())
        assert stats.quarantined == sum(self.orphans.values())
        assert sorted(self.arena.keys()) == sorted(self.stored)


ServiceMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestService = ServiceMachine.TestCase
