"""Verdicts in words and as values."""

from kveik.doctor.check import Check, Outcome, Point, Verdict
from kveik.doctor.check_report import text_of, values_of
from kveik.doctor.running import Answer

POINTS = [
    Point(Outcome.WELL, "a with b", "they go together"),
    Point(Outcome.WRONG, "c", "api_key=sk-verysecret1", "take d", "a book"),
    Point(Outcome.UNKNOWN, "e", "nobody knows"),
]
ANSWER = Answer(
    Check("x", "g", "is it so?", lambda _: Verdict((), ()), 1.0), Verdict(["token=sk-othersecret1"], POINTS)
)


def test_the_worst_is_told_first_and_what_is_well_in_one_line() -> None:
    assert list(text_of(ANSWER)) == [
        "x: wrong",
        "   is it so?",
        "   looked at: token=***",
        "   wrong: c: api_key=***",
        "      do: take d",
        "      source: a book",
        "   unknown: e: nobody knows",
        "   well: a with b",
    ]


def test_programs_get_every_point_without_secrets() -> None:
    (values,) = values_of([ANSWER])
    assert (values["check"], values["outcome"], len(values["points"])) == ("x", "wrong", 3)
    assert "secret1" not in str(values)
