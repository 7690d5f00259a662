"""What a request costs in the router's own code: everything but sockets, in one process, beside a bare proxy.

The whole router is put together as for clients; requests come from wires in memory, and engines' answers too. A
bare proxy, which only finds where messages end and passes their bytes on, runs on the same wires: what it takes
is the least that Python needs. With ``--instructions`` all is counted by valgrind, which gives the same numbers
on a busy machine; without, it is processor time, the least of several runs.

    python -m benchmarks.router_path --instructions
"""

import argparse
import gc
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from benchmarks.result import BenchmarkError
from kveik.config import RouterSettings
from kveik.fleet.announcement import EngineAnnouncement
from kveik.fleet.lifecycle import State
from kveik.fleet.membership import Member, Membership
from kveik.fleet.opening import open_registry
from kveik.records import ignore
from kveik.router.app import RouterApp
from kveik.router.client_side import ClientConnection
from kveik.router.upstream import EngineConnection

ENGINES, CLIENTS, GROUPS = 4, 64, 64
SMALL_BYTES, LARGE_BYTES, CHUNKS = 400, 16384, 20
MODEL = "mock"
RUNS = 5

_USAGE = b'"usage":{"prompt_tokens":100,"completion_tokens":20,"total_tokens":120,"prompt_tokens_details":null}'
_BODY = (
    b'{"id":"c-0","object":"chat.completion","created":1,"model":"mock","choices":[{"index":0,"message":{"role":'
    b'"assistant","content":"hello"},"finish_reason":"stop"}],' + _USAGE + b"}"
)
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
_EVENT = b'data: {"id":"c-0","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n'
_CHUNK = b"d9\r\n%s\r\n" % (_EVENT % (b"x" * (217 - len(_EVENT) + 2)))
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
STREAM_END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


@dataclass(frozen=True)
class Load:
    """One kind of request: ``answer`` comes in these pieces, and ``parts`` is what the cost is divided by."""

    name: str
    body_bytes: int
    answer: Sequence[bytes]
    parts: int = 1


LOADS = (
    Load("a request, 400 B", SMALL_BYTES, [ANSWER]),
    Load("a request, 16 KB", LARGE_BYTES, [ANSWER]),
    Load("a chunk of a stream", SMALL_BYTES, [STREAM_HEAD, *[_CHUNK] * (CHUNKS - 1), _CHUNK + STREAM_END], CHUNKS),
)


