"""Streams that another engine goes on with: what is remembered of them, and what the client gets over real sockets."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.router.resume import Resumption
from tests.unit.router.rig import DONE, Handler, Request, Response, ScriptedEngine, answer, hang, reset, rig, run, until

MESSAGES = [{"role": "user", "content": "Count."}]
CHAT = {"model": "m", "stream": True, "temperature": 0, "messages": MESSAGES}
ROLE = {"role": "assistant", "content": ""}


def event(said: dict[str, Any] | str, name: str = "first", finish: str | None = None, **more: Any) -> bytes:
    """One event as vLLM sends it: of a chat (``said``: its delta), or of a completion (its text)."""
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
    choice |= {"text": said} if isinstance(said, str) else {"delta": said}
    return b"data: " + json.dumps({"id": name, "created": 1, "choices": [choice], **more}).encode() + b"\n\n"


def words(*texts: str, name: str = "first") -> list[bytes]:
    return [event({"content": text}, name) for text in texts]


def usage(prompt: int, completion: int, name: str) -> bytes:
    told = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return b"data: " + json.dumps({"id": name, "created": 2, "choices": [], "usage": told}).encode() + b"\n\n"


def contents(body: bytes) -> str:
    """The text of all events of a chat."""
    told = [json.loads(line[6:]) for line in body.split(b"\n\n") if line.startswith(b"data: {")]
    return "".join(one["choices"][0]["delta"].get("content", "") for one in told if one.get("choices"))


# -- what is remembered -----------------------------------------------------------------------------


def test_the_rest_of_a_chat_is_asked_for_with_what_was_said() -> None:
    told = Resumption(json.dumps({**CHAT, "max_tokens": 10, "user": "u"}).encode(), chat=True)
    sent = b"".join([event(ROLE), *words("one", " two")])
    assert told.take(sent) == sent, "byte for byte"
    asked = json.loads(told.continued() or b"")
    assert asked["messages"] == [*MESSAGES, {"role": "assistant", "content": "one two"}]
    assert (asked["continue_final_message"], asked["add_generation_prompt"]) == (True, False)
    assert (asked["max_tokens"], asked["user"], asked["stream"]) == (8, "u", True)


def test_the_rest_of_a_completion_is_asked_for_with_a_longer_prompt() -> None:
    told = Resumption(b'{"model":"m","prompt":"Once","stream":true,"max_tokens":1}', chat=False)
    told.take(event(" upon") + event(" a"))
    assert json.loads(told.continued() or b"") == {
        "model": "m",
        "prompt": "Once upon a",
        "stream": True,
        "max_tokens": 1,
    }


def test_a_stream_that_said_nothing_yet_is_asked_for_anew() -> None:
    body = json.dumps(CHAT).encode()
    told = Resumption(body, chat=True)
    told.take(event(ROLE))
    assert told.continued() == body


def test_the_other_engines_events_look_like_the_first_ones() -> None:
    told = Resumption(json.dumps(CHAT).encode(), chat=True)
    told.take(event(ROLE) + words("one ")[0])
    assert told.continued() is not None
    passed = told.take(
        event(ROLE, "other")
        + b"".join(words(" two", name="other"))
        + event({"content": " three"}, "other", finish="stop")
        + usage(31, 2, "other")
        + DONE,
        complete=True,
    )
    first, second, counts = (json.loads(line[6:]) for line in passed.split(b"\n\n")[:3])
    assert passed.endswith(DONE)
    assert [one["choices"][0]["delta"] for one in (first, second)] == [{"content": "two"}, {"content": " three"}]
    assert {one["id"] for one in (first, second, counts)} == {"first"}
    assert second["choices"][0]["finish_reason"] == "stop"
    assert counts["usage"] == {"prompt_tokens": 30, "completion_tokens": 3, "total_tokens": 33}
    assert told.continued() is None, "it is finished"


def test_two_engines_may_be_lost() -> None:
    told = Resumption(json.dumps({**CHAT, "max_completion_tokens": 9}).encode(), chat=True)
    for number, text in enumerate(("one", " two", " three"), 1):
        told.take(b"".join(words(text, name=str(number))) + b'data: {"half')
        asked = json.loads(told.continued() or b"")
        assert asked["max_completion_tokens"] == 9 - number
    assert asked["messages"][-1]["content"] == "one two three"


@pytest.mark.parametrize(
    "said",
    [
        event({"reasoning_content": "Hm."}),
        event({"tool_calls": [{"index": 0}]}),
        event({"content": "a", "refusal": "no"}),
        event({"content": "a"}, finish="length"),
        event({"content": "a"}).replace(b'"finish_reason"', b'"logprobs": {"content": [1]}, "finish_reason"'),
        b'data: {"choices":[{"index":0,"delta":{}},{"index":1,"delta":{}}]}\n\n',
        b"data: {no JSON\n\n",
    ],
)
def test_what_is_more_than_text_or_has_ended_is_not_gone_on_with(said: bytes) -> None:
    told = Resumption(json.dumps(CHAT).encode(), chat=True)
    assert told.take(said) == said
    assert told.continued() is None


@pytest.mark.parametrize(
    "body",
    [
        {**CHAT, "messages": [*MESSAGES, {"role": "assistant", "content": "I"}]},
        {**CHAT, "add_generation_prompt": False},
        {**CHAT, "messages": []},
    ],
)
def test_chats_that_are_continued_already_are_not(body: dict[str, Any]) -> None:
    told = Resumption(json.dumps(body).encode(), chat=True)
    told.take(words("a")[0])
    assert told.continued() is None


def test_an_error_within_a_stream_does_not_go_to_the_client() -> None:
    told = Resumption(json.dumps(CHAT).encode(), chat=True)
    error = b'data: {"error": {"message": "EngineCore died", "code": 500}}\n\n'
    assert told.take(words("a")[0] + error + DONE, complete=True) == words("a")[0]
    assert b"EngineCore died" in told.error


@given(st.data())
def test_events_come_through_whole_however_the_bytes_are_cut(data: st.DataObject) -> None:
    sent = b": comment\n\n" + event(ROLE) + b"".join(words("one", " two\n\n", " 三")) + DONE
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=6)))
    told, passed = Resumption(json.dumps(CHAT).encode(), chat=True), b""
    for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        passed += told.take(sent[start:end])
        assert not passed or passed.endswith(b"\n\n")
    assert passed == sent
    assert json.loads(told.continued() or b"")["messages"][-1]["content"] == "one two\n\n 三"


# -- over real sockets ------------------------------------------------------------------------------


def streaming(*pieces: bytes, lost: bool = False, end: bytes = DONE) -> Handler:
    """A handler that streams events, and then dies or ends."""

    async def handle(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for piece in (*pieces, end) if not lost else pieces:
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(0.01)
        if lost:
            reset(writer)
        else:
            writer.write(b"0\r\n\r\n")

    return handle


BEGUN = (event(ROLE), *words("one", " two"))
REST = (event(ROLE, "other"), *words(" three", name="other"), event({"content": ""}, "other", finish="stop"))


async def asked(first: Handler, second: Handler, body: object = CHAT, **settings: Any) -> tuple[Response, Any, Any]:
    """Ask a router with two engines, of which ``a`` gets the request first; its answer, its record, and ``b``."""
    a, b = ScriptedEngine(first), ScriptedEngine(second)
    async with rig(a, b, **{"resume_streams": True, **settings}) as made:
        made.engine("b").chosen = 1
        response = await made.ask(body)
        await until(lambda: bool(made.records), "the record")
        for name in "ab":
            assert (made.engine(name).in_flight, made.engine(name).waiting_tokens) == (0, 0)
        return response, made.records[0], b


def test_another_engine_goes_on_where_one_was_lost() -> None:
    async def test() -> None:
        response, record, other = await asked(streaming(*BEGUN, lost=True), streaming(*REST))
        assert response.whole
        assert response.body.startswith(b"".join(BEGUN))
        assert response.body.endswith(DONE)
        assert contents(response.body) == "one two three"
        assert b'"other"' not in response.body
        assert (record.outcome, record.engine, record.attempts, record.resumed, record.cut) == ("ok", "b", 2, 1, False)
        assert json.loads(other.requests[0].body)["messages"][-1]["content"] == "one two"

    run(test)


@pytest.mark.parametrize(
    "lost",
    [
        streaming(*BEGUN, end=b'data: {"error": {"message": "EngineCore encountered an issue", "code": 500}}\n\n'),
        streaming(*BEGUN, end=b": the last\n\n"),
        streaming(*BEGUN, b'data: {"id":"first","choi', lost=True),
    ],
    ids=["its error as an event", "no end mark", "half an event"],
)
def test_so_it_does_however_the_first_one_failed(lost: Handler) -> None:
    async def test() -> None:
        response, record, _ = await asked(lost, streaming(*REST))
        assert response.whole
        assert contents(response.body) == "one two three"
        assert b"error" not in response.body
        assert (record.outcome, record.resumed) == ("ok", 1)

    run(test)


@pytest.mark.parametrize(
    ("body", "settings"),
    [
        (CHAT, {"resume_streams": False}),
        ({**CHAT, "temperature": 1}, {}),
        ({**CHAT, "tools": [{"type": "function"}]}, {}),
        ({**CHAT, "stop": ["x"]}, {}),
        (CHAT, {"attempts_max": 1}),
    ],
)
def test_other_streams_end_with_an_error(body: object, settings: dict[str, Any]) -> None:
    async def test() -> None:
        response, record, other = await asked(streaming(*BEGUN, lost=True), streaming(*REST), body, **settings)
        assert not response.whole
        assert contents(response.body.partition(b'data: {"error"')[0]) == "one two"
        assert b'"error"' in response.body
        assert DONE not in response.body
        assert (record.outcome, record.resumed, record.cut, other.requests) == ("engine", 0, True, [])

    run(test)


@pytest.mark.parametrize(
    ("second", "outcome"),
    [(answer(b'{"error":{"message":"no"}}', 400), "engine"), (streaming(REST[1], lost=True), "request")],
    ids=["it refuses to go on", "it dies as well, so the request is quarantined"],
)
def test_a_stream_that_cannot_go_on_ends_with_an_error(second: Handler, outcome: str) -> None:
    async def test() -> None:
        response, record, _ = await asked(streaming(*BEGUN, lost=True), second)
        assert not response.whole
        assert b'"error"' in response.body
        assert DONE not in response.body
        assert (record.cut, record.outcome) == (True, outcome)

    run(test)


def test_a_client_that_leaves_meanwhile_ends_both() -> None:
    async def test() -> None:
        a, b = ScriptedEngine(streaming(*BEGUN, lost=True)), ScriptedEngine(hang)
        async with rig(a, b, resume_streams=True) as made:
            made.engine("b").chosen = 1
            client = await made.client()
            client.send(CHAT)
            await until(lambda: bool(b.requests), "the other engine was asked")
            client.leave()
            await until(lambda: b.open_now == 0, "it need not go on")
            assert made.records[0].outcome == "left"
            assert made.engine("b").in_flight == 0

    run(test)


def test_a_whole_stream_is_the_same_with_and_without() -> None:
    async def test() -> None:
        bodies = []
        for on in (False, True):
            engine = ScriptedEngine(streaming(*BEGUN, *words(" three"), usage(3, 3, "first")))
            async with rig(engine, resume_streams=on) as made:
                response = await made.ask(CHAT)
                assert response.whole
                bodies.append(response.body)
                await until(lambda made=made: bool(made.records), "the record")  # type: ignore[misc]
                assert made.records[0].completion_tokens == 3
        assert bodies[0] == bodies[1]

    run(test)
