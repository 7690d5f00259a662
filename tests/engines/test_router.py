"""The main job of the router: two real engines with one shared cache behind it, and OpenAI's own client."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from kveik.cli.main import main
from kveik.engine.launch import Engine, EngineSpec
from kveik.engine.process import free_port
from kveik.verify.settle import wait_saved
from tests.agents import wait_until
from tests.engines.engine import BOOT_S, core_of
from tests.routers import RouterThread

MODEL = "smollm2-135m-instruct"

pytestmark = pytest.mark.timeout(900)


@dataclass
class Served:
    """Two engines behind a router."""

    engines: list[Engine]
    router: RouterThread
    client: openai.OpenAI

    def chat(self, *turns: str, **given: Any) -> Any:
        """One chat; the turns alternate between user and assistant."""
        roles = ["user", "assistant"] * len(turns)
        messages: Any = [{"role": role, "content": text} for role, text in zip(roles, turns, strict=False)]
        options = {"model": MODEL, "max_tokens": 24, "temperature": 0, **given}
        return self.client.chat.completions.create(messages=messages, **options)

    def last_choice(self) -> dict[str, Any]:
        """Why the last request went where it went."""
        choice: dict[str, Any] = self.router.fleet()["last_choices"][0]
        return choice

    def engine(self, name: str) -> Engine:
        """The engine of that name."""
        return next(engine for engine in self.engines if engine.spec.url.endswith(name.rpartition(":")[2]))


@pytest.fixture(scope="module")
def served(
    engine_python: str, model: Callable[[str], Path], agent: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("router")
    with contextlib.ExitStack() as stack:
        engines = []
        for core in (0, 1):
            spec = EngineSpec(
                name=f"engine-{core}",
                python=engine_python,
                model=model(MODEL),
                port=free_port(),
                dtype="float32",  # processors without bfloat16 instructions take ten times as long with it
                max_model_tokens=4096,
                kv_cache_bytes=300 << 20,
                cores=core_of(core),
                connector=agent.extra,
            )
            engines.append(stack.enter_context(Engine(spec, os.environ, folder)))
            engines[-1].start()
        for engine in engines:
            engine.wait_ready(BOOT_S)
        # Two engines share two cores here: what is slow is not stuck.
        patience = {"probe_deadline_s": 20.0, "slow_prefill_tokens_s": 15.0}
        urls = [engine.spec.url for engine in engines]
        router = stack.enter_context(RouterThread(folder, urls, resume_streams=True, **patience))
        client = openai.OpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0, timeout=120)
        yield Served(engines, router, client)


def story(seed: int, sentences: int = 60) -> str:
    words = ["the miller", "an old fox", "seven sisters", "the harbour", "a quiet clock", "the last ferry"]
    return " ".join(f"In year {seed}{n} {words[(seed + n) % 6]} met {words[(n * n) % 6]}." for n in range(sentences))


def test_streaming_or_not_the_answer_is_the_same(served: Served) -> None:
    question = "Name three colours of the rainbow."
    whole = served.chat(question)
    pieces = list(served.chat(question, stream=True, stream_options={"include_usage": True}))
    assert whole.choices[0].message.content
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == whole.choices[0].message.content
    assert pieces[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_all_that_engines_offer_goes_through(served: Served) -> None:
    assert [card.id for card in served.client.models.list()] == [MODEL]
    completion = served.client.completions.create(model=MODEL, prompt=[1, 2, 3, 4], max_tokens=3)
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == 4
    tokens = served.client.post("/../tokenize", body={"model": MODEL, "prompt": "hello"}, cast_to=object)
    assert isinstance(tokens, dict)
    assert tokens["count"] == len(tokens["tokens"]) > 0
    with pytest.raises(openai.BadRequestError, match="context length"):
        served.chat("word " * 9000)
    with pytest.raises(openai.NotFoundError, match="does not exist here"):
        served.client.completions.create(model="no-such-model", prompt="x")


def test_the_next_turn_goes_where_the_last_one_is_cached(served: Served) -> None:
    first = served.chat(story(1))
    where = served.last_choice()["engine"]
    assert first.usage.prompt_tokens > 600
    for turn in range(4):
        again = served.chat(story(1), first.choices[0].message.content, f"And then, {turn}?")
        assert served.last_choice()["engine"] == where
        assert again.usage.prompt_tokens_details.cached_tokens >= 512


def test_a_request_is_explained_by_the_id_that_its_client_sent(
    served: Served, agent: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """One record across router, engine and agent: its sums are those of the answer's usage."""

    def explained(name: str) -> dict[str, Any]:
        arguments = ["explain", "request", name, "--router", served.router.url, "--socket", agent.settings.socket]
        told: list[dict[str, Any]] = []

        def is_told() -> bool:
            if main([*arguments, "--json"]) == 0:
                told[:] = json.loads(capsys.readouterr().out)["requests"]
            return bool(told) and told[0]["computed_from"] >= 0

        wait_until(is_told, f"the agent is told of {name}", 60)
        (one,) = told
        return one

    for name in ("explain-1", "explain-2"):
        usage = served.chat(story(4), max_tokens=2, extra_headers={"X-Request-Id": name}).usage
        one = explained(name)
        assert one["stages"][0]["tokens"] == usage.prompt_tokens
        assert one["used_tokens"] == usage.prompt_tokens_details.cached_tokens
        assert any("the router chose" in note for note in one["notes"])
        assert not any("reported" in note for note in one["notes"]), "router and engine agree"
    assert one["used_tokens"] >= 512


