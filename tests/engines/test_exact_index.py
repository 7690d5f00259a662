"""A real vLLM behind a router: all bodies are rendered alike, and its events tell what it holds to the block."""

import asyncio
import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kveik.config import RouterSettings
from kveik.engine.launch import Engine, EngineSpec
from kveik.engine.process import free_port
from kveik.errors import EngineStartError
from kveik.fleet.announcement import EngineAnnouncement
from kveik.fleet.client import FleetClient
from kveik.router.app import RouterApp, running_router
from kveik.router.parity import SAME
from kveik.router.parity_bodies import KINDS
from tests.engines.engine import BOOT_S, EngineDiedError, core_of, last_words
from tests.model_folders import TELLING
from tests.unit.router.rig import run, until

MODEL = "smollm2-135m-instruct"
BLOCK = 32  # the smallest that vLLM takes on CPUs


@pytest.fixture(scope="module")
def engine(
    engine_python: str, model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Engine, EngineAnnouncement]]:
    """One engine that publishes its events, and how it is announced; its chat template shows all that it is given."""
    folder = tmp_path_factory.mktemp("models") / MODEL
    folder.mkdir()
    for file in model(MODEL).iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    (folder / "chat_template.jinja").write_text(TELLING)
    ports = {name: free_port() for name in ("http", "events", "replay")}
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{ports['events']}",
        "replay_endpoint": f"tcp://*:{ports['replay']}",
    }
    spec = EngineSpec(
        name="exact",
        python=engine_python,
        model=folder,
        port=ports["http"],
        dtype="float32",  # processors without bfloat16 instructions take ten times as long with it
        max_model_tokens=2048,
        kv_cache_bytes=100_000_000,
        cores=os.environ.get("KVEIK_ENGINE_CORES") or core_of(0),
        extra_arguments=["--kv-events-config", json.dumps(events), "--block-size", str(BLOCK)],
    )
    announcement = EngineAnnouncement(
        url=spec.url,
        engine_id="vllm",
        events=f"tcp://127.0.0.1:{ports['events']}",
        replay=f"tcp://127.0.0.1:{ports['replay']}",
        block_tokens=BLOCK,
        labels={"model_path": str(spec.model)},
        lease_s=600.0,
    )
    with Engine(spec, os.environ, tmp_path_factory.mktemp("engine")) as started:
        started.start()
        try:
            started.wait_ready(BOOT_S)
        except EngineStartError as error:
            raise EngineDiedError(f"{error}\nall that it said:\n{last_words(started.process.log)}") from error
        yield started, announcement


@asynccontextmanager
async def routing(folder: Path, announcement: EngineAnnouncement) -> Any:
    settings = RouterSettings(port=0, registry_file=str(folder / "fleet.json"), drain_s=0.0, probe_deadline_s=20.0)
    async with running_router(settings) as app:
        await asyncio.to_thread(FleetClient(app.address).announce, announcement)
        yield app


def shown(app: RouterApp) -> dict[str, Any]:
    view = app.router.engines.by_name.get("vllm")
    return app._index_of(view) if view is not None else {"kind": "?", "why": "?", "parity": []}


async def ask(address: str, path: str, body: bytes = b"{}") -> dict[str, Any]:
    def post() -> dict[str, Any]:
        request = urllib.request.Request(address + path, body, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                read: dict[str, Any] = json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.code} {error.read()[:500]!r}") from error
        return read

    return await asyncio.to_thread(post)


async def settled(app: RouterApp) -> None:
    """Wait until the engine's events have come."""
    before = -1
    while (batches := shown(app)["event_batches"]) != before:
        before = batches
        await asyncio.sleep(0.1)


def test_all_kinds_of_bodies_are_the_same_and_predictions_are_exact(
    engine: tuple[Engine, EngineAnnouncement], tmp_path: Path
) -> None:
    started, announcement = engine

    async def test() -> None:
        async with routing(tmp_path, announcement) as app:
            await until(lambda: bool(shown(app)["parity"]), "its rendering was compared", 60)
            rows = shown(app)["parity"]
            assert [(row["kind"], row["result"]) for row in rows] == [(one.kind, SAME) for one in KINDS], rows
            assert {row["kind"] for row in rows if row["how"] == "events"} == {
                "prompt ids", "responses with text", "responses with a list", "messages with system blocks"
            }  # fmt: skip
            by_kind = {row["kind"]: row["tokens"] for row in rows}
            assert by_kind["tools"] > by_kind["assistant with reasoning"], "the template shows tools"
            assert (shown(app)["kind"], shown(app)["why"]) == ("exact", "")
            await predictions_hold(app)
            blocks = shown(app)["blocks"]
            assert blocks > 20
            await ask(started.spec.url, "/reset_prefix_cache")
            # An idle engine tells of its emptied cache with its next step only.
            await ask(app.address, "/v1/completions", json.dumps({"model": MODEL, "prompt": [7] * BLOCK * 2}).encode())
            await until(lambda: shown(app)["blocks"] <= 3, "an emptied cache is known to be empty")
            await predictions_hold(app, "prompt text", "chat", "messages with system blocks")

    async def predictions_hold(app: RouterApp, *names: str) -> None:
        """Each body once to be held, and once to be found."""
        compared = shown(app)["predictions_compared"]
        kinds = [one for one in KINDS if not names or one.kind in names]
        for one in kinds:
            body = one.request(MODEL)
            if one.kind in ("tools", "tool results"):  # the engine has no parser for calls
                body = json.dumps({**json.loads(body), "tool_choice": "none"}).encode()
            for _ in range(2):
                await ask(app.address, one.target.decode(), body)
                await settled(app)
            choice = app.chooser.last_choices()[0]
            tokens, expected = choice["prompt_tokens"], choice["engines"]["vllm"]["cached_tokens"]
            assert expected == (tokens - 1) // BLOCK * BLOCK, (one.kind, choice)
        # On a busy machine one may come while the index is not sure of itself, and is then compared with nothing.
        assert shown(app)["predictions_compared"] - compared >= 2 * len(kinds) - 1
        assert shown(app)["predictions_wrong"] == 0

    run(test)


def test_a_router_that_comes_later_learns_by_replay_what_the_engine_holds(
    engine: tuple[Engine, EngineAnnouncement], tmp_path: Path
) -> None:
    _, announcement = engine
    body = json.dumps({"model": MODEL, "prompt": "A story that is known before. " * 40, "max_tokens": 1}).encode()

    async def test() -> None:
        await ask(announcement.url, "/v1/completions", body)
        async with routing(tmp_path, announcement) as app:
            await until(lambda: shown(app)["kind"] == "exact", "it is exact", 60)
            answer = await ask(app.address, "/v1/completions", body)
            choice = app.chooser.last_choices()[0]
            assert choice["engines"]["vllm"]["cached_tokens"] > 200
            cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached == choice["engines"]["vllm"]["cached_tokens"]

    run(test)
