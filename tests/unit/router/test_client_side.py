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


def answers_of(text: bytes) -> list[tuple[int, bytes]]:
    """Status and body of each answer in what a connection sent, which all have a length."""
    found = []
    while text:
        head, _, rest = text.partition(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        found.append((int(head.split(b" ")[1]), rest[:size]))
        text = rest[size:]
    return found


def test_trailers_are_dropped_and_count_towards_the_heads_limit() -> None:
    async def test() -> None:
        engine = ScriptedEngine(answer(OK))
        chunked = HEAD + b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
        async with rig(engine, head_bytes_max=2000) as made:
            client = await made.client()
            client.writer.write(chunked + b"x-mine: 1\r\nx-request-id: forged\r\n\r\n")
            assert (await client.receive()).body == OK
            endless = await made.client()
            endless.writer.write(chunked + b"x-more: and more\r\n" * 200)
            assert (await endless.receive()).status == 431
        (seen,) = engine.requests
        assert "x-mine" not in seen.headers
        assert seen.headers["x-request-id"] != "forged"

    run(test)


def test_headers_that_connection_names_stay_on_that_connection() -> None:
    async def test() -> None:
        engine = ScriptedEngine(answer(OK))
        async with rig(engine) as made:
            await made.ask(head="connection: keep-alive, X-Hop\r\nx-hop: 1\r\nx-mine: 2\r\n")
        assert "x-hop" not in engine.requests[0].headers
        assert engine.requests[0].headers["x-mine"] == "2"

    run(test)


@pytest.mark.parametrize(
    ("head", "status"), [("transfer-encoding: gzip, chunked\r\n", 501), ("host: another\r\ncontent-length: 0\r\n", 400)]
)
def test_what_could_be_read_in_two_ways_is_refused(head: str, status: int) -> None:
    async def test() -> None:
        async with rig(ScriptedEngine(answer(OK))) as made:
            client = await made.client()
            client.writer.write(HEAD + head.encode() + b"\r\n")
            assert (await client.receive()).status == status

    run(test)


def test_a_whole_address_as_target_is_taken_for_its_path() -> None:
    async def test() -> None:
        engine = ScriptedEngine(answer(OK))
        async with rig(engine) as made:
            assert (await made.ask(target="http://router:80/v1/chat/completions?a=1")).body == OK
            assert (await made.ask(method="GET", target="http://router")).body == OK
        assert [seen.target for seen in engine.requests] == ["/v1/chat/completions?a=1", "/"]

    run(test)


def test_errors_for_head_have_no_body_that_would_pass_for_the_next_answer() -> None:
    async def test() -> None:
        async with rig(ScriptedEngine(answer(OK)), engine_wait_s=0.1) as made:
            made.engine("a").state = "draining"
            made.router.engines_changed()
            client = await made.client()
            client.writer.write(b"HEAD /v1/models/m HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 503 ")
            made.engine("a").state = "ready"
            made.router.engines_changed()
            assert (await client.ask()).body == OK

    run(test)


def test_what_is_asked_before_something_wrong_is_answered_first() -> None:
    """However the bytes are cut: the answer to the one never passes for that to the other."""

    async def test() -> None:
        engine = ScriptedEngine(answer(OK))
        async with rig(engine) as made:
            for pause_s in (0.0, 0.05):
                client = await made.client()
                client.writer.write(request())
                await asyncio.sleep(pause_s)
                client.writer.write(b"complete nonsense\r\n\r\n")
                answers = answers_of(await client.reader.read())
                assert [status for status, _ in answers] == [200, 400]
        assert len(engine.requests) == 2

    run(test)


def test_large_requests_behind_one_that_is_under_way_are_not_all_read() -> None:
    async def test() -> None:
        go = asyncio.Event()

        async def handle(seen: object, writer: asyncio.StreamWriter) -> None:
            await go.wait()
            await answer(OK)(seen, writer)  # type: ignore[arg-type]

        async with rig(ScriptedEngine(handle)) as made:
            client = await made.client()
            large = request(b'{"model":"m","prompt":"' + b"x" * 5_000_000 + b'"}')
            client.writer.write(request() + large * 4)
            await until(lambda: made.router.under_way == 1, "the first one is under way")
            (link,) = made.router._clients
            await until(lambda: bool(link._waiting), "one waits")
            await asyncio.sleep(0.2)
            assert len(link._waiting) == 1
            go.set()
            for _ in range(5):
                assert (await client.receive()).body == OK

    run(test)


def test_the_word_to_go_on_waits_for_the_answer_that_is_under_way() -> None:
    async def test() -> None:
        go = asyncio.Event()

        async def handle(seen: object, writer: asyncio.StreamWriter) -> None:
            await go.wait()
            await answer(OK)(seen, writer)  # type: ignore[arg-type]

        engine = ScriptedEngine(handle)
        async with rig(engine) as made:
            client = await made.client()
            client.writer.write(request() + HEAD + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(BODY))
            await until(lambda: bool(engine.requests), "the first one is under way")
            go.set()
            assert (await client.receive()).body == OK
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.writer.write(BODY)
            assert (await client.receive()).body == OK

    run(test)


@pytest.mark.parametrize("framing", ["length", "chunked", "no body"])
def test_an_offer_to_go_on_in_http2_is_ignored_as_servers_may(framing: str) -> None:
    offer = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
    sent = {
        "length": request(head=HEAD + offer),
        "chunked": HEAD + offer + b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY),
        "no body": b"GET /version HTTP/1.1\r\nhost: x\r\n" + offer + b"\r\n",
    }[framing]

    async def test() -> None:
        engine = ScriptedEngine(answer(OK))
        async with rig(engine) as made:
            client = await made.client()
            for cut in (len(sent), len(sent) - 10):
                client.writer.write(sent[:cut])
                await asyncio.sleep(0.02)
                client.writer.write(sent[cut:] + request())
                assert (await client.receive()).body == OK
                assert (await client.receive()).body == OK
        for seen in engine.requests[::2]:
            assert seen.body == (b"" if framing == "no body" else BODY)
            assert not {"upgrade", "http2-settings"} & seen.headers.keys()

    run(test)