def test_after_kill_9_nothing_is_lost_and_the_shared_cache_has_what_the_engine_had(served: Served) -> None:
    before = {engine.spec.url: engine.client.metrics() for engine in served.engines}
    first = served.chat(story(2), max_tokens=2)
    victim = served.engine(served.last_choice()["engine"])
    blocks = first.usage.prompt_tokens // 128
    wait_saved(victim.client, before[victim.spec.url], blocks, timeout_s=20.0, quiet_s=0.5)

    def ask(number: int) -> Any:
        return served.chat(f"{number} is a number. " + story(3, 10), max_tokens=16)

    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(ask, number) for number in range(12)]
        victim.process.kill()
        answers = [one.result() for one in asked]
    assert all(answer.choices[0].message.content for answer in answers)
    other = served.chat(story(2), max_tokens=2)
    assert served.engine(served.last_choice()["engine"]) is not victim
    assert other.choices[0].message.content == first.choices[0].message.content
    assert other.usage.prompt_tokens_details.cached_tokens >= 512, (
        "from the shared cache, by an engine that never saw it"
    )
    victim.start()
    victim.wait_ready(BOOT_S)
    wait_until(lambda: all(e["state"] == "ready" for e in served.router.fleet()["engines"]), "it is back", 60)


@pytest.mark.long
def test_a_stream_goes_on_after_kill_9_and_says_what_one_engine_would_have_said(served: Served) -> None:
    question = "Tell me a story about a lighthouse."
    told = {"max_tokens": 120, "extra_body": {"ignore_eos": True}}
    whole = served.chat(question, **told)
    stream = served.chat(question, stream=True, stream_options={"include_usage": True}, **told)
    events = [next(stream) for _ in range(40)]
    victim = served.engine(served.last_choice()["engine"])
    victim.process.kill()
    events += stream
    said = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert said == whole.choices[0].message.content
    assert len({event.id for event in events}) == 1
    assert [event.choices[0].finish_reason for event in events if event.choices][-1] == "length"
    assert events[-1].usage.completion_tokens == 120
    assert events[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert served.engine(served.last_choice()["engine"]) is not victim
    assert served.router.fleet()["requests_under_way"] == 0
    victim.start()
    victim.wait_ready(BOOT_S)
    wait_until(lambda: all(e["state"] == "ready" for e in served.router.fleet()["engines"]), "it is back", 60)


def test_a_client_that_leaves_frees_the_engine(served: Served) -> None:
    stream = served.chat("Tell me a long story.", stream=True, max_tokens=2000, extra_body={"ignore_eos": True})
    next(iter(stream))
    assert sum(engine.client.metrics().busy for engine in served.engines) > 0
    stream.close()
    wait_until(lambda: sum(engine.client.metrics().busy for engine in served.engines) == 0, "nobody computes for it", 5)
