"""Where two prompts part, what it is that differs there, and how much is lost behind it."""

import random
from typing import Any

import pytest

from kveik.router.prompt_memory import Found
from tests.prompts import Prompts, message, tool, turns, words

RULES = words(400, 1)
TALK = turns(4, 1)
TOOLS = [tool(name) for name in ("read", "write", "search", "listing")]


def pair(one: list[dict[str, Any]], other: list[dict[str, Any]], **body: Any) -> Found | None:
    """What is found in the second of two chats."""
    prompts = Prompts()
    prompts.chat(*one, **body)
    return prompts.chat(*other, **body)


def system(text: str) -> list[dict[str, Any]]:
    """A conversation under that system prompt."""
    return [message("system", text), *TALK]


# -- what changes within a text -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        ("date", "Current time: 2026-11-30T06:25:14Z.", "Current time: 2026-11-30T06:27:02Z."),
        ("date", "Today is Monday, November 30.", "Today is Tuesday, December 1."),
        ("date", "现在是2026年11月30日。", "现在是2026年12月1日。"),
        ("id", "Session 123e4567-e89b-12d3-a456-426614174000.", "Session 9c7e1b22-0d4f-4c1a-8f5e-77aa01b2c3d4."),
        ("id", "x-anthropic-billing-header: cch=a1b2c;", "x-anthropic-billing-header: cch=0f93e;"),
        ("number", "You have 1823 tokens left.", "You have 977 tokens left."),
        ("whitespace", "Be  kind.", "Be kind."),
        ("whitespace", "Be kind. ", "Be kind."),
        ("system", "You talk to Ada.", "You talk to Grace."),
    ],
)
def test_a_change_at_the_beginning_of_a_system_prompt_loses_all_behind_it(kind: str, one: str, other: str) -> None:
    found = pair(system(f"{one} {RULES}"), system(f"{other} {RULES}"))
    assert found is not None
    assert (found.kind, found.label, found.index) == (kind, "system", 0)
    assert found.at_token < 12
    all_tokens = (len(RULES) + sum(len(said["content"]) for said in TALK)) // 4
    assert 0.95 * all_tokens < found.lost_tokens <= 1.02 * all_tokens


