"""What the agent does with each request. No sockets and no threads of its own.

Quick requests are answered at once. Those that may have to wait for a lower tier or check
checksums become a :data:`Job`, which the caller runs on a thread that may wait.
"""

import json
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from kveik.agent.block_fates import FATES_KEPT, BlockFates
from kveik.agent.cascading import Cascade
from kveik.agent.engine_books import EngineBooks
from kveik.agent.funnel import CORRUPT, DROPPED, GIVEN_UP, REFUSED, KnownNamespace
from kveik.agent.leases import Leases, ReadLease, WriteLease
from kveik.agent.lookup import located, lookup_keys, tier_rate
from kveik.agent.missing_block import explain_missing
from kveik.agent.namespaces import Namespaces
from kveik.agent.promotion import Outcome, Promoter
from kveik.agent.protocol import (
    ABSENT,
    ARENA,
    LATER_MESSAGES,
    PROTOCOL_VERSION,
    Answer,
    Commit,
    Committed,
    Done,
    Drop,
    Dropped,
    FindRequests,
    FoundRequests,
    Grant,
    Granted,
    Hello,
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
    Welcome,
)
from kveik.agent.request_book import RequestBook
from kveik.agent.state import arena_state
from kveik.agent.tally import Tally
from kveik.clock import SYSTEM_CLOCK, Clock, Deadline
from kveik.config import WAIT_MAX_S
from kveik.errors import ConfigError, KeyFormatError, ProtocolError
from kveik.kv.frame import frame_bytes
from kveik.kv.keys import NAMESPACE_BYTES, BlockKey
from kveik.kv.namespace import Namespace
from kveik.records import FailureRecord, Listener, LookupRecord, StateRecord, TransferRecord
from kveik.store.admission import ALL
from kveik.store.arena import Arena
from kveik.store.base import Status
from kveik.store.tiered import LowerTiers
from kveik.store.writer import Writer

#: Part of a client's deadline that is left for the answer's way back, at most ``ANSWER_MAX_S``.
ANSWER_SHARE = 0.1
ANSWER_MAX_S = 0.02
#: A read lease older than this may be taken back.
READ_LEASE_S = 60.0
DIGEST_BYTES = 16

Job = Callable[[], Answer]


@dataclass(slots=True)
class Session:
    """One connection, as the service sees it."""

    peer_pid: int
    role: str
    label: str
    writer: Writer
    leases: Leases = field(default_factory=Leases)


