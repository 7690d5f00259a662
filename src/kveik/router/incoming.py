"""One request of a client as it is being read: what is passed on, what stays, and what is refused at once. No I/O."""

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from kveik.router import http1


class RefusedRequestError(Exception):
    """Raised inside the parser's callbacks, to end the request that is being read."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Incoming(msgspec.Struct, eq=False, gc=False):
    """One request as it is being read. ``headers`` are the lines that are passed on to an engine.

    ``method`` is empty while the head is being read; ``passed_on`` (its headers in one) and the texts of method and
    target are there when it is complete.
    """

    method: bytes = b""
    target: bytes = b""
    headers: list[bytes] = msgspec.field(default_factory=list)
    head_bytes: int = 0
    host: bytes = b""
    authorization: bytes = b""
    api_key: bytes = b""
    request_id: bytes = b""
    traceparent: bytes = b""
    length: int = -1
    chunked: bool = False
    upgrade: bytes = b""
    expects: bool = False
    http10: bool = False
    keep_alive: bool = True
    body_bytes: int = 0
    method_text: str = ""
    target_text: str = ""
    passed_on: bytes = b""
    _parts: list[bytes] = msgspec.field(default_factory=list)
    _of_this_hop: frozenset[bytes] = frozenset()

    def end_head(self, method: bytes, *, http10: bool, keep_alive: bool) -> None:
        """The head is complete."""
        self.method, self.http10 = method, http10
        self.keep_alive = keep_alive and not http10  # clients of HTTP/1.0 would wait for the end of the connection
        if not self.target.startswith(b"/") and b"://" in self.target:  # as proxies are asked
            self.host, _, path = self.target.partition(b"://")[2].partition(b"/")
            self.target = b"/" + path
        if self._of_this_hop:
            self.headers = [line for line in self.headers if line.partition(b":")[0].lower() not in self._of_this_hop]
        self.passed_on = b"".join(self.headers)
        self.method_text = method.decode("ascii", "replace")
        self.target_text = self.target.decode("ascii", "replace")

    def with_body(self, body: bytes) -> "Incoming":
        """Another request with the same head."""
        return replace(self, length=len(body), body_bytes=len(body), _parts=[body])

    def add_body(self, data: bytes) -> None:
        """A piece of the body."""
        self._parts.append(data)
        self.body_bytes += len(data)

    @property
    def body(self) -> bytes:
        """The whole body."""
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    # -- headers that are not passed on ---------------------------------------------------------

    def _take_length(self, value: bytes) -> None:
        self.length = int(value) if value.isdigit() else -1  # the parser itself refuses what is no number

    def _take_host(self, value: bytes) -> None:
        if self.host:
            raise RefusedRequestError(400, "the request has two Host headers, expected one")
        self.host = value

    def _take_expect(self, value: bytes) -> None:
        self.expects = value.lower() == b"100-continue"

    def _take_connection(self, value: bytes) -> None:
        """Headers that are named here are of this connection only."""
        named = value.lower()
        if named not in (b"keep-alive", b"close"):
            self._of_this_hop |= {name.strip() for name in named.split(b",")}

    def _take_transfer_encoding(self, value: bytes) -> None:
        if value.lower() != b"chunked":
            shown = value[:40].decode("ascii", "replace")
            raise RefusedRequestError(501, f"the request's Transfer-Encoding is {shown!r}, expected 'chunked'")
        self.chunked = True

    def _take_upgrade(self, value: bytes) -> None:
        self.upgrade = value

    def _take_authorization(self, value: bytes) -> None:
        self.authorization = value

    def _take_api_key(self, value: bytes) -> None:
        self.api_key = value

    def _take_request_id(self, value: bytes) -> None:
        self.request_id = value

    def _take_traceparent(self, value: bytes) -> None:
        self.traceparent = value

    def _drop(self, _: bytes) -> None:
        """Of this connection only."""


#: What takes each header that stays with the router; of this connection only, or answered for by the router itself.
NOT_PASSED_ON: dict[bytes, Callable[[Incoming, bytes], None]] = {
    **dict.fromkeys(http1.HOP_BY_HOP | http1.OWN_REQUEST_HEADERS, Incoming._drop),
    b"host": Incoming._take_host,
    b"content-length": Incoming._take_length,
    b"expect": Incoming._take_expect,
    b"connection": Incoming._take_connection,
    b"upgrade": Incoming._take_upgrade,
    b"transfer-encoding": Incoming._take_transfer_encoding,
    b"authorization": Incoming._take_authorization,
    b"x-api-key": Incoming._take_api_key,
    b"x-request-id": Incoming._take_request_id,
    b"traceparent": Incoming._take_traceparent,
}
