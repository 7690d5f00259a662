"""Fourteen kinds of bodies tell whether an engine renders as we do, and where it does not."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kveik.config import SimEngineSettings
from kveik.router.model_folder import Rendering
from kveik.router.parity import (
    DIFFERS,
    NOT_OFFERED,
    SAME,
    UNKNOWN,
    Verdict,
    check_parity,
    first_difference,
    verdict,
)
from kveik.router.parity_bodies import KINDS
from kveik.router.tokenizer import TokenizerFiles
from kveik.router.upstream import EnginePool
from kveik.simulate.server import SimServer
from tests.model_folders import CHATML, make_model_folder
from tests.unit.router.rig import ScriptedEngine, answer, run


async def nothing() -> Sequence[int]:
    return ()


def blind(salt: str) -> Callable[[], Awaitable[Sequence[int]]]:
    """Sees no events."""
    return nothing


@pytest.fixture(scope="module")
def rendering(tmp_path_factory: pytest.TempPathFactory) -> Rendering:
    return Rendering(make_model_folder(tmp_path_factory.mktemp("model")), TokenizerFiles())


def checked(engine_renders: Rendering | None, ours: Rendering | None) -> list[Verdict]:
    """Verdicts on a simulated engine that renders so."""
    render = None if engine_renders is None else lambda path, body: engine_renders.prompt(path.encode(), body).packed
    found: list[Verdict] = []

    async def test() -> None:
        pool = EnginePool("127.0.0.1", server.port, idle_max_s=5.0, connect_s=1.0)
        found.extend(await check_parity(pool, "simulated", ours, blind, 5.0))
        pool.close()

    with SimServer(SimEngineSettings(port=0), render=render) as server:
        run(test)
    return found


def test_there_are_fourteen_kinds_of_bodies_each_named_once() -> None:
    assert len({one.kind for one in KINDS}) == len(KINDS) == 14
    for one in KINDS:
        assert json.loads(one.request("m", "salt"))["cache_salt"] == "salt"


def test_an_engine_with_the_same_template_and_tokenizer_is_the_same_in_all_kinds(rendering: Rendering) -> None:
    verdicts = checked(rendering, rendering)
    assert [(one.kind, one.result) for one in verdicts] == [(one.kind, SAME) for one in KINDS], verdicts
    assert {one.how for one in verdicts} == {"tokenize", "count"}
    assert all(one.tokens > 10 for one in verdicts)


def test_an_edited_template_is_named_by_the_first_token_that_differs(rendering: Rendering, tmp_path: Path) -> None:
    edited = Rendering(make_model_folder(tmp_path, CHATML.replace("assistant\n", "assistant:\n")), TokenizerFiles())
    verdicts = {one.kind: one for one in checked(edited, rendering)}
    assert verdicts["prompt text"].result == verdicts["prompt ids"].result == SAME
    assert verdicts["add_generation_prompt=false"].result == SAME
    assert verdicts["chat"].result == DIFFERS
    assert "the engine's is" in verdicts["chat"].why
    assert "':'" in verdicts["chat"].why or "':\\n'" in verdicts["chat"].why
    assert verdicts["responses with text"].result == DIFFERS, "its number of tokens is enough"
    assert "the engine counted" in verdicts["responses with text"].why


def test_another_model_differs_from_the_first_token_on(rendering: Rendering) -> None:
    verdicts = {one.kind: one for one in checked(None, rendering)}
    assert verdicts["chat"].result == DIFFERS
    assert verdicts["chat"].why.startswith("token 0 is ")


def test_without_a_models_folder_only_prompts_of_token_ids_can_be_compared() -> None:
    verdicts = checked(None, None)
    assert [one.kind for one in verdicts if one.result == SAME] == ["prompt ids"]
    assert {one.result for one in verdicts} == {SAME, UNKNOWN}


@pytest.mark.parametrize(
    ("status", "body", "result"),
    [(404, b"{}", NOT_OFFERED), (400, b"no", NOT_OFFERED), (503, b"", UNKNOWN), (200, b"no json", UNKNOWN)],
)
def test_what_an_engine_does_not_offer_or_answer_is_no_difference(
    rendering: Rendering, status: int, body: bytes, result: str
) -> None:
    async def test() -> None:
        engine = ScriptedEngine(answer(body, status))
        await engine.start()
        pool = EnginePool("127.0.0.1", engine.port, idle_max_s=5.0, connect_s=1.0)
        verdicts = await check_parity(pool, "m", rendering, blind, 1.0)
        assert {one.result for one in verdicts} == {result}
        await engine.stop()
        verdicts = await check_parity(pool, "m", rendering, blind, 1.0)
        assert {one.result for one in verdicts} == {UNKNOWN}
        pool.close()

    run(test)


def test_tokens_told_by_events_decide_even_if_their_number_is_right(rendering: Rendering) -> None:
    def watch(salt: str) -> Callable[[], Awaitable[Sequence[int]]]:
        async def stored() -> Sequence[int]:
            return [7] * 16

        return stored

    async def test() -> None:
        with SimServer(
            SimEngineSettings(port=0), render=lambda path, body: rendering.prompt(path.encode(), body).packed
        ) as server:
            pool = EnginePool("127.0.0.1", server.port, idle_max_s=5.0, connect_s=1.0)
            verdicts = await check_parity(pool, "simulated", rendering, watch, 5.0)
            differing = [one for one in verdicts if one.result == DIFFERS]
            assert {one.how for one in differing} == {"events"}
            assert len(differing) == sum(not one.told for one in KINDS)
            pool.close()
            await asyncio.sleep(0)

    run(test)


@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [
        ([1, 2], [1, 2], ""),
        ([], [], ""),
        ([1, 2], [1, 3], "token 1 is 2 ('<2>'), the engine's is 3 ('<3>')"),
        ([1, 2], [1], "token 1 is 2 ('<2>') only here: 2 tokens here, 1 in the engine"),
        ([1], [1, 9], "token 1 is 9 ('<9>') only in the engine: 1 tokens here, 2 in the engine"),
    ],
)
def test_the_first_difference_is_told_in_words(ours: list[int], theirs: list[int], why: str) -> None:
    assert first_difference(ours, theirs, lambda token: f"<{token}>") == why
    assert verdict("k", ours, theirs, "tokenize", lambda token: f"<{token}>").result == (DIFFERS if why else SAME)


def test_a_verdict_is_shown_with_what_it_has() -> None:
    shown: dict[str, Any] = Verdict("chat", SAME, "tokenize", "", 20).document
    assert shown == {"kind": "chat", "result": "same", "how": "tokenize", "tokens": 20}
