"""The life of one request, over real sockets: what is passed on, what is tried elsewhere, and what the client sees."""

import asyncio
import json
from typing import Any

import pytest

from tests.unit.router.rig import (
    CHAT,
    DONE,
    EVENT,
    Request,
    ScriptedEngine,
    answer,
    die,
    hang,
    reset,
    rig,
    run,
    stream,
    until,
)

STREAM: dict[str, Any] = {**CHAT, "stream": True}
OK = b'{"choices":[],"usage":{"prompt_tokens":300,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":256}}}'


class TestPassingOn:
    def test_bodies_pass_byte_for_byte_in_both_directions(self) -> None:
        async def test() -> None:
            engine = ScriptedEngine(answer(OK, head="x-engine: yes\r\n"))
            body = b'{ "model":"m",  "messages":[{"role":"user","content":"\\u4f60 \xf0\x9f\x91\xa9"}] }'
            async with rig(engine) as made:
                response = await made.ask(body, head="x-mine: 1\r\nauthorization: Bearer secret\r\n")
                assert (response.status, response.body) == (200, OK)
                assert response.headers["x-engine"] == "yes"
            (request,) = engine.requests
            assert request.body == body
            assert request.headers["x-mine"] == "1"
            assert "authorization" not in request.headers
            assert request.headers["host"].startswith("127.0.0.1:")

        run(test)

    def test_the_request_id_is_the_clients_or_a_fresh_one_in_and_out(self) -> None:
        async def test() -> None:
            engine = ScriptedEngine(answer(OK))
            async with rig(engine) as made:
                named = await made.ask(head="x-request-id: my-id-1\r\n")
                fresh = await made.ask()
                bad = await made.ask(head="x-request-id: a b<script>\r\n")
            assert named.headers["x-request-id"] == "my-id-1"
            ids = [request.headers["x-request-id"] for request in engine.requests]
            assert ids == ["my-id-1", fresh.headers["x-request-id"], bad.headers["x-request-id"]]
            assert len(set(ids)) == 3
            assert "script" not in ids[2]

        run(test)

    def test_unknown_routes_and_methods_reach_an_engine(self) -> None:
        async def test() -> None:
            engine = ScriptedEngine(answer(b'{"version":"x"}'))
            async with rig(engine) as made:
                response = await made.ask(method="GET", target="/version?full=1")
                assert response.body == b'{"version":"x"}'
            assert (engine.requests[0].method, engine.requests[0].target) == ("GET", "/version?full=1")

        run(test)

    def test_what_really_happened_is_in_the_record(self) -> None:
        async def test() -> None:
            async with rig(ScriptedEngine(answer(OK))) as made:
                await made.ask()
                await until(lambda: bool(made.records), "the record")
                (record,) = made.records
                assert (record.outcome, record.status, record.engine, record.model) == ("ok", 200, "a", "m")
                assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (300, 2, 256)
                assert 0 <= record.added_s <= record.first_byte_s <= record.total_s

        run(test)

    def test_headers_of_the_engines_connection_stay_behind(self) -> None:
        async def test() -> None:
            async with rig(ScriptedEngine(answer(OK, head="connection: close\r\nkeep-alive: timeout=5\r\n"))) as made:
                client = await made.client()
                for _ in range(2):  # the client's connection goes on
                    response = await client.ask()
                    assert response.status == 200
                    assert not {"connection", "keep-alive"} & response.headers.keys()

        run(test)


