"""What engines may answer, and what clients get of it: whole, or seen to be cut."""

import asyncio
import contextlib
from typing import Any

import pytest

from tests.unit.router.rig import (
    CHAT,
    DONE,
    EVENT,
    MODEL,
    Handler,
    Request,
    ScriptedEngine,
    answer,
    hang,
    reset,
    rig,
    run,
    until,
)

STREAM: dict[str, Any] = {**CHAT, "stream": True}
OK = b'{"ok":true}'
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = SSE + b"transfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def raw(*pieces: bytes, end: str = "", gap_s: float = 0.02) -> Handler:
    """A handler that sends these bytes; ``end``: then it closes the connection (fin) or resets it (rst)."""

    async def handle(_: Request, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(gap_s)
        if end == "rst":
            reset(writer)
        elif end == "fin":
            writer.close()

    return handle


class TestHeads:
    @pytest.mark.parametrize(
        "early", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"]
    )
    @pytest.mark.parametrize("apart", [True, False])
    def test_a_word_before_the_answer_is_not_the_answer(self, early: bytes, apart: bool) -> None:
        async def test() -> None:
            good = b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n" + OK
            engine = ScriptedEngine(raw(early, good) if apart else raw(early + good))
            async with rig(engine) as made:
                client = await made.client()
                for _ in range(2):
                    response = await client.ask()
                    assert (response.status, response.body) == (200, OK)
                    assert "link" not in response.headers
            assert engine.connections == 1

        run(test)

    def test_the_request_id_is_told_once_and_hop_headers_not_at_all(self) -> None:
        async def test() -> None:
            head = "x-request-id: engine's\r\nconnection: keep-alive, x-hop\r\nx-hop: 1\r\nx-end: 2\r\n"
            async with rig(ScriptedEngine(answer(OK, head=head))) as made:
                client = await made.client()
                client.send(head="x-request-id: mine\r\n")
                text = (await client.reader.readuntil(b"\r\n\r\n")).lower()
                assert text.count(b"x-request-id") == 1
                assert b"x-request-id: mine\r\n" in text
                assert b"x-hop" not in text
                assert b"x-end: 2" in text

        run(test)

    @pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
    def test_an_answer_that_has_no_body_keeps_both_connections(self, status: bytes) -> None:
        async def test() -> None:
            engine = ScriptedEngine(raw(b"HTTP/1.1 " + status + b"\r\n\r\n"))
            async with rig(engine) as made:
                client = await made.client()
                for _ in range(2):
                    client.send(b"", method="GET", target="/static")
                    head = await client.reader.readuntil(b"\r\n\r\n")
                    assert head.startswith(b"HTTP/1.1 " + status)
                    assert b"connection:" not in head
            assert engine.connections == 1

        run(test)

    def test_an_engine_of_http10_is_answered_for_in_http11(self) -> None:
        async def test() -> None:
            engine = ScriptedEngine(raw(b"HTTP/1.0 200 OK\r\ncontent-length: 11\r\n\r\n" + OK, end="fin"))
            async with rig(engine) as made:
                client = await made.client()
                for _ in range(2):
                    client.send()
                    assert (await client.reader.readuntil(b"\r\n")) == b"HTTP/1.1 200 OK\r\n"
                    assert (await client.reader.readuntil(OK)).endswith(OK)

        run(test)


class TestEnds:
    def test_an_answer_may_end_with_its_connection(self) -> None:
        async def test() -> None:
            engine = ScriptedEngine(raw(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n", OK, end="fin"))
            async with rig(engine) as made:
                response = await made.ask()
                assert (response.status, response.body, response.headers["connection"]) == (200, OK, "close")
                engine.handler = raw(SSE + b"\r\n" + EVENT, DONE, end="fin")
                assert (await made.ask(STREAM)).body == EVENT + DONE
                engine.handler = raw(b"HTTP/1.1 400 Bad\r\n\r\n", OK, end="fin")
                assert (await made.ask()).status == 400
                await until(lambda: len(made.records) == 3, "the records")
                assert [record.outcome for record in made.records] == ["ok", "ok", "client"]

        run(test)

    @pytest.mark.parametrize("framing", ["length", "chunks", "connection"])
    @pytest.mark.parametrize("version", ["1.0", "1.1"])
    def test_a_long_answer_that_breaks_is_seen_to_be_cut(self, framing: str, version: str) -> None:
        head = {"length": b"content-length: 900000\r\n", "chunks": b"transfer-encoding: chunked\r\n"}.get(framing, b"")
        body = chunk(b"x" * 400_000) if framing == "chunks" else b"x" * 400_000

        async def test() -> None:
            async with rig(ScriptedEngine(raw(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n", body, end="rst"))) as made:
                client = await made.client()
                client.send(version=version)
                got, broken = b"", False
                try:
                    while data := await client.reader.read(1 << 16):
                        got += data
                except ConnectionError:
                    broken = True
                assert b"x" * 1000 in got
                if framing == "connection" or (version == "1.0" and framing == "chunks"):
                    assert broken, "nothing else could tell"
                assert not got.endswith(b"\r\n0\r\n\r\n")

        run(test)

    @pytest.mark.parametrize("engine_closes", [True, False])
    def test_bytes_after_the_end_do_not_become_the_next_answer(self, engine_closes: bool) -> None:
        async def test() -> None:
            head = b"connection: close\r\n" if engine_closes else b""
            good = b"HTTP/1.1 200 OK\r\n" + head + b"content-length: 11\r\n\r\n" + OK
            engine = ScriptedEngine(raw(good + b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"))
            async with rig(engine) as made:
                client = await made.client()
                response = await client.ask()
                assert response.status == 502
                assert "evil" not in response.body.decode()
                engine.handler = answer(OK)
                assert (await client.ask()).body == OK

        run(test)

    def test_a_refusal_before_the_request_was_read_is_passed_on(self) -> None:
        async def test() -> None:
            async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\n{}")
                await writer.drain()
                with contextlib.suppress(ConnectionError):
                    await reader.read()  # nothing: only the end
                writer.close()

            engine = ScriptedEngine(answer(OK))
            async with rig(engine) as made:
                await engine.stop()
                server = await asyncio.start_server(handle, "127.0.0.1", engine.port, limit=1 << 12)
                client = await made.client()
                for _ in range(3):
                    response = await client.ask(b'{"model":"m","prompt":"' + b"x" * 20_000_000 + b'"}')
                    assert (response.status, response.body) == (413, b"{}")
                assert made.engine("a").breaker.failures_in_a_row == 0
                server.close()

        run(test)


class TestStreamEnds:
    @pytest.mark.parametrize(
        "pieces",
        [
            [chunk(EVENT), b"e\r\n", DONE, b"\r\n", b"0\r\n\r\n"],
            [chunk(EVENT), chunk(DONE), b"0", b"\r\n", b"\r\n"],
            [chunk(EVENT), chunk(b"data: [DO"), chunk(b"NE]\n\n") + b"0\r\n\r\n"],
            [chunk(EVENT), *(bytes([byte]) for byte in chunk(DONE) + b"0\r\n\r\n")],
            [chunk(EVENT), chunk(DONE) + b"0;why=not\r\nx-trailer: 1\r\n\r\n"],
        ],
        ids=["framing apart", "end in three", "mark in two chunks", "byte by byte", "trailer"],
    )
    def test_a_whole_stream_is_whole_however_it_is_cut(self, pieces: list[bytes]) -> None:
        async def test() -> None:
            async with rig(ScriptedEngine(raw(CHUNKED, *pieces, gap_s=0.005))) as made:
                client = await made.client()
                client.send(STREAM)
                await client.reader.readuntil(b"\r\n\r\n")
                sent = b"".join(pieces)
                assert await asyncio.wait_for(client.reader.readexactly(len(sent)), 5) == sent
                await until(lambda: bool(made.records), "the record")
                assert (made.records[0].outcome, made.records[0].cut) == ("ok", False)

        run(test)

    @pytest.mark.parametrize(
        "end",
        [[b"0\r\n\r\n"], [b"00;a=b\r\nx-trailer: 1\r\n\r\n"], [b"0\r\n", b"\r\n"], [b"0", b"\r\n\r\n"]],
        ids=["plain", "trailer", "in two", "size apart"],
    )
    def test_a_proper_end_without_the_mark_is_never_an_end_for_the_client(self, end: list[bytes]) -> None:
        async def test() -> None:
            async with rig(ScriptedEngine(raw(CHUNKED, chunk(EVENT), *end))) as made:
                client = await made.client()
                client.send(STREAM)
                got, broken = b"", False
                try:
                    while data := await asyncio.wait_for(client.reader.read(4096), 5):
                        got += data
                except ConnectionError:
                    broken = True
                assert EVENT in got
                assert broken or b'"engine_failed"' in got
                assert broken or b"\r\n\r\n" not in got.partition(EVENT)[2]
                await until(lambda: bool(made.records), "the record")
                assert made.records[0].cut

        run(test)

    @pytest.mark.parametrize("framing", ["length", "connection"])
    def test_a_stream_without_chunks_and_without_its_mark_is_seen_to_be_cut(self, framing: str) -> None:
        async def test() -> None:
            head = b"content-length: %d\r\n" % (2 * len(EVENT)) if framing == "length" else b""
            async with rig(ScriptedEngine(raw(SSE + head + b"\r\n" + EVENT, EVENT, end="fin"))) as made:
                response = await made.ask(STREAM)
                assert response.body.startswith(EVENT)
                assert not response.whole or b"engine_failed" in response.body

        run(test)

    def test_speech_is_passed_on_as_it_comes(self) -> None:
        async def test() -> None:
            head = b"HTTP/1.1 200 OK\r\ncontent-type: audio/pcm\r\ntransfer-encoding: chunked\r\n\r\n"
            async with rig(ScriptedEngine(raw(head, chunk(b"sound"), gap_s=0.2))) as made:
                client = await made.client()
                client.send({"model": MODEL, "input": "hello"}, target="/v1/audio/speech")
                await asyncio.wait_for(client.reader.readuntil(b"sound"), 2)  # no end came yet
                client.leave()

        run(test)

    def test_an_error_for_a_client_of_http10_has_no_chunks(self) -> None:
        async def test() -> None:
            head = b"HTTP/1.1 404 No\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
            async with rig(ScriptedEngine(raw(head + chunk(OK) + b"0\r\n\r\n"))) as made:
                response = await made.ask(version="1.0")
                assert (response.status, response.body) == (404, OK)
                assert "transfer-encoding" not in response.headers

        run(test)


class TestConnections:
    def test_a_connection_that_was_slowed_down_is_as_good_as_new_for_the_next_request(self) -> None:
        """The last bytes of an answer fill the client's connection: the engine's goes back with its reading on."""

        async def test() -> None:
            engine = ScriptedEngine(answer(b"y" * 250_000))
            async with rig(engine) as made:
                slow = await made.slow_client()
                slow.send()
                await until(lambda: bool(made.records), "it is passed on")
                engine.handler = answer(OK)
                async with asyncio.timeout(2):
                    assert (await made.ask()).body == OK
                assert engine.connections == 1
                slow.reads(on=True)
                assert (await slow.receive()).body == b"y" * 250_000

        run(test)

    def test_what_could_do_harm_twice_does_not_travel_on_a_kept_connection(self) -> None:
        async def test() -> None:
            async def handle(request: Request, writer: asyncio.StreamWriter) -> None:
                if request.target == "/v1/load_lora_adapter":
                    reset(writer)
                else:
                    await answer(OK)(request, writer)

            engine = ScriptedEngine(handle)
            async with rig(engine) as made:
                await made.ask()
                assert (await made.ask({}, target="/v1/load_lora_adapter")).status == 502
                assert len(engine.requests) == 2, "it was sent once"

        run(test)

    def test_connections_to_an_engine_that_left_are_closed(self) -> None:
        async def test() -> None:
            leaving, staying = ScriptedEngine(answer(OK)), ScriptedEngine(answer(OK))
            async with rig(leaving, staying) as made:
                made.engine("b").in_flight = 5
                await made.ask()
                made.engine("b").in_flight -= 5
                assert leaving.open_now == 1
                made.join(staying)
                await until(lambda: leaving.open_now == 0, "its connection is closed", 2.0)

        run(test)


class TestDeaths:
    def test_a_request_that_kills_engines_on_kept_connections_is_held_after_two(self) -> None:
        async def test() -> None:
            poison = {**CHAT, "messages": [{"role": "user", "content": "poison"}]}
            engines = [ScriptedEngine(answer(OK)) for _ in range(4)]

            def dying(engine: ScriptedEngine) -> Handler:
                async def handle(request: Request, writer: asyncio.StreamWriter) -> None:
                    if b"poison" in request.body:
                        await engine.stop()
                    else:
                        await answer(OK)(request, writer)

                return handle

            for engine in engines:
                engine.handler = dying(engine)
            async with rig(*engines) as made:
                await asyncio.gather(*(made.ask() for _ in range(12)))
                assert all(engine.requests for engine in engines)
                response = await made.ask(poison)
                assert (response.status, response.error["code"]) == (422, "request_quarantined")
                killed = [engine.name for engine in engines if b"poison" in engine.requests[-1].body]
                assert len(killed) == 2
                assert made.router.quarantine.listing()[0]["engines"] != []

        run(test)

    def test_the_same_request_of_many_clients_is_held_for_no_single_death(self) -> None:
        async def test() -> None:
            dying, good = ScriptedEngine(hang), ScriptedEngine(answer(OK))
            async with rig(dying, good) as made:
                made.engine("b").in_flight = 50
                asked = [asyncio.ensure_future(made.ask()) for _ in range(10)]
                await until(lambda: len(dying.requests) == 10, "all are under way")
                made.engine("b").in_flight -= 50
                await dying.stop()
                assert {(await one).status for one in asked} == {200}
                assert made.router.quarantine.listing() == []

        run(test)

    def test_streams_without_an_end_mark_are_no_deaths(self) -> None:
        async def test() -> None:
            empty = raw(CHUNKED, b"0\r\n\r\n")
            async with rig(ScriptedEngine(empty), ScriptedEngine(empty), breaker_failures=10) as made:
                assert (await made.ask(STREAM)).status == 502
                assert len(made.router.quarantine) == 0

        run(test)


class TestSilence:
    def test_an_engine_that_drips_its_answer_is_not_silent(self) -> None:
        async def test() -> None:
            drops = [bytes([byte]) for byte in OK]
            engine = ScriptedEngine(raw(b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n", *drops, gap_s=0.1))
            engine.metrics = b"vllm:prompt_tokens_total 1\n"  # and they stand still
            other = ScriptedEngine(answer(b"other"))
            async with rig(engine, other, first_byte_s=0.2, stream_idle_s=0.6) as made:
                made.engine("b").in_flight = 5
                asked = asyncio.ensure_future(made.ask())
                await until(lambda: bool(engine.requests), "it is sent")
                made.engine("b").in_flight -= 5
                assert (await asked).body == OK
                assert made.engine("a").takes_requests

        run(test)

    def test_the_only_engine_of_a_model_is_waited_for_whatever_other_engines_serve(self) -> None:
        async def test() -> None:
            async def late(request: Request, writer: asyncio.StreamWriter) -> None:
                await asyncio.sleep(1.5)
                await answer(OK)(request, writer)

            slow, other = ScriptedEngine(late), ScriptedEngine(answer(OK), model="other")
            slow.metrics = b"vllm:prompt_tokens_total 1\n"
            async with rig(slow, other, first_byte_s=0.1) as made:
                assert (await made.ask()).body == OK
                assert made.engine("a").breaker.failures_in_a_row == 0

        run(test)

    def test_the_time_to_the_first_byte_is_that_of_the_answer_that_was_passed_on(self) -> None:
        async def test() -> None:
            cut = ScriptedEngine(raw(b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n{", end="rst"))

            async def late(request: Request, writer: asyncio.StreamWriter) -> None:
                await asyncio.sleep(0.2)
                await answer(OK)(request, writer)

            good = ScriptedEngine(late)
            async with rig(cut, good) as made:
                made.engine("b").in_flight = 5
                asked = asyncio.ensure_future(made.ask())
                await until(lambda: bool(cut.requests), "it is sent")
                made.engine("b").in_flight -= 5
                assert (await asked).body == OK
                await until(lambda: bool(made.records), "the record")
                assert made.records[0].first_byte_s > 0.2

        run(test)


class TestWhatIsTold:
    @pytest.mark.parametrize("status", [400, 500, 503])
    def test_an_engines_words_reach_the_client_and_no_log_since_they_may_repeat_the_prompt(
        self, status: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def test() -> None:
            body = (
                b'{"error":{"message":"no such thing: {\'input\': \'my secret\'}","type":"BadThing","code":%d}}'
                % status
            )
            async with rig(ScriptedEngine(answer(body, status=status)), breaker_failures=1) as made:
                response = await made.ask()
                assert "my secret" in response.error["message"]
                await until(lambda: bool(made.records), "the record")
                assert made.records[0].why == f"status {status} (BadThing)"
                assert "secret" not in made.engine("a").why

        run(test)
        assert "secret" not in caplog.text


class TestHeadsThatAreKnown:
    """Whole answers that begin like the one before are not parsed; clients must not see a difference."""

    def test_clients_get_each_answer_whole_with_headers_and_id_of_its_own(self) -> None:
        head = b"HTTP/1.1 200 OK\r\ndate: %d\r\ncontent-length: %d\r\nx-engine: a\r\n\r\n"
        bodies = [OK, OK, b'{"usage":{"prompt_tokens":3,"completion_tokens":1}}', b"", OK]
        dates = [1, 1, 1, 1, 2]
        sent = iter([raw(head % (date, len(body)) + body) for date, body in zip(dates, bodies, strict=True)])

        async def handle(request: Request, writer: asyncio.StreamWriter) -> None:
            await next(sent)(request, writer)

        async def test() -> None:
            engine = ScriptedEngine(handle)
            async with rig(engine) as made:
                client = await made.client()
                got = [await client.ask(head=f"x-request-id: id-{number}\r\n") for number in range(len(bodies))]
                assert [response.body for response in got] == bodies
                assert [response.headers["date"] for response in got] == [str(date) for date in dates]
                assert [response.headers["x-engine"] for response in got] == ["a"] * len(bodies)
                assert [response.headers["x-request-id"] for response in got] == [f"id-{n}" for n in range(len(bodies))]
                assert [record.prompt_tokens for record in made.records] == [-1, -1, 3, -1, -1]
                assert {record.outcome for record in made.records} == {"ok"}
            assert engine.connections <= 2, "connections are kept"

        run(test)

    @pytest.mark.parametrize(
        "other",
        [
            raw(b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n" + OK[:5], OK[5:]),
            raw(b"HTTP/1.1 200 OK\r\ncontent-le", b"ngth: 11\r\n\r\n" + OK),
            raw(b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\nconnection: keep-alive\r\n\r\n" + OK),
            raw(b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\nconnection: close\r\n\r\n" + OK, end="fin"),
            raw(b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\nx-request-id: other\r\n\r\n" + OK),
            raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nb\r\n" + OK + b"\r\n0\r\n\r\n"),
        ],
        ids=["in two pieces", "head in two pieces", "connection", "close", "request id", "chunked"],
    )
    def test_what_comes_between_them_in_another_way_is_read_as_ever(self, other: Handler) -> None:
        known = raw(b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n" + OK)
        sent = iter([known, known, other, known, known])

        async def handle(request: Request, writer: asyncio.StreamWriter) -> None:
            await next(sent)(request, writer)

        async def test() -> None:
            async with rig(ScriptedEngine(handle)) as made:
                client = await made.client()
                for _ in range(5):
                    response = await client.ask()
                    assert response.status == 200
                    assert response.body == OK
                    assert response.headers["x-request-id"] != "other"
                    assert "connection" not in response.headers

        run(test)

    def test_an_answer_that_goes_on_after_its_end_is_never_passed_on_as_the_next_one(self) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n"
        sent = iter([raw(head + OK), raw(head + OK), raw(head + OK + head + b'{"ok":evil}')])

        async def handle(request: Request, writer: asyncio.StreamWriter) -> None:
            await next(sent, answer(OK))(request, writer)

        async def test() -> None:
            async with rig(ScriptedEngine(handle)) as made:
                client = await made.client()
                for _ in range(4):
                    assert b"evil" not in (await client.ask()).body

        run(test)


def says_error(code: object, kind: str = "InternalServerError") -> bytes:
    return (
        b'data: {"error": {"message": "no luck", "type": "%s", "param": null, "code": %s}}\n\n'
        % (kind.encode(), str(code).encode())
    ) + DONE


class TestStreamsThatSayAnError:
    """vLLM sends the head of a stream before it looks at the request: whatever goes wrong comes as an event."""

    @pytest.mark.parametrize("apart", [True, False], ids=["head and event apart", "at once"])
    def test_one_that_begins_with_the_engines_own_error_is_had_from_another_engine(self, apart: bool) -> None:
        async def test() -> None:
            event = chunk(says_error(500)) + b"0\r\n\r\n"
            bad = ScriptedEngine(raw(CHUNKED, event) if apart else raw(CHUNKED + event), name="bad")
            good = ScriptedEngine(raw(CHUNKED + chunk(EVENT) + chunk(DONE) + b"0\r\n\r\n"), name="good")
            async with rig(bad, good) as made:
                for _ in range(4):
                    response = await made.ask(STREAM)
                    assert (response.status, response.body, response.whole) == (200, EVENT + DONE, True)
                assert bad.requests, "it was asked, and nobody noticed"
                assert made.engine("bad").breaker.failures_in_a_row >= 1
                assert {record.outcome for record in made.records} == {"ok"}

        run(test)

    def test_one_that_begins_with_the_clients_error_goes_to_the_client_as_it_is(self) -> None:
        async def test() -> None:
            said = says_error(400, "BadRequestError")
            engines = [ScriptedEngine(raw(CHUNKED, chunk(said), b"0\r\n\r\n"), name=name) for name in ("a", "b")]
            async with rig(*engines) as made:
                client = await made.client()
                for _ in range(5):
                    response = await client.ask(STREAM)
                    assert (response.status, response.body, response.whole) == (200, said, True)
                assert sum(len(engine.requests) for engine in engines) == 5, "nobody else was asked"
                assert [(record.outcome, record.status) for record in made.records] == [("client", 400)] * 5
                assert all(made.engine(engine.name).breaker.failures_in_a_row == 0 for engine in engines)

        run(test)

    def test_where_no_other_engine_is_left_the_client_gets_its_words(self) -> None:
        async def test() -> None:
            said = says_error(500)
            async with rig(ScriptedEngine(raw(CHUNKED, chunk(said), b"0\r\n\r\n"), name="a")) as made:
                response = await made.ask(STREAM)
                assert response.body == said
                assert made.records[0].outcome == "engine"

        run(test)

    def test_one_that_says_so_after_its_beginning_counts_against_its_engine(self) -> None:
        async def test() -> None:
            body = chunk(EVENT) + chunk(says_error('"500"')) + b"0\r\n\r\n"
            async with rig(ScriptedEngine(raw(CHUNKED, body), name="a")) as made:
                response = await made.ask(STREAM)
                assert response.body.startswith(EVENT), "what came is passed on"
                assert b"no luck" in response.body
                (record,) = made.records
                assert (record.outcome, record.cut) == ("engine", True)
                assert "status 500" in record.why
                assert made.engine("a").breaker.failures_in_a_row == 1

        run(test)

    def test_a_text_that_speaks_of_errors_is_none(self) -> None:
        async def test() -> None:
            text = b'data: {"choices":[{"delta":{"content":"\\ndata: {\\"error\\": {"}}]}\n\n'
            body = chunk(text) + chunk(DONE) + b"0\r\n\r\n"
            async with rig(ScriptedEngine(raw(CHUNKED, body), name="a")) as made:
                assert (await made.ask(STREAM)).body == text + DONE
                assert made.records[0].outcome == "ok"

        run(test)
