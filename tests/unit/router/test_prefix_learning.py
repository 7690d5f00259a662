"""Looking at prompts beside the requests: within a bounded time, and of much traffic at a sample."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from kveik.router.prefix_learning import CORE_SHARE, SAVED_MAX_S, WAITING_BYTES_MAX, WAITING_MAX, PrefixLearner
from kveik.router.prompt_memory import PromptMemory
from kveik.router.records import RequestRecord
from tests.prompts import CHAT, message, words
from tests.unit.router.rig import run, until


class Processor:
    """A clock of a thread's time: each look at it costs as much as is said."""

    def __init__(self, cost_s: float) -> None:
        self.now_s, self.cost_s = 0.0, cost_s

    def __call__(self) -> float:
        self.now_s += self.cost_s
        return self.now_s


def body(minute: int) -> bytes:
    text = f"It is 06:{minute:02}. {words(200, 1)}"
    return json.dumps({"messages": [message("system", text), message("user", "now?")]}).encode()


def take(learner: PrefixLearner, count: int, **told: object) -> None:
    for number in range(count):
        learner.take(CHAT, body(number % 60), RequestRecord("r", "POST", "/", model="m", client="10.0.0.1", **told))


def learning(test: Callable[[PrefixLearner], Awaitable[None]], cost_s: float = 0.0) -> None:
    async def whole() -> None:
        learner = PrefixLearner(64, spent=Processor(cost_s))
        try:
            await test(learner)
        finally:
            learner.close()

    run(whole)


async def looked_at(learner: PrefixLearner, count: int) -> None:
    def done() -> bool:
        learner.tick()
        return learner.tally.looked_at >= count

    await until(done, f"{count} requests are looked at")


def test_little_traffic_is_looked_at_whole() -> None:
    async def test(learner: PrefixLearner) -> None:
        take(learner, 10)
        assert learner.document().looked_at == 0
        await looked_at(learner, 10)
        document = learner.document()
        assert (document.requests, document.looked_at) == (10, 10)
        assert [(place.kind, place.requests) for place in document.places] == [("date", 9)]
        assert document.places[0].clients[0].client == "10.0.0.1"

    learning(test)


def test_the_name_of_a_key_stands_for_its_client() -> None:
    async def test(learner: PrefixLearner) -> None:
        take(learner, 2, key_name="team")
        await looked_at(learner, 2)
        assert learner.document().places[0].clients[0].client == "team"

    learning(test)


def test_of_more_than_fits_the_rest_is_only_counted() -> None:
    async def test(learner: PrefixLearner) -> None:
        take(learner, WAITING_MAX + 36)
        await looked_at(learner, WAITING_MAX)
        assert (learner.tally.requests, learner.tally.looked_at) == (WAITING_MAX + 36, WAITING_MAX)

    learning(test)


def test_bodies_that_wait_take_no_more_than_so_many_bytes_and_one_always_fits() -> None:
    async def test(learner: PrefixLearner) -> None:
        record = RequestRecord("r", "POST", "/")
        for _ in range(3):
            learner.take(b"/v1/embeddings", b" " * (WAITING_BYTES_MAX + 1), record)
        await looked_at(learner, 1)
        assert (learner.tally.requests, learner.tally.looked_at) == (3, 1)

    learning(test)


def test_a_look_that_took_long_is_followed_by_a_pause() -> None:
    async def test(learner: PrefixLearner) -> None:
        take(learner, 5)
        await looked_at(learner, 1)
        began_s = asyncio.get_running_loop().time()
        take(learner, 5)
        await looked_at(learner, 2)
        assert asyncio.get_running_loop().time() - began_s > (0.01 - SAVED_MAX_S) / CORE_SHARE / 2

    learning(test, cost_s=0.01)


def test_a_fault_is_logged_and_the_next_requests_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    look = PromptMemory.look

    async def test(learner: PrefixLearner) -> None:
        monkeypatch.setattr(PromptMemory, "look", lambda *_: 1 / 0)
        take(learner, 1)
        learner.tick()
        await until(lambda: "failed" in caplog.text, "the fault is logged")
        monkeypatch.setattr(PromptMemory, "look", look)
        take(learner, 1)
        await looked_at(learner, 1)

    learning(test)


def test_it_ends_while_prompts_wait() -> None:
    async def test(learner: PrefixLearner) -> None:
        take(learner, 20)
        learner.tick()

    learning(test)
