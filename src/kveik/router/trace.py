"""Request ids and W3C trace context: what comes in is checked, and what goes on to engines is decided here.

Without an exporter the router is a mere pipe for traces: a valid context goes on unchanged, since a
span that nobody ever sees would break the chain between the client's and the engine's. With one, the
router's span stands between them, and a request without context begins a trace of its own.
"""

import importlib
import itertools
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from kveik.errors import ConfigError
from kveik.router.records import RequestRecord

_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:+/=@~-]{0,127}")
_TRACEPARENT: Final = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]*)?"
)
_SAMPLED: Final = 0x01

_random: Final = random.Random()  # ids must differ, not be hard to guess
_ID_PREFIX: Final = f"{_random.getrandbits(64):016x}"
_id_numbers: Final = itertools.count(1 << 62 | _random.getrandbits(62))  # all of 16 hex digits


@dataclass(frozen=True, slots=True)
class TraceContext:
    """One place in a trace: 32 and 16 hex digits, and whether it is recorded."""

    trace_id: str
    span_id: str
    sampled: bool

    @property
    def header(self) -> bytes:
        """The ``traceparent`` that says so."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}".encode()


def request_id(presented: bytes) -> str:
    """The client's request id if it is short and plain, else a fresh one.

    It is written into headers, logs and error messages, so nothing else gets through.
    """
    if presented and _REQUEST_ID.fullmatch(presented):
        return presented.decode("ascii")
    return _ID_PREFIX + hex(next(_id_numbers))[2:]  # noqa: FURB116 (a format costs ten times more once compiled)


def parse_traceparent(header: bytes) -> TraceContext | None:
    """The context in a header; None for one that is not valid, which then counts as absent.

    Of a later version of the standard the part that is known is used, as the standard asks.
    """
    match = _TRACEPARENT.fullmatch(header)
    if match is None or (match[1] == b"00" and match[5] is not None):
        return None
    return TraceContext(match[2].decode(), match[3].decode(), bool(int(match[4], 16) & _SAMPLED))


class Exporter(Protocol):
    """A listener that sends a span for each record that has one."""

    def __call__(self, record: RequestRecord) -> None:
        """Take one finished request."""

    def close(self) -> None:
        """Send what is left, within a few seconds."""


class Tracing:
    """Decides on each request's trace context."""

    def __init__(self, *, exports: bool = False, ratio: float = 1.0, chance: Callable[[], float] = _random.random):
        """``exports``: the router's spans are exported. ``ratio``: share of the traces begun here that are recorded."""
        self._exports = exports
        self._ratio = ratio
        self._chance = chance

    def begin(self, traceparent: bytes, record: RequestRecord) -> bytes:
        """The ``traceparent`` that engines get (empty: none); the record learns the ids."""
        if not traceparent and not self._exports:
            return b""
        given = parse_traceparent(traceparent)
        if not self._exports:
            if given is None:
                return b""
            record.trace_id, record.parent_span_id = given.trace_id, given.span_id
            return traceparent
        if given is None:
            trace_id, sampled = f"{_not_zero(128):032x}", self._chance() < self._ratio
        else:
            trace_id, sampled = given.trace_id, given.sampled
            record.parent_span_id = given.span_id
        ours = TraceContext(trace_id, f"{_not_zero(64):016x}", sampled)
        record.trace_id = trace_id
        if sampled:
            record.span_id = ours.span_id  # the exporter takes the records that have one
        elif given is not None:
            return traceparent  # nobody will see our span: the client's stays the parent
        return ours.header


def open_exporter(endpoint: str) -> Exporter:
    """What sends a span for each record that has one. ``endpoint``: an OTLP/HTTP address.

    Raises :class:`ConfigError` where the OpenTelemetry SDK is not installed.
    """
    try:
        module = importlib.import_module("kveik.router.otel")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise ConfigError(
            f"router.traces_endpoint is {endpoint!r}, but {error.name} is not installed: pip install 'kveik[otel]'"
        ) from error
    exporter: Exporter = module.open_exporter(endpoint)
    return exporter


def _not_zero(bits: int) -> int:
    """A random id; that of all zeros means none."""
    return _random.getrandbits(bits) or 1
