"""A whole router over engines that publish events: exact where it can be proved, with the reason where it can't."""

import asyncio
import json
import random
import time
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kveik.errors import RenderError
from kveik.fleet.client import FleetClient
from kveik.router import exact_routing
from kveik.router.exactness import Exactness, Predictions
from kveik.router.model_folder import Rendering
from kveik.router.parity import DIFFERS, SAME, UNKNOWN, Verdict
from kveik.router.parity_bodies import KINDS
from tests.model_folders import CHATML, make_model_folder
from tests.unit.router.exact_rig import (
    MODEL,
    ask,
    cached,
    chat,
    engine,
    last_choice,
    routing,
    settled,
    shown,
    until_exact,
    until_why,
    words,
)  # fmt: skip
from tests.unit.router.rig import interpreted_only, run, until


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_folder(tmp_path_factory.mktemp("model"))


def test_predicted_cached_tokens_are_the_real_ones_for_all_kinds_of_bodies(tmp_path: Path, folder: Path) -> None:
    async def test() -> None:
        async with routing(tmp_path, words(server, "e1", folder)) as app:
            await until_exact(app, "e1")
            rows = shown(app)["parity"]
            assert [(row["kind"], row["result"]) for row in rows] == [(one.kind, SAME) for one in KINDS], rows
            assert {row["how"] for row in rows} == {"tokenize", "events"}
            for one in KINDS:
                members = json.loads(one.request(MODEL))
                for _ in range(2):
                    await ask(app, one.target.decode(), **members)
                    await settled(app, server)
                expected = last_choice(app)["engines"]["e1"]["cached_tokens"]
                tokens = last_choice(app)["prompt_tokens"]
                assert expected == (tokens - 1) // 16 * 16, f"{one.kind}: {last_choice(app)}"
            assert (shown(app)["predictions_compared"] > 20, shown(app)["predictions_wrong"]) == (True, 0)

    with engine(folder) as server:
        run(test)


def test_conversations_that_grow_are_predicted_to_the_block_and_followed_to_their_engine(
    tmp_path: Path, folder: Path
) -> None:
    async def test() -> None:
        async with routing(tmp_path, words(one, "e1", folder), words(two, "e2", folder)) as app:
            await until_exact(app, "e1", "e2")
            draw = random.Random(3)
            talks: list[list[str]] = [[f"Talk {number}: {draw.random()} " * 12] for number in range(6)]
            for _ in range(4):
                for talk in talks:
                    answer = await ask(app, **chat(*talk))
                    choice = last_choice(app)
                    assert cached(answer) == choice["engines"][choice["engine"]]["cached_tokens"], choice
                    talk += [answer["choices"][0]["message"]["content"], f"And {draw.random()}? " * 6]
                    await settled(app, one, two)
            figures = [shown(app, name) for name in ("e1", "e2")]
            assert sum(one["predictions_compared"] for one in figures) >= 24
            assert sum(one["predictions_wrong"] for one in figures) == 0

    with engine(folder) as one, engine(folder) as two:
        run(test)


def test_what_an_engine_has_evicted_is_not_expected_of_it(tmp_path: Path, folder: Path) -> None:
    async def test() -> None:
        async with routing(tmp_path, words(server, "e1", folder)) as app:
            await until_exact(app, "e1")
            first = chat("The first. " * 40)
            await ask(app, **first)
            for number in range(12):
                await ask(app, **chat(f"{number} other " * 60))
            await settled(app, server)
            answer = await ask(app, **first)
            choice = last_choice(app)
            assert cached(answer) == choice["engines"]["e1"]["cached_tokens"] < 16

    with engine(folder, cache_blocks=64) as server:
        run(test)


