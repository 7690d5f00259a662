"""An engine's connection to the node's agent. Used from several threads at once.

Requests are pipelined: each has an id, one reader thread matches the answers. Every call ends
within its deadline, whatever the agent does. An answer that comes after its caller gave up is
not lost: a lease in it is released at once.
"""

import contextlib
import itertools
import json
import os
import secrets
import socket
import threading
from collections.abc import Mapping as MappingType
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Any, TypeVar

from kveik.agent import wire
from kveik.agent.funnel import RequestFunnel
from kveik.agent.granted_slot import GrantedSlot
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
    Grant,
    Granted,
    Hello,
    Located,
    Lookup,
    Message,
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
from kveik.clock import Deadline
from kveik.config import default_runtime_dir
from kveik.errors import AgentError, AgentTimeoutError, AgentUnavailableError, ProtocolError
from kveik.kv.frame import HEADER_BYTES
from kveik.store.shared_memory import Mapping

_AnswerT = TypeVar("_AnswerT", bound=Message)

#: How long messages that nobody waits for (releases) may take to be sent.
BACKGROUND_SEND_S = 1.0


def default_socket_path() -> str:
    """Where the agent of this user listens unless told otherwise."""
    return f"{default_runtime_dir()}/agent.sock"


class AgentClient:
    """One connection and one mapping of the arena. Made by :meth:`connect`; never reconnects."""

    def __init__(self, sock: socket.socket, welcome: Welcome, arena: Mapping, connection: int) -> None:
        self.welcome = welcome
        self.connection = connection
        self._arena: Mapping | None = arena
        self._sock = sock
        self._ids = itertools.count(1)
        self._lock = threading.Lock()  # of the fields below
        self._send_lock = threading.Lock()
        self._pending: dict[int, Future[Answer]] = {}
        self._open_writes: set[int] = set()
        self._why_broken = ""
        self.broken = threading.Event()
        self._stop_populating = threading.Event()
        threading.Thread(target=self._read_answers, name="kveik-agent-answers", daemon=True).start()

    @classmethod
    def connect(
        cls,
        socket_path: str = "",
        *,
        role: str,
        label: str = "",
        facts: MappingType[str, str] | None = None,
        deadline_s: float = 5.0,
        prefault: bool = True,
    ) -> "AgentClient":
        """Connect, say hello and map the arena. ``facts`` are those of the engine's namespace.

        With ``prefault`` a background thread touches every page, so that copies need not.
        Raises :class:`AgentUnavailableError` (nobody listens), :class:`AgentTimeoutError` or
        :class:`ProtocolError` (the agent refused, or speaks another version).
        """
        connection = secrets.randbits(63) | 1
        hello = Hello(0, PROTOCOL_VERSION, role, os.getpid(), connection, label, dict(facts or {}))
        path = socket_path or default_socket_path()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            welcome, descriptor = _shake_hands(sock, path, hello, Deadline.after(deadline_s))
            try:
                arena = Mapping(descriptor, welcome.arena_bytes)
            finally:
                os.close(descriptor)
        except BaseException:
            sock.close()
            raise
        client = cls(sock, welcome, arena, connection)
        if prefault:
            populate = partial(arena.populate, client._stop_populating)
            threading.Thread(target=populate, name="kveik-prefault", daemon=True).start()
        return client

    # -- state ------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether the agent still listens to this connection, as far as known."""
        return not self.broken.is_set()

    @property
    def arena(self) -> memoryview:
        """The whole arena, writable. Keep no slice of it beyond its lease.

        Raises :class:`AgentUnavailableError` after :meth:`close`.
        """
        arena = self._arena
        if arena is None:
            raise AgentUnavailableError("this client is closed")
        return arena.view

    @property
    def settled(self) -> bool:
        """Whether the connection ended and none of its write leases is in use any more."""
        with self._lock:
            return self.broken.is_set() and not self._open_writes

    def disconnect(self) -> None:
        """End the connection; leases end with it. The arena stays mapped until :meth:`close`."""
        self._break("ended by this process")
        self._stop_populating.set()

    def close(self) -> None:
        """End the connection and let go of the arena. It stays mapped as long as a slice of it is in use."""
        self.disconnect()
        self._arena = None

    def __repr__(self) -> str:
        state = "connected" if self.connected else f"broken: {self._why_broken}"
        return f"AgentClient({self.welcome.agent_id}, {state}, {len(self._pending)} requests under way)"

    # -- requests ---------------------------------------------------------------------------

    def submit_lookup(
        self,
        namespace: bytes,
        ranks: Sequence[int],
        parts: Sequence[tuple[int, Sequence[bytes]]],
        deadline_s: float,
        engine: EngineRates | None = None,
    ) -> "Future[Located]":
        """Ask which blocks are there, without waiting: ``parts`` are (group, block hashes).

        ``engine`` tells the agent, by the way, what this engine learned. The future gives :class:`Located`,
        or raises an :class:`AgentError`; cancel it to give up.
        """
        request = Lookup(
            next(self._ids), namespace, list(ranks), [(group, list(hashes)) for group, hashes in parts], deadline_s,
            engine,
        )  # fmt: skip
        future: Future[Any] = self._submit(request, deadline_s)
        return future

    def lookup(
        self,
        namespace: bytes,
        ranks: Sequence[int],
        parts: Sequence[tuple[int, Sequence[bytes]]],
        deadline: Deadline,
    ) -> list[bytes]:
        """Like :meth:`submit_lookup`, and wait: one byte string a part, one place a block."""
        future = self.submit_lookup(namespace, ranks, parts, deadline.remaining_s)
        return self.wait(future, Located, deadline).places

    def submit_read(
        self, keys: Sequence[bytes], payload_bytes: int | Sequence[int], deadline_s: float
    ) -> "Future[Granted]":
        """Have blocks (packed keys) made readable in the arena, without waiting; one grant a key.

        ``payload_bytes`` is one length for all keys, or one a key. Pass the lease to
        :meth:`release` when all slots are copied. A cancelled read releases itself.
        """
        sizes = [payload_bytes] if isinstance(payload_bytes, int) else list(payload_bytes)
        request = Read(next(self._ids), [bytes(key) for key in keys], sizes, deadline_s)
        future: Future[Any] = self._submit(request, deadline_s)
        return future

    def read(self, keys: Sequence[bytes], payload_bytes: int | Sequence[int], deadline: Deadline) -> Granted:
        """Like :meth:`submit_read`, and wait."""
        return self.wait(self.submit_read(keys, payload_bytes, deadline.remaining_s), Granted, deadline)

    def slot(self, grant: Grant) -> GrantedSlot:
        """The slot of a grant with status ``hit``."""
        return GrantedSlot(self.arena[grant.offset : grant.offset + grant.frame_bytes])

    def submit_reserve(self, keys: Sequence[bytes], payload_bytes: int, deadline_s: float) -> "Future[Reserved]":
        """Ask for slots for new blocks, without waiting: ``stored`` grants are to be written (see :meth:`payload`).

        Others ``exist`` or ``failed``. End the lease with :meth:`commit` or :meth:`release`;
        nothing may be written into its slots after that. A cancelled reserve releases itself.
        """
        request = Reserve(next(self._ids), [bytes(key) for key in keys], payload_bytes)
        with self._lock:
            self._open_writes.add(-request.id)  # before the slots are ours: see `settled`
        future: Future[Any] = self._submit(request, deadline_s)
        future.add_done_callback(lambda _: self._write_ended(-request.id))
        return future

    def reserve(self, keys: Sequence[bytes], payload_bytes: int, deadline: Deadline) -> Reserved:
        """Like :meth:`submit_reserve`, and wait."""
        return self.wait(self.submit_reserve(keys, payload_bytes, deadline.remaining_s), Reserved, deadline)

    def payload(self, grant: Grant, payload_bytes: int) -> memoryview:
        """Where the payload of a reserved slot is to be written."""
        start = grant.offset + HEADER_BYTES
        return self.arena[start : start + payload_bytes]

    def submit_commit(self, lease: int, digests: Sequence[tuple[int, bytes]], deadline_s: float) -> "Future[Committed]":
        """Publish written slots, without waiting, as (index in the reserve, xxh3_128 of the payload).

        The rest of the lease is given up.
        """
        self._write_ended(lease)
        future: Future[Any] = self._submit(Commit(next(self._ids), lease, list(digests)), deadline_s)
        return future

    def commit(self, lease: int, digests: Sequence[tuple[int, bytes]], deadline: Deadline) -> Committed:
        """Like :meth:`submit_commit`, and wait."""
        return self.wait(self.submit_commit(lease, digests, deadline.remaining_s), Committed, deadline)

    def release(self, lease: int) -> None:
        """End a lease of either kind, without waiting for the answer."""
        self._write_ended(lease)
        self._send_quietly(Release(next(self._ids), lease))

    def report(self, keys: Sequence[bytes], reason: str) -> None:
        """Tell the agent that these blocks were wrong after a grant; it checks them. Does not wait."""
        self._send_quietly(Report(next(self._ids), [bytes(key) for key in keys], reason))

    def settle(self, connections: Sequence[int]) -> None:
        """Tell the agent that earlier connections of this process write nothing any more."""
        self._send_quietly(Settled(next(self._ids), list(connections)))

    def takes(self, message: str) -> bool:
        """Whether the agent takes one of :data:`kveik.agent.protocol.LATER_MESSAGES`; an earlier one takes none."""
        return message in self.welcome.also

    def tell_requests(self, requests: Sequence[RequestFunnel]) -> None:
        """Tell the agent what became of requests. Does not wait for its answer."""
        self._send_quietly(TellRequests(next(self._ids), list(requests)))

    def find_requests(self, deadline: Deadline) -> FoundRequests:
        """The latest requests of the node's engines."""
        return self._call(FindRequests(next(self._ids)), FoundRequests, deadline)

    def drop(self, namespace: bytes, deadline: Deadline) -> int:
        """Delete what the arena holds of one namespace, or all (empty digest), in all tiers; how many blocks."""
        return self._call(Drop(next(self._ids), namespace), Done, deadline).count

    def drop_namespace(self, namespace: bytes, deadline: Deadline) -> Dropped:
        """Like :meth:`drop`, with how many blocks each tier dropped, and where some may be left."""
        return self._call(Drop(next(self._ids), namespace), Dropped, deadline)

    def stats(self, deadline: Deadline) -> dict[str, Any]:
        """The agent's state."""
        text = self._call(Stats(next(self._ids)), StatsAnswer, deadline).document
        try:
            document = json.loads(text)
        except ValueError as error:
            raise ProtocolError(f"the agent's state is no JSON: {error}") from error
        if not isinstance(document, dict):
            raise ProtocolError("the agent's state is no JSON object")
        return document

    def wait(self, future: "Future[Any]", expected: type[_AnswerT], deadline: Deadline) -> _AnswerT:
        """The answer of a submitted request.

        Raises :class:`AgentTimeoutError` at the deadline (the request is cancelled), another
        :class:`AgentError` if the agent is gone or refused, :class:`ProtocolError` for another answer.
        """
        try:
            answer = future.result(timeout=deadline.remaining_s)
        except FutureTimeoutError:
            if future.cancel():
                raise AgentTimeoutError("no answer from the agent within the deadline") from None
            answer = future.result()  # it came this very moment
        if not isinstance(answer, expected):
            raise ProtocolError(f"the agent answered {type(answer).__name__}, expected {expected.__name__}")
        return answer

    # -- the connection ---------------------------------------------------------------------

    def _write_ended(self, lease: int) -> None:
        with self._lock:
            self._open_writes.discard(lease)

    def _call(self, request: Request, expected: type[_AnswerT], deadline: Deadline) -> _AnswerT:
        return self.wait(self._submit(request, deadline.remaining_s), expected, deadline)

    def _submit(self, request: Request, deadline_s: float) -> "Future[Answer]":
        future: Future[Answer] = Future()
        with self._lock:
            broken = self.broken.is_set()
            if not broken:
                self._pending[request.id] = future
        if broken:
            _fail(future, AgentUnavailableError(f"the agent's connection is gone: {self._why_broken}"))
            return future
        future.add_done_callback(lambda _: self._forget(request.id))
        try:
            self._send(request, deadline_s)
        except AgentError as error:
            _fail(future, error)
        return future

    def _forget(self, request_id: int) -> None:
        with self._lock:
            self._pending.pop(request_id, None)

    def _send(self, request: Request, seconds: float) -> None:
        deadline = Deadline.after(seconds)
        data = wire.encode(request)
        if not self._send_lock.acquire(timeout=seconds):
            raise AgentTimeoutError(f"could not send to the agent within {seconds:g} s")
        try:
            sent = wire.send_within(self._sock, data, deadline.remaining_s)
        except OSError as error:
            self._break(f"sending failed: {error.strerror}")
            raise AgentUnavailableError(f"the agent's connection broke: {error.strerror}") from error
        except AgentTimeoutError as error:  # in the middle of a message: the stream is useless now
            self._break(str(error))
            raise
        finally:
            self._send_lock.release()
        if not sent:
            raise AgentTimeoutError(f"the agent did not read its socket within {seconds:g} s")

    def _send_quietly(self, request: Request) -> None:
        """Send what nobody waits for. If that fails the connection ends, and with it all leases."""
        if self.broken.is_set():
            return
        try:
            self._send(request, BACKGROUND_SEND_S)
        except AgentError as error:
            self._break(str(error))

    def _read_answers(self) -> None:
        try:
            while (body := wire.receive_body(self._sock)) is not None:
                self._dispatch(wire.decode_answer(body))
            self._break("the agent closed it")
        except OSError as error:
            self._break(f"receiving failed: {error.strerror}")
        except ProtocolError as error:
            self._break(str(error))

    def _dispatch(self, answer: Answer) -> None:
        with self._lock:
            future = self._pending.pop(answer.id, None)
            if isinstance(answer, Reserved) and answer.lease:
                self._open_writes.add(answer.lease)  # before anybody can see the grants
        if future is None or not future.set_running_or_notify_cancel():
            if isinstance(answer, Granted | Reserved) and answer.lease:
                self.release(answer.lease)
        elif isinstance(answer, Refused):
            future.set_exception(AgentError(f"the agent refused: {answer.reason}"))
        else:
            future.set_result(answer)

    def _break(self, why: str) -> None:
        with self._lock:
            if self.broken.is_set():
                return
            self._why_broken = why
            self.broken.set()
            waiting = list(self._pending.values())
        with contextlib.suppress(OSError):  # the peer was faster
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes the reader thread
        self._sock.close()
        for future in waiting:
            _fail(future, AgentUnavailableError(f"the agent's connection is gone: {why}"))


