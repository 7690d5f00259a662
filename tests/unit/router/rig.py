"""A real router on loopback between real sockets: engines that follow a script, and a client that sees every byte."""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import uvloop

from kveik.config import RouterSettings
from kveik.fleet.announcement import EngineAnnouncement
from kveik.fleet.lifecycle import State
from kveik.fleet.membership import Member, Membership
from kveik.router.care import EngineCare
from kveik.router.choice import Chooser
from kveik.router.client_side import clients_of
from kveik.router.compiled import is_compiled
from kveik.router.core import Router
from kveik.router.gate import Gate
from kveik.router.prompt import PromptReader
from kveik.router.records import RequestRecord

MODEL = "m"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"
WAIT_S = 10.0

#: For tests that put something in the place of the router's own methods.
interpreted_only = pytest.mark.skipif(is_compiled(), reason="compiled methods and constants cannot be replaced")


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test's coroutine on the router's kind of loop to its end, or fail after a while."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()

    uvloop.run(bounded())


async def until(condition: Callable[[], bool], what: str, seconds: float = WAIT_S) -> None:
    """Wait for a condition."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + seconds
    while not condition():
        assert loop.time() < end_s, f"waited {seconds} s in vain: {what}"
        await asyncio.sleep(0.005)


@dataclass
class Request:
    """What an engine received."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


Handler = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]


