"""What is found, and what is not, in traffic as it comes: agents, chats, traces, and whatever Hypothesis thinks of."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kveik.bench.mooncake_trace import TraceLine, sample_trace
from kveik.router.model_folder import Rendering
from kveik.router.prompt_memory import Found, PromptMemory, Seen
from kveik.router.tokenizer import TokenizerFiles
from tests.model_folders import CHATML, make_model_folder
from tests.prompts import CHAT, Prompts, message, tool, turns, words

RULES = words(400, 1)
TOOLS = [tool(name) for name in ("read", "write", "search", "run")]


# -- agents ---------------------------------------------------------------------------------------


def agents(seed: int, sessions: int, steps: int) -> Iterator[list[dict[str, Any]]]:
    """Requests of agents that read the same files in whatever order, each under one system prompt."""
    dice = random.Random(seed)
    files = {f"f{number}.py": words(dice.randrange(100, 700), 5000 + number) for number in range(12)}
    talks = [
        [message("system", RULES), message("user", words(dice.randrange(5, 60), 9000 + session))]
        for session in range(sessions)
    ]
    for step in range(steps):
        talk = dice.choice(talks)
        yield list(talk)
        if dice.random() < 0.7:
            path = dice.choice(list(files))
            call = {"name": "read", "arguments": json.dumps({"path": path})}
            asked = [{"id": f"call_{step}", "type": "function", "function": call}]
            talk += [message("assistant", None, tool_calls=asked), message("tool", files[path], tool_call_id="c")]
        else:
            goes_on = dice.choice(["go on", "thanks, now add tests for it and run them all"])
            talk += [message("assistant", words(dice.randrange(20, 150), step)), message("user", goes_on)]


@pytest.mark.parametrize("seed", range(3))
def test_agents_that_read_the_same_files_break_nothing(seed: int) -> None:
    prompts = Prompts()
    for talk in agents(seed, sessions=12, steps=90):
        prompts.chat(*talk, tools=TOOLS)
    assert prompts.kinds == set()


def test_agents_that_are_told_the_time_first_lose_what_they_had_before() -> None:
    prompts = Prompts()
    for minute, talk in enumerate(agents(1, sessions=4, steps=40)):
        told = f"It is 2026-11-30 {6 + minute // 60:02}:{minute % 60:02}. {RULES}"
        prompts.chat(message("system", told), *talk[1:], tools=TOOLS)
    found = [one for one in prompts.found if one is not None]
    assert len(found) == 39
    assert {(one.kind, one.label) for one in found} == {("date", "system")}


def test_a_conversation_whose_beginning_became_a_summary_is_told() -> None:
    prompts = Prompts()
    talk = turns(10, 5)
    prompts.chat(message("system", RULES), *talk)
    found = prompts.chat(message("system", RULES), message("user", f"So far: {words(60, 77)}"), *talk[8:])
    assert found is not None
    assert (found.kind, found.label, found.index) == ("history", "user", 1)


def test_a_client_that_drops_old_images_is_told_that_it_drops() -> None:
    prompts = Prompts()
    image = {"type": "image_url", "image_url": {"url": "data:a"}}
    seen = [message("user", [image, {"type": "text", "text": "What is that, and where was it made?"}]), *turns(5, 6)]
    prompts.chat(message("system", RULES), *seen)
    without = [message("user", [{"type": "text", "text": "What is that, and where was it made?"}]), *seen[1:]]
    found = prompts.chat(message("system", RULES), *without)
    assert found is not None
    assert found.kind == "history"


# -- traces ---------------------------------------------------------------------------------------


def texts(trace: list[TraceLine]) -> list[list[str]]:
    """Each request's blocks as texts; equal blocks have equal ones."""
    return [[words(24, block) for block in line.hash_ids] for line in trace]


def test_the_traffic_of_a_trace_breaks_nothing_as_it_is() -> None:
    prompts = Prompts()
    for blocks in texts(sample_trace(80, 3)):
        prompts.send(b"/v1/completions", prompt=" ".join(blocks))
    assert prompts.kinds == set()


def test_with_a_counter_in_front_it_loses_just_what_was_shared() -> None:
    prompts = Prompts()
    shared_bytes, seen = 0, set[str]()
    for number, blocks in enumerate(texts(sample_trace(60, 3))):
        prompts.send(b"/v1/completions", prompt=f"Turn {1000 + 7 * number}. {' '.join(blocks)}")
        if number:
            shared_bytes += sum(len(block) for block in blocks if block in seen)
        seen.update(blocks)
    lost = sum(found.lost_tokens for found in prompts.found if found is not None)
    assert prompts.kinds == {"number"}
    assert 0.8 * shared_bytes / 4 < lost < 1.1 * shared_bytes / 4


