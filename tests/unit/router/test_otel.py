import http.server
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from kveik.router.records import RequestRecord
from kveik.router.trace import Tracing, open_exporter

pytest.importorskip("opentelemetry.sdk.trace")

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from kveik.router import otel
from kveik.router.otel import OtelExporter

CLIENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def finished(traceparent: bytes = CLIENT, **fields: object) -> RequestRecord:
    given = {"model": "m", "engine": "e", "reason": "prefix", "status": 200, "total_s": 2.0, **fields}
    record = RequestRecord("id", "POST", "/v1/completions?key=secret", **given)
    Tracing(exports=True).begin(traceparent, record)
    return record


def exported(*records: RequestRecord) -> list[ReadableSpan]:
    memory = InMemorySpanExporter()
    exporter = OtelExporter(SimpleSpanProcessor(memory))
    for record in records:
        exporter(record)
    return list(memory.get_finished_spans())


def test_a_span_has_the_ids_that_engines_were_told_and_the_client_s_as_parent() -> None:
    record = finished()
    (span,) = exported(record)
    assert f"{span.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert f"{span.context.span_id:016x}" == record.span_id
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
    assert exported(finished(b""))[0].parent is None


def test_a_span_tells_what_became_of_the_request() -> None:
    (span,) = exported(finished(first_byte_s=0.5, prompt_tokens=10, cached_tokens=0, key_name="team"))
    assert span.name == "POST /v1/completions"
    assert span.attributes is not None
    told = dict(span.attributes)
    assert told["gen_ai.usage.input_tokens"] == 10
    assert told["kveik.cached_tokens"] == 0
    assert "gen_ai.usage.output_tokens" not in told
    assert "secret" not in str(told)
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time - span.start_time == 2_000_000_000
    assert [(event.name, event.timestamp - span.start_time) for event in span.events] == [("first byte", 500_000_000)]
    assert span.resource.attributes["service.name"] == "kveik-router"


@pytest.mark.parametrize(
    ("outcome", "status"),
    [("ok", StatusCode.UNSET), ("client", StatusCode.UNSET), ("left", StatusCode.UNSET), ("engine", StatusCode.ERROR)],
)
def test_only_faults_of_this_side_are_errors(outcome: str, status: StatusCode) -> None:
    (span,) = exported(finished(outcome=outcome, why="engine died"))
    assert span.status.status_code is status


def test_records_without_a_span_are_left_out() -> None:
    assert exported(finished(CLIENT[:-2] + b"00"), RequestRecord("id", "GET", "/")) == []


@pytest.fixture
def collector() -> Iterator[tuple[str, list[bytes]]]:
    bodies: list[bytes] = []

    class Collect(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collect)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/traces", bodies
    server.shutdown()
    thread.join()
    server.server_close()


def test_spans_arrive_at_an_otlp_collector(collector: tuple[str, list[bytes]]) -> None:
    endpoint, bodies = collector
    exporter = open_exporter(endpoint)
    record = finished()
    exporter(record)
    exporter.close()
    assert bytes.fromhex(record.span_id) in b"".join(bodies)


def test_a_collector_that_is_gone_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otel, "CLOSE_TIMEOUT_S", 0.1)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        exporter = open_exporter(f"http://127.0.0.1:{nobody.getsockname()[1]}/v1/traces")
        for _ in range(600):
            exporter(finished())
        began_s = time.monotonic()
        exporter.close()
        assert time.monotonic() - began_s < 2.0
