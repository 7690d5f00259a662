"""Engines with KV events, and a whole router that follows them."""

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from kveik.config import RouterSettings, SimEngineSettings
from kveik.fleet.announcement import EngineAnnouncement
from kveik.fleet.client import FleetClient
from kveik.router.app import RouterApp, running_router
from kveik.router.model_folder import Rendering
from kveik.router.tokenizer import TokenizerFiles
from kveik.simulate.behaviour import Behaviour
from kveik.simulate.server import SimServer
from tests.unit.router.rig import until

MODEL = "simulated"


def engine(renders: Path | None, shared: set[bytes] | None = None, **given: Any) -> SimServer:
    """An engine with events that renders by the files of a folder, or in its own way. ``shared``: its shared cache."""
    own = Rendering(renders, TokenizerFiles()) if renders is not None else None
    settings: dict[str, Any] = {
        "port": 0, "events": "tcp://127.0.0.1:*", "events_replay": "tcp://127.0.0.1:*", "max_model_tokens": 8192,
        **given,
    }  # fmt: skip
    render = None if own is None else lambda path, body: own.prompt(path.encode(), body).packed
    behaviour = None if shared is None else Behaviour()
    return SimServer(SimEngineSettings(**settings), render=render, shared=shared, behaviour=behaviour)


def words(server: SimServer, name: str, folder: Path | None = None, **given: Any) -> EngineAnnouncement:
    labels = {"model_path": str(folder)} if folder is not None else {}
    events = {"events": server.events_endpoint, "replay": server.replay_endpoint, **given}
    return EngineAnnouncement(
        **{"url": server.url, "engine_id": name, "namespace": "ab", "labels": labels, "lease_s": 60.0, **events}
    )


@asynccontextmanager
async def routing(tmp_path: Path, *engines: EngineAnnouncement, **given: Any) -> AsyncIterator[RouterApp]:
    settings = RouterSettings(port=0, registry_file=str(tmp_path / "fleet.json"), drain_s=0.0, **given)
    async with running_router(settings) as app:
        client = FleetClient(app.address)
        for one in engines:
            await asyncio.to_thread(client.announce, one)
        yield app


def shown(app: RouterApp, name: str = "e1") -> dict[str, Any]:
    view = app.router.engines.by_name.get(name)
    return app._index_of(view) if view is not None else {"kind": "?", "why": "?"}


def is_exact(app: RouterApp, name: str) -> bool:
    return bool(shown(app, name)["kind"] == "exact")


async def until_exact(app: RouterApp, *names: str) -> None:
    for name in names:
        await until(partial(is_exact, app, name), f"{name} is exact: {shown(app, name)}")


async def until_why(app: RouterApp, why: str, name: str = "e1") -> None:
    await until(lambda: why in shown(app, name)["why"], f"{why!r}, but {shown(app, name)}")
    assert shown(app, name)["kind"] == "approximate"


async def ask(app: RouterApp, path: str = "/v1/chat/completions", **members: Any) -> dict[str, Any]:
    return await asyncio.to_thread(post, app.address + path, **members)


def post(address: str, **members: Any) -> dict[str, Any]:
    """What a router or an engine answers at this address."""
    body = json.dumps({"model": MODEL, "max_tokens": 2, **members}).encode()
    request = urllib.request.Request(address, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        read: dict[str, Any] = json.load(answer)
    return read


def chat(*texts: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]}


def last_choice(app: RouterApp) -> dict[str, Any]:
    return app.chooser.last_choices()[0]


def cached(answer: dict[str, Any]) -> int:
    return int((answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0))


async def settled(app: RouterApp, *servers: SimServer) -> None:
    """Wait until the router knows of all that these engines have published: they do so after their answers."""
    assert app._exact is not None
    feeds = {followed.feed._events: followed.feed for followed in app._exact._followed.values() if followed.feed}

    def come(server: SimServer) -> bool:
        course = feeds[server.events_endpoint]._course
        assert server._publisher is not None
        return course is not None and course.next_number >= server._publisher.next_sequence

    for server in servers:
        server.call(lambda: None)  # what was to be published in the turn of the answer has been
        await until(partial(come, server), "the events have come")