def test_an_edited_template_is_found_named_and_kept_out_of_the_cache_group(tmp_path: Path, folder: Path) -> None:
    edited = make_model_folder(tmp_path / "edited", CHATML.replace("assistant\n", "assistant:\n"))

    async def test() -> None:
        async with routing(tmp_path, words(one, "e1", folder), words(two, "e2", folder)) as app:
            await until_exact(app, "e1")
            await until_why(app, "it renders prompts differently. chat: token ", "e2")
            groups = {name: app.router.engines.by_name[name].group for name in ("e1", "e2")}
            assert groups == {"e1": "ab", "e2": ""}
            assert {one.name: one.exact for one in app.router.engines} == {"e1": True, "e2": False}
            document = app.router.pages.document()  # type: ignore[union-attr]
            by_id = {one["id"]: one["prefix_index"] for one in document["engines"]}
            assert (by_id["e1"]["kind"], by_id["e2"]["kind"]) == ("exact", "approximate")
            assert sum(row["result"] == DIFFERS for row in by_id["e2"]["parity"]) >= 8

    with engine(folder) as one, engine(edited) as two:
        run(test)


def test_without_a_models_folder_prompts_of_token_ids_are_exact_and_others_are_not(tmp_path: Path) -> None:
    async def test() -> None:
        async with routing(tmp_path, words(server, "e1")) as app:
            await until_why(app, "only prompts of token ids are looked up exactly")
            prompt = [random.Random(1).randrange(1000) for _ in range(100)]
            for _ in range(2):
                await ask(app, "/v1/completions", prompt=prompt)
                await settled(app, server)
            assert last_choice(app)["engines"]["e1"]["cached_tokens"] == 96
            assert shown(app)["predictions_compared"] == 2

    with engine(None) as server:
        run(test)


def test_a_models_folder_can_be_announced_later(tmp_path: Path, folder: Path) -> None:
    async def test() -> None:
        async with routing(tmp_path, words(server, "e1")) as app:
            await until_why(app, "only prompts of token ids")
            await asyncio.to_thread(FleetClient(app.address).announce, words(server, "e1", folder))
            await until_exact(app, "e1")

    with engine(folder) as server:
        run(test)


@pytest.mark.parametrize(
    ("label", "why"), [("", ""), ("model0", ""), ("../elsewhere", "is not in"), ("gone", "no tokenizer")]
)
def test_models_are_found_below_one_folder_by_label_or_name_and_nowhere_else(
    tmp_path: Path, label: str, why: str
) -> None:
    make_model_folder(tmp_path / "models" / (label or MODEL) if not why else tmp_path / "models" / "other")

    async def test() -> None:
        labels = {"labels": {"model_path": label}} if label else {}
        announced = msgspec.structs.replace(words(server, "e1"), **labels)
        async with routing(tmp_path, announced, models_folder=str(tmp_path / "models")) as app:
            if why:
                await until_why(app, why)
            else:
                await until_exact(app, "e1")

    with engine(make_model_folder(tmp_path / "its own")) as server:
        run(test)


def test_an_engine_without_events_stays_approximate_and_says_so(tmp_path: Path, folder: Path) -> None:
    async def test() -> None:
        async with routing(tmp_path, words(server, "e1", events="", replay="")) as app:
            await until(lambda: "e1" in app.router.engines.by_name, "it is known")
            await until_why(app, "it announces no address for KV events")

    with engine(folder) as server:
        run(test)


def test_an_engine_that_publishes_nothing_where_it_says_is_not_taken_for_an_empty_one(
    tmp_path: Path, folder: Path
) -> None:
    async def test() -> None:
        async with routing(tmp_path, words(silent, "e1", folder, **deaf), words(other, "e2", folder)) as app:
            await until_exact(app, "e2")
            await until_why(app, "its events told nothing of a prompt that it was sent")

    with engine(folder) as other, engine(folder) as silent, engine(folder) as elsewhere:
        deaf = {"events": elsewhere.events_endpoint, "replay": elsewhere.replay_endpoint}
        run(test)


