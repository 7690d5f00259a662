"""The agent's sockets and threads: one thread a connection, some that may wait, one that tidies up."""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from kveik.agent import wire
from kveik.agent.protocol import Answer, Hello, Lookup, Refused, Request
from kveik.agent.service import AgentService, Session
from kveik.errors import AgentError, AgentTimeoutError, ProtocolError
from kveik.socket_file import SocketFile, peer_of
from kveik.store.tier_threads import TierThreads

logger = logging.getLogger(__name__)

HELLO_S = 10.0
#: A client that reads nothing for this long is cut off, so that it holds no thread.
SEND_S = 5.0
#: Requests of one connection that may wait for a lower tier at once; more are not read.
SLOW_REQUESTS_MAX = 64
CONNECTIONS_MAX = 512
TIDY_EVERY_S = 0.5


class AgentServer:
    """Serves one :class:`AgentService` on a Unix socket, from :meth:`start` to :meth:`close`."""

    def __init__(
        self, service: AgentService, socket_path: str, *, slow_threads: int = 16, lookup_threads: int = 8
    ) -> None:
        """Bind the socket. Raises :class:`kveik.errors.AgentError` if that cannot be done."""
        self._service = service
        self._socket = SocketFile(socket_path, owner="agent", setting="agent.socket", error=AgentError)
        # Lookups have threads of their own: reads may wait for a hung tier much longer than they.
        self._threads_for = SlowThreads(TierThreads("lookup", lookup_threads), TierThreads("agent", slow_threads))
        self._lock = threading.Lock()
        self._connections: set[_Connection] = set()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._accept, name="kveik-accept", daemon=True),
            threading.Thread(target=self._tidy_up, name="kveik-tidy", daemon=True),
            threading.Thread(target=self._verify, name="kveik-verify", daemon=True),
        ]

    def __repr__(self) -> str:
        return f"AgentServer({self._socket.path}, {len(self._connections)} connections)"

    def start(self) -> "AgentServer":
        """Answer from now on, in the background."""
        for thread in self._threads:
            thread.start()
        return self

    def close(self) -> None:
        """Stop answering, end all connections and wait for their threads."""
        self._stop.set()
        self._socket.close()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.shut()
        self._threads_for.close()
        for thread in [*self._threads, *(connection.thread for connection in connections)]:
            if thread.is_alive():
                thread.join(timeout=SEND_S)

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                sock, _ = self._socket.sock.accept()
            except OSError as error:
                if not self._stop.wait(0.1):  # too many open files: they may become fewer
                    logger.warning("cannot accept a connection: %s", error)
                continue
            self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        with self._lock:
            room = len(self._connections) < CONNECTIONS_MAX and not self._stop.is_set()
            if room:
                connection = _Connection(sock, self._service, self._threads_for, self._forget)
                self._connections.add(connection)
        if room:
            connection.thread.start()
        else:
            sock.close()

    def _forget(self, connection: "_Connection") -> None:
        with self._lock:
            self._connections.discard(connection)

    def _tidy_up(self) -> None:
        while not self._stop.wait(TIDY_EVERY_S):
            try:
                self._service.take_back()
            except Exception:  # supervision: without this thread slots would leak for ever
                logger.exception("tidying up failed; trying again")

    def _verify(self) -> None:
        """Check what an earlier agent left, resting as long as each check takes."""
        spent_s = 0.0
        while not self._stop.wait(spent_s):
            start_s = time.perf_counter()
            if not self._service.verify_one():
                return
            spent_s = time.perf_counter() - start_s


@dataclass(frozen=True, slots=True)
class SlowThreads:
    """Where requests that may have to wait are carried out."""

    lookups: TierThreads
    others: TierThreads

    def of(self, request: Request) -> TierThreads:
        """The threads for this request."""
        return self.lookups if isinstance(request, Lookup) else self.others

    def close(self) -> None:
        """Give up what has not begun."""
        self.lookups.close()
        self.others.close()


class _Connection:
    """One client. Its thread reads; answers may come from any thread, whole, one at a time."""

    def __init__(
        self, sock: socket.socket, service: AgentService, slow: "SlowThreads", forget: Callable[["_Connection"], None]
    ) -> None:
        self._sock = sock
        self._service = service
        self._slow = slow
        self._forget = forget
        self._send_lock = threading.Lock()
        self._slow_slots = threading.BoundedSemaphore(SLOW_REQUESTS_MAX)
        self.thread = threading.Thread(target=self._serve, name="kveik-connection", daemon=True)

    def shut(self) -> None:
        """End the stream in both directions; the thread notices and cleans up."""
        with contextlib.suppress(OSError):  # ended already
            self._sock.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        session: Session | None = None
        try:
            session = self._greet()
            while (body := wire.receive_body(self._sock)) is not None:
                self._handle(session, wire.decode_request(body))
        except ProtocolError as error:
            self._send(Refused(0, str(error)))
        except OSError:
            pass  # the client is gone
        except Exception:
            # Supervision: one connection's fault must not take the agent down.
            logger.exception("a connection is closed after an unexpected error")
            self._send(Refused(0, "the agent failed on this request; its log says why"))
        finally:
            if session is not None:
                self._service.end(session)
            self.shut()
            self._sock.close()
            self._forget(self)

    def _greet(self) -> Session:
        pid, uid = peer_of(self._sock)
        if uid not in (os.geteuid(), 0):
            raise ProtocolError(f"user {uid} may not use the agent of user {os.geteuid()}")
        self._sock.settimeout(HELLO_S)
        body = wire.receive_body(self._sock)
        if body is None:
            raise ConnectionResetError("the client left without a word")
        hello = wire.decode_request(body)
        if not isinstance(hello, Hello):
            raise ProtocolError(f"{type(hello).__name__} before Hello")
        session, welcome = self._service.greet(pid, hello)
        descriptor = self._service.arena.file.open_for_client()
        try:
            data = wire.encode(welcome)
            sent = socket.send_fds(self._sock, [data], [descriptor])
            self._sock.sendall(data[sent:])
        except BaseException:
            self._service.end(session)
            raise
        finally:
            os.close(descriptor)
        self._sock.settimeout(None)
        return session

    def _handle(self, session: Session, request: Request) -> None:
        try:
            answer = self._service.begin(session, request)
        except ProtocolError as error:
            self._send(Refused(request.id, str(error)))
            raise ConnectionAbortedError("refused") from error
        if not callable(answer):
            self._send(answer)
            return
        job = answer
        self._slow_slots.acquire()
        future = self._slow.of(request).submit(lambda: self._send(job()))
        future.add_done_callback(lambda done: self._finished(request, done))

    def _finished(self, request: Request, done: Future[None]) -> None:
        self._slow_slots.release()
        if not done.cancelled() and (error := done.exception()) is not None:
            # Supervision, as in _serve: the request gets an answer and the agent lives on.
            logger.error("%s failed", type(request).__name__, exc_info=error)
            self._send(Refused(request.id, "the agent failed on this request; its log says why"))

    def _send(self, answer: Answer) -> None:
        """Send an answer whole; a client that does not read is cut off."""
        data = wire.encode(answer)
        with self._send_lock:
            try:
                if wire.send_within(self._sock, data, SEND_S):
                    return
                logger.warning("a client read no answer for %g s and is cut off", SEND_S)
            except AgentTimeoutError as error:
                logger.warning("a client is cut off: %s", error)
            except OSError:
                pass  # gone: its thread cleans up
            self.shut()