def requests(load: Load, count: int) -> list[bytes]:
    """Chats in groups that begin alike, each with an end of its own, as the other benchmarks' clients send them."""
    stream = b"true" if load.parts > 1 else b"false"
    made = []
    for number in range(count):
        start = b'{"model":"mock","stream":%s,"messages":[{"role":"user","content":"group %08d ' % (
            stream,
            number * 31 % GROUPS,
        )
        end = b' tail %012d"}]}' % number
        body = start + b"lorem ipsum " * ((load.body_bytes - len(start) - len(end)) // 12) + end
        made.append(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:8100\r\nuser-agent: load\r\naccept: */*\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
        )
    return made


class Wire:
    """A transport in memory. What is written to an engine makes its connection the next to be answered."""

    __slots__ = ("_asked", "_protocol", "writes")

    def __init__(self, protocol: object, asked: "deque[object] | None" = None) -> None:
        self._protocol, self._asked = protocol, asked
        self.writes = 0

    def write(self, _: bytes) -> None:
        """Take bytes."""
        self.writes += 1
        if self._asked is not None:
            self._asked.append(self._protocol)

    def is_closing(self) -> bool:
        """It never ends."""
        return False

    def get_write_buffer_size(self) -> int:
        """All is sent at once."""
        return 0

    def get_extra_info(self, _: str) -> tuple[str, int]:
        """The address of the other side."""
        return "127.0.0.1", 5000

    def abort(self) -> None:
        """Nobody ends a connection here. Raises :class:`BenchmarkError`."""
        raise BenchmarkError("the router ended a connection")

    close = abort


class Rig:
    """Clients that each have one request under way, and connections to engines that are answered in turn."""

    def __init__(self, clients: Sequence["ClientConnection | BareClient"], asked: "deque[object]") -> None:
        self._clients, self._asked = clients, asked

    @property
    def to_clients(self) -> int:
        """How often something was sent to clients."""
        return sum(client.transport.writes for client in self._clients)  # type: ignore[union-attr, misc]

    def run(self, sent: Sequence[bytes], load: Load) -> None:
        """Send requests, always as many under way as there are clients, and answer all of them."""
        clients, asked, answer = self._clients, self._asked, load.answer
        for number, request in enumerate(sent):
            if number >= len(clients):
                self._answer(answer)
            clients[number % len(clients)].data_received(request)
        while asked:
            self._answer(answer)

    def _answer(self, pieces: Sequence[bytes]) -> None:
        receive = self._asked.popleft().data_received  # type: ignore[attr-defined]
        for piece in pieces:
            receive(piece)


def kveik_rig(folder: Path) -> Rig:
    """The whole router as ``kveik router`` opens it, with engines that are ready and connected."""
    settings = RouterSettings(
        registry_file=str(folder / "fleet.json"),
        prefix_file=str(folder / "prefixes"),
        engine_idle_s=3600.0,  # under valgrind a second lasts long
    )
    app = RouterApp(settings, open_registry(settings, ignore), None, ignore)
    router, asked = app.router, deque[object]()
    announced = [EngineAnnouncement(url=f"http://127.0.0.1:{9000 + n}", models=(MODEL,)) for n in range(ENGINES)]
    router.engines.apply(
        Membership({one.name: Member(announcement=one, state=State.READY) for one in announced}, revision=1)
    )
    for engine in router.engines:
        assert engine.pool is not None
        for _ in range(CLIENTS):
            connection = EngineConnection(engine.pool)
            connection.connection_made(Wire(connection, asked))  # type: ignore[arg-type]
            engine.pool.give_back(connection)
    clients = [ClientConnection(router) for _ in range(CLIENTS)]
    for client in clients:
        client.connection_made(Wire(client))  # type: ignore[arg-type]
    return Rig(clients, asked)


class BareEngine:
    """A connection of the bare proxy to an engine."""

    __slots__ = ("_left", "_pool", "client", "wire")

    def __init__(self, pool: "deque[BareEngine]", asked: "deque[object]") -> None:
        self._pool, self._left = pool, 0
        self.wire = Wire(self, asked)
        self.client: BareClient

    def data_received(self, data: bytes) -> None:
        """Pass on a piece of an answer; at its end go back to the pool."""
        self.client.transport.write(data)
        if not self._left:
            end = data.find(b"\r\n\r\n")
            head = data[:end].lower()
            at = head.find(b"\r\ncontent-length:")
            self._left = int(head[at + 17 :].partition(b"\r")[0]) - len(data) + end + 4 if at >= 0 else -1
        elif data.endswith(b"0\r\n\r\n"):
            self._left = 0
        if not self._left:
            self._pool.append(self)


class BareClient:
    """A client's connection to the bare proxy."""

    __slots__ = ("_pool", "transport")

    def __init__(self, pool: "deque[BareEngine]") -> None:
        self._pool = pool
        self.transport = Wire(self)

    def data_received(self, data: bytes) -> None:
        """Pass on a request, which comes whole."""
        end = data.find(b"\r\n\r\n")
        head = data[:end].lower()
        at = head.find(b"\r\ncontent-length:")
        if end + 4 + int(head[at + 17 :].partition(b"\r")[0]) != len(data):
            raise BenchmarkError("a request did not come whole")
        engine = self._pool.popleft()
        engine.client = self
        engine.wire.write(data)


def bare_rig() -> Rig:
    """The bare proxy with one engine after the other."""
    asked, pool = deque[object](), deque["BareEngine"]()
    pool.extend(BareEngine(pool, asked) for _ in range(CLIENTS * 2))
    return Rig([BareClient(pool) for _ in range(CLIENTS)], asked)


async def in_time(rigs: dict[str, Rig], steps: int) -> None:
    """Print the least processor time of several runs."""
    for load in LOADS:
        shown = []
        for name, rig in rigs.items():
            times = [_seconds(rig, requests(load, steps), load) for _ in range(RUNS)]
            shown.append(f"{name} {min(times) / steps / load.parts * 1e6:.2f} us")
        print(f"{load.name}: {', '.join(shown)}", flush=True)


def _seconds(rig: Rig, sent: Sequence[bytes], load: Load) -> float:
    began_s = time.process_time()
    rig.run(sent, load)
    return time.process_time() - began_s


async def counted(rigs: dict[str, Rig], steps: int) -> None:
    """Run all in processes of their own, for the one that counts: prints load, side, steps and process."""
    for load in LOADS:
        for name, rig in rigs.items():
            rig.run(requests(load, CLIENTS * 4), load)
            sent = requests(load, 3 * steps)
            for count in (steps, 3 * steps):
                process = os.fork()
                if not process:
                    rig.run(sent[:count], load)
                    os._exit(0)
                _, code = os.waitpid(process, 0)
                if code:
                    raise BenchmarkError(f"{load.name}, {name}: a run failed")
                print(f"{load.name};{name};{count};{process}", flush=True)


async def _measure(measure: Callable[[dict[str, Rig], int], Awaitable[None]], steps: int) -> None:
    with tempfile.TemporaryDirectory(prefix="kveik-router-path-") as folder:
        rigs = {"Kveik": kveik_rig(Path(folder)), "bare proxy": bare_rig()}
        gc.freeze()
        await measure(rigs, steps)


def instructions(steps: int) -> None:
    """Print instructions, as counted by valgrind. Raises :class:`BenchmarkError`."""
    with tempfile.TemporaryDirectory(prefix="kveik-router-path-") as folder:
        logs = f"--log-file={folder}/%p"
        command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", logs]
        command += [sys.executable, "-m", "benchmarks.router_path", "--counted", "--steps", str(steps)]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            raise BenchmarkError(f"valgrind ended with {done.returncode}: {done.stderr[-2000:]}")
        counts: dict[tuple[str, str], list[int]] = {}
        for line in done.stdout.splitlines():
            name, side, _, process = line.split(";")
            found = re.search(r"I\s+refs:\s+([\d,]+)", Path(folder, process).read_text(encoding="utf8"))
            if found is None:
                raise BenchmarkError(f"valgrind counted nothing in process {process}")
            counts.setdefault((name, side), []).append(int(found[1].replace(",", "")))
    for load in LOADS:
        shown = (
            f"{side} {(more - less) / (2 * steps * load.parts):,.0f}"
            for (name, side), (less, more) in counts.items()
            if name == load.name
        )
        print(f"{load.name}: {', '.join(shown)} instructions", flush=True)


def main() -> int:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=0, help="requests a run (2000; 300 with --instructions)")
    options.add_argument("--instructions", action="store_true", help="count instructions with valgrind")
    options.add_argument("--counted", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.instructions:
        instructions(given.steps or 300)
    else:
        uvloop.run(_measure(counted if given.counted else in_time, given.steps or 2000))
    return 0


if __name__ == "__main__":
    sys.exit(main())