def test_an_engine_whose_history_was_missed_is_exact_once_it_empties_its_cache(tmp_path: Path, folder: Path) -> None:
    async def test() -> None:
        async with routing(tmp_path, words(server, "e1", folder)) as app:
            await until_why(app, "and no replay socket is announced")
            await ask(app, **chat("What was missed does not matter any more. " * 10))
            await until_why(app, "were missed, and no replay socket is announced")
            server.call(server.app.core.cache.clear)
            await until_exact(app, "e1")

    with engine(folder, events_replay="") as server:
        for number in range(3):
            body = json.dumps({"model": MODEL, "prompt": f"{number} before. " * 20, "max_tokens": 1}).encode()
            urllib.request.urlopen(urllib.request.Request(f"{server.url}/v1/completions", body)).read()
        run(test)


def test_another_block_size_than_announced_ends_exact_answers_with_the_reason(tmp_path: Path, folder: Path) -> None:
    async def test() -> None:
        async with routing(tmp_path, words(server, "e1", folder, block_tokens=32)) as app:
            await until_why(app, "blocks of 16 tokens, expected 32")

    with engine(folder) as server:
        run(test)


def test_a_restarted_engine_is_empty_at_once_and_exact_again_soon(tmp_path: Path, folder: Path) -> None:
    async def test() -> None:
        async with routing(tmp_path, words(server, "e1", folder), breaker_open_s=0.1) as app:
            await until_exact(app, "e1")
            question = chat("Before the restart. " * 30)
            await ask(app, **question)
            await settled(app, server)
            assert shown(app)["blocks"] > 5
            server.crash()
            await until_why(app, "the connection to its events is lost")
            server.restart()
            await until_exact(app, "e1")
            await until(lambda: bool(app.router.engines.open_for(MODEL)), "it takes requests")
            answer = await ask(app, **question)
            choice = last_choice(app)
            assert cached(answer) == choice["engines"]["e1"]["cached_tokens"] < 16

    with engine(folder) as server:
        run(test)


def test_an_emptied_cache_is_known_to_be_empty(tmp_path: Path, folder: Path) -> None:
    async def test() -> None:
        async with routing(tmp_path, words(server, "e1", folder)) as app:
            await until_exact(app, "e1")
            await ask(app, **chat("To be forgotten. " * 30))
            await settled(app, server)
            server.call(server.app.core.cache.clear)
            await until(lambda: shown(app)["blocks"] == 0, "no block is known")
            assert shown(app)["kind"] == "exact"

    with engine(folder) as server:
        run(test)


def test_tenants_with_salts_of_their_own_are_not_expected_to_share(tmp_path: Path, folder: Path) -> None:
    async def test() -> None:
        async with routing(tmp_path, words(server, "e1", folder)) as app:
            await until_exact(app, "e1")
            expected = []
            for salt in ("one", "two", "one"):
                await ask(app, cache_salt=salt, **chat("A shared prompt. " * 30))
                await settled(app, server)
                expected.append(last_choice(app)["engines"]["e1"]["cached_tokens"])
            assert expected[:2] == [0, 0]
            assert expected[2] > 100

    with engine(folder) as server:
        run(test)


def test_long_prompts_are_tokenized_beside_the_loop_and_answered_exactly(tmp_path: Path, folder: Path) -> None:
    async def test() -> None:
        async with routing(tmp_path, words(server, "e1", folder), render_deadline_s=5.0) as app:
            await until_exact(app, "e1")
            question = chat("A long prompt that takes a while to tokenize. " * 500)
            expected = []
            for _ in range(2):
                answer = await ask(app, **question)
                await settled(app, server)
                expected.append(last_choice(app)["engines"]["e1"]["cached_tokens"])
            assert (expected[0], expected[1]) == (0, cached(answer))
            assert expected[1] > 3000

    with engine(folder, max_model_tokens=30_000) as server:
        run(test)


