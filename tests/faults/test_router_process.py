"""Routers and engines as processes that are killed, stopped and left, while clients go on."""

import asyncio
import contextlib
import http.client
import json
import random
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.agents import wait_until
from tests.routers import RouterProcess, SimProcess

CHAT = {"model": "simulated", "messages": [{"role": "user", "content": "hello"}]}


def ask(url: str, **given: Any) -> bytes:
    body = json.dumps({**CHAT, "max_tokens": 4, **given}).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bytes(answer.read())


def running(engine: SimProcess) -> float:
    """Requests that an engine says it works on."""
    with urllib.request.urlopen(f"{engine.url}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith(("vllm:num_requests_running{", "vllm:num_requests_waiting{"))
    )


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Callable[..., tuple[RouterProcess, list[SimProcess]]]]:
    """Makes a router over simulated engines that take ``decode_s`` a token."""
    with contextlib.ExitStack() as stack:

        def make(engines: int, decode_s: float, **given: Any) -> tuple[RouterProcess, list[SimProcess]]:
            options = {"decode_s": decode_s, "answer_tokens": 20_000}
            made = [stack.enter_context(SimProcess(tmp_path, **options)) for _ in range(engines)]
            router = stack.enter_context(RouterProcess(tmp_path, **given))
            router.join(*made)
            return router, made

        yield make


def test_an_engine_killed_under_clients_loses_no_request_and_is_back_soon(
    fleet: Callable[..., tuple[RouterProcess, list[SimProcess]]],
) -> None:
    router, engines = fleet(3, 0.02, slow_start_s=1.0)
    stop, answered = threading.Event(), [0] * 20

    def client(number: int) -> None:
        while not stop.is_set():
            ask(router.url, messages=[{"role": "user", "content": f"{number} {random.random()}"}])
            answered[number] += 1

    with ThreadPoolExecutor(20) as pool:
        clients = [pool.submit(client, number) for number in range(20)]
        wait_until(lambda: min(answered) >= 2, "all clients are served")
        engines[0].kill()
        wait_until(lambda: "out" in router.states(), "the router knows")
        before = sum(answered)
        wait_until(lambda: sum(answered) > before + 40, "the others serve on")
        engines[0].start()
        wait_until(lambda: router.states() == ["ready"] * 3, "it is back", 3.0)
        stop.set()
        for done in clients:
            done.result()
    assert router.get("/fleet")["quarantine"] == []


def test_a_router_that_is_told_to_stop_finishes_its_streams_also_to_slow_readers(
    fleet: Callable[..., tuple[RouterProcess, list[SimProcess]]],
) -> None:
    router, _ = fleet(1, 0.01)
    with ThreadPoolExecutor(5) as pool:
        slow = pool.submit(read_slowly, router.port)
        streams = [pool.submit(ask, router.url, stream=True, max_tokens=150) for _ in range(4)]
        wait_until(lambda: router.get("/fleet")["requests_under_way"] == 5, "all are under way")
        idle = socket.create_connection(("127.0.0.1", router.port))
        router.process.send_signal(signal.SIGTERM)
        assert idle.recv(10) == b"", "who asks nothing is not waited for"
        for one in streams:
            assert one.result().rstrip().endswith(b"data: [DONE]")
        assert slow.result().endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert router.process.wait(10) == 0


def test_a_router_that_is_told_to_stop_twice_stops_at_once(
    fleet: Callable[..., tuple[RouterProcess, list[SimProcess]]],
) -> None:
    router, engines = fleet(1, 0.05)
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(ask, router.url, stream=True, max_tokens=1000)
        wait_until(lambda: running(engines[0]) == 1, "it is under way")
        router.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert router.process.poll() is None
        router.process.send_signal(signal.SIGTERM)
        assert router.process.wait(2) == 130
        with pytest.raises((OSError, http.client.HTTPException)):
            stream.result()
    wait_until(lambda: running(engines[0]) == 0, "the engine does not work on", 2.0)


def read_slowly(port: int) -> bytes:
    """A stream that fills the connection before it ends, read only after the engine is done with it."""
    body = json.dumps({**CHAT, "max_tokens": 150, "stream": True}).encode()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", port))
        sock.settimeout(20)
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
        )
        time.sleep(2.5)
        return b"".join(iter(lambda: sock.recv(1 << 16), b""))


def test_a_router_killed_and_started_again_knows_its_engines_within_a_second(
    fleet: Callable[..., tuple[RouterProcess, list[SimProcess]]],
) -> None:
    router, _ = fleet(3, 0.0)
    ask(router.url)
    router.kill()
    router.start()
    start_s = time.monotonic()
    ask(router.url)
    wait_until(lambda: router.states() == ["ready"] * 3, "they are known", 1.0)
    assert time.monotonic() - start_s < 1.0


def test_clients_that_leave_at_any_moment_leave_nothing_behind(
    fleet: Callable[..., tuple[RouterProcess, list[SimProcess]]],
) -> None:
    router, engines = fleet(2, 0.01, concurrent_max=60)
    dice = random.Random(7)

    async def leave_soon(number: int) -> None:
        await asyncio.sleep(dice.random())
        reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
        given = {**CHAT, "stream": bool(number % 2), "max_tokens": 200, "seed": number}
        body = json.dumps(given).encode()
        request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
        writer.write(request[: dice.choice([0, 10, len(request) - 5, len(request), len(request), len(request)])])
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reader.read(), dice.random())
        if dice.random() < 0.5:
            writer.transport.abort()
        else:
            writer.close()

    async def all_of_them() -> None:
        await asyncio.gather(*(leave_soon(number) for number in range(200)))

    asyncio.run(all_of_them())
    wait_until(lambda: router.get("/fleet")["requests_under_way"] == 0, "nothing is under way", 2.0)
    wait_until(lambda: sum(map(running, engines)) == 0, "the engines work on nothing", 2.0)
    shown = router.get("/fleet")["engines"]
    assert [(engine["in_flight"], engine["waiting_tokens"], engine["breaker"]) for engine in shown] == [
        (0, 0, "closed")
    ] * 2
    ask(router.url)