class TestStreams:
    def test_a_stream_passes_event_by_event_as_it_comes(self) -> None:
        async def test() -> None:
            gate = asyncio.Event()

            async def handle(request: Request, writer: asyncio.StreamWriter) -> None:
                await stream(EVENT, end=False)(request, writer)
                await gate.wait()
                writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(DONE), DONE))

            async with rig(ScriptedEngine(handle)) as made:
                client = await made.client()
                client.send(STREAM)
                head = await client.reader.readuntil(b"\r\n\r\n")
                first = await client.reader.readuntil(b"\n\n\r\n")  # while the engine waits for us
                assert b"text/event-stream" in head
                assert EVENT in first
                gate.set()
                rest = await client.reader.readuntil(b"0\r\n\r\n")
                assert DONE in rest

        run(test)

    @pytest.mark.parametrize("fault", ["rst", "fin", "half-a-line", "proper-end-without-mark", "stall", "no-http"])
    def test_a_stream_that_breaks_never_ends_as_if_complete(self, fault: str) -> None:
        async def test() -> None:
            async def handle(request: Request, writer: asyncio.StreamWriter) -> None:
                pieces = [EVENT] * 5 + ([EVENT[:20]] if fault == "half-a-line" else [])
                await stream(*pieces, end=fault == "proper-end-without-mark")(request, writer)
                if fault == "rst":
                    await asyncio.sleep(0.05)
                    reset(writer)
                elif fault in ("fin", "half-a-line"):
                    writer.close()
                elif fault == "stall":
                    await asyncio.sleep(3600)
                elif fault == "no-http":
                    writer.write(b"zzz this is no chunk\r\n")

            other = ScriptedEngine(stream(EVENT, DONE))
            async with rig(ScriptedEngine(handle), other, stream_idle_s=0.5) as made:
                made.join(ScriptedEngine(handle, name="a", port=made.engine("a").announcement.host_port[1]))
                response = await made.ask(STREAM)
                assert not response.whole, "the framing says that something is missing"
                assert response.body.startswith(EVENT * (1 if fault == "no-http" else 5))
                assert DONE.strip() not in response.body
                last = response.body.rstrip().rpartition(b"\n\n")[2]
                error = json.loads(last.removeprefix(b"data: "))["error"]
                assert error["code"] in ("engine_failed", "engine_stalled")
                await until(lambda: bool(made.records), "the record")
                assert made.records[0].cut
                assert made.records[0].outcome == "engine"
            assert not other.requests, "after the first byte nothing is tried elsewhere"

        run(test)

    def test_an_http10_client_gets_the_same_events_without_chunks(self) -> None:
        async def test() -> None:
            async with rig(ScriptedEngine(stream(EVENT, EVENT, DONE))) as made:
                response = await made.ask(STREAM, version="1.0")
                assert "transfer-encoding" not in response.headers
                assert response.body == EVENT + EVENT + DONE

        run(test)

    def test_a_client_that_reads_slowly_slows_the_engine_down_and_loses_nothing(self) -> None:
        async def test() -> None:
            piece = b"data: " + b"x" * 60_000 + b"\n\n"
            count = 200
            async with rig(ScriptedEngine(stream(*[piece] * count, DONE)), stream_idle_s=1.0) as made:
                client = await made.client()
                client.send(STREAM)
                await asyncio.sleep(2.0)  # longer than a stream may be idle: it is the client that stalls
                response = await client.receive()
                assert response.whole
                assert response.body == piece * count + DONE

        run(test)


