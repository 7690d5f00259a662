"""What a whole router tells about one request: metrics, usage, an access line, and its trace."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from kveik.config import RouterSettings
from kveik.router import telemetry
from kveik.router.app import RouterApp, running_router
from tests.unit.router.rig import CHAT, WAIT_S, Client, ScriptedEngine, answer, run, until

ANSWER = b'{"usage":{"prompt_tokens":300,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":256}}}'
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@asynccontextmanager
async def one_engine(folder: Path, **given: Any) -> AsyncIterator[tuple[RouterApp, ScriptedEngine, Client]]:
    """A router with everything switched on, an engine of its static list, and a client."""
    engine = ScriptedEngine(answer(ANSWER))
    await engine.start()
    config = folder / "kveik.toml"
    config.write_text(f'[[engines]]\nurl = "http://127.0.0.1:{engine.port}"\n')
    settings = RouterSettings(
        port=0, registry_file=str(folder / "fleet.json"), access_log=str(folder / "access.log"),
        usage_file=str(folder / "usage.sqlite"), telemetry_flush_s=0.05, drain_s=0.0, **given,
    )  # fmt: skip
    async with running_router(settings, config=config) as app:
        await until(lambda: any(view.takes_requests for view in app.router.engines), "the engine takes requests")
        client = await another_client(app)
        yield app, engine, client
        client.leave()
    await engine.stop()


async def another_client(app: RouterApp) -> Client:
    return Client(*await asyncio.open_connection("127.0.0.1", int(app.address.rsplit(":", 1)[1])))


async def page(client: Client, target: str) -> dict[str, Any]:
    """A page about the fleet, which is shown to who asked for this machine only."""
    client.writer.write(f"GET {target} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
    document: dict[str, Any] = json.loads((await client.receive()).body)
    return document


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "access.log").read_bytes().splitlines()]


def test_one_request_is_told_alike_by_metrics_usage_and_access_line(folder: Path) -> None:
    async def test() -> None:
        async with one_engine(folder) as (_, engine, client):
            assert (await client.ask(head="x-request-id: mine-1\r\n")).headers["x-request-id"] == "mine-1"
            assert engine.requests[0].headers["x-request-id"] == "mine-1"
            metrics = (await client.ask(method="GET", target="/metrics")).body.decode().splitlines()
            assert 'kveik_router_cached_tokens_total{model="m"} 256.0' in metrics
            assert "kveik_router_added_seconds_count 1.0" in metrics
            usage = (await page(client, "/fleet/usage"))["usage"]
            assert usage == [{"key": "anyone", "model": "m", "requests": 1, "prompt_tokens": 300,
                              "cached_tokens": 256, "completion_tokens": 2}]  # fmt: skip
            assert "usage" not in await page(client, "/fleet")
            await until(lambda: len(lines(folder)) == 1, "the access line is written")
            (line,) = lines(folder)
            assert (line["request_id"], line["cached_tokens"], line["outcome"]) == ("mine-1", 256, "ok")
            assert line["client"] == "127.0.0.1"
            assert 0 < line["added_s"] <= line["first_byte_s"] <= line["total_s"]

    run(test)


def test_requests_are_answered_while_a_scrape_is_being_made_and_scrapers_share_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text is made only after a request that came later was answered: on the loop nothing would ever end."""
    answered, made = threading.Event(), []

    def text_after_an_answer(registry: CollectorRegistry) -> bytes:
        assert answered.wait(WAIT_S), "no request was answered while the scrape was made"
        made.append(generate_latest(registry))
        return made[-1]

    monkeypatch.setattr(telemetry, "generate_latest", text_after_an_answer)

    async def test() -> None:
        async with one_engine(folder) as (app, _, client):
            scrapers = [await another_client(app) for _ in range(3)]
            for scraper in scrapers:
                scraper.send(method="GET", target="/metrics")
            await until(lambda: app.router.pages._scrape is not None, "a scrape has begun")  # type: ignore[union-attr]
            assert (await client.ask()).status == 200
            answered.set()
            pages = [await scraper.receive() for scraper in scrapers]
            assert {(page.status, page.headers["content-type"].split(";")[0]) for page in pages} == {
                (200, "text/plain")
            }
            assert [page.body for page in pages] == made * 3, "made once for all who asked meanwhile"
            assert b"kveik_router_in_flight 0.0" in made[0], "it tells of the time when it began"
            assert (await client.ask(method="GET", target="/metrics")).body != made[0]
            for scraper in scrapers:
                scraper.leave()

    run(test)


def test_usage_and_lines_of_the_last_moment_survive_the_end(folder: Path) -> None:
    async def test(requests: int) -> None:
        async with one_engine(folder) as (_, _engine, client):
            for _ in range(2):
                await client.ask()
            usage = (await page(client, "/fleet/usage"))["usage"]
            assert usage[0]["requests"] == requests

    run(lambda: test(2))
    assert len(lines(folder)) == 2
    run(lambda: test(4))
    assert len(lines(folder)) == 4


@pytest.mark.parametrize(
    ("sent", "received"),
    [(f"traceparent: {TRACE}\r\ntracestate: a=b\r\n", TRACE), ("traceparent: 00-nonsense-01\r\n", None), ("", None)],
)
def test_a_valid_trace_context_goes_on_to_the_engine(folder: Path, sent: str, received: str | None) -> None:
    async def test() -> None:
        async with one_engine(folder) as (_, engine, client):
            await client.ask(CHAT, head=sent)
            (request,) = engine.requests
            assert request.headers.get("traceparent") == received
            if received:
                assert request.headers["tracestate"] == "a=b"

    run(test)
    assert lines(folder)[0]["trace_id"] == (TRACE.split("-")[1] if received else "")


def test_a_request_id_that_could_do_harm_is_replaced(folder: Path) -> None:
    async def test() -> None:
        async with one_engine(folder) as (_, engine, client):
            told = (await client.ask(head='x-request-id: {"a b"}\r\n')).headers["x-request-id"]
            assert told.isalnum()
            assert engine.requests[0].headers["x-request-id"] == told

    run(test)