def test_a_change_in_the_middle_loses_only_what_is_behind_it() -> None:
    found = pair(system(f"{RULES} at 06:25:14 {RULES}"), system(f"{RULES} at 06:27:02 {RULES}"))
    assert found is not None
    assert found.kind == "date"
    assert abs(found.at_token - len(RULES) // 4) < 5


def test_the_first_of_two_changes_is_told_and_the_text_between_them_is_lost_too() -> None:
    one, other = (
        system(f"at {clock} {RULES} session 123e4567-e89b-12d3-a456-4266141740{number} {RULES}")
        for clock, number in (("06:25", "00"), ("07:11", "37"))
    )
    found = pair(one, other)
    assert found is not None
    assert found.kind == "date"
    assert found.lost_tokens > (2 * len(RULES)) // 4


def test_a_system_prompt_that_is_another_one_before_the_same_conversation_is_told() -> None:
    found = pair(system(words(300, 5)), system(words(300, 6)))
    assert found is not None
    assert (found.kind, found.label) == ("system", "system")


def test_a_question_before_the_document_that_many_ask_about_is_told() -> None:
    document = words(900, 3)
    found = pair(
        [message("user", f"Question: what is a tier?\n\n{document}")],
        [message("user", f"Question: how long does a lease last, and whose is it?\n\n{document}")],
    )
    assert found is not None
    assert (found.kind, found.label) == ("text", "user")
    assert found.lost_tokens > 0.9 * len(document) / 4


def test_a_prompt_of_text_or_token_ids_is_compared_like_a_message() -> None:
    prompts = Prompts()
    for clock in ("06:25:14", "06:27:02"):
        prompts.send(b"/v1/completions", prompt=f"It is {clock}. {RULES}")
    assert prompts.last is not None
    assert (prompts.last.kind, prompts.last.label) == ("date", "prompt")
    ids = [random.Random(1).randrange(50_000) for _ in range(600)]
    prompts.send(b"/v1/completions", prompt=ids)
    prompts.send(b"/v1/completions", prompt=[ids[0], 17, *ids[2:]])
    assert prompts.last is not None
    assert (prompts.last.kind, prompts.last.label) == ("text", "token ids")


# -- what changes among parts ---------------------------------------------------------------------


def test_the_same_tools_in_another_order_lose_all_but_what_is_before_them() -> None:
    prompts = Prompts()
    prompts.chat(*system(RULES), tools=TOOLS)
    found = prompts.chat(*system(RULES), tools=[TOOLS[0], *reversed(TOOLS[1:])])
    assert found is not None
    assert (found.kind, found.label) == ("tools-order", "tool")
    assert found.at_token > 20
    assert found.lost_tokens > len(RULES) // 4


def test_tools_whose_members_are_written_in_another_order_are_the_same_tools() -> None:
    prompts = Prompts()
    prompts.chat(*system(RULES), tools=TOOLS)
    found = prompts.chat(*system(RULES), tools=[dict(reversed(one.items())) for one in TOOLS])
    assert found is not None
    assert found.kind == "tools-order"


def test_other_tools_before_the_same_conversation_are_told() -> None:
    prompts = Prompts()
    prompts.chat(*system(RULES), tools=TOOLS)
    for tools in (TOOLS[1:], None):
        found = prompts.chat(*system(RULES), tools=tools)
        assert found is not None
        assert (found.kind, found.label, found.index) == ("tools-changed", "tool", -1)


def test_a_date_in_the_description_of_a_tool_is_a_date() -> None:
    prompts = Prompts()
    for day in ("2026-11-30", "2026-12-01"):
        dated = tool("clock")
        dated["function"]["description"] += f" It was written on {day}, and knows no more."
        prompts.chat(*system(RULES), tools=[dated, *TOOLS])
    assert prompts.last is not None
    assert (prompts.last.kind, prompts.last.label) == ("date", "tool")


def answers(**more: Any) -> list[dict[str, Any]]:
    """A conversation whose first answer has more members."""
    return [message("system", RULES), TALK[0], {**TALK[1], **more}, *TALK[2:]]


def test_reasoning_that_is_left_out_of_earlier_answers_is_told() -> None:
    found = pair(answers(reasoning_content=words(80, 9)), answers())
    assert found is not None
    assert (found.kind, found.index) == ("reasoning", 2)


def test_so_is_reasoning_within_an_answer_and_reasoning_that_came_back() -> None:
    thinking = f"<think>{words(80, 9)}</think>{TALK[1]['content']}"
    assert (found := pair(answers(content=thinking), answers())) is not None
    assert found.kind == "reasoning"
    assert (found := pair(answers(), answers(reasoning_content=words(80, 9)))) is not None
    assert found.kind == "reasoning"


def test_a_history_that_is_cut_at_its_beginning_is_told() -> None:
    talk = turns(8, 2)
    found = pair([message("system", RULES), *talk], [message("system", RULES), *talk[2:], message("user", "more")])
    assert found is not None
    assert (found.kind, found.label, found.index) == ("history", "user", 1)


def test_a_message_that_is_put_before_others_is_told() -> None:
    talk = turns(6, 2)
    reminder = message("user", "Remember what you were told about tests.")
    found = pair([message("system", RULES), *talk], [message("system", RULES), talk[0], reminder, *talk[1:]])
    assert found is not None
    assert found.kind == "inserted"


def test_an_image_before_the_text_that_is_always_the_same_is_told() -> None:
    one, other = (
        [message("user", [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": RULES}])]
        for url in ("data:a", "data:b")
    )
    found = pair(one, other)
    assert found is not None
    assert (found.kind, found.label) == ("media", "media")


def test_one_prompt_with_another_salt_is_told_for_one_client_and_not_for_two() -> None:
    prompts = Prompts()
    prompts.chat(*system(RULES), cache_salt="one", client="a")
    assert prompts.chat(*system(RULES), cache_salt="two", client="b") is None
    found = prompts.chat(*system(RULES), cache_salt="three", client="b")
    assert found is not None
    assert (found.kind, found.at_token) == ("options", 0)


# -- what is no break -----------------------------------------------------------------------------


def test_a_conversation_that_goes_on_and_one_that_is_asked_again_break_nothing() -> None:
    prompts = Prompts()
    talk = [message("system", RULES), *turns(8, 3)]
    for end in range(2, len(talk) + 1, 2):
        prompts.chat(*talk[:end], tools=TOOLS)
        prompts.chat(*talk[:end], tools=TOOLS)
    assert prompts.kinds == set()


def test_many_conversations_under_one_system_prompt_break_nothing() -> None:
    prompts = Prompts()
    for user in range(20):
        talk = turns(3, 50 + user)
        for end in (1, 3, 5):
            prompts.chat(message("system", RULES), *talk[:end], tools=TOOLS, client=f"user {user}")
    assert prompts.kinds == set()


def test_applications_of_their_own_break_nothing() -> None:
    prompts = Prompts()
    for app in range(10):
        for question in range(4):
            prompts.chat(message("system", words(300, 100 + app)), message("user", words(80, 10 * app + question)))
    assert prompts.kinds == set()


def test_applications_whose_system_prompts_share_a_paragraph_break_nothing() -> None:
    prompts = Prompts()
    for app in range(6):
        text = f"{words(200, 100 + app)} {RULES} {words(600, 200 + app)}"
        prompts.chat(message("system", text), message("user", words(80, app)))
    assert prompts.kinds == set()


def test_an_answer_that_is_asked_for_again_after_an_edit_of_a_short_question_breaks_nothing() -> None:
    talk = [message("system", RULES), *turns(3, 4)]
    assert pair([*talk, message("user", "what is it?")], [*talk, message("user", "what was it?")]) is None


def test_a_document_that_two_long_conversations_come_upon_breaks_nothing() -> None:
    document = message("tool", words(500, 9))
    assert (
        pair([message("system", RULES), *turns(10, 5), document], [message("system", RULES), *turns(9, 6), document])
        is None
    )