def test_a_client_of_http10_gets_its_connection_closed() -> None:
    async def test() -> None:
        async with rig(ScriptedEngine(answer(OK))) as made:
            client = await made.client()
            assert (await client.ask(version="1.0", head="connection: keep-alive\r\n")).body == OK
            assert await client.closed()

    run(test)


def test_at_the_end_a_slow_client_is_waited_for_until_it_has_its_answer() -> None:
    async def test() -> None:
        async with rig(ScriptedEngine(answer(b"y" * 250_000))) as made:
            slow = await made.slow_client()
            slow.send()
            await until(lambda: bool(made.records), "it is passed on")
            made.router.drain()
            await asyncio.sleep(0.05)
            assert made.router.under_way == 0
            assert not made.router.at_rest
            slow.reads(on=True)
            assert (await slow.receive()).body == b"y" * 250_000
            await until(lambda: made.router.at_rest, "nothing is left")

    run(test)


def test_a_client_that_takes_nothing_of_its_answer_does_not_hold_an_engine_for_ever() -> None:
    async def test() -> None:
        async with rig(ScriptedEngine(stream(*[EVENT * 1000] * 400)), client_idle_s=0.3) as made:
            client = await made.client()
            client.reads(on=False)
            client.send({**CHAT, "stream": True})
            await until(lambda: bool(made.records), "it is given up", 5.0)
            assert made.records[0].outcome == "left"
            await until(lambda: not made.router._clients, "its connection is gone")

    run(test)


def test_requests_with_the_head_of_the_one_before_are_the_same_as_any_other() -> None:
    async def test() -> None:
        engine = ScriptedEngine(answer(OK))
        async with rig(engine) as made:
            client = await made.client()
            bodies = [json.dumps({**CHAT, "user": "u" * size}).encode() for size in (1, 2, 200, 1)]
            for body in bodies:
                client.writer.write(request(body, HEAD + b"x-a: 1\r\n"))
                assert (await client.receive()).status == 200
        assert [seen.body for seen in engine.requests] == bodies
        assert {seen.headers["x-a"] for seen in engine.requests} == {"1"}
        assert len({seen.headers["x-request-id"] for seen in engine.requests}) == len(bodies)
        assert [seen.headers["content-length"] for seen in engine.requests] == [str(len(body)) for body in bodies]

    run(test)


def test_a_head_of_which_one_byte_differs_is_another_head() -> None:
    async def test() -> None:
        engine = ScriptedEngine(answer(OK))
        async with rig(engine) as made:
            client = await made.client()
            for value in (b"1", b"1", b"2", b"1"):
                client.writer.write(request(head=HEAD + b"x-a: %s\r\n" % value))
                assert (await client.receive()).status == 200
            client.writer.write(request(head=HEAD + b"x-a: 1\r\n")[:-4])  # this one comes in two parts
            await asyncio.sleep(0.02)
            client.writer.write(request()[-4:] + request(head=HEAD + b"x-a: 3\r\n"))
            assert (await client.receive()).status == 200
            assert (await client.receive()).status == 200
        assert [seen.headers["x-a"] for seen in engine.requests] == ["1", "1", "2", "1", "1", "3"]

    run(test)


def test_what_follows_a_known_head_is_still_refused_where_it_is_too_long_or_no_http() -> None:
    async def test() -> None:
        engine = ScriptedEngine(answer(OK))
        async with rig(engine, body_bytes_max=2048) as made:
            for bad, status in ((request(b"x" * 4000), 413), (b"nonsense\r\n\r\n", 400)):
                client = await made.client()
                for _ in range(2):
                    client.writer.write(request())
                    assert (await client.receive()).status == 200
                client.writer.write(bad)
                assert (await client.receive()).status == status
                assert await client.closed()

    run(test)
