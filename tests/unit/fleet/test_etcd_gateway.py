"""The gateway against servers that are no etcd; against a real one see tests/services/test_etcd.py."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kveik.errors import ConfigError, RegistryError
from kveik.fleet.etcd_gateway import EtcdAddress, EtcdGateway, Write


@contextmanager
def answering(body: Callable[[], bytes], status: int = 200) -> Iterator[tuple[str, int]]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body())

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield "127.0.0.1", server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


CALLS: dict[str, Callable[[EtcdGateway], object]] = {
    "snapshot": lambda gateway: gateway.snapshot(),
    "commit": lambda gateway: gateway.commit([Write("a", b"x"), Write("b", None)], {"a": 0}),
    "grant": lambda gateway: gateway.grant(5),
    "keep_alive": lambda gateway: gateway.keep_alive(7),
    "revoke": lambda gateway: gateway.revoke(7),
    "wait_event": lambda gateway: gateway.wait_event(1, 0.1),
}


@pytest.mark.parametrize(
    ("text", "endpoints", "prefix"),
    [
        ("etcd://10.0.0.1:2379", (("10.0.0.1", 2379),), "/kveik/fleet"),
        ("etcd://10.0.0.1:2379/", (("10.0.0.1", 2379),), "/kveik/fleet"),
        ("etcd://a:1,b-2.example:2/blue/green/", (("a", 1), ("b-2.example", 2)), "/blue/green"),
        ("etcd://[::1]:2379/x", (("::1", 2379),), "/x"),
    ],
)
def test_an_address_names_endpoints_and_a_prefix(
    text: str, endpoints: tuple[tuple[str, int], ...], prefix: str
) -> None:
    address = EtcdAddress.parse(text)
    assert (address.endpoints, address.prefix) == (endpoints, prefix)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "etcd://",
        "etcd://a",
        "etcd://a:0",
        "etcd://a:99999",
        "etcd://a:1,",
        "http://a:1",
        "etcd://a:1/b c",
        "etcd://u@a:1",
    ],
)
def test_an_address_that_is_none_says_what_was_expected(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected etcd://HOST:PORT\[,HOST:PORT\]\[/PREFIX\]"):
        EtcdAddress.parse(text)


@pytest.mark.parametrize("call", CALLS)
def test_an_endpoint_that_is_not_there_is_named(call: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    gateway = EtcdGateway(EtcdAddress((("127.0.0.1", port),)))
    with pytest.raises(RegistryError, match=f"etcd does not answer /v3/.*127.0.0.1:{port}: .*refused"):
        CALLS[call](gateway)


@pytest.mark.parametrize("call", CALLS)
def test_an_endpoint_that_is_silent_is_given_up_at_the_deadline(call: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        gateway = EtcdGateway(EtcdAddress((("127.0.0.1", listener.getsockname()[1]),)), deadline_s=0.1)
        with pytest.raises(RegistryError, match="timed out"):
            CALLS[call](gateway)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"7",
        b'{"kvs": 7, "ID": [], "result": {"TTL": "x"}}',
        b'{"kvs": [{"key": 7, "value": "!"}], "ID": "x"}',
        b'{"kvs": [{"key": "a2V5", "value": "dg==", "mod_revision": "many"}], "ID": "0"}',
        b"[" * 10_000,
    ],
)
def test_an_answer_that_is_none_is_a_registry_error_and_nothing_else(body: bytes) -> None:
    with answering(lambda: body) as endpoint:
        gateway = EtcdGateway(EtcdAddress((endpoint,)))
        for call in ("snapshot", "grant"):
            with pytest.raises(RegistryError, match=r"etcd (answered|granted)"):
                CALLS[call](gateway)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["kvs", "key", "value", "mod_revision", "lease", "header", "revision", "ID", "TTL", "result", "succeeded"]
    ), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(document=JSON)
def test_whatever_json_comes_every_call_ends_in_an_answer_or_a_registry_error(document: object) -> None:
    with answering(lambda: json.dumps(document).encode() + b"\n") as endpoint:
        gateway = EtcdGateway(EtcdAddress((endpoint,)))
        for call in CALLS.values():
            try:
                call(gateway)
            except RegistryError:
                pass


def test_a_status_that_is_an_error_is_told_with_its_text() -> None:
    with answering(lambda: b'{"error":"etcdserver: mvcc: database space exceeded","code":8}', 429) as endpoint:
        gateway = EtcdGateway(EtcdAddress((endpoint,)))
        with pytest.raises(RegistryError, match=r"HTTP 429: .*database space exceeded"):
            gateway.grant(5)


def test_the_endpoint_that_worked_is_asked_first_the_next_time() -> None:
    asked: list[str] = []

    def noting(name: str) -> Callable[[], bytes]:
        def body() -> bytes:
            asked.append(name)
            return b'{"ID": "7"}'

        return body

    with answering(noting("bad"), 503) as bad, answering(noting("good")) as good:
        gateway = EtcdGateway(EtcdAddress((bad, good)))
        assert [gateway.grant(5), gateway.grant(5)] == [7, 7]
    assert asked == ["bad", "good", "good"]


def test_a_watch_ends_when_the_gateway_is_closed() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        gateway = EtcdGateway(EtcdAddress((("127.0.0.1", listener.getsockname()[1]),)), deadline_s=30.0)
        ended = threading.Event()

        def watch() -> None:
            try:
                gateway.wait_event(1, 30.0)
            except RegistryError:
                pass
            ended.set()

        thread = threading.Thread(target=watch)
        thread.start()
        peer, _ = listener.accept()
        peer.recv(65536)
        peer.sendall(b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1c\r\n{"result":{"created":true}}\n\r\n')
        until_s = time.monotonic() + 10
        while gateway._watching is None:
            assert time.monotonic() < until_s
            time.sleep(0.005)
        gateway.close()
        assert ended.wait(10.0)
        thread.join()
        peer.close()
