"""One request of a client as it is being read: what is passed on, what stays, and what is refused at once. No I/O."""

from collections.abc import Callable
from typing import Final

from kveik.router import http1


class RefusedRequestError(Exception):
    """Raised inside the parser's callbacks, to end the request that is being read."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Incoming:
    """One request as it is being read. ``headers`` are the lines that are passed on to an engine.

    ``method`` is empty while the head is being read; ``passed_on`` (its headers in one) and the texts of method and
    target are there when it is complete.
    """

    __slots__ = (
        "_of_this_hop", "_parts", "api_key", "authorization", "body_bytes", "chunked", "expects", "head_bytes",
        "headers", "host", "http10", "keep_alive", "length", "method", "method_text", "passed_on", "request_id",
        "target", "target_text", "traceparent", "upgrade",
    )  # fmt: skip

    def __init__(self) -> None:
        self.method = self.target = self.host = b""
        self.headers: list[bytes] = []
        self.head_bytes = self.body_bytes = 0
        self.authorization = self.api_key = self.request_id = self.traceparent = self.upgrade = b""
        self.length = -1
        self.chunked = self.expects = self.http10 = False
        self.keep_alive = True
        self.method_text = self.target_text = ""
        self.passed_on = b""
        self._parts: list[bytes] = []
        self._of_this_hop: frozenset[bytes] = frozenset()

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
        """Another request with the same head, which offers no upgrade and expects no word before its body."""
        other = Incoming()
        other.method, other.target, other.host, other.headers = self.method, self.target, self.host, self.headers
        other.method_text, other.target_text, other.passed_on = self.method_text, self.target_text, self.passed_on
        other.head_bytes, other.http10, other.keep_alive = self.head_bytes, self.http10, self.keep_alive
        other.authorization, other.api_key = self.authorization, self.api_key
        other.request_id, other.traceparent = self.request_id, self.traceparent
        other.length = other.body_bytes = len(body)
        other._parts.append(body)
        return other

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
NOT_PASSED_ON: Final[dict[bytes, Callable[[Incoming, bytes], None]]] = {
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
