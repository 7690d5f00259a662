"""One request explained, as values and rows."""

import json

from kveik.diagnose.funnel_report import chosen, explain, rows_of, values_of
from kveik.router.request_book import RoutedRequest
from tests.funnels import lacking, prompt, told

BEFORE = told("before", prompt(700), 10.0)
ASKED = told("asked", [9, *prompt(700)[1:]], 50.0, missing=lacking(0), cut="group 0 (full, block 128) lacks block 0",
             asked_blocks=5, lookup_s=0.0021)  # fmt: skip


def routed(**given: object) -> RoutedRequest:
    facts = {
        "request_id": "asked", "ended_s": 51.0, "model": "m", "engine": "e0", "reason": "prefix", "outcome": "ok",
        "status": 200, "attempts": 1, "exact": True, "expected_prompt_tokens": 700, "expected_cached_tokens": 640,
        "prompt_tokens": 700, "cached_tokens": 0, "first_byte_s": 0.1, "total_s": 0.2,
    }  # fmt: skip
    return RoutedRequest(**facts | given)  # type: ignore[arg-type]


def test_requests_are_chosen_by_an_id_one_for_each_prompt() -> None:
    second = told("asked", prompt(200), 60.0)
    assert chosen([BEFORE, ASKED, second], "asked") == [ASKED, second]


def test_a_request_is_explained_by_one_stage_and_one_sentence() -> None:
    found = explain(ASKED, [BEFORE, ASKED], [])
    assert (found.ate, found.cause.code) == ("known", "first_tokens_differ")
    assert "5 blocks asked for in 2.1 ms: none there" in found.notes
    assert "the hit is not longer because group 0 (full, block 128) lacks block 0" in found.notes


def test_what_the_router_expected_is_told_with_what_came_of_it() -> None:
    notes = explain(ASKED, [BEFORE], [], routed()).notes
    assert any("the router chose e0 (prefix), expecting 640 cached tokens of 700" in note for note in notes)
    assert not any("does not render" in note for note in notes)


def test_a_prompt_that_router_and_engine_render_differently_is_told() -> None:
    notes = explain(ASKED, [BEFORE], [], routed(expected_prompt_tokens=690)).notes
    assert any("rendered 700 tokens, not 690" in note for note in notes)
    estimated = explain(ASKED, [BEFORE], [], routed(expected_prompt_tokens=690, exact=False)).notes
    assert not any("does not render" in note for note in estimated)


def test_what_was_not_saved_is_told_since_later_requests_will_miss_it() -> None:
    record = told("asked", prompt(700), dropped_blocks={"no_room": 2, "queue_full": 3})
    assert any("not saved: 2 no_room, 3 queue_full" in note for note in explain(record, [], []).notes)


def test_a_hit_is_told_by_tier_and_with_its_last_token() -> None:
    record = told("asked", prompt(640), local_tokens=128, lookup="hit", known_tokens=640, usable_tokens=640,
                  allowed_tokens=640, load_tokens=512, used_tokens=640, computed_from=639, asked_blocks=4,
                  found_blocks={"arena": 3, "filesystem": 1})  # fmt: skip
    notes = explain(record, [], []).notes
    assert "128 tokens were in the engine's own cache" in notes
    assert any("3 in arena, 1 in filesystem" in note for note in notes)
    assert any("computed again, for the logits" in note for note in notes)


def test_programs_get_all_of_it_as_json() -> None:
    values = json.loads(json.dumps(values_of(explain(ASKED, [BEFORE], []))))
    assert (values["request_id"], values["ate"], values["cause"]) == ("asked", "known", "first_tokens_differ")
    assert values["stages"][0]["name"] == "rendered"
    assert values["missing"]["end_token"] == 128
    assert values["namespace"] == ASKED.namespace.hex()


def test_the_row_that_ate_the_hit_is_marked() -> None:
    rows = rows_of(explain(ASKED, [BEFORE], []))
    assert [row[0].strip() for row in rows if row[0].startswith(">")] == ["> known"]
    assert rows[3][1:3] == ("0", "-640")
