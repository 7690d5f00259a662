"""Why the stage that ate a hit did so."""

from typing import Any

from kveik.agent.funnel import RequestFunnel
from kveik.diagnose.funnel import eater, stages
from kveik.diagnose.funnel_cause import NOTHING_LOST, cause_of
from kveik.diagnose.funnel_missing import Cause, Known
from tests.funnels import lacking, prompt, told

FOUND: dict[str, Any] = {
    "lookup": "hit", "known_tokens": 640, "usable_tokens": 640, "allowed_tokens": 640, "load_tokens": 640,
    "used_tokens": 640, "computed_from": 640,
}  # fmt: skip


def cause(tokens: int = 700, **given: Any) -> Cause:
    record: RequestFunnel = told("asked", prompt(tokens), 50.0, **given)
    return cause_of(record, eater(stages(record)), Known())


def test_nothing_lost_is_said_too() -> None:
    assert cause(**FOUND).code == NOTHING_LOST


def test_a_request_that_waits_is_told_from_one_that_found_nothing() -> None:
    waiting: dict[str, Any] = {
        "lookup": "",
        "hashed_tokens": 0,
        "limit_tokens": 0,
        "known_tokens": -1,
        "computed_from": -1,
    }
    assert cause(**waiting).code == "not_asked_yet"


def test_a_short_prompt_is_told_with_the_size_of_a_block() -> None:
    short = cause(60, lookup="short")
    assert short.code == "short_prompt"
    assert "60 tokens and a block has 128" in short.sentence


def test_a_prompt_shorter_than_the_unit_of_hits_is_told_with_that_unit() -> None:
    record = told("asked", prompt(100), lookup="short", hashed_tokens=96, limit_tokens=0)
    record.hash_tokens = 32
    found = cause_of(record, eater(stages(record)), Known())
    assert found.code == "unit"
    assert "units of 128 tokens, and the prompt's whole blocks hold 96" in found.sentence


def test_a_prompt_of_one_block_needs_its_last_token_computed() -> None:
    assert cause(128, lookup="short", limit_tokens=0).code == "last_token"


def test_what_is_there_and_ends_between_two_units_is_cut_by_alignment() -> None:
    record = told("asked", prompt(160), lookup="miss", hashed_tokens=160, limit_tokens=128, known_tokens=96,
                  missing=lacking(0))  # fmt: skip
    record.hash_tokens = 32
    found = cause_of(record, eater(stages(record)), Known())
    assert found.code == "unit"
    assert "96 tokens are there, but hits of this model come in units of 128 tokens" in found.sentence


def test_a_window_that_lacks_a_block_is_told_with_what_became_of_it() -> None:
    lacks = "group 1 (sliding_window, block 128, window 512) lacks block 4 for 640 tokens"
    found = cause(**FOUND | {"usable_tokens": 0, "allowed_tokens": 0, "load_tokens": 0, "used_tokens": -1,
                             "computed_from": 0, "cut": lacks, "missing": lacking(4), "fate": "evicted"})  # fmt: skip
    assert found.code == "evicted"
    assert lacks in found.sentence


def test_a_cut_without_a_missing_block_tells_the_reason_of_the_connector() -> None:
    found = cause(**FOUND | {"usable_tokens": 256, "allowed_tokens": 256, "load_tokens": 256, "used_tokens": 256,
                             "computed_from": 256, "cut": "the drafter needs it"})  # fmt: skip
    assert (found.code, "the drafter needs it" in found.sentence) == ("cut", True)


def test_a_load_that_is_no_faster_is_told_with_its_seconds() -> None:
    found = cause(**FOUND | {"allowed_tokens": 0, "load_tokens": 0, "used_tokens": -1, "computed_from": 0,
                             "choice": "none", "choice_s": (0.0, 1.25, 1.25)})  # fmt: skip
    assert found.code == "break_even"
    assert "nothing of it was loaded" in found.sentence
    assert "after 1.250 s if all is computed" in found.sentence
    part = cause(**FOUND | {"allowed_tokens": 128, "load_tokens": 128, "used_tokens": 128, "computed_from": 128,
                            "choice": "part"})  # fmt: skip
    assert "only 128 tokens was loaded" in part.sentence


def test_a_hit_that_is_too_short_to_load_is_told_with_the_setting() -> None:
    found = cause(**FOUND | {"allowed_tokens": 0, "load_tokens": 0, "used_tokens": -1, "computed_from": 0,
                             "choice": "too_few"})  # fmt: skip
    assert (found.code, "min_hit_tokens" in found.sentence) == ("too_few", True)


def test_loads_that_fail_are_told_with_their_reasons() -> None:
    failed = FOUND | {"used_tokens": 0, "computed_from": 0}
    late = cause(**failed | {"failed_blocks": {"timeout": 5}})
    assert (late.code, "5 block(s): timeout" in late.sentence) == ("load_failed", True)
    wrong = cause(**failed | {"failed_blocks": {"checksum": 5}})
    assert (wrong.code, "5 block(s): checksum" in wrong.sentence) == ("wrong_bytes", True)
    assert cause(**failed).code == "load_failed"


def test_an_offer_that_vllm_did_not_take_is_told_apart() -> None:
    assert cause(**FOUND | {"load_tokens": 0, "used_tokens": -1, "computed_from": 0}).code == "not_taken"


def test_what_vllm_computed_again_is_told_with_the_token() -> None:
    again = cause(**FOUND | {"computed_from": 128})
    assert (again.code, "at token 128" in again.sentence) == ("computed_again", True)
