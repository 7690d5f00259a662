"""The stages of a request's hit."""

from typing import Any

from kveik.agent.funnel import RequestFunnel
from kveik.diagnose.funnel import STAGES, eater, stages, used_tokens
from tests.funnels import prompt, told


def hit(tokens: int = 700, **given: Any) -> RequestFunnel:
    """A request of which five blocks were there and loaded."""
    facts: dict[str, Any] = {
        "lookup": "hit",
        "known_tokens": 640,
        "usable_tokens": 640,
        "allowed_tokens": 640,
        "load_tokens": 640,
        "used_tokens": 640,
        "computed_from": 640,
        **given,
    }
    return told("a", prompt(tokens), **facts)


def counts(record: RequestFunnel) -> dict[str, int]:
    return {stage.name: stage.tokens for stage in stages(record)}


def lost_at(record: RequestFunnel) -> str:
    stage = eater(stages(record))
    return stage.name if stage is not None else ""


def test_the_stages_are_those_of_the_way_from_the_prompt_to_what_was_used() -> None:
    assert tuple(stage.name for stage in stages(hit())) == STAGES


def test_a_full_hit_loses_only_the_rest_of_a_block() -> None:
    assert [stage.tokens for stage in stages(hit())] == [700, *[640] * 8]
    assert [stage.lost for stage in stages(hit())] == [0, 60, *[0] * 7]
    assert lost_at(hit()) == ""


def test_each_stage_says_what_it_lost_of_what_the_one_before_had() -> None:
    record = hit(known_tokens=600, usable_tokens=512, allowed_tokens=256, load_tokens=256, used_tokens=128,
                 computed_from=128)  # fmt: skip
    assert counts(record) == dict(zip(STAGES, (700, 640, 640, 600, 512, 256, 128, 128, 128), strict=True))
    assert lost_at(record) == "allowed"


def test_the_engines_own_hit_counts_at_every_stage() -> None:
    record = hit(local_tokens=256, load_tokens=384)
    assert counts(record)["loaded"] == 640
    nothing = told("b", prompt(700), local_tokens=256, computed_from=256)
    assert counts(nothing)["known"] == counts(nothing)["used"] == 256


def test_wrong_bytes_are_lost_when_they_are_verified_and_what_did_not_come_when_it_is_loaded() -> None:
    wrong = hit(used_tokens=128, computed_from=128, failed_blocks={"checksum": 4})
    assert (counts(wrong)["loaded"], counts(wrong)["verified"]) == (640, 128)
    assert lost_at(wrong) == "verified"
    late = hit(used_tokens=128, computed_from=128, failed_blocks={"timeout": 4})
    assert (counts(late)["loaded"], counts(late)["verified"]) == (128, 128)
    assert lost_at(late) == "loaded"


def test_a_prompt_that_was_loaded_whole_counts_whole() -> None:
    assert used_tokens(hit(640, computed_from=639)) == 640


def test_what_vllm_computes_again_is_lost_at_the_end() -> None:
    record = hit(computed_from=0)
    assert used_tokens(record) == 0
    assert lost_at(record) == "used"


def test_a_request_that_has_not_begun_passes_on_what_there_is() -> None:
    record = hit(computed_from=-1, used_tokens=-1)
    assert used_tokens(record) == 640


def test_a_prompt_without_a_whole_block_is_lost_where_blocks_are_named() -> None:
    assert lost_at(told("a", prompt(60), lookup="short")) == "hashed"


def test_a_prompt_without_a_whole_unit_is_lost_where_a_hit_may_not_reach() -> None:
    assert lost_at(told("a", prompt(250), lookup="short", limit_tokens=0)) == "reachable"