class TestSilence:
    def test_comments_keep_a_silent_stream_alive_and_the_answer_follows(self) -> None:
        async def test() -> None:
            async def handle(request: Request, writer: asyncio.StreamWriter) -> None:
                await asyncio.sleep(0.5)
                await stream(EVENT, DONE)(request, writer)

            async with rig(ScriptedEngine(handle), comment_after_s=0.1) as made:
                response = await made.ask(STREAM)
                assert response.whole
                assert response.body.startswith(b": keep-alive\n\n" * 2)
                assert response.body.endswith(EVENT + DONE)

        run(test)

    def test_comments_follow_a_head_that_came_early(self) -> None:
        async def test() -> None:
            async def handle(request: Request, writer: asyncio.StreamWriter) -> None:
                await stream(end=False)(request, writer)
                await writer.drain()
                await asyncio.sleep(0.5)
                for piece in (EVENT, DONE):
                    writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                writer.write(b"0\r\n\r\n")

            async with rig(ScriptedEngine(handle), comment_after_s=0.1) as made:
                response = await made.ask(STREAM)
                assert response.whole
                assert response.body.startswith(b": keep-alive\n\n" * 2)
                assert response.body.endswith(EVENT + DONE)

        run(test)

    def test_a_stream_without_chunks_is_chunked_after_comments(self) -> None:
        async def test() -> None:
            async def handle(_: Request, writer: asyncio.StreamWriter) -> None:
                await asyncio.sleep(0.3)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
                writer.write(b"content-length: %d\r\n\r\n" % len(EVENT + DONE) + EVENT + DONE)

            async with rig(ScriptedEngine(handle), comment_after_s=0.1) as made:
                response = await made.ask(STREAM)
                assert response.whole
                assert response.body.endswith(EVENT + DONE)

        run(test)

    def test_answers_that_are_no_streams_get_no_comments(self) -> None:
        async def test() -> None:
            async def handle(request: Request, writer: asyncio.StreamWriter) -> None:
                await asyncio.sleep(0.4)
                await answer(OK)(request, writer)

            async with rig(ScriptedEngine(handle), comment_after_s=0.1) as made:
                assert (await made.ask()).body == OK

        run(test)

    def test_an_error_after_comments_is_an_event_if_no_other_engine_answers(self) -> None:
        async def test() -> None:
            async def handle(_: Request, writer: asyncio.StreamWriter) -> None:
                await asyncio.sleep(0.3)
                await answer(b'{"error":{"message":"too busy"}}', 503)(_, writer)

            async with rig(ScriptedEngine(handle), comment_after_s=0.1) as made:
                response = await made.ask(STREAM)
                assert response.status == 200
                assert not response.whole
                assert b'"code": "engines_overloaded"' in response.body

        run(test)

    def test_another_engine_answers_after_comments(self) -> None:
        async def test() -> None:
            async def handle(_: Request, writer: asyncio.StreamWriter) -> None:
                await asyncio.sleep(0.3)
                await answer(b'{"error":{"message":"too busy"}}', 503)(_, writer)

            slow, good = ScriptedEngine(handle), ScriptedEngine(stream(EVENT, DONE))
            async with rig(slow, good, comment_after_s=0.1) as made:
                made.engine("b").in_flight = 5  # so that the first choice is the other one
                response = await made.ask(STREAM)
                made.engine("b").in_flight -= 5
                assert slow.requests
                assert response.whole
                assert response.body.endswith(EVENT + DONE)

        run(test)

    def test_an_engine_that_accepts_and_never_answers_is_left(self) -> None:
        async def test() -> None:
            hung, good = ScriptedEngine(hang), ScriptedEngine(answer(OK))
            async with rig(hung, good, first_byte_s=0.3, probe_deadline_s=0.3) as made:
                responses = await asyncio.gather(*(made.ask() for _ in range(12)))
                assert [response.status for response in responses] == [200] * 12
                assert not made.engine("a").takes_requests
                assert "requests wait" in made.engine("a").why or "no answer" in made.engine("a").why
                before = len(hung.requests)
                await asyncio.gather(*(made.ask() for _ in range(12)))
                assert len(hung.requests) == before, "it gets no more requests of clients"

        run(test)

    def test_an_engine_that_computes_is_not_left_however_long_it_takes(self) -> None:
        async def test() -> None:
            busy = ScriptedEngine()
            other = ScriptedEngine(answer(b"other"))

            async def handle(request: Request, writer: asyncio.StreamWriter) -> None:
                for step in range(12):
                    busy.metrics = b'vllm:prompt_tokens_total{model_name="m"} %d.0\n' % step
                    await asyncio.sleep(0.1)
                await answer(OK)(request, writer)

            busy.handler = handle
            busy.metrics = b'vllm:prompt_tokens_total{model_name="m"} 0.0\n'
            async with rig(busy, other, first_byte_s=0.2) as made:
                made.engine("b").in_flight = 5
                response = await made.ask()
                made.engine("b").in_flight -= 5
                assert response.body == OK
                assert made.engine("a").takes_requests

        run(test)

    def test_engines_that_are_all_as_slow_are_waited_for(self) -> None:
        """A prompt that takes each of them longer than expected, with counters that stand still: not one fails it."""

        async def test() -> None:
            async def handle(request: Request, writer: asyncio.StreamWriter) -> None:
                if request.headers.get("x-request-id") != "kveik-router":
                    await asyncio.sleep(1.5)
                await answer(OK)(request, writer)

            still = b'vllm:prompt_tokens_total{model_name="m"} 1.0\n'
            slow = [ScriptedEngine(handle, metrics=still), ScriptedEngine(handle, metrics=still)]
            async with rig(*slow, first_byte_s=0.3, breaker_open_s=0.05, probe_deadline_s=0.3) as made:
                response = await made.ask()
                assert (response.status, response.body) == (200, OK)
                assert [len(engine.requests) for engine in slow] == [1, 1]
                await until(lambda: made.engine("a").takes_requests and made.engine("b").takes_requests, "both are in")

        run(test)

    def test_the_only_engine_is_waited_for(self) -> None:
        async def test() -> None:
            async def handle(request: Request, writer: asyncio.StreamWriter) -> None:
                await asyncio.sleep(2.0)
                await answer(OK)(request, writer)

            async with rig(ScriptedEngine(handle), first_byte_s=0.2, probe_deadline_s=0.2) as made:
                assert (await made.ask()).body == OK

        run(test)


