"""Checks run one after the other, none longer than its limit."""

import threading

import pytest

from kveik.doctor.check import Check, Context, Outcome, Point, Verdict
from kveik.doctor.running import run_checks
from kveik.errors import DoctorError

CONTEXT = Context("python", {"A": "1"})


def check(name: str, answer: Outcome | DoctorError, limit_s: float = 60.0) -> Check:
    def run(context: Context) -> Verdict:
        if isinstance(answer, DoctorError):
            raise answer
        return Verdict([context.environ["A"]], [Point(answer, name, "so it is")])

    return Check(name, "test", "how is it?", run, limit_s)


def outcomes(*checks: Check) -> dict[str, Outcome]:
    return {answer.check.name: answer.verdict.outcome for answer in run_checks(checks, CONTEXT)}


def test_each_check_gets_the_context_and_answers_in_order() -> None:
    assert outcomes(check("a", Outcome.WELL), check("b", Outcome.WRONG)) == {"a": Outcome.WELL, "b": Outcome.WRONG}
    (answer,) = run_checks([check("a", Outcome.WELL)], CONTEXT)
    assert answer.verdict.evidence == ["1"]
    assert answer.took_s > 0


def test_a_check_that_cannot_answer_does_not_keep_the_next_from_it() -> None:
    found = outcomes(check("a", DoctorError("nobody there")), check("b", Outcome.WELL))
    assert found == {"a": Outcome.NOT_DONE, "b": Outcome.WELL}


def test_a_check_that_hangs_is_left_behind() -> None:
    never = threading.Event()

    def hang(_: Context) -> Verdict:
        never.wait(60)
        return Verdict((), ())

    hanging = Check("a", "test", "does it hang?", hang, 0.05)
    answers = list(run_checks([hanging, check("b", Outcome.WELL)], CONTEXT))
    never.set()
    assert [answer.verdict.outcome for answer in answers] == [Outcome.NOT_DONE, Outcome.WELL]
    assert "longer than 0.05 s" in answers[0].verdict.points[0].told


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_check_that_is_itself_broken_says_so() -> None:
    def broken(_: Context) -> Verdict:
        raise ZeroDivisionError

    (answer,) = run_checks([Check("a", "test", "?", broken, 60.0)], CONTEXT)
    assert answer.verdict.outcome is Outcome.NOT_DONE
    assert "fault of Kveik" in answer.verdict.points[0].told
