"""A whole router follows its fleet: engines come, are held, come back, change, and leave."""

import asyncio
import http.client
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec

from kveik.config import RouterSettings
from kveik.fleet.announcement import EngineAnnouncement
from kveik.fleet.client import FleetClient
from kveik.fleet.registration import Look, Registration
from kveik.router.app import RouterApp, running_router
from kveik.simulate.engine import SimulatedEngine
from tests.unit.router.rig import run, until


def settings_in(folder: Path) -> RouterSettings:
    return RouterSettings(port=0, registry_file=str(folder / "run" / "fleet.json"), drain_s=0.0)


@asynccontextmanager
async def following(folder: Path, config: Path | None = None) -> AsyncIterator[tuple[RouterApp, FleetClient]]:
    async with running_router(settings_in(folder), config=config) as app:
        yield app, FleetClient(app.address)


def state(app: RouterApp, name: str = "e1") -> str:
    engine = app.router.engines.by_name.get(name)
    return engine.state if engine is not None else "gone"


async def until_state(app: RouterApp, wanted: str, name: str = "e1") -> None:
    await until(lambda: state(app, name) == wanted, f"{name} is {wanted}")


async def told(call: Callable[[], object]) -> None:
    await asyncio.to_thread(call)


def test_a_readmitted_engine_proves_itself_and_takes_requests_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with following(tmp_path) as (app, client):
            await told(lambda: client.announce(words))
            await until_state(app, "ready")
            for action, held in (("drain", "draining"), ("isolate", "isolated")):
                await told(partial(client.hold, "e1", action, "a reason"))
                await until_state(app, held)
                (shown,) = (await asyncio.to_thread(client.traffic))["engines"]
                assert (shown["id"], shown["fleet_state"], shown["in_flight"]) == ("e1", held, 0)
                assert app.router.engines.open_for("simulated") == []
                await told(lambda: client.hold("e1", "readmit", ""))
                await until_state(app, "ready")
                await until(lambda: len(app.router.engines.open_for("simulated")) == 1, "it takes requests")

    with SimulatedEngine() as engine:
        words = EngineAnnouncement(url=engine.url, engine_id="e1")
        run(test)


def test_an_engine_whose_lease_ended_is_out_and_back_with_the_next_heartbeat(tmp_path: Path) -> None:
    async def test() -> None:
        async with following(tmp_path) as (app, client):
            await told(lambda: client.announce(words))
            await until_state(app, "ready")
            await until_state(app, "lost")
            assert app.router.engines.open_for("simulated") == []
            await told(lambda: client.renew("e1"))
            await until_state(app, "ready")

    with SimulatedEngine() as engine:
        words = EngineAnnouncement(url=engine.url, engine_id="e1", lease_s=1.0)
        run(test)


def test_a_namespace_that_is_told_later_joins_the_engine_to_its_group_and_takes_nothing_from_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with following(tmp_path) as (app, client):
            await told(lambda: client.announce(words))
            await until_state(app, "ready")
            before = app.router.engines.by_name["e1"]
            assert before.group == ""
            await told(lambda: client.announce(msgspec.structs.replace(words, namespace="abcd")))
            await until(lambda: before.group == "abcd", "the engine has a group")
            assert app.router.engines.by_name["e1"] is before
            assert before.takes_requests

    with SimulatedEngine() as engine:
        words = EngineAnnouncement(url=engine.url, engine_id="e1")
        run(test)


def test_a_restarted_router_has_its_engines_ready_as_soon_as_it_listens(tmp_path: Path) -> None:
    async def test() -> None:
        async with following(tmp_path) as (app, client):
            await told(lambda: client.announce(EngineAnnouncement(url=engine.url, engine_id="e1")))
            await until_state(app, "ready")
        async with following(tmp_path) as (app, _):
            assert state(app) == "ready"
            assert app.router.engines.by_name["e1"].takes_requests

    with SimulatedEngine() as engine:
        run(test)


def test_an_engine_that_dies_and_comes_back_is_ready_within_three_seconds(tmp_path: Path) -> None:
    """Its sidecar looks once a second while the engine is away, which leaves two for the rest."""
    looks: list[tuple[Look, EngineAnnouncement | None, str]] = []

    async def test() -> None:
        async with following(tmp_path) as (app, client):
            sidecar = Registration(client, lambda: looks[-1])
            looks.append(answers)
            await told(sidecar.beat)
            await until_state(app, "ready")
            looks.append((Look.REFUSES, None, "connection refused"))
            await told(sidecar.beat)
            await told(sidecar.beat)
            await until_state(app, "gone")
            looks.append(answers)
            started_s = asyncio.get_running_loop().time()
            await told(sidecar.beat)
            await until_state(app, "ready")
            assert asyncio.get_running_loop().time() - started_s < 2.0

    with SimulatedEngine() as engine:
        answers = Look.ANSWERS, EngineAnnouncement(url=engine.url, engine_id="e1"), ""
        run(test)


def test_the_list_of_engines_is_followed_and_an_engine_that_is_not_up_yet_is_waited_for(tmp_path: Path) -> None:
    config = tmp_path / "kveik.toml"

    async def test() -> None:
        async with following(tmp_path, config) as (app, _):
            await until_state(app, "ready", "one")
            assert state(app, "two") == "announced"
            with SimulatedEngine(port=port):
                await until_state(app, "ready", "two")
            config.write_text("", encoding="utf8")
            app.reload()
            await until_state(app, "gone", "one")

    with SimulatedEngine() as later:
        port = int(later.url.rpartition(":")[2])
    with SimulatedEngine() as engine:
        config.write_text(
            f'[[engines]]\nurl = "{engine.url}"\nengine_id = "one"\n'
            f'[[engines]]\nurl = "http://127.0.0.1:{port}"\nengine_id = "two"\n',
            encoding="utf8",
        )
        run(test)


def test_a_loopback_router_takes_no_announcement_that_a_web_page_or_a_proxy_passes_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with following(tmp_path) as (app, _):
            address = app.address.removeprefix("http://")
            for headers, status in (
                ({}, 200),
                ({"Host": "evil.example"}, 401),
                ({"Origin": "https://evil.example"}, 401),
                ({"X-Forwarded-For": "10.0.0.9"}, 401),
                ({"Authorization": "Bearer guessed"}, 200),
            ):
                for path in ("/fleet", "/fleet/engines"):
                    assert await asyncio.to_thread(partial(status_of, address, path, headers)) == status, headers

    run(test)


def status_of(address: str, path: str, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()
