"""What clients may send, and what becomes of those who send something else."""

import asyncio
import json

import pytest

from tests.unit.router.rig import CHAT, DONE, EVENT, ScriptedEngine, answer, rig, run, stream, until

OK = b'{"ok":true}'
BODY = json.dumps(CHAT).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"


def request(body: bytes = BODY, head: bytes = HEAD) -> bytes:
    return head + b"content-length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/9.9\r\n\r\n",
        b"complete nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS handshake
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: abc\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\nx: a\x00b\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\nbad header: 1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http_gets_a_400_and_harms_nobody(sent: bytes) -> None:
    async def test() -> None:
        engine = ScriptedEngine(answer(OK))
        async with rig(engine) as made:
            client = await made.client()
            client.writer.write(sent)
            response = await client.receive()
            assert response.status == 400
            assert response.error["type"] == "invalid_request_error"
            assert await client.closed()
            assert (await made.ask()).status == 200
        assert len(engine.requests) == 1

    run(test)


def test_a_line_end_in_a_header_cannot_become_a_header_of_the_engines_request() -> None:
    async def test() -> None:
        engine = ScriptedEngine(answer(OK))
        async with rig(engine) as made:
            client = await made.client()
            client.writer.write(request(head=HEAD + b"x-a: 1\r\n x-evil: folded\r\n"))
            response = await client.receive()
            assert response.status in (200, 400)
        for seen in engine.requests:
            assert "x-evil" not in seen.headers

    run(test)


def test_too_large_bodies_and_heads_are_refused_before_they_are_read() -> None:
    async def test() -> None:
        async with rig(ScriptedEngine(answer(OK)), body_bytes_max=2000, head_bytes_max=2000) as made:
            client = await made.client()
            client.writer.write(HEAD + b"content-length: 2001\r\n\r\n")  # and no body
            assert (await client.receive()).status == 413
            chunked = await made.client()
            chunked.writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"3e8\r\n" + b"x" * 1000 + b"\r\n")
            chunked.writer.write((b"3e8\r\n" + b"x" * 1000 + b"\r\n") * 2)
            assert (await chunked.receive()).status == 413
            for head in (b"x-long: " + b"y" * 3000 + b"\r\n", b"x: y\r\n" * 600):
                big = await made.client()
                big.writer.write(request(head=HEAD + head))
                assert (await big.receive()).status == 431
            endless = await made.client()
            endless.writer.write(HEAD + b"x-endless: ")
            for _ in range(5):
                endless.writer.write(b"y" * 1000)
                await asyncio.sleep(0.01)
            assert (await endless.receive()).status == 431
            assert (await made.ask()).status == 200

    run(test)


def test_chunked_requests_are_passed_on_with_a_length() -> None:
    async def test() -> None:
        engine = ScriptedEngine(answer(OK))
        async with rig(engine) as made:
            client = await made.client()
            half = len(BODY) // 2
            client.writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\n")
            for part in (BODY[:half], BODY[half:], b""):
                client.writer.write(b"%x\r\n%s\r\n" % (len(part), part))
            assert (await client.receive()).status == 200
        assert engine.requests[0].body == BODY
        assert "transfer-encoding" not in engine.requests[0].headers

    run(test)


def test_pipelined_requests_are_answered_in_order() -> None:
    async def test() -> None:
        async def handle(seen: object, writer: asyncio.StreamWriter) -> None:
            number = json.loads(seen.body)["messages"][0]["content"]  # type: ignore[attr-defined]
            await asyncio.sleep(0.05 if number == "0" else 0)
            await answer(number.encode())(seen, writer)  # type: ignore[arg-type]

        async with rig(ScriptedEngine(handle), ScriptedEngine(handle)) as made:
            client = await made.client()
            for number in range(12):
                body = {**CHAT, "messages": [{"role": "user", "content": str(number)}]}
                client.send(body)
            assert [(await client.receive()).body for _ in range(12)] == [b"%d" % number for number in range(12)]

    run(test)


def test_requests_arrive_in_any_pieces() -> None:
    async def test() -> None:
        async with rig(ScriptedEngine(answer(OK))) as made:
            client = await made.client()
            for byte in request():
                client.writer.write(bytes([byte]))
                await asyncio.sleep(0)
            assert (await client.receive()).body == OK

    run(test)


def test_slow_heads_and_slow_bodies_are_ended() -> None:
    async def test() -> None:
        async with rig(ScriptedEngine(answer(OK)), head_timeout_s=0.3, body_timeout_s=0.3, client_idle_s=0.5) as made:
            head, body, idle = await made.client(), await made.client(), await made.client()
            head.writer.write(HEAD)
            body.writer.write(HEAD + b"content-length: 100\r\n\r\nabc")
            assert (await head.receive()).status == 408
            assert (await body.receive()).status == 408
            assert await idle.closed()

    run(test)


def test_expect_100_continue_is_answered() -> None:
    async def test() -> None:
        async with rig(ScriptedEngine(answer(OK))) as made:
            client = await made.client()
            client.writer.write(HEAD + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(BODY))
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.writer.write(BODY)
            assert (await client.receive()).body == OK

    run(test)


def test_upgrades_are_refused_in_words() -> None:
    async def test() -> None:
        async with rig(ScriptedEngine(answer(OK))) as made:
            client = await made.client()
            client.writer.write(b"GET /ws HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
            response = await client.receive()
            assert (response.status, "WebSocket" in response.error["message"]) == (501, True)

    run(test)


def test_a_client_that_asks_for_it_gets_its_connection_closed() -> None:
    async def test() -> None:
        async with rig(ScriptedEngine(answer(OK))) as made:
            client = await made.client()
            response = await client.ask(head="connection: close\r\n")
            assert (response.body, response.headers["connection"]) == (OK, "close")
            assert await client.closed()

    run(test)


def test_draining_finishes_what_is_under_way_and_takes_nothing_new() -> None:
    async def test() -> None:
        go = asyncio.Event()

        async def handle(seen: object, writer: asyncio.StreamWriter) -> None:
            await stream(EVENT, end=False)(seen, writer)  # type: ignore[arg-type]
            await go.wait()
            writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(DONE), DONE))

        engine = ScriptedEngine(handle)
        async with rig(engine) as made:
            idle, busy = await made.client(), await made.client()
            busy.send({**CHAT, "stream": True})
            await until(lambda: bool(engine.requests), "the request is under way")
            await until(lambda: len(made.router._clients) == 2, "both are connected")
            made.router.drain()
            assert await idle.closed()
            go.set()
            response = await busy.receive()
            assert response.whole
            assert await busy.closed()

    run(test)
