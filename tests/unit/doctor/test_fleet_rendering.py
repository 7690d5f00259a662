"""What engines make of the same bodies is compared kind by kind."""

from kveik.doctor.check import Outcome, Point
from kveik.doctor.fleet_rendering import Rendered, judge_rendering
from kveik.router.parity_bodies import KINDS

CHATS = [one.kind for one in KINDS if one.told]
REAL = [one.kind for one in KINDS if not one.told]


def rendered(engine: str, **changed: tuple[int, ...]) -> Rendered:
    tokens = {kind: (1, 2, 3, number) for number, kind in enumerate(CHATS)}
    return Rendered(engine, {**tokens, **changed}, dict.fromkeys(REAL, 300))


def only(points: list[Point]) -> Point:
    (point,) = points
    return point


def test_there_are_fourteen_kinds() -> None:
    assert len(KINDS) == 14
    assert len(REAL) == 4


def test_engines_that_render_alike_are_well() -> None:
    point = only(judge_rendering("m", [rendered("a"), rendered("b")]))
    assert (point.outcome, point.told) == (Outcome.WELL, "14 kinds are rendered alike")


def test_an_edited_template_is_wrong_and_named_with_the_first_differing_token() -> None:
    point = only(judge_rendering("m", [rendered("a"), rendered("b", chat=(1, 9, 3))]))
    assert point.outcome is Outcome.WRONG
    assert point.about == "prompts of m at b"
    assert point.told == "differ: chat: token 1 is 9, at a 2 (3 tokens, a has 4)"
    assert "chat template" in point.remedy


def test_the_odd_engine_is_the_one_that_most_disagree_with() -> None:
    point = only(judge_rendering("m", [rendered("a", chat=(7,)), rendered("b"), rendered("c")]))
    assert point.about == "prompts of m at a"


def test_a_prompt_that_is_only_longer_differs_at_its_end() -> None:
    point = only(judge_rendering("m", [rendered("a", chat=(1, 2)), rendered("b", chat=(1, 2, 5))]))
    assert "token 2 is 5, at a the end" in point.told


def test_many_differences_of_one_engine_are_one_point() -> None:
    point = only(judge_rendering("m", [rendered("a"), rendered("b", **dict.fromkeys(CHATS, (0,)))]))
    assert point.told.endswith("and 7 kinds more")


def test_where_only_numbers_are_told_these_are_compared() -> None:
    other = Rendered("b", rendered("b").tokens, dict.fromkeys(REAL, 300) | {REAL[1]: 299})
    point = only(judge_rendering("m", [rendered("a"), other]))
    assert point.told == f"differ: {REAL[1]}: 299 tokens, a has 300"


def test_a_kind_that_an_engine_does_not_offer_is_no_difference() -> None:
    fewer = Rendered("b", {CHATS[0]: rendered("b").tokens[CHATS[0]]}, {})
    point = only(judge_rendering("m", [rendered("a"), fewer]))
    assert (point.outcome, point.told) == (Outcome.WELL, "1 kinds are rendered alike")


def test_an_engine_that_does_not_answer_is_unknown() -> None:
    silent = Rendered("b", silent=dict.fromkeys(CHATS, "no answer within 8 s"))
    points = judge_rendering("m", [rendered("a"), silent])
    assert only(points).outcome is Outcome.UNKNOWN
    assert "10 kinds were not answered: no answer within 8 s" in only(points).told


def test_nothing_told_at_all_is_unknown() -> None:
    assert only(judge_rendering("m", [Rendered("a"), Rendered("b")])).outcome is Outcome.UNKNOWN


def test_one_engine_has_nothing_to_differ_from() -> None:
    assert only(judge_rendering("m", [rendered("a")])).outcome is Outcome.WELL
    assert judge_rendering("m", []) == []
