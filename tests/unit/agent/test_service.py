"""Each request of the protocol, answered without sockets."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from kveik.agent.block_fates import BlockFates
from kveik.agent.funnel import MissingBlock
from kveik.agent.protocol import (
    PROTOCOL_VERSION,
    Answer,
    Commit,
    Committed,
    Done,
    Drop,
    Dropped,
    EngineRates,
    FindRequests,
    FoundRequests,
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
    Stats,
    StatsAnswer,
    TellRequests,
    TierGain,
    Welcome,
)
from kveik.agent.request_book import RequestBook
from kveik.agent.service import READ_LEASE_S, AgentService, Session
from kveik.agent.tally import Tally
from kveik.clock import Deadline, FakeClock
from kveik.errors import ProtocolError
from kveik.kv.frame import HEADER_BYTES, payload_digest
from kveik.kv.keys import BlockKey
from kveik.kv.namespace import REQUIRED_FACTS
from kveik.records import FailureRecord, Record, StateRecord
from kveik.store.arena import Arena
from kveik.store.arena_file import ArenaRequest, open_arena_file
from kveik.store.base import BlockStore
from kveik.store.faulty import FaultyStore
from kveik.store.memory import MemoryStore
from kveik.store.tiered import LowerTiers
from tests.agents import NAMESPACE, payload_of, some_keys, wait_until
from tests.funnels import prompt, told

SIZE = 20_000
FACTS = dict.fromkeys(REQUIRED_FACTS, "same")


def packed(count: int) -> list[bytes]:
    return [bytes(key) for key in some_keys(count)]


class Bench:
    """A service with one lower tier, and one session on it."""

    def __init__(
        self, folder: Path, below: Callable[[], BlockStore] = MemoryStore, *, queue_bytes: int = 1 << 20
    ) -> None:
        self.records: list[Record] = []
        self.clock = FakeClock()
        self.fates = BlockFates(self.clock)
        self.tally = Tally()
        file = open_arena_file(ArenaRequest(str(folder / "arena"), 2 << 20, 256 << 10))
        self.arena = Arena(file, listener=self.tell, clock=self.clock)
        self.below = below()
        self.lower = LowerTiers([self.below], threads=2, queue_bytes=queue_bytes, listener=self.tell)
        self.service = AgentService(
            self.arena, self.lower, listener=self.tell, tally=self.tally, clock=self.clock, fates=self.fates,
            requests=RequestBook(4),
        )  # fmt: skip
        self.session = self.greet()

    def close(self) -> None:
        self.lower.close()
        self.arena.close()

    def tell(self, record: Record) -> None:
        self.tally(record)
        self.fates(record)
        self.records.append(record)

    def greet(self, **given: object) -> Session:
        hello = Hello(1, PROTOCOL_VERSION, "engine", os.getpid(), 77, **given)  # type: ignore[arg-type]
        return self.service.greet(os.getpid(), hello)[0]

    def ask(self, request: Request, session: Session | None = None) -> Answer:
        answer = self.service.begin(session or self.session, request)
        return answer() if callable(answer) else answer

    def reserve(self, keys: Sequence[BlockKey], session: Session | None = None) -> Reserved:
        answer = self.ask(Reserve(1, list(keys), SIZE), session)
        assert isinstance(answer, Reserved)
        return answer

    def store(self, keys: Sequence[BlockKey]) -> None:
        reserved = self.reserve(keys)
        for key, grant in zip(keys, reserved.grants, strict=True):
            start = grant.offset + HEADER_BYTES
            self.arena.file.view[start : start + SIZE] = payload_of(key, SIZE)
        digests = [(index, payload_digest(payload_of(key, SIZE))) for index, key in enumerate(keys)]
        assert self.ask(Commit(2, reserved.lease, digests)) == Committed(2, ["stored"] * len(keys))

    def read(self, keys: Sequence[BlockKey], deadline_s: float = 5) -> Granted:
        answer = self.ask(Read(3, list(keys), [SIZE], deadline_s))
        assert isinstance(answer, Granted)
        return answer

    def lookup(self, keys: Sequence[BlockKey], ranks: list[int]) -> list[bytes]:
        answer = self.ask(Lookup(4, NAMESPACE, ranks, [(0, [key.block_hash for key in keys])], 5))
        assert isinstance(answer, Located)
        return answer.places


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def test_a_block_goes_in_is_found_and_comes_out(bench: Bench) -> None:
    keys = some_keys(2)
    bench.store(keys)
    assert bench.lookup([*keys, *some_keys(1)], [0]) == [bytes([1, 1, 0])]
    granted = bench.read(keys)
    assert [(grant.status, grant.place, grant.frame_bytes) for grant in granted.grants] == [("hit", 1, 4096 + SIZE)] * 2
    start = granted.grants[1].offset + HEADER_BYTES
    assert bytes(bench.arena.file.view[start : start + SIZE]) == payload_of(keys[1], SIZE)
    assert bench.arena.stats().pinned == 2
    assert bench.ask(Release(9, granted.lease)) == Done(9, 2)
    wait_until(lambda: bench.arena.stats().pinned == 0, "the cascade lets go, too")


def test_a_committed_block_is_written_down_and_brought_up_again(bench: Bench) -> None:
    keys = some_keys(3)
    bench.store(keys)
    assert bench.lower.drain(5)
    wait_until(lambda: bench.arena.stats().pinned == 0, "the written blocks are unpinned")
    bench.arena.drop_namespace(b"")
    assert bench.lookup(keys, [0]) == [bytes([2, 2, 2])]
    assert [grant.place for grant in bench.read(keys).grants] == [2, 2, 2]
    assert bench.lookup(keys, [0]) == [bytes([1, 1, 1])]


def test_a_lookup_for_two_ranks_needs_both(bench: Bench) -> None:
    keys = some_keys(2)
    bench.store(keys)
    bench.store([BlockKey.of(NAMESPACE, keys[0].block_hash, 0, 1)])
    assert bench.lookup(keys, [0, 1]) == [bytes([1, 0])]


def test_a_block_that_exists_or_is_being_written_needs_no_writing(bench: Bench) -> None:
    written, busy = some_keys(2)
    bench.store([written])
    bench.reserve([busy])
    grants = bench.reserve([written, busy]).grants
    assert [(grant.status, grant.reason) for grant in grants] == [("exists", "exists"), ("exists", "busy")]


def test_blocks_that_find_no_room_are_refused_and_counted(bench: Bench) -> None:
    grants = bench.reserve(some_keys(200)).grants
    refused = sum(grant.status == "failed" for grant in grants)
    assert 0 < refused < 200
    assert FailureRecord("arena", "put", "failed", "no_room", refused) in bench.records


def test_what_is_not_committed_is_given_up(bench: Bench) -> None:
    keys = some_keys(2)
    reserved = bench.reserve(keys)
    bench.ask(Commit(2, reserved.lease, [(1, bytes(16))]))
    assert bench.lookup(keys, [0]) == [bytes([0, 1])]
    assert bench.arena.stats().reserved == 0


def test_a_released_write_lease_frees_its_slots(bench: Bench) -> None:
    reserved = bench.reserve(some_keys(3))
    assert bench.ask(Release(2, reserved.lease)) == Done(2, 3)
    assert bench.arena.stats().free_slabs == bench.arena.stats().slabs


def test_slots_reserved_for_a_connection_that_has_ended_are_free_again(bench: Bench) -> None:
    keys = some_keys(3)
    bench.service.end(bench.session)
    assert bench.ask(Reserve(1, list(keys), SIZE)) == Refused(1, "the connection has ended")
    assert bench.arena.stats().reserved == 0
    assert {grant.status for grant in bench.reserve(keys, bench.greet()).grants} == {"stored"}


def test_a_commit_without_a_lease_is_refused(bench: Bench) -> None:
    assert isinstance(bench.ask(Commit(2, 12345, [])), Refused)
    other = bench.greet()
    reserved = bench.reserve(some_keys(1), other)
    assert isinstance(bench.ask(Commit(2, reserved.lease, [])), Refused)


@pytest.mark.parametrize("digests", [[(1, bytes(16))], [(-1, bytes(16))], [(0, b"short")], [(0, bytes(16))] * 2])
def test_a_commit_that_names_nonsense_is_a_protocol_error(bench: Bench, digests: list[tuple[int, bytes]]) -> None:
    reserved = bench.reserve(some_keys(1))
    with pytest.raises(ProtocolError):
        bench.ask(Commit(2, reserved.lease, digests))


@pytest.mark.parametrize(
    "request_",
    [
        Read(1, [b"short"], [10], 1),
        Read(1, packed(2), [10, 20, 30], 1),
        Read(1, packed(1), [0], 1),
        Read(1, packed(1), [10], -1.0),
        Read(1, packed(1), [10], float("nan")),
        Read(1, packed(1), [10], float("inf")),
        Reserve(1, packed(1), 0),
        Reserve(1, [b""], 10),
        Hello(1, 1, "again", 1),
    ],
)
def test_requests_that_no_client_sends_are_protocol_errors(bench: Bench, request_: Request) -> None:
    with pytest.raises(ProtocolError):
        bench.ask(request_)
    assert bench.arena.stats().pinned == 0


def test_another_protocol_version_is_not_admitted(bench: Bench) -> None:
    with pytest.raises(ProtocolError, match="version 99, this agent speaks"):
        bench.service.greet(1, Hello(1, 99, "engine", 1))


def test_incomplete_facts_are_not_admitted(bench: Bench) -> None:
    with pytest.raises(ProtocolError, match="missing"):
        bench.greet(facts={"dtype": "float32"})


def test_an_engine_of_another_namespace_is_told_and_it_is_logged_once(bench: Bench) -> None:
    bench.greet(label="model", facts=FACTS)
    hello = Hello(1, PROTOCOL_VERSION, "engine", 1, 0, "model", {**FACTS, "dtype": "float16"})
    assert "dtype float16 != same" in bench.service.greet(1, hello)[1].notes[0]
    assert bench.service.greet(1, hello)[1].notes
    assert sum(isinstance(record, StateRecord) for record in bench.records) == 1


def test_a_connection_that_ends_frees_what_it_read(bench: Bench) -> None:
    keys = some_keys(2)
    bench.store(keys)
    bench.lower.drain(5)
    bench.read(keys)
    wait_until(lambda: bench.arena.stats().pinned == 2, "only the read pins")
    bench.service.end(bench.session)
    assert bench.arena.stats().pinned == 0


def test_a_connection_that_ends_keeps_slots_that_its_living_process_may_write(bench: Bench) -> None:
    bench.reserve(some_keys(2))
    bench.service.end(bench.session)
    assert bench.arena.stats().quarantined == 2
    assert bench.ask(Settled(1, [77]), bench.greet()) == Done(1, 2)
    assert bench.arena.stats().quarantined == 0


def test_a_read_that_ends_after_its_connection_pins_nothing(bench: Bench) -> None:
    keys: list[bytes] = [*some_keys(1)]
    bench.store([BlockKey(key) for key in keys])
    bench.lower.drain(5)
    job = partial(bench.ask, Read(1, keys, [SIZE], 5))
    bench.service.end(bench.session)
    assert isinstance(job(), Refused)
    wait_until(lambda: bench.arena.stats().pinned == 0, "nothing is pinned")


def test_a_read_lease_that_is_too_old_is_taken_back(bench: Bench) -> None:
    keys = some_keys(1)
    bench.store(keys)
    bench.lower.drain(5)
    granted = bench.read(keys)
    bench.clock.advance(READ_LEASE_S - 1)
    assert bench.service.take_back() == 0
    bench.clock.advance(2)
    assert bench.service.take_back() == 1
    assert bench.ask(Release(5, granted.lease)) == Done(5, 0)
    assert bench.arena.stats().pinned == 0


def test_a_reported_block_is_given_up_only_if_it_is_wrong(bench: Bench) -> None:
    sound, wrong = some_keys(2)
    bench.store([sound, wrong])
    (slot,) = bench.arena.locate([wrong])
    bench.arena.view(slot)[-1] ^= 1
    assert bench.ask(Report(1, [sound, wrong, *some_keys(1)], "checksum")) == Done(1, 1)
    assert bench.arena.locate([sound, wrong])[1] == -1


def test_a_dropped_namespace_is_gone_from_all_tiers(bench: Bench) -> None:
    keys, others = some_keys(2), some_keys(1, b"o" * 16)
    bench.store(keys)
    bench.store(others)
    bench.lower.drain(5)
    assert bench.ask(Drop(1, NAMESPACE)) == Dropped(1, 2, {"memory": 2}, [])
    assert bench.lookup(keys, [0]) == [bytes([0, 0])]
    assert bench.arena.keys() == others
    assert bench.below.stats().blocks == 1


def test_blocks_that_only_a_lower_tier_has_are_dropped_with_their_namespace(bench: Bench) -> None:
    keys, others = some_keys(3), some_keys(1, b"o" * 16)
    bench.store([*keys, *others])
    assert bench.lower.drain(5)
    wait_until(lambda: bench.arena.stats().pinned == 0, "the written blocks are unpinned")
    bench.arena.drop_namespace(b"")
    assert bench.ask(Drop(1, NAMESPACE)) == Dropped(1, 0, {"memory": 3}, [])
    assert bench.lookup(keys, [0]) == [bytes(3)]
    assert bench.below.lookup(others, Deadline.after(1)) == [True]


def test_an_empty_digest_drops_everything_everywhere(bench: Bench) -> None:
    bench.store([*some_keys(2), *some_keys(1, b"o" * 16)])
    assert bench.lower.drain(5)
    assert bench.ask(Drop(1, b"")) == Dropped(1, 3, {"memory": 3}, [])
    assert bench.below.stats().blocks == 0


@pytest.mark.parametrize("namespace", [b"n", b"n" * 15, b"n" * 17])
def test_a_digest_of_another_length_drops_nothing(bench: Bench, namespace: bytes) -> None:
    bench.store(some_keys(2))
    with pytest.raises(ProtocolError, match="namespace digest of"):
        bench.ask(Drop(1, namespace))
    assert bench.arena.stats().blocks == 2


def test_a_tier_that_cannot_say_what_it_has_keeps_what_the_arena_does_not_know_and_says_so(tmp_path: Path) -> None:
    bench = Bench(tmp_path, lambda: FaultyStore(MemoryStore()))
    in_both, below_only = some_keys(2)
    bench.store([in_both, below_only])
    assert bench.lower.drain(5)
    wait_until(lambda: bench.arena.stats().pinned == 0, "the written blocks are unpinned")
    bench.arena.drop([below_only])
    answer = bench.ask(Drop(1, NAMESPACE))
    assert answer == Dropped(
        1, 1, {"memory": 1}, ["memory: blocks may be left: the tier cannot say which blocks it has"]
    )
    assert bench.below.lookup([in_both, below_only], Deadline.after(1)) == [False, True]
    bench.close()


def test_blocks_that_find_the_way_down_full_stay_in_the_arena_and_are_counted(tmp_path: Path) -> None:
    bench = Bench(tmp_path, queue_bytes=SIZE)  # less than one frame
    keys = some_keys(3)
    bench.store(keys)
    assert FailureRecord("cascade", "put", "failed", "busy", 3) in bench.records
    assert bench.arena.stats().pinned == 0
    assert bench.lookup(keys, [0]) == [bytes([1, 1, 1])]
    assert bench.below.stats().blocks == 0
    bench.close()


def test_the_state_tells_sizes_connections_and_counts(bench: Bench) -> None:
    bench.greet(label="model", facts=FACTS)
    keys = some_keys(2)
    bench.store(keys)
    bench.lookup(keys, [0])
    answer = bench.ask(Stats(1))
    assert isinstance(answer, StatsAnswer)
    state = json.loads(answer.document)
    assert state["arena"]["blocks"] == 2
    assert state["namespaces"] == [
        {"digest": NAMESPACE.hex(), "label": "", "facts": {}, "blocks": 2, "bytes": 2 * SIZE}
    ]
    assert [connection["label"] for connection in state["connections"]] == ["", "model"]
    assert state["tiers"][0]["name"] == "memory"
    assert state["counters"]["arena.put_blocks"] == 2
    assert state["counters"]["arena.found"] == 2


def below_only(bench: Bench, keys: Sequence[BlockKey]) -> None:
    """These blocks lie in the tier, and no longer in the arena."""
    bench.store(keys)
    assert bench.lower.drain(5)
    wait_until(lambda: bench.arena.stats().pinned == 0, "the written blocks are unpinned")
    bench.arena.drop(keys)


def located(bench: Bench, keys: Sequence[BlockKey], engine: EngineRates | None = None) -> Located:
    answer = bench.ask(Lookup(4, NAMESPACE, [0], [(0, [key.block_hash for key in keys])], 5, engine))
    assert isinstance(answer, Located)
    return answer


def test_an_engine_is_told_how_fast_the_tiers_are_that_have_its_blocks(bench: Bench) -> None:
    first, second = some_keys(4), some_keys(2)
    below_only(bench, [*first, *second])
    assert located(bench, first).rates == []  # nobody read from it yet
    bench.read(first)
    (rate,) = located(bench, second).rates
    assert (rate.place, rate.samples, rate.waiting_bytes) == (2, 1, 0)
    assert rate.byte_s > 0
    assert located(bench, first).rates == []  # all of these lie in the arena now


def test_a_block_that_came_up_is_not_written_down_again(bench: Bench) -> None:
    keys = some_keys(2)
    below_only(bench, keys)
    bench.ask(Release(9, bench.read(keys).lease))
    bench.below.delete(keys)
    bench.lookup(keys, [0])
    assert bench.lower.drain(5)
    assert bench.below.lookup(keys, Deadline.after(1)) == [False, False]


def test_what_an_engine_learned_and_gained_is_in_the_state(bench: Bench) -> None:
    learned = EngineRates(prefill=[0.01, 1e-4, 0.0], prefill_steps=7, gains={"arena": TierGain(96, 1.5, 0.0)})
    located(bench, some_keys(1), learned)
    state = bench.service.state()
    connections = state["connections"]
    assert isinstance(connections, list)
    assert connections[0]["learned"]["prefill_steps"] == 7
    assert state["gains"] == {"arena": {"tokens": 96, "saved_s": 1.5, "lost_s": 0.0}}
    bench.service.end(bench.session)
    assert bench.service.state()["gains"] == state["gains"]


class TestRequests:
    """What engines tell of their requests, and what the agent adds."""

    def fate(self, bench: Bench, key: BlockKey) -> str:
        """What the agent says of a block that a request missed."""
        missing = MissingBlock(0, 0, 128, key.block_hash)
        asked_s = bench.clock.monotonic()
        record = told("a", prompt(300), namespace=NAMESPACE, missing=missing, asked_s=asked_s)
        assert bench.ask(TellRequests(7, [record])) == Done(7, 1)
        found = bench.ask(FindRequests(8))
        assert isinstance(found, FoundRequests)
        return found.requests[0].fate

    def test_a_welcome_names_the_messages_that_came_later(self, bench: Bench) -> None:
        hello = Hello(1, PROTOCOL_VERSION, "engine", os.getpid(), 78)
        _, welcome = bench.service.greet(os.getpid(), hello)
        assert isinstance(welcome, Welcome)
        assert welcome.also == ["TellRequests", "FindRequests"]

    def test_requests_are_found_with_who_told_of_them_and_all_namespaces(self, bench: Bench) -> None:
        session = bench.greet(label="model", facts=FACTS)
        bench.ask(TellRequests(7, [told("a", prompt(300))]), session)
        found = bench.ask(FindRequests(8))
        assert isinstance(found, FoundRequests)
        assert [(one.engine, one.engine_pid) for one in found.requests] == [("model", os.getpid())]
        assert [(one.label, one.facts) for one in found.namespaces] == [("model", FACTS)]

    def test_an_evicted_block_is_remembered(self, bench: Bench) -> None:
        keys = some_keys(1)
        bench.store(keys)
        assert bench.lower.drain(5)
        wait_until(lambda: bench.arena.stats().pinned == 0, "the written blocks are unpinned")
        while bench.arena.holds(keys) == [True]:
            bench.store(some_keys(4))
            assert bench.lower.drain(5)
        assert self.fate(bench, keys[0]) == "evicted"

    def test_a_refused_block_is_remembered(self, bench: Bench) -> None:
        (key,) = some_keys(1)
        bench.ask(Reserve(1, [key], 1 << 30))
        assert self.fate(bench, key) == "refused"

    def test_a_block_whose_writing_was_given_up_is_remembered(self, bench: Bench) -> None:
        released, left = some_keys(2)
        bench.ask(Release(2, bench.reserve([released]).lease))
        assert self.fate(bench, released) == "given_up"
        session = bench.greet()
        bench.reserve([left], session)
        bench.service.end(session)
        assert self.fate(bench, left) == "given_up"

    def test_a_dropped_block_is_remembered(self, bench: Bench) -> None:
        keys = some_keys(1)
        bench.store(keys)
        bench.ask(Drop(5, b""))
        assert self.fate(bench, keys[0]) == "dropped"

    def test_a_block_that_was_found_corrupt_is_remembered(self, bench: Bench) -> None:
        keys = some_keys(1)
        bench.store(keys)
        (slot,) = bench.arena.locate(keys)
        start = bench.arena.offset(slot) + HEADER_BYTES
        bench.arena.file.view[start] ^= 1
        bench.ask(Report(6, [bytes(key) for key in keys], "checksum"))
        assert self.fate(bench, keys[0]) == "corrupt"