class TestElsewhere:
    @pytest.mark.parametrize("fault", ["refused", "dies", "500", "502", "503", "429"])
    def test_before_the_first_byte_another_engine_answers(self, fault: str) -> None:
        async def test() -> None:
            handler = die if fault in ("dies", "refused") else answer(b'{"error":{"message":"no"}}', int(fault))
            bad, good = ScriptedEngine(handler), ScriptedEngine(answer(OK))
            async with rig(bad, good) as made:
                if fault == "refused":
                    await bad.stop()
                made.engine("b").in_flight = 5
                response = await made.ask()
                made.engine("b").in_flight -= 5
                assert (response.status, response.body) == (200, OK)
                await until(lambda: bool(made.records), "the record")
                assert (made.records[0].attempts, made.records[0].engine) == (2, "b")
                blamed = made.engine("a").breaker.failures_in_a_row > 0
                assert blamed is (fault not in ("503", "429"))

        run(test)

    @pytest.mark.parametrize("fault", ["dies", "hangs", "ends"])
    def test_an_engine_that_sent_nothing_but_the_head_of_a_stream_has_not_begun(self, fault: str) -> None:
        """vLLM sends the head of a stream at once, long before the first token."""

        async def test() -> None:
            async def handle(request: Request, writer: asyncio.StreamWriter) -> None:
                await stream(end=fault == "ends")(request, writer)
                await writer.drain()
                await asyncio.sleep(0.05)
                if fault == "dies":
                    reset(writer)
                elif fault == "hangs":
                    await asyncio.sleep(3600)

            good = ScriptedEngine(stream(EVENT, DONE))
            async with rig(ScriptedEngine(handle), good, first_byte_s=0.3, probe_deadline_s=0.3) as made:
                made.engine("b").in_flight = 5
                response = await made.ask(STREAM)
                made.engine("b").in_flight -= 5
                assert (response.whole, response.body) == (True, EVENT + DONE)
                assert (made.records[0].attempts, made.records[0].engine) == (2, "b")

        run(test)

    def test_a_long_answer_that_is_cut_is_cut_for_the_client_too(self) -> None:
        async def test() -> None:
            async def handle(_: Request, writer: asyncio.StreamWriter) -> None:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2000000\r\n\r\n" + b"x" * 1_000_000)
                await writer.drain()
                await asyncio.sleep(0.05)
                reset(writer)

            async with rig(ScriptedEngine(handle), ScriptedEngine(answer(OK))) as made:
                made.engine("b").in_flight = 5
                response = await made.ask()
                made.engine("b").in_flight -= 5
                assert not response.whole
                assert set(response.body) == {ord("x")}
                assert made.records[0].cut

        run(test)

    def test_an_answer_that_is_cut_while_it_is_short_comes_whole_from_another_engine(self) -> None:
        async def test() -> None:
            async def handle(_: Request, writer: asyncio.StreamWriter) -> None:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
                await writer.drain()
                await asyncio.sleep(0.05)
                reset(writer)

            async with rig(ScriptedEngine(handle), ScriptedEngine(answer(OK))) as made:
                made.engine("b").in_flight = 5
                response = await made.ask()
                made.engine("b").in_flight -= 5
                assert (response.whole, response.body) == (True, OK)

        run(test)

    def test_what_could_do_harm_twice_is_not_sent_twice(self) -> None:
        async def test() -> None:
            bad, good = ScriptedEngine(die), ScriptedEngine(answer(OK))
            async with rig(bad, good) as made:
                made.engine("b").in_flight = 5
                response = await made.ask(target="/v1/load_lora_adapter")
                made.engine("b").in_flight -= 5
                assert response.status == 502
                assert not good.requests

        run(test)

    def test_a_failure_on_two_engines_is_the_requests_and_opens_no_breaker(self) -> None:
        async def test() -> None:
            engines = [ScriptedEngine(answer(b'{"error":{"message":"boom"}}', 500)) for _ in range(3)]
            async with rig(*engines) as made:
                for _ in range(8):
                    assert (await made.ask()).status == 500
                assert all(made.engine(name).takes_requests for name in "abc")
                assert {record.outcome for record in made.records} == {"request"}

        run(test)

    def test_retries_are_a_share_of_the_traffic_not_a_multiple(self) -> None:
        async def test() -> None:
            async def overloaded(request: Request, writer: asyncio.StreamWriter) -> None:
                await answer(b'{"error":{"message":"full"}}', 503)(request, writer)

            engines = [ScriptedEngine(overloaded) for _ in range(3)]
            async with rig(*engines, retry_share=0.1) as made:
                for _ in range(100):
                    assert (await made.ask()).status == 503
                sent = sum(len(engine.requests) for engine in engines)
                assert 100 <= sent <= 100 + 20 + 100 * 0.1 + 1

        run(test)

    def test_a_kept_connection_that_the_engine_closes_is_never_the_clients_problem(self) -> None:
        async def test() -> None:
            async def once(request: Request, writer: asyncio.StreamWriter) -> None:
                await answer(OK)(request, writer)
                await writer.drain()
                writer.close()  # without saying so: as a server does whose keep-alive time is over

            async with rig(ScriptedEngine(once)) as made:
                for _ in range(30):
                    assert (await made.ask()).status == 200
                assert made.engine("a").breaker.failures_in_a_row == 0

        run(test)


