"""What an engine's answers tell of how fast it computes prompts."""

import asyncio
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.router.prefill_rate import TOKENS_MIN, PrefillRate
from tests.unit.router.rig import CHAT, DONE, EVENT, Request, ScriptedEngine, rig, run, stream

RATE = 5000.0


def seen(rate: PrefillRate, tokens: int, sent_s: float, now_s: float) -> None:
    """A stream that began and ended."""
    rate.learn(tokens, rate.began(tokens, sent_s, now_s))


def test_nothing_is_known_at_first_and_after_forgetting() -> None:
    rate = PrefillRate()
    assert rate.tokens_s == 0.0
    seen(rate, 1000, 0.0, 0.5)
    assert rate.tokens_s == 2000.0
    rate.forget()
    assert rate.tokens_s == 0.0
    seen(rate, 1000, 1.0, 2.0)
    assert rate.tokens_s == 1000.0, "nothing is left of what was before"


def test_the_first_stream_tells_something_before_it_ends() -> None:
    rate = PrefillRate()
    rate.began(1000, 0.0, 0.5)
    assert rate.tokens_s == 2000.0
    rate.learn(500, 0.5)  # half of it was cached, as its end told
    assert rate.tokens_s == 1000.0


@given(
    st.lists(st.tuples(st.floats(0.0, 0.5), st.integers(TOKENS_MIN, 8000)), min_size=1, max_size=60),
    st.sampled_from([100.0, 5000.0, 100_000.0]),
)
def test_an_engine_shows_its_rate_idle_and_busy(prompts: list[tuple[float, int]], true_rate: float) -> None:
    """Prompts at any distances, computed one after the other."""
    rate, sent_s, free_s = PrefillRate(), 0.0, 0.0
    for after_s, tokens in prompts:
        sent_s += after_s
        free_s = max(free_s, sent_s) + tokens / true_rate
        seen(rate, tokens, sent_s, free_s)
        assert rate.tokens_s == pytest.approx(true_rate, rel=1e-6)


@pytest.mark.parametrize("batch", [2, 4, 16, 64])
@pytest.mark.parametrize("step_s", [0.2, 20.0])
@pytest.mark.parametrize("first_s", [0.005, 30.0])
def test_prompts_that_are_computed_together_count_together(batch: int, step_s: float, first_s: float) -> None:
    """However wrong the first of all was, which was cached or waited for the engine to warm up."""
    rate = PrefillRate()
    seen(rate, 1000, 0.0, first_s)
    for step in range(60):
        for _ in range(batch):
            seen(rate, 1000, first_s + step * step_s, first_s + (step + 1) * step_s)
            true_rate = batch * 1000 / step_s
            assert step < 40 or rate.tokens_s == pytest.approx(true_rate, rel=0.35), step


def busy(rate: PrefillRate, prompts: int, true_rate: float, now_s: float) -> float:
    """An engine that is never idle; when the last of its prompts was answered."""
    for _ in range(prompts):
        now_s += 1000 / true_rate
        seen(rate, 1000, 0.0, now_s)
    return now_s


def test_an_engine_that_stood_still_is_not_slow_for_long() -> None:
    rate = PrefillRate()
    now_s = busy(rate, 30, RATE, 0.0) + 60.0
    seen(rate, 1000, 0.0, now_s)
    assert rate.tokens_s > 0.5 * RATE
    busy(rate, 20, RATE, now_s)
    assert rate.tokens_s > 0.9 * RATE


@pytest.mark.parametrize(("factor", "prompts"), [(0.02, 20), (0.2, 20), (5.0, 40)])
def test_an_engine_of_another_speed_is_found_out(factor: float, prompts: int) -> None:
    rate = PrefillRate()
    busy(rate, prompts, RATE * factor, busy(rate, 40, RATE, 0.0))
    assert rate.tokens_s == pytest.approx(RATE * factor, rel=0.35)


def test_a_busy_engine_that_seemed_far_too_quick_is_found_out() -> None:
    """A prompt of which nobody knew that it was cached: 5,000 tokens in 5 ms."""
    rate, now_s, dice = PrefillRate(), 0.005, random.Random(1)
    seen(rate, 5000, 0.0, now_s)
    assert rate.tokens_s > 100 * RATE
    for _ in range(12):
        tokens = dice.randrange(1000, 3000)
        sent_s, now_s = 0.0, now_s + tokens / RATE  # all were sent long ago: it is never idle
        seen(rate, tokens, sent_s, now_s)
    assert rate.tokens_s < 1.4 * RATE


def test_short_prompts_tell_nothing_but_their_time_is_not_counted_for_others() -> None:
    rate = PrefillRate()
    seen(rate, 1000, 0.0, 0.2)
    seen(rate, TOKENS_MIN - 1, 0.0, 5.0)
    seen(rate, 1000, 0.0, 5.2)
    assert rate.tokens_s == pytest.approx(RATE)


@pytest.mark.parametrize(("cached", "low", "high"), [(1600, 400, 2000), (0, 2000, 10_000)])
def test_what_a_stream_says_of_its_usage_counts_and_not_what_was_expected(cached: int, low: int, high: int) -> None:
    """The router knows of nothing cached: about 2,000 tokens in at least 0.2 s, of which ``cached`` were there."""
    usage = {"prompt_tokens": 2000, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": cached}}
    end = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n" + DONE

    async def handle(request: Request, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.2)
        await stream(EVENT, end)(request, writer)

    async def test() -> None:
        async with rig(ScriptedEngine(handle)) as made:
            prompt = {**CHAT, "messages": [{"role": "user", "content": "four" * 2000}], "stream": True}
            assert (await made.ask(prompt)).body.endswith(DONE)
            assert low / 4 < made.engine("a").prefill.tokens_s < high

    run(test)
