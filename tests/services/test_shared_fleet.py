"""Two whole routers with one fleet in a real etcd: what one is told both obey, and etcd's death cuts no request."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from kveik.config import RouterSettings
from kveik.engine.client import CompletionRequest, EngineClient
from kveik.fleet.announcement import EngineAnnouncement
from kveik.fleet.client import FleetClient
from kveik.router.app import RouterApp, running_router
from kveik.simulate.engine import SimulatedEngine
from tests.etcd import Etcd, running_etcd
from tests.unit.router.rig import run, until


@asynccontextmanager
async def two_routers(etcd: Etcd, folder: Path) -> AsyncIterator[tuple[RouterApp, RouterApp]]:
    async with AsyncExitStack() as running:
        apps = [
            await running.enter_async_context(
                running_router(
                    RouterSettings(
                        port=0,
                        registry=f"etcd://{etcd.address}",
                        registry_file=str(folder / name / "fleet.json"),
                        registry_deadline_s=0.5,
                        drain_s=0.0,
                    )
                )
            )
            for name in ("one", "other")
        ]
        yield apps[0], apps[1]


def states(app: RouterApp) -> dict[str, str]:
    return {engine.name: engine.state for engine in app.router.engines.by_name.values()}


async def until_states(app: RouterApp, wanted: dict[str, str]) -> None:
    await until(lambda: states(app) == wanted, f"the engines are {wanted}")


async def ask(app: RouterApp) -> str:
    client = EngineClient(app.address)
    request = CompletionRequest(prompt=(1, 2, 3), max_tokens=2)
    return (await asyncio.to_thread(client.complete, request, "simulated")).finish_reason


def test_an_engine_that_joins_at_one_router_serves_both_and_is_isolated_at_both(tmp_path: Path) -> None:
    async def test() -> None:
        async with two_routers(etcd, tmp_path) as (one, other):
            fleets = [FleetClient(app.address) for app in (one, other)]
            for number, engine in enumerate(engines, 1):
                words = EngineAnnouncement(url=engine.url, engine_id=f"e{number}")
                await asyncio.to_thread(partial(fleets[0].announce, words))
            for app in (one, other):
                await until_states(app, {"e1": "ready", "e2": "ready"})
                assert await ask(app) == "length"
            await asyncio.to_thread(partial(fleets[1].hold, "e1", "isolate", "hung"))
            for app in (one, other):
                await until_states(app, {"e1": "isolated", "e2": "ready"})
            before = len(engines[0].requests)
            for _ in range(4):
                assert [await ask(app) for app in (one, other)] == ["length", "length"]
            assert len(engines[0].requests) == before

    with running_etcd(tmp_path) as etcd, SimulatedEngine() as first, SimulatedEngine() as second:
        engines = [first, second]
        run(test)


def test_while_etcd_is_dead_requests_are_served_and_afterwards_the_fleet_is_whole(tmp_path: Path) -> None:
    async def test() -> None:
        async with two_routers(etcd, tmp_path) as (one, other):
            fleet = FleetClient(one.address)
            await asyncio.to_thread(partial(fleet.announce, EngineAnnouncement(url=engine.url, engine_id="e1")))
            for app in (one, other):
                await until_states(app, {"e1": "ready"})
            await asyncio.to_thread(etcd.kill)
            for _ in range(5):
                assert [await ask(app) for app in (one, other)] == ["length", "length"]
            listing = await asyncio.to_thread(fleet.engines)
            assert listing["data"][0]["state"] == "ready"
            await asyncio.to_thread(etcd.start)
            await until(lambda: not one._registry.trouble and not other._registry.trouble, "etcd answers again")
            shown = await asyncio.to_thread(partial(fleet.renew, "e1"))
            assert shown["state"] == "ready"

    with running_etcd(tmp_path) as etcd, SimulatedEngine() as engine:
        run(test)