class AgentService:
    """The node's store: the arena, the tiers below, and the leases of all connections."""

    def __init__(
        self,
        arena: Arena,
        lower: LowerTiers,
        *,
        listener: Listener,
        tally: Tally,
        clock: Clock = SYSTEM_CLOCK,
        admission: str = ALL,
        fates: BlockFates | None = None,
        requests: RequestBook | None = None,
    ) -> None:
        """``fates`` should get all records, of evictions above all, as a listener."""
        self.arena = arena
        self._lower = lower
        self._listener = listener
        self._tally = tally
        self._clock = clock
        self._cascade = Cascade(arena, lower, admission, listener)
        self._promoter = Promoter(arena, lower, self._cascade.brought_up)
        self._books = EngineBooks()
        self._fates = fates or BlockFates(clock)
        self._requests = requests or RequestBook(0)
        self._namespaces = Namespaces()
        self._sessions: dict[int, Session] = {}
        self._started_s = clock.monotonic()
        self.agent_id = f"{os.getpid()}-{secrets.token_hex(4)}"

    # -- connections ------------------------------------------------------------------------

    def greet(self, peer_pid: int, hello: Hello) -> tuple[Session, Welcome]:
        """Admit a connection. Raises :class:`ProtocolError` with what was expected."""
        if hello.version != PROTOCOL_VERSION:
            raise ProtocolError(f"protocol version {hello.version}, this agent speaks {PROTOCOL_VERSION}")
        notes = self._announce(hello) if hello.facts else []
        session = Session(peer_pid, hello.role, hello.label, Writer.of(peer_pid, hello.connection))
        self._sessions[id(session)] = session
        places = ["", "arena", *self._lower.names]
        arena_bytes, also = self.arena.file.layout.arena_bytes, list(LATER_MESSAGES)
        return session, Welcome(hello.id, PROTOCOL_VERSION, self.agent_id, arena_bytes, places, notes, also)

    def _announce(self, hello: Hello) -> list[str]:
        try:
            namespace = Namespace(hello.facts, hello.label)
        except ConfigError as error:
            raise ProtocolError(str(error)) from error
        is_new, notes = self._namespaces.announce(namespace)
        if is_new:
            self._lower.describe(namespace)
            for note in notes:
                self._listener(StateRecord(f"namespace {namespace.label}", "one", "several", note))
        return notes

    def end(self, session: Session) -> None:
        """The connection is gone: free what it held, except what its process may still write."""
        self._sessions.pop(id(session), None)
        self._books.ended(id(session))
        for lease in session.leases.close():
            if isinstance(lease, WriteLease):
                self._fates.note(map(self.arena.key, lease.held), GIVEN_UP, "the engine left")
                self.arena.orphan(lease.held)
            else:
                self.arena.unpin(lease.slots)

    def begin(self, session: Session, request: Request) -> Answer | Job:
        """Answer a request, or say what has to be done for the answer.

        Raises :class:`ProtocolError` for a request that no correct client sends.
        """
        answer: Answer | Job
        match request:
            case Lookup():
                answer = self._lookup(session, request)
            case Read():
                answer = self._read(session, request)
            case Reserve():
                answer = self._reserve(session, request)
            case Commit():
                answer = self._commit(session, request)
            case Release():
                answer = self._release(session, request)
            case Settled():
                answer = Done(request.id, self.arena.settle(request.connections))
            case Report():
                self.arena.doubt(request.keys)  # before any later read of this connection
                answer = partial(self._report, request)
            case Drop():
                answer = self._drop(request)
            case Stats():
                answer = StatsAnswer(request.id, json.dumps(self.state()))
            case TellRequests():
                answer = self._hear(session, request)
            case FindRequests():
                answer = FoundRequests(request.id, self._requests.latest(), self._known_namespaces())
            case Hello():
                raise ProtocolError("a second hello on one connection")
        return answer

    def _answer_by(self, deadline_s: float) -> Deadline:
        """When to answer so that a client that waits ``deadline_s`` still sees it."""
        if not 0 <= deadline_s <= WAIT_MAX_S:  # also not a number
            raise ProtocolError(f"deadline of {deadline_s} s, expected 0 to {WAIT_MAX_S:g}")
        return Deadline.after(deadline_s - min(deadline_s * ANSWER_SHARE, ANSWER_MAX_S), self._clock)

    # -- lookup -----------------------------------------------------------------------------

    def _lookup(self, session: Session, request: Lookup) -> Answer | Job:
        start_s = self._clock.monotonic()
        keys = lookup_keys(request)
        if request.engine is not None:
            self._books.told(id(session), request.engine)
        slots = self.arena.locate(keys)
        places = bytearray(ARENA if slot >= 0 else ABSENT for slot in slots)
        self._listener(
            LookupRecord("arena", len(keys), len(keys) - places.count(ABSENT), self._clock.monotonic() - start_s)
        )
        self._cascade.asked_for(slots)
        if ABSENT in places and self._lower.names:
            deadline = self._answer_by(request.deadline_s)
            return lambda: self._lookup_below(request, keys, places, deadline)
        return located(request, places)

    def _lookup_below(self, request: Lookup, keys: list[bytes], places: bytearray, deadline: Deadline) -> Answer:
        absent = [index for index, place in enumerate(places) if place == ABSENT]
        tiers = self._lower.lookup([BlockKey.from_packed(keys[index]) for index in absent], deadline)
        for index, tier in zip(absent, tiers, strict=True):
            places[index] = ABSENT if tier < 0 else ARENA + 1 + tier
        rates = (tier_rate(tier, self._lower.rate(tier)) for tier in sorted(set(tiers) - {-1}))
        return located(request, places, [rate for rate in rates if rate is not None])

    # -- read -------------------------------------------------------------------------------

    def _read(self, session: Session, request: Read) -> Answer | Job:
        keys = _keys(request.keys)
        sizes = request.payload_bytes if len(request.payload_bytes) != 1 else request.payload_bytes * len(keys)
        if len(sizes) != len(keys) or min(sizes, default=1) < 1:
            raise ProtocolError(f"{len(keys)} keys with payload sizes {request.payload_bytes[:8]}, expected one each")
        deadline = self._answer_by(request.deadline_s)
        start_s = self._clock.monotonic()
        slots = self.arena.pin(keys)
        if self._ready(slots, sizes):
            return self._grant(session, request, [Outcome(Status.HIT, slot, ARENA) for slot in slots], start_s)
        self.arena.unpin(slot for slot in slots if slot >= 0)
        return lambda: self._grant(session, request, self._promoter.read(keys, sizes, deadline), start_s)

    def _ready(self, slots: Sequence[int], sizes: Sequence[int]) -> bool:
        """Whether all blocks are there, checked, and of the expected size."""
        if -1 in slots or self.arena.unverified_of(slots):
            return False
        return all(self.arena.payload_bytes(slot) == size for slot, size in zip(slots, sizes, strict=True))

    def _grant(self, session: Session, request: Read, outcomes: Sequence[Outcome], start_s: float) -> Answer:
        slots = tuple(outcome.slot for outcome in outcomes if outcome.slot >= 0)
        size = sum(self.arena.payload_bytes(slot) for slot in slots)
        lease = 0
        if slots and not (lease := session.leases.add(ReadLease(slots, size, start_s))):
            self.arena.unpin(slots)
            return Refused(request.id, "the connection has ended")
        return Granted(request.id, lease, [self._grant_of(outcome) for outcome in outcomes])

    def _grant_of(self, outcome: Outcome) -> Grant:
        if outcome.slot < 0:
            return Grant(outcome.status.value, reason=outcome.reason)
        size = frame_bytes(self.arena.payload_bytes(outcome.slot))
        return Grant(Status.HIT.value, self.arena.offset(outcome.slot), size, outcome.place)

    # -- write ------------------------------------------------------------------------------

    def _reserve(self, session: Session, request: Reserve) -> Answer:
        if request.payload_bytes < 1:
            raise ProtocolError(f"payload of {request.payload_bytes} bytes")
        keys = _keys(request.keys)
        reservations = self.arena.reserve(keys, request.payload_bytes, session.writer)
        slots = tuple(reservation.slot for reservation in reservations)
        lease = WriteLease(slots, request.payload_bytes, self._clock.monotonic())
        if not (lease_id := session.leases.add(lease)):
            self.arena.abort(lease.held)  # nobody was told of these slots, so nobody writes into them
            return Refused(request.id, "the connection has ended")
        size = frame_bytes(request.payload_bytes)
        refused = [r.reason for r in reservations if r.reason not in ("", "exists", "busy")]
        for reason in set(refused):
            self._listener(FailureRecord("arena", "put", "failed", reason, refused.count(reason)))
            lost = [key for key, found in zip(keys, reservations, strict=True) if found.reason == reason]
            self._fates.note(lost, REFUSED, reason)
        # Another engine computed these as well, or an earlier time did.
        again = [key for key, found in zip(keys, reservations, strict=True) if found.reason == "exists"]
        self._cascade.asked_for(self.arena.locate(again))
        grants = [
            _refusal(reservation.reason)
            if reservation.reason
            else Grant(Status.STORED.value, self.arena.offset(reservation.slot), size, ARENA)
            for reservation in reservations
        ]
        return Reserved(request.id, lease_id, grants)

    def _commit(self, session: Session, request: Commit) -> Answer:
        lease = session.leases.peek(request.lease)
        if not isinstance(lease, WriteLease):
            return Refused(request.id, f"lease {request.lease} is no open write lease of this connection")
        digests: dict[int, bytes] = {}
        for index, digest in request.digests:
            if not 0 <= index < len(lease.slots) or lease.slots[index] < 0 or index in digests:
                raise ProtocolError(f"commit of entry {index}, which this lease does not hold")
            if len(digest) != DIGEST_BYTES:
                raise ProtocolError(f"digest of {len(digest)} bytes, expected {DIGEST_BYTES}")
            digests[index] = digest
        session.leases.take(request.lease)
        slots = [lease.slots[index] for index in digests]
        self.arena.commit(slots, list(digests.values()), pin=True)
        self.arena.abort(set(lease.held) - set(slots))
        self._cascade.committed(slots)
        seconds = self._clock.monotonic() - lease.opened_s
        self._listener(TransferRecord("arena", "put", len(slots), len(slots) * lease.payload_bytes, seconds))
        return Committed(request.id, [Status.STORED.value] * len(slots))

    def _release(self, session: Session, request: Release) -> Answer:
        lease = session.leases.take(request.lease)
        if lease is None:  # taken back, or committed: nothing is left to do
            return Done(request.id)
        if isinstance(lease, WriteLease):
            self._fates.note(map(self.arena.key, lease.held), GIVEN_UP, "not written")
            self.arena.abort(lease.held)
            return Done(request.id, len(lease.held))
        self._end_read(lease)
        return Done(request.id, len(lease.slots))

    def _end_read(self, lease: ReadLease) -> None:
        self.arena.unpin(lease.slots)
        seconds = self._clock.monotonic() - lease.opened_s
        self._listener(TransferRecord("arena", "get", len(lease.slots), lease.bytes, seconds))

    # -- the rest ---------------------------------------------------------------------------

    def _report(self, request: Report) -> Answer:
        """Check what a client found wrong; only what is wrong here too is given up."""
        return Done(request.id, sum(self._check(key) is False for key in _keys(request.keys)))

    def _check(self, key: BlockKey) -> bool | None:
        """Whether the block is sound; None if it is not in the arena."""
        (slot,) = self.arena.pin([key])
        if slot < 0:
            return None
        try:
            sound = self.arena.check(slot)
        finally:
            self.arena.unpin([slot])
        if not sound:
            self._fates.note([key], CORRUPT, "arena")
        return sound

    def _drop(self, request: Drop) -> Job:
        if len(request.namespace) not in (0, NAMESPACE_BYTES):
            raise ProtocolError(
                f"namespace digest of {len(request.namespace)} bytes, expected {NAMESPACE_BYTES} or none"
            )
        return partial(self._drop_everywhere, request)

    def _drop_everywhere(self, request: Drop) -> Answer:
        keys = self.arena.keys(request.namespace)
        dropped = self.arena.drop_namespace(request.namespace)
        self._fates.note(keys[-FATES_KEPT:], DROPPED, "")
        below = self._lower.drop_namespace(request.namespace, keys)
        notes = [f"{drop.tier}: blocks may be left: {drop.left}" for drop in below if drop.left]
        return Dropped(request.id, dropped, {drop.tier: drop.blocks for drop in below}, notes)

    # -- requests ---------------------------------------------------------------------------

    def _hear(self, session: Session, request: TellRequests) -> Answer:
        """Keep what an engine tells of its requests, with what is remembered of blocks that they missed."""
        for record in self._requests.told(request.requests, session.peer_pid, session.label):
            explain_missing(record, self.arena, self._fates, self._namespaces)
        return Done(request.id, len(request.requests))

    def _known_namespaces(self) -> list[KnownNamespace]:
        return [KnownNamespace(one.digest, one.label, dict(one.facts)) for one in self._namespaces.all()]

    # -- tidying up -------------------------------------------------------------------------

    def take_back(self) -> int:
        """End read leases that are too old and quarantines that are over; how many slots that freed."""
        before_s = self._clock.monotonic() - READ_LEASE_S
        freed = self.arena.sweep()
        for session in list(self._sessions.values()):
            for lease in session.leases.take_old_reads(before_s):
                self.arena.unpin(lease.slots)
                freed += len(lease.slots)
        return freed

    def verify_one(self) -> bool:
        """Check one block that an earlier agent left; False when none is left."""
        keys = self.arena.some_unverified(1)
        for key in keys:
            self._check(BlockKey(key))
        return bool(keys)

    def state(self) -> dict[str, object]:
        """Everything that ``kveik stats`` shows, as plain values."""
        return {
            "agent_id": self.agent_id,
            "uptime_s": round(self._clock.monotonic() - self._started_s, 3),
            **arena_state(self.arena, self._namespaces),
            "tiers": self._lower.stats(),
            "gains": self._books.gains(),
            "connections": [
                {
                    "role": session.role,
                    "label": session.label,
                    "pid": session.peer_pid,
                    "leases": len(session.leases),
                    "learned": self._books.latest(id(session)),
                }
                for session in list(self._sessions.values())
            ],
            "counters": self._tally.counts(),
        }


def _refusal(reason: str) -> Grant:
    """The grant of a key that gets no slot. A block that somebody is writing counts as there."""
    if reason in ("exists", "busy"):
        return Grant(Status.EXISTS.value, reason=reason)
    return Grant(Status.FAILED.value, reason=reason)


def _keys(packed: Sequence[bytes]) -> list[BlockKey]:
    try:
        return [BlockKey.from_packed(key) for key in packed]
    except KeyFormatError as error:
        raise ProtocolError(str(error)) from error
