"""Spans for OpenTelemetry, one a request. Loaded only when ``router.traces_endpoint`` is set (extra ``otel``).

The span's ids were drawn when the request came (see :mod:`kveik.router.trace`), because engines had
to be told; so a finished span is handed to the SDK, instead of being started there.
"""

import time
from threading import Thread

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

import kveik
from kveik.router.records import RequestRecord

EXPORT_TIMEOUT_S = 3
#: Longest wait for a collector at the end: one that is gone must not hold up the router.
CLOSE_TIMEOUT_S = 5.0
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_NS = 1_000_000_000


class OtelExporter:
    """A listener that makes a span of each record with a span id; ``processor`` sends it from its own thread."""

    def __init__(self, processor: SpanProcessor) -> None:
        self._processor = processor
        self._resource = Resource.create({"service.name": "kveik-router", "service.version": kveik.__version__})
        self._scope = InstrumentationScope("kveik.router", kveik.__version__)

    def __call__(self, record: RequestRecord) -> None:
        """Take one finished request."""
        if record.span_id:
            self._processor.on_end(self._span(record, time.time_ns()))

    def close(self) -> None:
        """Send what is left, within a few seconds."""
        ending = Thread(target=self._processor.shutdown, name="kveik-traces-end", daemon=True)
        ending.start()
        ending.join(CLOSE_TIMEOUT_S)

    def _span(self, record: RequestRecord, end_ns: int) -> ReadableSpan:
        start_ns = end_ns - int(record.total_s * _NS)
        first_byte = Event("first byte", timestamp=start_ns + int(record.first_byte_s * _NS))
        failed = record.outcome not in ("ok", "client", "left")
        return ReadableSpan(
            name=f"{record.method} {record.path.partition('?')[0]}",
            context=_context(record.trace_id, record.span_id, remote=False),
            parent=_context(record.trace_id, record.parent_span_id, remote=True) if record.parent_span_id else None,
            resource=self._resource,
            attributes=_attributes(record),
            events=(first_byte,) if record.first_byte_s >= 0 else (),
            kind=SpanKind.SERVER,
            status=Status(StatusCode.ERROR, record.why or record.outcome) if failed else Status(),
            start_time=start_ns,
            end_time=end_ns,
            instrumentation_scope=self._scope,
        )


def open_exporter(endpoint: str) -> OtelExporter:
    """An exporter to an OTLP/HTTP address such as ``http://127.0.0.1:4318/v1/traces``."""
    return OtelExporter(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S)))


def _context(trace_id: str, span_id: str, *, remote: bool) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=remote, trace_flags=_SAMPLED)


def _attributes(record: RequestRecord) -> dict[str, str | int]:
    """Names of OpenTelemetry's conventions where there is one; what is unknown is left out."""
    texts = {
        "http.request.method": record.method,
        "url.path": record.path.partition("?")[0],
        "gen_ai.request.model": record.model,
        "kveik.engine": record.engine,
        "kveik.key": record.key_name,
        "kveik.reason": record.reason,
        "kveik.outcome": record.outcome,
        "kveik.request_id": record.request_id,
    }
    numbers = {
        "http.response.status_code": record.status or -1,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.completion_tokens,
        "kveik.attempts": record.attempts,
        "kveik.cached_tokens": record.cached_tokens,
        "kveik.expected_cached_tokens": record.expected_cached_tokens,
    }
    return {
        **{name: text for name, text in texts.items() if text},
        **{name: number for name, number in numbers.items() if number >= 0},
    }
