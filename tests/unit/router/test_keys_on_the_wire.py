"""Keys, limits and tenants through a whole router: what clients get, and what engines see."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from kveik.config import RouterSettings
from kveik.router.api_keys import ApiKeys
from kveik.router.gate import Gate
from kveik.router.keys_file import ApiKey, editing, with_key_added, write_keys
from tests.unit.router.rig import (
    CHAT,
    DONE,
    EVENT,
    MODEL,
    Handler,
    Rig,
    ScriptedEngine,
    answer,
    die,
    hang,
    rig,
    run,
    stream,
    until,
)

FORM = b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n--x--\r\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def give(path: Path, **fields: Any) -> str:
    """A new key, as a header line."""
    with editing(path) as before:
        keys, secret = with_key_added(before, ApiKey(**fields))
        write_keys(path, keys)
    return f"authorization: Bearer {secret}\r\n"


def guard(running: Rig, path: Path, **settings: Any) -> None:
    """Have the router ask for keys."""
    now_s = asyncio.get_running_loop().time()
    running.router.gate = Gate(RouterSettings(**settings), ApiKeys(path), now_s)


def test_a_client_without_a_valid_key_gets_401_and_the_connection_stays_usable(path: Path) -> None:
    key = give(path, name="team")

    async def test() -> None:
        engine = ScriptedEngine()
        async with rig(engine) as running:
            guard(running, path)
            client = await running.client()
            for head in ("", "authorization: Bearer sk-guess\r\n", "x-api-key: sk-guess\r\n"):
                refused = await client.ask(head=head)
                assert refused.status == 401
                assert refused.error["type"] == "authentication_error"
                assert refused.headers["www-authenticate"] == "Bearer"
            assert (await client.ask(head=key)).status == 200
            assert (await client.ask(head=key.replace("authorization: Bearer", "x-api-key:"))).status == 200
            assert len(engine.requests) == 2
            assert [record.key_name for record in running.records] == ["", "", "", "team", "team"]

    run(test)


def test_engines_never_see_a_client_s_key_unless_told_to(path: Path) -> None:
    key = give(path, name="team")

    async def test(pass_authorization: bool) -> None:
        engine = ScriptedEngine()
        async with rig(engine, pass_authorization=pass_authorization) as running:
            guard(running, path)
            await running.ask(head=key + "x-api-key: also\r\n")
            (request,) = engine.requests
            assert ("authorization" in request.headers) is pass_authorization
            assert "x-api-key" not in request.headers

    run(lambda: test(False))
    run(lambda: test(True))


def test_a_client_cannot_choose_another_tenant_s_salt(path: Path) -> None:
    ours, theirs = give(path, name="ours"), give(path, name="theirs")

    async def test() -> None:
        engine = ScriptedEngine()
        async with rig(engine) as running:
            guard(running, path, tenant_isolation=True)
            for key in (ours, theirs):
                await running.ask({**CHAT, "cache_salt": "x"}, head=key)
            doubled = json.dumps(CHAT)[:-1] + ', "cache_salt": "a", "cache\\u005fsalt": "b"}'
            await running.ask(doubled.encode(), head=theirs)
            salts = [json.loads(request.body)["cache_salt"] for request in engine.requests]
            assert len(set(salts)) == 3
            assert not {"x", "a", "b"} & set(salts)
            assert engine.requests[2].body.count(b"salt") == 1

    run(test)


def test_equal_prompts_of_two_tenants_are_not_expected_to_be_cached(path: Path) -> None:
    ours, theirs = give(path, name="ours"), give(path, name="theirs")
    long = {"model": MODEL, "messages": [{"role": "user", "content": "many words " * 2000}]}

    async def test() -> None:
        async with rig(ScriptedEngine()) as running:
            guard(running, path, tenant_isolation=True)
            for key in (ours, theirs, ours):
                assert (await running.ask(long, head=key)).status == 200
            first, other, again = (record.expected_cached_tokens for record in running.records)
            assert (first, other) == (0, 0)
            assert again > 1000

    run(test)


def test_with_isolation_a_body_that_cannot_be_salted_is_refused_and_the_place_is_free_again(path: Path) -> None:
    key = give(path, name="team")

    async def test() -> None:
        engine = ScriptedEngine()
        async with rig(engine) as running:
            guard(running, path, tenant_isolation=True)
            refused = await running.ask(b"[1]", head=key)
            assert (refused.status, refused.error["code"]) == (400, "invalid_body")
            form = "content-type: multipart/form-data; boundary=x\r\n"
            assert (await running.ask(FORM, target="/v1/audio/transcriptions", head=key + form)).status == 200
            assert engine.requests[0].body == FORM
            assert running.router.gate.places.inside == 0

    run(test)


def test_a_key_is_held_to_its_models_and_its_rate(path: Path) -> None:
    other, few = give(path, name="other", models=("other-*",)), give(path, name="few", requests_per_min=1)

    async def test() -> None:
        async with rig(ScriptedEngine()) as running:
            guard(running, path)
            refused = await running.ask(head=other)
            assert (refused.status, refused.error["code"]) == (403, "model_not_allowed")
            assert (await running.ask(head=few)).status == 200
            slowed = await running.ask(head=few)
            assert slowed.status == 429
            assert 1 <= int(slowed.headers["retry-after"]) <= 60
            assert running.router.gate.places.inside == 0

    run(test)


@pytest.mark.parametrize(
    ("answered", "status"),
    [
        (answer(b'{"usage":{"prompt_tokens":3,"completion_tokens":1}}'), 200),
        (answer(b'{"usage":{"prompt_tokens":3,"completion_tokens":90000}}'), 429),
        (answer(b"{}", status=400), 200),
        (stream(EVENT, DONE), 429),
        (die, 200),
    ],
    ids=["little", "much", "refused", "stream without usage", "failed"],
)
def test_tokens_are_charged_as_the_engine_counts_them_or_else_as_booked(
    path: Path, answered: Handler, status: int
) -> None:
    key = give(path, name="team", tokens_per_min=500)
    long = {"model": MODEL, "messages": [{"role": "user", "content": "many words " * 500}], "stream": True}

    async def test() -> None:
        engine = ScriptedEngine(answered)
        async with rig(engine, attempts_max=1) as running:
            guard(running, path)
            await running.ask(long, head=key)
            engine.handler = answer(b"{}")
            assert (await running.ask(head=key)).status == status

    run(test)


def test_the_later_of_two_models_counts_for_the_key_as_it_does_for_the_engine(path: Path) -> None:
    key = give(path, name="other", models=("other-*",))

    async def test() -> None:
        async with rig(ScriptedEngine()) as running:
            guard(running, path)
            body = b'{"model": "other-1", "model": "m", "messages": []}'
            assert (await running.ask(body, head=key)).status == 403

    run(test)


def test_requests_wait_for_a_place_and_get_503_if_none_comes_free_in_time(path: Path) -> None:
    async def test() -> None:
        engine = ScriptedEngine(hang)
        async with rig(engine, concurrent_max=1, queue_timeout_s=0.2, queue_max=1) as running:
            first, second, third = [await running.client() for _ in range(3)]
            first.send()
            await until(lambda: len(engine.requests) == 1, "the first request is at the engine")
            second.send()
            await until(lambda: running.router.gate.places.waiting == 1, "the second one waits")
            full = await third.ask()
            assert (full.status, full.error["code"], full.headers["retry-after"]) == (503, "queue_full", "1")
            late = await second.receive()
            assert (late.status, late.error["code"], late.headers["retry-after"]) == (503, "queue_timeout", "1")
            engine.handler = answer(b"{}")
            first.leave()
            await until(lambda: running.router.gate.places.inside == 0, "the place of who left is free")
            assert (await third.ask()).status == 200

    run(test)


def test_a_waiting_request_goes_on_when_its_turn_comes() -> None:
    async def test() -> None:
        engine = ScriptedEngine(hang)
        async with rig(engine, concurrent_max=1) as running:
            first, second = await running.client(), await running.client()
            first.send()
            await until(lambda: len(engine.requests) == 1, "the first request is at the engine")
            second.send()
            await until(lambda: running.router.gate.places.waiting == 1, "the second one waits")
            engine.handler = answer(b"{}")
            first.leave()
            assert (await second.receive()).status == 200

    run(test)