# -- real templates -------------------------------------------------------------------------------

#: Shows reasoning only behind the last user's message, as templates of reasoning models do.
FORGETTING = (
    "{% set ns = namespace(last=0) %}{% for message in messages %}"
    "{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
) + CHATML.replace(
    "{% if message.reasoning_content %}{{ '<think>' + message.reasoning_content + '</think>' }}{% endif %}",
    "{% if message.reasoning and loop.index0 > ns.last %}{{ '<think>' + message.reasoning + '</think>' }}{% endif %}",
)
KEEPING = FORGETTING.replace(" and loop.index0 > ns.last", "")


def rendered(folder: Path, template: str, *talks: list[dict[str, Any]]) -> Found | None:
    """What is found in the last of some chats whose tokens are known."""
    rendering = Rendering(make_model_folder(folder, template), TokenizerFiles())
    memory, found = PromptMemory(16, 7), None
    for talk in talks:
        body = json.dumps({"model": "m", "messages": talk}).encode()
        prompt = rendering.prompt(CHAT, body)
        found = memory.look(Seen(CHAT, body, "m", "c", "r", len(prompt), -1, prompt)).found
    return found


def reasoned() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A turn in which the model reasons and calls a tool, and the next turn, which sends all of it back."""
    call = [{"id": "c", "type": "function", "function": {"name": "read", "arguments": '{"path":"a"}'}}]
    turn = [
        message("system", words(60, 1)),
        message("user", words(60, 2)),
        message("assistant", "", reasoning_content=words(80, 3), tool_calls=call),
        message("tool", words(120, 4), tool_call_id="c"),
    ]
    return turn, [*turn, message("assistant", words(20, 5)), message("user", "And then?")]


def test_a_template_that_forgets_reasoning_is_found_by_the_tokens_that_it_makes(tmp_path: Path) -> None:
    found = rendered(tmp_path, FORGETTING, *reasoned())
    assert found is not None
    assert (found.kind, found.label) == ("template", "conversation")
    assert found.lost_tokens > 100


def test_a_template_that_keeps_it_breaks_nothing(tmp_path: Path) -> None:
    assert rendered(tmp_path, KEEPING, *reasoned()) is None


# -- whatever there is ----------------------------------------------------------------------------

TEXT = st.text(max_size=120) | st.integers(0, 50).map(lambda seed: words(80, seed))
MESSAGE = st.builds(message, st.sampled_from(["system", "user", "assistant", "tool"]), TEXT)


@settings(max_examples=60, deadline=None)
@given(st.lists(MESSAGE, min_size=1, max_size=8), st.data())
def test_what_goes_on_or_is_sent_again_never_breaks(talk: list[dict[str, Any]], data: st.DataObject) -> None:
    prompts = Prompts()
    for end in sorted(data.draw(st.lists(st.integers(1, len(talk)), max_size=4))):
        prompts.chat(*talk[:end])
    prompts.chat(*talk)
    assert prompts.chat(*talk) is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(MESSAGE, min_size=1, max_size=5), min_size=2, max_size=6))
def test_no_more_is_lost_than_there_is_and_no_place_is_outside(talks: list[list[dict[str, Any]]]) -> None:
    prompts = Prompts()
    for talk in talks:
        found = prompts.chat(*talk)
        if found is not None:
            size = sum(len(json.dumps(said["content"], ensure_ascii=False).encode()) for said in talk)
            assert 0 <= found.at_token <= size // 4 + 1
            assert found.at_token + found.lost_tokens <= size // 4 + 2
            assert -1 <= found.index < len(talk)


@settings(max_examples=60, deadline=None)
@given(
    st.binary(max_size=300)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=10),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["messages", "tools", "role", "content", "type", "text", "input", "prompt", "system"]),
                inner,
            )
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_bodies_of_any_kind_do_no_harm(body: bytes) -> None:
    memory = PromptMemory(8, 7)
    for target in (CHAT, b"/v1/messages", b"/v1/responses", b"/v1/completions", b"/v1/embeddings"):
        memory.look(Seen(target, body, "m", "c", "r", -1, -1, None))