def answer(body: bytes, status: int = 200, head: str = "") -> Handler:
    """A handler that answers with a body and its length."""

    async def handle(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{head}".encode())
        writer.write(b"content-length: %d\r\n\r\n%s" % (len(body), body))

    return handle


def stream(*pieces: bytes, end: bool = True, gap_s: float = 0.0) -> Handler:
    """A handler that streams events in chunks."""

    async def handle(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for piece in pieces:
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(gap_s)
        if end:
            writer.write(b"0\r\n\r\n")

    return handle


async def hang(_: Request, writer: asyncio.StreamWriter) -> None:
    """A handler that never answers."""
    await asyncio.sleep(3600)


async def die(_: Request, writer: asyncio.StreamWriter) -> None:
    """A handler that breaks the connection."""
    reset(writer)


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with RST."""
    if writer.is_closing():
        return
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@dataclass
class ScriptedEngine:
    """An engine that lists its model, passes trials, and answers requests as ``handler`` says."""

    handler: Handler = field(default_factory=lambda: answer(b'{"usage":{"prompt_tokens":3,"completion_tokens":1}}'))
    model: str = MODEL
    name: str = ""
    max_model_tokens: int = 0
    metrics: bytes = b""
    requests: list[Request] = field(default_factory=list)
    trials: int = 0
    connections: int = 0
    open_now: int = 0
    port: int = 0
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def start(self) -> None:
        """Listen, on the port of the first start."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """As if it had been killed."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            reset(writer)
        self._server = None

    @property
    def announcement(self) -> EngineAnnouncement:
        """How it registers."""
        return EngineAnnouncement(
            url=f"http://127.0.0.1:{self.port}",
            engine_id=self.name,
            models=(self.model,),
            max_model_tokens=self.max_model_tokens,
            lease_s=0,
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_now += 1
        self._writers.add(writer)
        try:
            while (request := await read_request(reader)) is not None:
                work = asyncio.ensure_future(self._handle(request, writer))
                gone = asyncio.ensure_future(_wait_gone(reader, writer))
                await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
                gone.cancel()
                if not work.done():
                    work.cancel()
                    return
                work.result()
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open_now -= 1
            self._writers.discard(writer)
            writer.close()

    async def _handle(self, request: Request, writer: asyncio.StreamWriter) -> None:
        if request.target == "/v1/models":
            card = {"id": self.model, "object": "model", "max_model_len": self.max_model_tokens or None}
            await answer(json.dumps({"object": "list", "data": [card]}).encode())(request, writer)
        elif request.target == "/metrics":
            await answer(self.metrics)(request, writer)
        elif request.headers.get("x-request-id") == "kveik-router":
            self.trials += 1
            await self.handler(request, writer)
        else:
            self.requests.append(request)
            await self.handler(request, writer)


async def _wait_gone(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while not reader.at_eof() and not writer.transport.is_closing():
        await asyncio.sleep(0.01)


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request of a connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head[:-4].decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in lines}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, target, headers, body)


@dataclass
class Response:
    """What the client got. ``whole``: the answer's framing says that nothing is missing."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool

    @property
    def error(self) -> dict[str, Any]:
        """The error of a JSON body."""
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error


class Client:
    """One connection to the router."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(
        self, body: object = CHAT, *, target: str = "/v1/chat/completions", method: str = "POST", head: str = "",
        version: str = "1.1",
    ) -> None:  # fmt: skip
        """Send a request."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        if method == "GET":
            data = b""
        self.writer.write(
            f"{method} {target} HTTP/{version}\r\nhost: router\r\n{head}content-length: {len(data)}\r\n\r\n".encode()
            + data
        )

    async def receive(self) -> Response:
        """The next answer, as far as it came."""
        async with asyncio.timeout(WAIT_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            first, *lines = head[:-4].decode("latin-1").split("\r\n")
            headers = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in lines}
            status = int(first.split(" ")[1])
            if "content-length" in headers:
                body, whole = await self._exactly(int(headers["content-length"]))
            elif headers.get("transfer-encoding") == "chunked":
                body, whole = await self._chunks()
            else:
                body, whole = await self.reader.read(), True
        return Response(status, headers, body, whole)

    async def _exactly(self, size: int) -> tuple[bytes, bool]:
        try:
            return await self.reader.readexactly(size), True
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            return getattr(error, "partial", b""), False

    async def _chunks(self) -> tuple[bytes, bool]:
        body = b""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                size = int((await self.reader.readuntil(b"\r\n"))[:-2], 16)
                data = await self.reader.readexactly(size + 2)
                if size == 0:
                    return body, True
                body += data[:-2]
        return body, False

    async def ask(self, body: object = CHAT, **options: Any) -> Response:
        """Send a request and wait for its answer."""
        self.send(body, **options)
        return await self.receive()

    async def closed(self) -> bool:
        """Whether the router ends the connection."""
        async with asyncio.timeout(WAIT_S):
            return await self.reader.read() == b""

    def reads(self, *, on: bool) -> None:
        """Read nothing, or again."""
        transport = cast(asyncio.Transport, self.writer.transport)
        if on:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def leave(self) -> None:
        """Go away at once."""
        reset(self.writer)


@dataclass
class Rig:
    """A router with its engines."""

    router: Router
    port: int
    records: list[RequestRecord]
    _clients: list[Client] = field(default_factory=list)

    async def client(self) -> Client:
        """A new connection."""
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 22))
        self._clients.append(client)
        return client

    async def ask(self, body: object = CHAT, **options: Any) -> Response:
        """One request on a connection of its own."""
        return await (await self.client()).ask(body, **options)

    async def slow_client(self) -> Client:
        """A new connection, the only one, that takes little and reads nothing yet."""
        client = await self.client()
        client.reads(on=False)
        await until(lambda: bool(self.router._clients), "it is connected")
        (link,) = self.router._clients
        assert link.transport is not None
        link.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return client

    def engine(self, name: str) -> Any:
        """An engine as the router sees it."""
        return self.router.engines.by_name[name]

    def join(self, *engines: ScriptedEngine) -> None:
        """Have exactly these engines in the fleet, ready."""
        members = {e.announcement.name: Member(announcement=e.announcement, state=State.READY) for e in engines}
        self.router.engines.apply(Membership(members))
        self.router.engines_changed()


@asynccontextmanager
async def rig(*engines: ScriptedEngine, **given: Any) -> AsyncIterator[Rig]:
    """Start engines and a router; all is idle and even again at the end."""
    loop = asyncio.get_running_loop()
    for number, engine in enumerate(engines):
        engine.name = engine.name or "abcdefgh"[number]
        await engine.start()
    settings = RouterSettings(**{"slow_start_s": 0.0, "breaker_open_s": 0.1, "client_idle_s": 30.0, **given})
    records: list[RequestRecord] = []
    chooser = Chooser(settings, loop.time())
    router = Router(
        settings, Gate(settings, None, loop.time()), chooser, PromptReader(), [records.append], chooser.forget_engine
    )
    router.care = care = EngineCare(settings, router, lambda engine, why: None)
    server = await loop.create_server(clients_of(router), "127.0.0.1", 0)
    made = Rig(router, server.sockets[0].getsockname()[1], records)
    made.join(*engines)
    ticker = loop.create_task(_tick(router))
    try:
        yield made
        await until(lambda: router.under_way == 0, "no request is under way")
        for view in router.engines:
            assert (view.in_flight, view.waiting_tokens) == (0, 0), view
    finally:
        ticker.cancel()
        care.close()
        server.close()
        router.close()
        for client in made._clients:
            client.writer.close()
        for engine in engines:
            await engine.stop()


async def _tick(router: Router) -> None:
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(0.02)
        router.tick(loop.time())
        router.slow_tick(loop.time())
