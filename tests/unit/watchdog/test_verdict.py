"""Which conditions cost an engine its requests."""

from kveik.watchdog.verdict import Condition


def test_a_busy_or_starting_engine_is_not_sick() -> None:
    assert {condition for condition in Condition if condition.sick} == {
        Condition.HUNG,
        Condition.HALF_DEAD,
        Condition.DEAD,
    }
