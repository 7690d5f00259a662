"""What is remembered of prompts: enough to compare, within bounds, and nothing of their text."""

import gc
import json
import sys
from array import array
from collections.abc import Iterator

import numpy as np
import pytest

from kveik.router.facts import TokenPrompt
from kveik.router.prompt_memory import LOST_TOKENS_MIN, PromptMemory, Seen
from tests.prompts import CHAT, Prompts, message, tool, turns, words

RULES = words(400, 1)


def clock(minute: int, question: str = "and now?") -> list[dict[str, str]]:
    """A prompt with the time in front."""
    return [message("system", f"It is 06:{minute:02}. {RULES}"), message("user", question)]


# -- what counts ----------------------------------------------------------------------------------


def test_what_an_earlier_prompt_began_with_is_not_lost_whatever_others_have() -> None:
    prompts = Prompts()
    assert prompts.chat(*clock(1)) is None
    assert prompts.chat(*clock(2)) is not None
    assert prompts.chat(*clock(1, "and then?")) is None
    assert prompts.chat(*clock(2, "and then?")) is None


def test_a_beginning_counts_within_a_part_too() -> None:
    prompts = Prompts()
    prompts.send(b"/v1/completions", prompt=f"{RULES} first")
    prompts.send(b"/v1/completions", prompt=f"Hello. {RULES} second")
    prompts.send(b"/v1/completions", prompt=f"{RULES} third")
    assert prompts.last is None


def test_a_document_that_stands_elsewhere_is_lost_only_beyond_what_was_there() -> None:
    prompts = Prompts()
    document = words(600, 3)
    prompts.send(b"/v1/completions", prompt=f"{RULES} first")
    prompts.send(b"/v1/completions", prompt=f"Hello. {RULES} {document}")
    prompts.send(b"/v1/completions", prompt=f"{RULES} {document}")
    assert prompts.last is not None
    assert prompts.last.lost_tokens <= len(document) / 4 + 3


def test_models_are_apart() -> None:
    prompts = Prompts()
    prompts.chat(*clock(1), model="one")
    assert prompts.chat(*clock(2), model="other") is None


def test_what_the_engine_had_cached_after_all_was_not_lost() -> None:
    prompts = Prompts()
    prompts.chat(*clock(1))
    prompts.send(messages=clock(2), cached=10_000)
    assert prompts.last is None


