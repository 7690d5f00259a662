"""Prompts from files, sent to a simulated engine that counts what it computed."""

import threading
from collections.abc import Iterator

import pytest

from kveik.engine.client import EngineClient
from kveik.engine.warming import FAILURES_MAX, Warming, WarmProgress, WarmRequest, read_prompts, read_requests
from kveik.errors import ConfigError
from kveik.simulate.engine import SimulatedEngine

LONG = "the same words again and again " * 40


@pytest.fixture
def engine() -> Iterator[SimulatedEngine]:
    with SimulatedEngine() as running:
        yield running


def test_a_text_is_one_prompt_or_one_a_line() -> None:
    text = "first line\n\nsecond line\n"

    assert read_prompts(text, whole=True) == [WarmRequest("/v1/completions", {"prompt": text}, 1)]
    assert [(one.body["prompt"], one.line) for one in read_prompts(text, whole=False)] == [
        ("first line", 1),
        ("second line", 3),
    ]
    assert read_prompts(" \n", whole=True) == []


def test_a_line_of_json_is_a_text_tokens_a_chat_or_a_line_of_a_batch_file() -> None:
    chat = (
        '{"messages": [{"role": "user", "content": "x"}], "model": "m", "tools": [], "max_tokens": 5, "stream": true}'
    )
    lines = ['"text"', "[1, 2]", chat, '{"prompt": "p", "n": 3}', '{"custom_id": "1", "body": {"prompt": [7]}}', ""]

    requests = read_requests("\n".join(lines))

    assert [one.path.removeprefix("/v1/") for one in requests] == ["completions"] * 2 + ["chat/completions"] + [
        "completions"
    ] * 2
    assert [one.body.get("prompt") for one in requests] == ["text", [1, 2], None, "p", [7]]
    assert requests[2].body == {"messages": [{"role": "user", "content": "x"}], "model": "m", "tools": []}
    assert requests[2].asked("other") == {**requests[2].body, "max_tokens": 1, "temperature": 0.0, "stream": False}
    assert requests[0].asked("other")["model"] == "other"


@pytest.mark.parametrize(
    "line", ["{", "7", "null", '""', "[]", "[true]", "[-1]", '["a"]', "{}", '{"messages": []}', '{"body": 1}']
)
def test_another_line_is_refused_with_its_number(line: str) -> None:
    with pytest.raises(ConfigError, match="line 2"):
        read_requests(f'"first"\n{line}\n')


def test_prompts_are_computed_once_and_cached_the_second_time(engine: SimulatedEngine) -> None:
    requests = read_requests(f'"{LONG}"\n{{"messages": [{{"role": "user", "content": "{LONG}"}}]}}\n')
    warming = Warming(EngineClient(engine.url), "simulated")

    first = warming.run(requests)
    again = Warming(EngineClient(engine.url), "simulated").run(requests)

    assert (first.done, first.failed, again.done) == (2, 0, 2)
    assert first.prompt_tokens == again.prompt_tokens > 0
    assert again.cached_tokens > first.cached_tokens
    assert again.computed_tokens < first.computed_tokens


def test_each_answer_is_told_and_at_most_so_many_are_under_way(engine: SimulatedEngine) -> None:
    told: list[WarmProgress] = []
    lock = threading.Lock()
    most = 0

    class Counting(EngineClient):
        running = 0

        def post(self, path: str, body: object) -> object:  # type: ignore[override]
            nonlocal most
            with lock:
                Counting.running += 1
                most = max(most, Counting.running)
            try:
                return super().post(path, body)  # type: ignore[arg-type]
            finally:
                with lock:
                    Counting.running -= 1

    requests = read_prompts("\n".join(f"{number} {LONG}" for number in range(9)), whole=False)
    Warming(Counting(engine.url), "simulated", concurrency=3, tell=told.append).run(requests)

    assert sorted(one.done for one in told) == list(range(1, 10))
    assert 1 <= most <= 3


def test_a_request_that_fails_is_told_with_its_line_and_the_rest_goes_on(engine: SimulatedEngine) -> None:
    requests = [
        WarmRequest("/v1/completions", {"prompt": "x", "model": "no such model"}, 4),
        *read_prompts(LONG, whole=True),
    ]

    result = Warming(EngineClient(engine.url), "simulated").run(requests)

    assert (result.done, result.failed) == (1, 1)
    assert result.failures[0].startswith("line 4: ")


def test_where_nobody_answers_it_gives_up_soon() -> None:
    requests = read_prompts("\n".join(str(number) for number in range(100)), whole=False)

    result = Warming(EngineClient("http://127.0.0.1:9"), "simulated").run(requests)

    assert (result.done, result.failed) == (0, FAILURES_MAX)
