"""The supervisor's ear: a Unix socket on which one thread answers one line after the other."""

import contextlib
import logging
import selectors
import socket
import threading
from collections.abc import Callable

import msgspec

from kveik.errors import KveikError, SuperviseError
from kveik.socket_file import SocketFile
from kveik.supervise.messages import OPERATIONS, Done, Order, StatusAnswer

logger = logging.getLogger(__name__)

LINE_BYTES_MAX = 1 << 16
CONNECTIONS_MAX = 64
#: A client that reads nothing for so long is cut off: all others wait behind it.
SEND_S = 1.0

Answer = StatusAnswer | Done
Handler = Callable[[Order], Answer]


def read_order(line: bytes) -> Order:
    """The order in a line. Raises :class:`SuperviseError` for what is none."""
    try:
        order = msgspec.json.decode(line, type=Order)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SuperviseError(f"that is no order: {error}") from error
    if order.op not in OPERATIONS:
        raise SuperviseError(f"op is {order.op!r}, expected one of {', '.join(OPERATIONS)}")
    if order.op not in ("status", "apply", "down") and not order.name:
        raise SuperviseError(f"name is empty, expected the part that {order.op} is for")
    if order.grace_s is not None and not 0 <= order.grace_s <= 1e6:
        raise SuperviseError(f"grace_s is {order.grace_s:g}, expected 0 or more")
    return order


class ControlServer:
    """Listens from the constructor on, answers from :meth:`start` to :meth:`close`.

    ``handler`` runs on this one thread, so orders are carried out one after the other; what it raises as
    :class:`KveikError` becomes an answer with ``error``.
    """

    def __init__(self, path: str, handler: Handler) -> None:
        """Raises :class:`SuperviseError` if another supervisor listens, or if the path cannot be used."""
        self._file = SocketFile(path, owner="supervisor", setting="fleet.state_folder", error=SuperviseError)
        self._handler = handler
        self._buffers: dict[socket.socket, bytes] = {}
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._file.sock, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._file.sock.setblocking(False)
        self._thread = threading.Thread(target=self._serve, name="kveik-control", daemon=True)

    def __repr__(self) -> str:
        return f"ControlServer({self._file.path}, {len(self._buffers)} connections)"

    def start(self) -> "ControlServer":
        """Answer from now on, in the background."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop answering, and remove the socket."""
        self._wake.send(b"x")
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=10 * SEND_S)
        for sock in [*self._buffers, self._wake, self._woken]:
            sock.close()
        self._selector.close()
        self._file.close()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                if sock is self._woken:
                    return
                if sock is self._file.sock:
                    self._accept()
                else:
                    self._read(sock)

    def _accept(self) -> None:
        try:
            sock, _ = self._file.sock.accept()
        except OSError as error:  # too many open files: they may become fewer
            logger.warning("cannot accept a connection: %s", error)
            return
        if len(self._buffers) >= CONNECTIONS_MAX:
            sock.close()
            return
        sock.settimeout(SEND_S)
        self._buffers[sock] = b""
        self._selector.register(sock, selectors.EVENT_READ)

    def _read(self, sock: socket.socket) -> None:
        try:
            piece = sock.recv(LINE_BYTES_MAX)
            *lines, rest = (self._buffers[sock] + piece).split(b"\n")
            self._buffers[sock] = rest
            for line in lines:
                sock.sendall(msgspec.json.encode(self._answer(line)) + b"\n")
        except OSError:  # it went away, or reads nothing
            piece = b""
        if not piece or len(rest) > LINE_BYTES_MAX:
            self._drop(sock)

    def _answer(self, line: bytes) -> Answer:
        try:
            return self._handler(read_order(line))
        except KveikError as error:
            return Done(error=str(error))
        except Exception as error:  # supervision: one order that fails must not leave the fleet without an ear
            logger.exception("an order failed")
            return Done(error=f"the supervisor failed at this order: {error!r}")

    def _drop(self, sock: socket.socket) -> None:
        self._selector.unregister(sock)
        del self._buffers[sock]
        with contextlib.suppress(OSError):
            sock.close()