class TestClientErrors:
    def test_a_clients_error_passes_untouched_and_counts_for_nothing(self) -> None:
        async def test() -> None:
            body = b'{"object":"error","message":"temperature must be non-negative","code":400}'
            engines = [ScriptedEngine(answer(body, 400)), ScriptedEngine(answer(body, 400))]
            async with rig(*engines) as made:
                for _ in range(20):
                    response = await made.ask()
                    assert (response.status, response.body) == (400, body)
                assert sum(len(engine.requests) for engine in engines) == 20
                assert all(made.engine(name).takes_requests for name in "ab")

        run(test)

    def test_a_500_that_is_a_too_long_prompt_is_a_400(self) -> None:
        async def test() -> None:
            body = b'{"error":{"message":"This model\'s maximum context length is 1024 tokens"}}'
            async with rig(ScriptedEngine(answer(body, 500)), ScriptedEngine(answer(OK))) as made:
                made.engine("b").in_flight = 5
                for _ in range(5):
                    response = await made.ask()
                    assert (response.status, response.error["code"]) == (400, "context_length_exceeded")
                made.engine("b").in_flight -= 5
                assert made.engine("a").breaker.failures_in_a_row == 0
                assert {record.outcome for record in made.records} == {"client"}

        run(test)

    def test_a_prompt_too_long_for_one_engine_goes_to_one_that_takes_longer_ones(self) -> None:
        async def test() -> None:
            body = b'{"object":"error","message":"This model\'s maximum context length is 1024 tokens","code":400}'
            short = ScriptedEngine(answer(body, 400), max_model_tokens=1024)
            long = ScriptedEngine(answer(OK), max_model_tokens=8192)
            async with rig(short, long) as made:
                made.engine("b").in_flight = 5
                response = await made.ask()
                made.engine("b").in_flight -= 5
                assert response.body == OK
                assert len(short.requests) == len(long.requests) == 1
                assert made.engine("a").breaker.failures_in_a_row == 0

        run(test)


class TestClientsThatLeave:
    @pytest.mark.parametrize("when", ["before the first byte", "within the stream"])
    def test_the_engine_learns_of_it_within_a_second(self, when: str) -> None:
        async def test() -> None:
            async def handle(request: Request, writer: asyncio.StreamWriter) -> None:
                if when == "within the stream":
                    await stream(EVENT, EVENT, end=False)(request, writer)
                await asyncio.sleep(3600)

            engine = ScriptedEngine(handle)
            async with rig(engine) as made:
                client = await made.client()
                client.send(STREAM)
                await until(lambda: bool(engine.requests), "the engine has it")
                if when == "within the stream":
                    await client.reader.readuntil(EVENT)
                client.leave()
                await until(lambda: engine.open_now == 0, "the engine's connection is closed", 1.0)
                assert made.records[0].outcome == "left"
                assert made.engine("a").takes_requests

        run(test)

    def test_half_closing_counts_as_leaving(self) -> None:
        async def test() -> None:
            engine = ScriptedEngine(hang)
            async with rig(engine) as made:
                client = await made.client()
                client.send(STREAM)
                await until(lambda: bool(engine.requests), "the engine has it")
                client.writer.write_eof()
                await until(lambda: engine.open_now == 0, "the engine's connection is closed", 1.0)

        run(test)


class TestQuarantine:
    def test_a_request_that_kills_engines_stops_after_two(self) -> None:
        async def test() -> None:
            poison = {**CHAT, "messages": [{"role": "user", "content": "poison"}]}

            async def handle(request: Request, writer: asyncio.StreamWriter) -> None:
                await (die if b"poison" in request.body else answer(OK))(request, writer)

            engines = [ScriptedEngine(handle) for _ in range(4)]
            async with rig(*engines) as made:
                first = await made.ask(poison)
                assert first.status in (502, 422)
                killed = sum(b"poison" in request.body for engine in engines for request in engine.requests)
                assert killed == 2
                second = await made.ask(poison)
                assert (second.status, second.error["code"]) == (422, "request_quarantined")
                assert "2 engines" in second.error["message"]
                assert (await made.ask()).status == 200
                (held,) = made.router.quarantine.listing()
                assert made.router.quarantine.release(str(held["request"]))
                assert (await made.ask(poison)).status != 422 or killed == 2

        run(test)