def _fail(future: "Future[Any]", error: AgentError) -> None:
    """Let the future raise ``error``, unless it was cancelled or answered meanwhile."""
    with contextlib.suppress(InvalidStateError):
        future.set_exception(error)


def _shake_hands(sock: socket.socket, path: str, hello: Hello, deadline: Deadline) -> tuple[Welcome, int]:
    """Connect and exchange Hello and Welcome; the arena's file descriptor is the caller's."""
    try:
        sock.settimeout(max(0.001, deadline.remaining_s))
        sock.connect(path)
        sock.sendall(wire.encode(hello))
        sock.settimeout(max(0.001, deadline.remaining_s))
        body, descriptor = wire.receive_with_descriptor(sock)
    except TimeoutError as error:
        raise AgentTimeoutError(f"the agent at {path} did not answer in time") from error
    except OSError as error:
        raise AgentUnavailableError(f"no agent at {path}: {error.strerror}") from error
    sock.settimeout(None)
    try:
        answer = wire.decode_answer(body)
    except ProtocolError:
        if descriptor is not None:
            os.close(descriptor)
        raise
    if isinstance(answer, Welcome) and descriptor is not None and answer.version == PROTOCOL_VERSION:
        return answer, descriptor
    if descriptor is not None:
        os.close(descriptor)
    reason = answer.reason if isinstance(answer, Refused) else f"unexpected {type(answer).__name__}"
    raise ProtocolError(f"the agent at {path} did not welcome us: {reason}")
