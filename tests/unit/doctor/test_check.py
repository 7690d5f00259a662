"""A verdict is as bad as the worst of its points."""

from kveik.doctor.check import Outcome, Point, Verdict


def verdict(*outcomes: Outcome) -> Verdict:
    return Verdict((), [Point(outcome, "x", "y") for outcome in outcomes])


def test_the_worst_point_is_the_verdict() -> None:
    assert verdict(Outcome.WELL, Outcome.UNKNOWN).outcome is Outcome.UNKNOWN
    assert verdict(Outcome.UNKNOWN, Outcome.WRONG, Outcome.BEWARE).outcome is Outcome.WRONG
    assert verdict(Outcome.BEWARE, Outcome.NOT_DONE).outcome is Outcome.NOT_DONE


def test_a_verdict_without_points_is_well() -> None:
    assert verdict().outcome is Outcome.WELL
