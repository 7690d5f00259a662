"""HTTP/1.1 as bytes: heads that are sent on, heads that are sent back, and errors in OpenAI's shape. No I/O.

What a client or engine sends is passed on as it came, except for the headers that belong to one
connection only (RFC 9110, section 7.6.1), those that the router answers for itself, and
``Authorization``.
"""

import json
import re
from collections.abc import Iterable
from typing import Final

REASONS: Final = {
    200: b"OK",
    204: b"No Content",
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    409: b"Conflict",
    413: b"Content Too Large",
    422: b"Unprocessable Content",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
}

#: Of one connection only; never passed on, in either direction.
HOP_BY_HOP: Final[frozenset[bytes]] = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
#: Set by the router itself in what it sends to engines.
OWN_REQUEST_HEADERS: Final[frozenset[bytes]] = frozenset(
    (b"host", b"content-length", b"expect", b"x-request-id", b"traceparent")
)

ERROR_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    502: "engine_error",
    503: "overloaded_error",
    504: "timeout_error",
}

JSON_TYPE: Final = b"application/json"
LAST_CHUNK: Final = b"0\r\n\r\n"


def header_value(lines: Iterable[bytes], name: bytes) -> bytes:
    """The value of the first header of this name (in lower case) among header lines; empty if there is none."""
    start = name + b":"
    for line in lines:
        if line[: len(start)].lower() == start:
            return line[len(start) :].strip()
    return b""


def error_body(status: int, message: str, *, code: str = "", param: str = "") -> bytes:
    """An error as OpenAI's clients expect it: ``{"error": {message, type, param, code}}``."""
    kind = ERROR_TYPES.get(status, "invalid_request_error" if 400 <= status < 500 else "server_error")
    return json.dumps(
        {"error": {"message": message, "type": kind, "param": param or None, "code": code or None}}
    ).encode()


def response(
    status: int,
    body: bytes,
    *,
    content_type: bytes = JSON_TYPE,
    headers: Iterable[tuple[bytes, bytes]] = (),
    close: bool = False,
    head_only: bool = False,
) -> bytes:
    """A whole response of the router's own; ``head_only`` leaves the body out, as HEAD wants it."""
    lines = [
        b"HTTP/1.1 %d %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n"
        % (status, REASONS.get(status, b"Unknown"), content_type, len(body)),
        *(b"%s: %s\r\n" % header for header in headers),
    ]
    if close:
        lines.append(b"connection: close\r\n")
    lines.append(b"\r\n")
    if not head_only:
        lines.append(body)
    return b"".join(lines)


def request_head(
    method: bytes, target: bytes, headers: bytes, *, host: bytes, length: int, request_id: bytes, traceparent: bytes
) -> bytes:
    """The head of a request to an engine; ``headers`` are the client's lines that are passed on."""
    return b"%s %s HTTP/1.1\r\nhost: %s\r\n%sx-request-id: %s\r\n%scontent-length: %d\r\n\r\n" % (
        method,
        target,
        host,
        headers,
        request_id,
        b"traceparent: %s\r\n" % traceparent if traceparent else b"",
        length,
    )


def without_hop_by_hop(head: bytes) -> bytes:
    """A response's head (status line to blank line) without the headers of the engine's connection and its request id.

    ``Transfer-Encoding`` stays, because the body is passed on in the framing it came in.
    """
    first, *lines = head[:-4].split(b"\r\n")
    named = [(line.partition(b":")[0].strip().lower(), line) for line in lines]
    hops = {hop.strip() for name, line in named if name == b"connection" for hop in line[11:].lower().split(b",")}
    dropped = (HOP_BY_HOP | hops | {b"x-request-id"}) - {b"transfer-encoding", b"content-length"}
    return b"\r\n".join([first, *(line for name, line in named if name not in dropped)]) + b"\r\n\r\n"


def host_header(host: str, port: int) -> bytes:
    """The value of ``Host`` for an address."""
    return (f"[{host}]:{port}" if ":" in host else f"{host}:{port}").encode()


def stream_head(request_id: bytes) -> bytes:
    """The head of an event stream that begins before an engine has answered."""
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
        b"x-request-id: %s\r\ntransfer-encoding: chunked\r\n\r\n" % request_id
    )


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; nothing for no data, since an empty chunk would end the body."""
    return b"%x\r\n%s\r\n" % (len(data), data) if data else b""


_LAST_CHUNK: Final = re.compile(rb"(?:^|(?<=\r\n))0+[ \t]*(?:;[^\r\n]*)?\r\n(?:[^\r\n]+\r\n)*\r\n$")


def without_last_chunk(data: bytes) -> bytes | None:
    """The end of a chunked body without what ends it; None if that has not wholly come with these bytes."""
    found = _LAST_CHUNK.search(data)
    return data[: found.start()] if found is not None else None