@interpreted_only
@pytest.mark.parametrize("case", ["slow", "too many", "broken"])
def test_a_prompt_that_cannot_be_tokenized_in_time_is_answered_for_approximately(
    tmp_path: Path, folder: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with routing(tmp_path, words(server, "e1", folder), render_deadline_s=0.05) as app:
            await until_exact(app, "e1")
            if case == "too many":
                monkeypatch.setattr(exact_routing, "WAITING_MAX", 0)
            else:
                monkeypatch.setattr(exact_routing, "_encoded", slow if case == "slow" else broken)
            compared = shown(app)["predictions_compared"]
            answer = await ask(app, **chat("A prompt of some length. " * 200))
            assert answer["usage"]["prompt_tokens"] > 500
            assert shown(app)["predictions_compared"] == compared

    def slow(rendering: Rendering, unfinished: Any) -> Any:
        time.sleep(0.3)
        rendering.encode(unfinished)
        return unfinished

    def broken(rendering: Rendering, unfinished: Any) -> Any:
        raise RenderError("on purpose")

    with engine(folder) as server:
        run(test)


# -- exactness, without a router ----------------------------------------------------------------


def predicted(*pairs: tuple[int, int], more_is_fine: bool = False) -> Predictions:
    predictions = Predictions()
    for expected, real in pairs:
        predictions.add(expected=expected, real=real, slack=16, now_s=0.0, more_is_fine=more_is_fine)
    return predictions


def test_predictions_that_are_mostly_wrong_lower_an_engine_for_a_while() -> None:
    assert predicted(*[(160, 0)] * 7).why(1.0) == ""
    bad = predicted(*[(160, 160)] * 4, *[(160, 0)] * 4)
    assert "4 of the last 8 predictions were wrong, at last: 160 cached tokens were expected, 0" in bad.why(1.0)
    assert bad.why(301.0) == ""
    assert not predicted(*[(160, 160)] * 30, *[(160, 0)] * 9).distrusted(1.0)


def test_a_block_less_and_tokens_of_a_shared_cache_are_no_wrong_predictions() -> None:
    assert predicted(*[(160, 144)] * 10).wrong == 0
    assert predicted(*[(160, 128)] * 10).wrong == 10
    assert predicted(*[(0, 160)] * 10, more_is_fine=True).wrong == 0
    assert predicted(*[(0, 160)] * 10).wrong == 10
    lengths = Predictions()
    for _ in range(8):
        lengths.lengths_differ(100, 103, 0.0)
    assert "rendered to 100 tokens, and the engine counted 103" in lengths.why(1.0)


def exactness(*results: str, **given: Any) -> Exactness:
    verdicts = [Verdict(f"kind {number}", result, "events", "why") for number, result in enumerate(results)]
    return Exactness(**{"events_why": "", "rendering": "r", "verdicts": verdicts or None, **given})


@pytest.mark.parametrize(
    ("known", "why"),
    [
        (exactness(SAME, SAME), ""),
        (exactness(SAME, UNKNOWN), ""),
        (exactness(SAME, events_why="lost"), "lost"),
        (exactness(), "not been compared"),
        (exactness(SAME, DIFFERS), "it renders prompts differently. kind 1: why"),
        (exactness(UNKNOWN), "its events told nothing"),
        (exactness(SAME, verdicts=[Verdict("chat", SAME, "tokenize")]), "its events told nothing"),
        (exactness(SAME, rendering="", rendering_why="no folder"), "only prompts of token ids are looked up exactly"),
    ],
)
def test_an_engine_is_exact_only_if_everything_is_proved(known: Exactness, why: str) -> None:
    assert why in known.why(0.0)
    assert bool(known.why(0.0)) == bool(why)
    expected = {"", known.rendering} if not why or "token ids" in why else set()
    assert known.renderings(0.0) == expected
    assert known.document(0.0)["kind"] == ("approximate" if why else "exact")
