"""Why a block was not there."""

from typing import Any

import pytest

from kveik.agent.funnel import KnownNamespace, RequestFunnel
from kveik.diagnose.funnel_missing import Cause, Known, why_missing
from kveik.kv.namespace import REQUIRED_FACTS
from tests.funnels import HERE, THERE, lacking, prompt, told

SAME = dict.fromkeys(REQUIRED_FACTS, "same")


def asked(tokens: list[int] | None = None, **given: Any) -> RequestFunnel:
    return told("asked", tokens or prompt(700), 50.0, **{"missing": lacking(0), **given})


def cause(
    record: RequestFunnel, *others: RequestFunnel, namespaces: dict[bytes, KnownNamespace] | None = None
) -> Cause:
    return why_missing(record, Known(others, namespaces or {}))


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        ("deadline", "no_answer"),
        ("failed", "no_answer"),
        ("breaker_open", "no_answer"),
        ("detached", "detached"),
        ("pending", "starting"),
        ("skipped", "skipped"),
        ("short", "too_few"),
    ],
)
def test_an_agent_that_was_not_asked_or_gave_no_answer_is_the_cause(outcome: str, code: str) -> None:
    assert cause(asked(lookup=outcome)).code == code


@pytest.mark.parametrize(
    ("fate", "reason", "code", "words"),
    [
        ("evicted", "arena", "evicted", "made room for others 7 s before"),
        ("refused", "no_room", "put_rejected", "Never stored: the agent had refused"),
        ("given_up", "", "save_given_up", "begun and given up"),
        ("dropped", "", "dropped", "somebody had deleted"),
        ("corrupt", "arena", "corrupt", "wrong bytes"),
        ("elsewhere", "dtype bfloat16 != float32", "namespace", "dtype bfloat16 != float32"),
    ],
)
def test_what_the_agent_remembers_of_the_block_is_the_cause(fate: str, reason: str, code: str, words: str) -> None:
    found = cause(asked(fate=fate, fate_reason=reason, fate_age_s=7.0, missing=lacking(2)))
    assert found.code == code
    assert words in found.sentence
    assert "tokens 256 to 383" in found.sentence


def test_a_block_whose_load_failed_lately_is_left_out() -> None:
    assert cause(asked(missing=lacking(0, failed=True))).code == "failed_lately"


def test_a_block_that_one_rank_lacks_is_told_with_the_rank() -> None:
    found = cause(asked(missing=lacking(1, ranks=[3])))
    assert (found.code, "Rank 3 lacks" in found.sentence) == ("ranks", True)


def test_a_prompt_like_no_other_is_new() -> None:
    assert cause(asked(), told("other", prompt(700, seed=5), 10.0)).code == "new"
    assert cause(asked()).code == "new"


def test_a_few_tokens_in_common_do_not_make_a_prompt_known() -> None:
    template = told("other", [*prompt(48), *prompt(652, seed=6)], 10.0)
    assert cause(asked(), template).code == "new"


def test_a_changed_first_token_is_named_with_the_request_that_had_the_rest() -> None:
    found = cause(asked([9, *prompt(700)[1:]]), told("before", prompt(700), 10.0))
    assert found.code == "first_tokens_differ"
    assert (
        "request before at its very beginning (tokens 0 to 15), though 98% of the prompt is the same" in found.sentence
    )


def test_a_change_in_the_middle_is_named_with_its_place() -> None:
    changed = [*prompt(300), 9, *prompt(700)[301:]]
    found = cause(asked(changed, missing=lacking(2)), told("before", prompt(700), 10.0))
    assert found.code == "prompt_differs"
    assert "that of request before up to token 288 and differs within tokens 288 to 303" in found.sentence


def test_the_next_turn_of_a_conversation_goes_on_where_the_last_one_ended() -> None:
    found = cause(asked(prompt(1500), missing=lacking(5)), told("turn-1", prompt(700), 10.0))
    assert found.code == "goes_on"
    assert "where that of request turn-1 ended, at token 700" in found.sentence


def test_a_change_in_the_last_tokens_of_an_earlier_prompt_is_a_change() -> None:
    changed = [*prompt(700), 9, *prompt(1500)[701:]]
    found = cause(asked(changed, missing=lacking(5)), told("before", prompt(704), 10.0))
    assert (found.code, "within tokens 688 to 703" in found.sentence) == ("prompt_differs", True)


def test_the_same_tokens_in_another_namespace_are_told_with_the_facts_that_differ() -> None:
    other = told("before", prompt(700), 10.0, namespace=THERE, first_hash=b"other")
    namespaces = {
        HERE: KnownNamespace(HERE, "model", SAME | {"hash_seed": "aaaa"}),
        THERE: KnownNamespace(THERE, "model", SAME | {"hash_seed": "bbbb"}),
    }
    found = cause(asked(), other, namespaces=namespaces)
    assert found.code == "namespace"
    assert "hash_seed aaaa != bbbb there. Set PYTHONHASHSEED" in found.sentence
    assert "not known any more" in cause(asked(), other).sentence


def test_of_requests_with_the_same_tokens_one_that_could_have_shared_is_asked_first() -> None:
    elsewhere = told("elsewhere", prompt(700), 20.0, namespace=THERE)
    here = told("here", prompt(700), 10.0, dropped_blocks={"queue_full": 5})
    assert "request here" in cause(asked(), elsewhere, here).sentence


@pytest.mark.parametrize(
    ("other", "code"),
    [
        ({"first_hash": b"salted"}, "salt"),
        ({"saves": False}, "not_saved"),
        ({"dropped_blocks": {"no_room": 2}}, "not_saved"),
        ({"ended": False}, "not_yet"),
        ({"saving": 1}, "not_yet"),
        ({}, "lost"),
    ],
)
def test_the_same_tokens_in_the_same_namespace_are_looked_into(other: dict[str, Any], code: str) -> None:
    assert cause(asked(), told("before", prompt(700), 10.0, **other)).code == code


def test_what_cannot_be_compared_is_not_guessed_at() -> None:
    assert cause(asked(prints=b""), told("before", prompt(700), 10.0)).code == "not_stored"
    assert cause(asked(missing=None)).code == "unknown"
