"""Engines that fail in every way, clients that come and go: at the end the router holds nothing, and serves."""

import asyncio
import contextlib
import json
import logging
import random
from pathlib import Path
from typing import Any

import pytest

from kveik.config import SimEngineSettings
from kveik.simulate.server import SimServer
from tests.agents import wait_until
from tests.routers import RouterThread

FAULTS: list[dict[str, Any]] = [
    {},
    {},
    {"status": 500, "every": 2},
    {"status": 503},
    {"status": 429, "every": 3},
    {"close_unanswered": True, "every": 2},
    {"die_after_chunks": 2, "die_by": "rst", "every": 2},
    {"die_after_chunks": 0, "die_by": "fin"},
    {"stall_after_chunks": 3, "every": 3},
    {"first_byte_delay_s": 0.4},
    {"hang": True},
    {"never_read": True},
    {"refuse": True},
    {"keep_alive_s": 0},
]


async def one_client(port: int, dice: random.Random) -> None:
    """Some requests on one connection, of which it may not wait for the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError):
        for _ in range(dice.randint(1, 4)):
            given = {"model": "simulated", "max_tokens": dice.randint(1, 60), "stream": dice.random() < 0.5}
            body = json.dumps({**given, "prompt": "word " * dice.randint(1, 500)}).encode()
            writer.write(
                b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
            )
            if dice.random() < 0.2:
                continue  # and the next one at once
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), dice.choice([0.05, 1.0, 5.0]))
            await asyncio.wait_for(reader.read(1 << 16), dice.choice([0.05, 1.0]))
    writer.close() if dice.random() < 0.5 else writer.transport.abort()


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_is_left_of_requests_that_failed_in_every_way(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    dice = random.Random(seed)
    with contextlib.ExitStack() as stack:
        sims = [stack.enter_context(SimServer(SimEngineSettings(port=0, decode_s=0.002))) for _ in range(3)]
        router = stack.enter_context(
            RouterThread(
                tmp_path, [sim.url for sim in sims], exact_index=False, concurrent_max=25, queue_timeout_s=1.0,
                first_byte_s=0.3, stream_idle_s=0.6, breaker_open_s=0.1, probe_deadline_s=0.3, comment_after_s=0.2,
                quarantine_kills=0, engine_wait_s=0.3,
            )
        )  # fmt: skip
        port = int(router.url.rpartition(":")[2])

        async def break_engines() -> None:
            while True:
                dice.choice(sims).change_faults(**dice.choice(FAULTS), reset=True)
                await asyncio.sleep(0.05)

        async def play() -> None:
            breaking = asyncio.ensure_future(break_engines())
            for _ in range(4):
                await asyncio.gather(*(one_client(port, dice) for _ in range(50)))
            breaking.cancel()

        asyncio.run(play())
        for sim in sims:
            sim.change_faults(reset=True)
        inside = router.app.router
        wait_until(lambda: inside.at_rest, "nothing is under way", 5.0)
        wait_until(lambda: all(engine.takes_requests for engine in inside.engines), "all engines are back", 8.0)
        assert [(engine.in_flight, engine.waiting_tokens) for engine in inside.engines] == [(0, 0)] * 3
        assert (inside.gate.places.inside, inside.gate.places.waiting) == (0, 0)
        wait_until(lambda: all(sim.seen.active == 0 for sim in sims), "the engines work on nothing", 5.0)
        asyncio.run(asyncio.wait_for(one_client(port, random.Random(0)), 5))
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
