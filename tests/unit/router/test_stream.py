"""Where a stream stands, and what its end says."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.router.http1 import LAST_CHUNK, chunk
from kveik.router.stream import StreamWatch, error_event, error_status, usage_in

CHAT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
ENDS = {
    "chat": DONE,
    "responses": b'event: response.completed\ndata: {"type":"response.completed","response":{}}\n\n',
    "responses, cut by length": b'event: response.incomplete\ndata: {"type":"response.incomplete"}\n\n',
    "messages": b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
}


def watched(data: bytes, cuts: list[int], *, named: bool = False) -> StreamWatch:
    watch = StreamWatch(named_events=named)
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(places):
        watch.saw(data[start:end])
    return watch


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
@pytest.mark.parametrize("framed", [False, True], ids=["pieces", "raw chunks"])
def test_a_stream_with_its_end_mark_is_complete(end: bytes, framed: bool) -> None:
    parts = [CHAT, CHAT, end]
    data = b"".join(map(chunk, parts)) + LAST_CHUNK if framed else b"".join(parts)
    assert watched(data, [], named=end != DONE).complete


@pytest.mark.parametrize("framed", [False, True], ids=["pieces", "raw chunks"])
def test_a_stream_without_it_is_not_however_properly_its_body_ends(framed: bool) -> None:
    parts = [CHAT, CHAT]
    data = b"".join(map(chunk, parts)) + LAST_CHUNK if framed else b"".join(parts)
    assert not watched(data, []).complete


@given(cut=st.integers(0, 10_000))
def test_an_end_mark_that_is_cut_in_two_is_seen(cut: int) -> None:
    assert watched(CHAT * 3 + DONE, [cut]).complete
    assert watched(b"event: x\ndata: {}\n\n" + ENDS["messages"], [cut], named=True).complete


def test_a_last_event_that_is_long_and_comes_in_many_pieces_is_seen() -> None:
    end = b'event: response.completed\ndata: {"response": "' + b"x" * 50_000 + b'"}\n\n'
    assert watched(CHAT + end, list(range(0, 50_000, 700)), named=True).complete


def test_text_that_speaks_of_the_end_mark_is_not_the_end() -> None:
    said = b'data: {"choices":[{"delta":{"content":"streams end with [DONE] or message_stop"}}]}\n\n'
    assert not watched(said + CHAT, [len(said)]).complete
    assert not watched(said + CHAT, [len(said)], named=True).complete


def test_a_model_that_says_the_end_mark_last_is_not_finished() -> None:
    said = b'data: {"choices":[{"delta":{"content":"the mark is [DONE]"}}]}\n\n'
    assert not watched(CHAT + said, [len(CHAT)]).complete


@pytest.mark.parametrize(("data", "between"), [(b"", True), (CHAT, True), (CHAT[:-1], False), (CHAT[:20], False)])
def test_it_knows_whether_an_event_is_under_way(data: bytes, between: bool) -> None:
    assert watched(data, []).between_events is between


def test_an_error_event_ends_a_partial_event_first() -> None:
    event = error_event("it died", code="engine_failed", after_partial=True)
    assert event.startswith(b"\n\n")
    document = json.loads(event.strip().removeprefix(b"data: "))
    assert document["error"]["code"] == "engine_failed"
    assert b"[DONE]" not in event


@pytest.mark.parametrize(
    ("tail", "usage"),
    [
        (b'"usage":{"prompt_tokens":7,"total_tokens":9,"completion_tokens":2}}', (7, 2, -1)),
        (
            b'"usage":{"prompt_tokens":700,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":640}}}',
            (700, 2, 640),
        ),
        (b'"usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":4},"output_tokens":3}}', (5, 3, 4)),
        (b'"usage": {"input_tokens": 5, "output_tokens": 3, "cache_read_input_tokens": 2}}', (7, 3, 2)),
        (
            b'"usage":{"input_tokens":5,"cache_creation_input_tokens":4,"cache_read_input_tokens":2,"output_tokens":3}',
            (11, 3, 2),
        ),
        (b'"usage":null}', (-1, -1, -1)),
        (b"", (-1, -1, -1)),
    ],
)
def test_usage_is_read_from_the_end_of_an_answer(tail: bytes, usage: tuple[int, int, int]) -> None:
    assert usage_in(tail) == usage


@pytest.mark.parametrize(
    ("events", "status"),
    [
        (b'data: {"error": {"message": "m", "code": 400}}\n\n', 400),
        (b'75\r\ndata: {"error":{"code":"503"}}\n\n', 503),
        (b'data: {"choices": []}\n\ndata: {"error": {"message": "EngineCore died"}}\n\ndata: [DONE]\n\n', 500),
        (b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","code":529}}\n\n', 529),
        (b'data: {"choices": [{"text": "\\ndata: {\\"error\\": {"}]}\n\n', 0),
        (b"data: [DONE]\n\n", 0),
        (b"", 0),
    ],
)
def test_an_error_event_states_its_status(events: bytes, status: int) -> None:
    assert error_status(events) == status


def test_only_an_error_event_at_the_beginning_is_the_first() -> None:
    error = b'data: {"error": {"code": 400}}\n\n'
    assert error_status(error, first=True) == error_status(b"1f\r\n" + error + b"\r\n", first=True) == 400
    assert error_status(CHAT + error, first=True) == 0
    assert error_status(CHAT + error) == 400