def test_tokens_are_the_engine_s_in_proportion() -> None:
    memory = PromptMemory(8, 1)
    found = [
        memory.look(Seen(CHAT, json.dumps({"messages": clock(minute)}).encode(), "m", "c", "r", tokens, 0, None))
        for minute, tokens in ((1, 1000), (2, 1000), (3, 4000))
    ]
    assert [one.prompt_tokens for one in found] == [1000, 1000, 4000]
    assert [one.found.lost_tokens // 900 if one.found else 0 for one in found] == [0, 1, 4]


def test_small_losses_are_not_told() -> None:
    prompts = Prompts()
    text = words(LOST_TOKENS_MIN // 2, 1)
    for minute in (1, 2):
        prompts.chat(message("system", f"It is 06:0{minute}. {text}"), message("user", "hi"))
    assert prompts.last is None


# -- templates ------------------------------------------------------------------------------------


def looked(memory: PromptMemory, messages: list[dict[str, str]], tokens: list[int]) -> str:
    """The kind of break of a prompt whose tokens are known."""
    body = json.dumps({"messages": messages}).encode()
    prompt = TokenPrompt(array("I", tokens).tobytes())
    found = memory.look(Seen(CHAT, body, "m", "c", "r", len(tokens), -1, prompt)).found
    return f"{found.kind} at {found.at_token}: {found.lost_tokens}" if found else ""


def test_a_template_that_writes_earlier_turns_otherwise_is_seen_by_the_tokens() -> None:
    memory, talk = PromptMemory(8, 1), turns(3, 1)
    assert looked(memory, talk[:3], list(range(1000))) == ""
    assert looked(memory, talk[:5], [*range(320), *range(5000, 6000)]) == "template at 320: 584"


def test_a_template_that_goes_on_or_only_drops_the_end_of_a_turn_is_no_break() -> None:
    memory, talk = PromptMemory(8, 1), turns(3, 1)
    assert looked(memory, talk[:3], list(range(1000))) == ""
    assert looked(memory, talk[:5], [*range(990), *range(5000, 6000)]) == ""


# -- bounds ---------------------------------------------------------------------------------------


def test_of_each_model_so_many_prompts_are_remembered_the_oldest_go_first() -> None:
    prompts = Prompts(3)
    for app in range(6):
        prompts.chat(message("system", words(100, app)))
    assert len(prompts.memory) == 3


def test_a_prompt_that_goes_on_takes_the_place_of_the_one_before() -> None:
    prompts = Prompts(8)
    talk = [message("system", RULES), *turns(6, 1)]
    for end in range(1, len(talk) + 1):
        prompts.chat(*talk[:end])
    assert len(prompts.memory) == 1


def test_memory_has_a_bound_that_very_many_prompts_do_not_pass() -> None:
    prompts = Prompts(10_000, bytes_max=1 << 18)
    for app in range(30):
        prompts.chat(message("system", words(1500, app)), *turns(4, app), tools=[tool("read")])
    assert 1 < len(prompts.memory) < 30
    assert prompts.memory.size_bytes <= 1 << 18


def test_the_memory_that_is_counted_is_about_what_is_used() -> None:
    prompts = Prompts(1000)
    for app in range(40):
        prompts.chat(message("system", words(500, app)), *turns(4, app))
    assert 0.5 < prompts.memory.size_bytes / _held(prompts.memory) < 2.0


def test_what_is_forgotten_leaves_nothing_behind() -> None:
    prompts = Prompts(1, bytes_max=1)
    for app in range(5):
        prompts.chat(*turns(3, app), model=f"m{app}")
    left = prompts.memory.size_bytes
    assert len(prompts.memory) == 1
    for app in range(70):
        prompts.chat(*turns(3, app), model=f"n{app}")
    assert prompts.memory.size_bytes == pytest.approx(left, rel=0.2)
    assert _held(prompts.memory) < 1 << 20


# -- privacy --------------------------------------------------------------------------------------


def test_no_text_is_kept_unless_excerpts_are_asked_for() -> None:
    secret = "Zanzibar moonlight password hunter2"
    prompts = Prompts()
    for minute in range(6):
        prompts.chat(message("system", f"It is 06:0{minute}. {secret} {RULES}"), tools=[tool("read")], cache_salt="zz9")
    assert prompts.last is not None
    assert prompts.last.excerpt == ""
    kept = [held for held in _reached(prompts.memory) if isinstance(held, str | bytes)]
    for text in (text if isinstance(text, str) else text.decode("latin-1") for text in kept):
        assert not any(word in text for word in ("Zanzibar", "hunter2", "06:0", "zz9", *RULES.split()[:5]))


def test_an_excerpt_is_short_and_begins_just_before_the_place() -> None:
    prompts = Prompts(excerpts=True)
    for minute in (11, 22):
        prompts.chat(*clock(minute))
    assert prompts.last is not None
    assert prompts.last.excerpt.startswith("It is 06:22. ")
    assert len(prompts.last.excerpt) <= 60


def _reached(root: object) -> Iterator[object]:
    """Everything that an object holds, but for modules, classes and functions."""
    seen: set[int] = set()
    todo = [root]
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, type) or callable(one):
            continue
        seen.add(id(one))
        yield one
        todo.extend(gc.get_referents(one))
        todo.extend(getattr(one, name) for name in getattr(type(one), "__struct_fields__", ()))


def _held(root: object) -> int:
    return sum(sys.getsizeof(one) if not isinstance(one, np.ndarray) else one.nbytes + 112 for one in _reached(root))
