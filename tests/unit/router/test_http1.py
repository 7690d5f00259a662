"""Heads and errors as bytes."""

import json

import pytest

from kveik.router import http1


def test_an_error_has_openais_shape() -> None:
    error = json.loads(http1.error_body(404, "no such model", code="model_not_found", param="model"))["error"]
    assert error == {
        "message": "no such model",
        "type": "not_found_error",
        "param": "model",
        "code": "model_not_found",
    }


@pytest.mark.parametrize(
    ("status", "kind"), [(400, "invalid_request_error"), (418, "invalid_request_error"), (500, "server_error")]
)
def test_every_status_has_a_type(status: int, kind: str) -> None:
    assert json.loads(http1.error_body(status, "x"))["error"]["type"] == kind


def test_a_header_is_found_by_name_whatever_its_case_and_not_by_the_beginning_of_a_name() -> None:
    lines = [b"X-Sessions: no\r\n", b"x-SESSION:  one \r\n", b"x-session: two\r\n"]
    assert http1.header_value(lines, b"x-session") == b"one"
    assert http1.header_value(lines, b"x") == b""


def test_a_response_tells_its_length_and_whether_the_connection_goes_on() -> None:
    whole = http1.response(503, b"{}", headers=[(b"retry-after", b"2")], close=True)
    head, _, body = whole.partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"HTTP/1.1 503 Service Unavailable",
        b"content-type: application/json",
        b"content-length: 2",
        b"retry-after: 2",
        b"connection: close",
    ]
    assert body == b"{}"


def test_an_answer_to_head_has_no_body_but_its_length() -> None:
    whole = http1.response(200, b"12345", head_only=True)
    assert whole.endswith(b"content-length: 5\r\n\r\n")


def test_headers_of_the_engines_connection_stay_behind() -> None:
    head = (
        b"HTTP/1.1 200 OK\r\nServer: uvicorn\r\nConnection: keep-alive\r\nKeep-Alive: timeout=5\r\n"
        b"Transfer-Encoding: chunked\r\nX-Thing: a:b\r\n\r\n"
    )
    assert http1.without_hop_by_hop(head) == (
        b"HTTP/1.1 200 OK\r\nServer: uvicorn\r\nTransfer-Encoding: chunked\r\nX-Thing: a:b\r\n\r\n"
    )


def test_an_empty_chunk_is_never_written_because_it_would_end_the_body() -> None:
    assert http1.chunk(b"") == b""
    assert http1.chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"
