import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.errors import ConfigError
from kveik.router.records import RequestRecord
from kveik.router.trace import TraceContext, Tracing, open_exporter, parse_traceparent, request_id

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{SPAN}-01".encode()
UNSAMPLED = f"00-{TRACE}-{SPAN}-00".encode()


def record() -> RequestRecord:
    return RequestRecord("id", "POST", "/v1/completions")


@pytest.mark.parametrize("presented", [b"a", b"req_1.2:3/4+5=6@7~8-9", b"x" * 128])
def test_a_plain_request_id_is_kept(presented: bytes) -> None:
    assert request_id(presented) == presented.decode()


@given(st.binary(max_size=200))
def test_any_other_gets_a_fresh_one_that_is_plain(presented: bytes) -> None:
    answer = request_id(presented)
    assert 0 < len(answer) <= 128
    assert answer.isascii()
    assert answer.isprintable()
    assert not set(answer) & set(" \"'\\<>{};,\r\n")


def test_fresh_ids_differ() -> None:
    assert len({request_id(b"") for _ in range(1000)}) == 1000
    assert request_id(b"x" * 129) != "x" * 129
    assert request_id(b"a\r\nset-cookie: b") != "a\r\nset-cookie: b"


def test_a_valid_context_is_read() -> None:
    assert parse_traceparent(SAMPLED) == TraceContext(TRACE, SPAN, sampled=True)
    assert parse_traceparent(UNSAMPLED) == TraceContext(TRACE, SPAN, sampled=False)


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    assert parse_traceparent(b"cc" + SAMPLED[2:] + b"-what-comes") == TraceContext(TRACE, SPAN, sampled=True)


@pytest.mark.parametrize(
    "header",
    [
        b"", b"00", SAMPLED + b"-more", SAMPLED + b"\n", b" " + SAMPLED, SAMPLED.upper(), b"ff" + SAMPLED[2:],
        b"cc" + SAMPLED[2:] + b"x", f"00-{'0' * 32}-{SPAN}-01".encode(), f"00-{TRACE}-{'0' * 16}-01".encode(),
        f"00-{TRACE[:-1]}-{SPAN}-01".encode(), f"00-{TRACE}-{SPAN}-1".encode(), f"00_{TRACE}_{SPAN}_01".encode(),
    ],
)  # fmt: skip
def test_anything_else_counts_as_absent(header: bytes) -> None:
    assert parse_traceparent(header) is None


@given(st.integers(1, (1 << 128) - 1), st.integers(1, (1 << 64) - 1), st.booleans())
def test_what_is_written_is_read_again(trace: int, span: int, sampled: bool) -> None:
    context = TraceContext(f"{trace:032x}", f"{span:016x}", sampled)
    assert parse_traceparent(context.header) == context


def test_without_an_exporter_a_context_goes_on_unchanged_and_none_is_begun() -> None:
    tracing, passed, absent, wrong = Tracing(), record(), record(), record()
    assert tracing.begin(SAMPLED, passed) == SAMPLED
    assert (passed.trace_id, passed.parent_span_id, passed.span_id) == (TRACE, SPAN, "")
    assert tracing.begin(b"", absent) == b""
    assert tracing.begin(b"nonsense", wrong) == b""
    assert (absent.trace_id, wrong.trace_id) == ("", "")


def test_with_an_exporter_the_router_s_span_stands_between_client_and_engine() -> None:
    told = record()
    sent = parse_traceparent(Tracing(exports=True).begin(SAMPLED, told))
    assert sent is not None
    assert (sent.trace_id, sent.sampled) == (TRACE, True)
    assert sent.span_id == told.span_id != SPAN
    assert told.parent_span_id == SPAN


def test_a_client_that_does_not_record_is_not_recorded() -> None:
    told = record()
    assert Tracing(exports=True).begin(UNSAMPLED, told) == UNSAMPLED
    assert told.span_id == ""


@pytest.mark.parametrize(("chance", "sampled"), [(0.0, True), (0.24, True), (0.25, False), (0.99, False)])
def test_a_share_of_the_traces_begun_here_is_recorded(chance: float, sampled: bool) -> None:
    for header in (b"", b"nonsense"):
        told = record()
        sent = parse_traceparent(Tracing(exports=True, ratio=0.25, chance=lambda: chance).begin(header, told))
        assert sent is not None
        assert sent.sampled is sampled
        assert told.trace_id == sent.trace_id
        assert told.parent_span_id == ""
        assert bool(told.span_id) is sampled


def test_the_missing_sdk_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "kveik.router.otel", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"pip install 'kveik\[otel\]'"):
        open_exporter("http://127.0.0.1:4318/v1/traces")
