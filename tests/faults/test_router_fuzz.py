"""Whatever clients and engines send, the router answers properly, ends broken answers visibly, and goes on.

``KVEIK_FUZZ_EXAMPLES`` says how many examples each test tries.
"""

import itertools
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import httptools
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kveik.router.body_kinds import KINDS
from tests.raw_engine import MODEL, OK, Script, raw_engine, whole_answer
from tests.routers import RouterThread

EXAMPLES = int(os.environ.get("KVEIK_FUZZ_EXAMPLES", "150"))
FUZZ = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
WAIT_S = 5.0
EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


class Fleet:
    """A whole router over one engine that says what it is told."""

    def __init__(self, engine: Any, router: RouterThread) -> None:
        self.engine, self.router = engine, router
        self.address = "127.0.0.1", int(router.url.rpartition(":")[2])

    def talk(self, *pieces: bytes, patience_s: float = WAIT_S) -> tuple[bytes, bool]:
        """What the router sent until it ended the connection, and whether it ended it properly.

        After a silence of ``patience_s`` the client ends its side.
        """
        got = b""
        with socket.create_connection(self.address, timeout=patience_s) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                for number, piece in enumerate(pieces):
                    if number:
                        time.sleep(0.001)
                    sock.sendall(piece)
                while True:
                    try:
                        data = sock.recv(1 << 16)
                    except TimeoutError:
                        assert sock.gettimeout() == patience_s != WAIT_S, (
                            "the router says nothing and keeps the connection"
                        )
                        sock.shutdown(socket.SHUT_WR)
                        sock.settimeout(WAIT_S)
                        continue
                    if not data:
                        return got, True
                    got += data
            except ConnectionError:
                return got, False

    def still_serves(self) -> None:
        self.engine.script = Script()
        got, _ = self.talk(request(b'{"model":"m"}', close=True))
        assert [(answer.status, answer.body) for answer in answers_in(got)] == [(200, OK)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with (
        raw_engine() as engine,
        RouterThread(
            tmp_path_factory.mktemp("fuzz"),
            [f"http://127.0.0.1:{engine.server_address[1]}"],
            quarantine_kills=0,
            breaker_open_s=0.05,
            exact_index=False,
        ) as router,
    ):
        yield Fleet(engine, router)


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A router of its own, since the engines that join it do not exist."""
    with RouterThread(tmp_path_factory.mktemp("admin"), [], exact_index=False) as router:
        yield Fleet(None, router)


@pytest.fixture(autouse=True)
def nothing_is_left_over(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """After each test: the router failed nowhere, and nothing is booked on the engine."""
    yield
    failed = [record for record in caplog.get_records("call") if record.levelno >= logging.ERROR]
    assert [record.getMessage() for record in failed] == []
    if "fleet" in request.fixturenames:
        document = request.getfixturevalue("fleet").router.fleet()
        assert document["requests_under_way"] == 0
        assert [(e["in_flight"], e["waiting_tokens"]) for e in document["engines"]] in ([(0, 0)], [])


class Answer:
    """One answer, read by a parser of its own."""

    def __init__(self) -> None:
        self.status, self.body, self.whole, self.headers = 0, b"", False, {}

    headers: dict[bytes, bytes]


class _Reader:
    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.parser = httptools.HttpResponseParser(self)

    def on_message_begin(self) -> None:
        self.answers.append(Answer())

    def on_header(self, name: bytes, value: bytes) -> None:
        self.answers[-1].headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self.answers[-1].status = self.parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self.answers[-1].body += data

    def on_message_complete(self) -> None:
        self.answers[-1].whole = True


def answers_in(data: bytes, *, ended: bool = True) -> list[Answer]:
    """The answers in what a connection sent. ``ended``: its proper end may be the end of the last body."""
    reader = _Reader()
    try:
        reader.parser.feed_data(data)
    except httptools.HttpParserError:
        if not reader.answers or reader.answers[-1].whole:
            raise  # bytes that belong to no answer
        return reader.answers  # broken off within a chunk: nobody takes that for an end
    if ended and reader.answers and reader.answers[-1].status:
        headers = reader.answers[-1].headers
        if not headers.keys() & {b"content-length", b"transfer-encoding"}:
            reader.answers[-1].whole = True
    return [answer for answer in reader.answers if not 100 <= answer.status < 200]


def request(
    body: bytes, target: bytes = b"/v1/chat/completions", *, method: bytes = b"POST", close: bool = False,
    head: bytes = b"",
) -> bytes:  # fmt: skip
    ends = b"connection: close\r\n" if close else b""
    return b"%s %s HTTP/1.1\r\nhost: 127.0.0.1\r\n%s%scontent-length: %d\r\n\r\n%s" % (
        method, target, head, ends, len(body), body,
    )  # fmt: skip


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


CUTS = st.lists(st.integers(0, 1 << 16), max_size=4)
LINES = st.sampled_from(
    [
        b"content-length: 3\r\n", b"content-length: 99999999999999999999\r\n", b"content-length: +3\r\n",
        b"transfer-encoding: chunked\r\n", b"transfer-encoding: identity\r\n", b"Transfer-Encoding:\tchunked\r\n",
        b"expect: 100-continue\r\n", b"connection: upgrade\r\n", b"connection: close, x-a\r\n", b"upgrade: h2c\r\n",
        b"host: a\r\n", b"x-request-id: \xff\xfe\r\n", b"traceparent: 00-\r\n", b"authorization: \xc3\r\n", b": x\r\n",
        b" folded\r\n", b"x-a: " + b"y" * 5000 + b"\r\n", b"\r\n", b"\n", b"\x00\r\n", b"x:\r\n",
    ]
)  # fmt: skip
FIRST = st.builds(
    lambda method, target, version: b"%s %s %s\r\n" % (method, target, version),
    st.sampled_from([b"GET", b"POST", b"HEAD", b"OPTIONS", b"CONNECT", b"DELETE", b"PRI", b"get", b"\xff"]),
    st.sampled_from(
        [b"/v1/chat/completions", b"/v1/models", b"/health", b"/fleet", b"/fleet/%ff", b"/fleet/engines/%2e", b"*",
         b"http://a/v1/x", b"http://a?b", b"a:1", b"//", b"/\xff", b"/v1/completions?a=%00", b"", b"/" + b"a" * 9000]
    ),
    st.sampled_from([b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.1 ", b"", b"http/1.1"]),
)  # fmt: skip
BODIES = st.sampled_from(
    [
        b"",
        b"abc",
        b"3\r\nabc\r\n0\r\n\r\n",
        b"3;x=y\r\nabc\r\n0\r\nx-t: 1\r\n\r\n",
        b"ffffffffffffffffff\r\n",
        b"-1\r\n",
    ]
)
MESSAGES = st.builds(
    lambda first, lines, body: first + b"".join(lines) + b"\r\n" + body, FIRST, st.lists(LINES, max_size=5), BODIES
)


@FUZZ
@given(sent=st.one_of(st.binary(max_size=200), st.lists(MESSAGES, min_size=1, max_size=3).map(b"".join)), cuts=CUTS)
def test_any_bytes_of_a_client_get_answers_or_an_end_and_harm_nobody(
    fleet: Fleet, sent: bytes, cuts: list[int]
) -> None:
    fleet.engine.script = Script()
    got, _ = fleet.talk(*pieces_of(sent, cuts), patience_s=0.03)
    heads_only = b"HEAD " in sent
    for answer in answers_in(got) if not heads_only else []:
        assert answer.whole
        assert answer.status in (200, 400, 401, 404, 405, 408, 413, 422, 431, 501), answer.body
        if answer.status >= 400:
            assert json.loads(answer.body)["error"]["message"]
    fleet.still_serves()


CHUNKED = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
OFFER = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n"
WEBSOCKET = b"GET /ws HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
CALLS = st.sampled_from(
    [
        request(b'{"model":"m","prompt":"a"}', head=OFFER),
        request(b'{"model":"m","messages":[]}'),
        request(b"", b"/health", method=b"GET"),
        request(b'{"model":"nobody"}', head=b"x-a: b\r\n"),
        request(b"[", b"/v1/completions"),
        CHUNKED + b'5\r\n{"mod\r\n8;x\r\nel":"m"}\r\n0\r\nx-t: 1\r\n\r\n',
    ]
)


@FUZZ
@given(
    calls=st.lists(CALLS, min_size=1, max_size=3),
    last=st.sampled_from([request(b"", b"/health", method=b"GET", close=True), b"nonsense\r\n\r\n", WEBSOCKET]),
    cuts=CUTS,
)
def test_requests_are_answered_alike_however_their_bytes_are_cut(
    fleet: Fleet, calls: list[bytes], last: bytes, cuts: list[int]
) -> None:
    fleet.engine.script = Script()
    sent = b"".join(calls) + last
    whole, _ = fleet.talk(sent)
    cut, _ = fleet.talk(*pieces_of(sent, cuts))
    expected = [(answer.status, answer.body) for answer in answers_in(whole)]
    assert len(expected) == len(calls) + 1
    assert [(answer.status, answer.body) for answer in answers_in(cut)] == expected


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


STREAM_LINE = b"content-type: text/event-stream\r\n"
ANSWER_LINES = st.sampled_from(
    [b"content-length: 11\r\n", b"content-length: 2\r\n", b"connection: close\r\n", b"x-request-id: 1\r\n", b": x\r\n"]
)
MADE_ANSWERS = st.builds(
    lambda early, status, framing, lines, body, end: early + status + framing + b"".join(lines) + b"\r\n" + body + end,
    st.sampled_from([b"", b"", b"HTTP/1.1 100 Go\r\n\r\n", b"HTTP/1.1 103 Hints\r\nlink: x\r\n\r\n"]),
    st.sampled_from(
        [b"HTTP/1.1 200 OK\r\n"] * 3 + [b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 500 No\r\n", b"HTTP/1.1 304 X\r\n"]
    ),
    st.sampled_from(
        [b"", b"transfer-encoding: chunked\r\n", STREAM_LINE, STREAM_LINE + b"transfer-encoding: chunked\r\n"]
    ),
    st.lists(ANSWER_LINES, max_size=2),
    st.sampled_from(
        [b"", OK, chunk(OK), EVENT, EVENT + DONE, chunk(EVENT), chunk(EVENT) + chunk(DONE), b"x" * 300_000]
    ),
    st.sampled_from([b"", b"0\r\n\r\n", b"00;a=b\r\nx-t: 1\r\n\r\n", b"0\r\n", b"\x00", whole_answer(OK)]),
)
GOOD_ANSWERS = st.sampled_from(
    [
        whole_answer(OK),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(OK) + b"0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + OK,
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        + chunk(EVENT) * 3 + chunk(DONE) + b"0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + EVENT * 3 + DONE,
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        + chunk(b"x" * 300_000) + chunk(b"y" * 9) + b"0\r\n\r\n",
    ]
)  # fmt: skip
ANSWERS = st.one_of(
    st.binary(max_size=80),
    MADE_ANSWERS,
    MADE_ANSWERS,
    st.builds(lambda answer, cut: answer[: cut % (len(answer) + 1)], GOOD_ANSWERS, st.integers(0, 1 << 20)),
    st.builds(lambda answer, more: answer + more, GOOD_ANSWERS, st.binary(min_size=1, max_size=9)),
    GOOD_ANSWERS,
)


@FUZZ
@given(answer=ANSWERS, cuts=CUTS, end=st.sampled_from(["fin", "rst"]), stream=st.booleans(), old=st.booleans())
def test_a_client_gets_an_engines_whole_answer_or_an_error_or_sees_that_it_is_cut(
    fleet: Fleet, answer: bytes, cuts: list[int], end: str, stream: bool, old: bool
) -> None:
    fleet.engine.script = Script(tuple(pieces_of(answer, cuts)), end)
    sent = request(json.dumps({"model": MODEL, "stream": stream}).encode(), close=True)
    got, proper = fleet.talk(sent.replace(b"HTTP/1.1", b"HTTP/1.0") if old else sent)
    (seen,) = answers_in(got, ended=proper) if got else [Answer()]
    if seen.whole and seen.status == 200:
        assert_is_what_the_engine_said(answer, seen)
    elif seen.whole:
        assert seen.status in (204, 304) or seen.status >= 400
    else:
        assert seen.status in (0, 200)
    fleet.still_serves()


def assert_is_what_the_engine_said(answer: bytes, seen: Answer) -> None:
    """A whole answer with status 200 is that of the engine, and not a part of one."""
    said = answers_in(answer)[0]
    assert seen.body == said.body or b'"error"' in seen.body
    assert said.whole or b'"error"' in seen.body
    if seen.headers.get(b"content-type") == b"text/event-stream":
        assert DONE.strip() in seen.body or b'"error"' in seen.body


NAMES = ["model", "messages", "prompt", "stream", "max_tokens", "input", "tools", "content", "role", "n", "seed",
         "text", "temperature", "stream_options", "system", "type", "image_url", "cache_salt",
         "response_format"]  # fmt: skip
JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.integers(10**17, 10**30), st.floats(), st.text(max_size=9),
        st.sampled_from([MODEL, "user", "text", "\ud800", "你好"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=25,
)  # fmt: skip
DEEP = [b"[" * 100_000, b'{"messages":' * 50_000, b'{"model":"m","prompt":' + b"[" * 5000 + b"]" * 5000 + b"}"]


@FUZZ
@given(
    target=st.sampled_from(sorted(KINDS)),
    body=st.one_of(JSON.map(lambda value: json.dumps(value).encode()), st.binary(max_size=60)),
)
@example(target=b"/v1/chat/completions", body=DEEP[0])
@example(target=b"/v1/completions", body=DEEP[1])
@example(target=b"/v1/completions", body=DEEP[2])
@example(target=b"/v1/responses", body=b'{"model":"m","input":"\xff"}')
@example(target=b"/v1/messages", body=b'{"model":"m","max_tokens":1e999,"messages":"x"}')
def test_any_body_is_passed_on_or_refused_as_openai_does(fleet: Fleet, target: bytes, body: bytes) -> None:
    fleet.engine.script = Script()
    got, _ = fleet.talk(request(body, target, close=True))
    (seen,) = answers_in(got)
    assert seen.whole
    if seen.status == 200:
        assert seen.body == OK
    else:
        assert seen.status in (400, 404), seen.body
        assert json.loads(seen.body)["error"].keys() == {"message", "type", "param", "code"}


ADMIN_PATHS = st.builds(
    "/".join,
    st.lists(
        st.sampled_from(
            ["engines", "e1", "127.0.0.1:1", "drain", "isolate", "readmit", "heartbeat", "quarantine", "release",
             "usage", "last_choices", "", "..", "%2e%2e", "%00", "%zz", "a%2Fb", "x" * 300]
        ),
        max_size=4,
    ),
)  # fmt: skip
ANNOUNCED = st.fixed_dictionaries(
    {},
    optional={
        "url": st.sampled_from(["http://127.0.0.1:1", "http://127.0.0.1:2/", "ftp://x", "http://[::1]:1", "", 7, None]),
        "engine_id": st.sampled_from(["e1", "", "a/b", "x" * 200, 5, "é"]),
        "models": JSON,
        "namespace": st.sampled_from(["", "ab", "xyz", 1]),
        "lease_s": st.one_of(st.floats(), st.integers(), st.none()),
        "labels": JSON,
        "reason": JSON,
        "max_model_tokens": st.integers(),
    },
)


@FUZZ
@given(
    method=st.sampled_from([b"GET", b"POST", b"PUT", b"DELETE", b"PATCH", b"HEAD", b"OPTIONS"]),
    path=ADMIN_PATHS,
    body=st.one_of(ANNOUNCED, JSON).map(lambda value: json.dumps(value).encode()) | st.binary(max_size=20),
)
def test_the_fleets_pages_answer_in_json_and_never_fail(admin: Fleet, method: bytes, path: str, body: bytes) -> None:
    got, _ = admin.talk(request(body, b"/fleet/" + path.encode(), method=method, close=True))
    assert got.startswith(b"HTTP/1.1 ")
    assert int(got[9:12]) < 500, got
    body = got.partition(b"\r\n\r\n")[2]
    if method == b"HEAD":
        assert body == b""
    else:
        assert isinstance(json.loads(body), dict | list)
