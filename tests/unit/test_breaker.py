"""The breaker, with time as a number."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.breaker import CLOSED, HALF_OPEN, OPEN, Breaker, BreakerPolicy

POLICY = BreakerPolicy(failures=3, open_s=1.0, open_max_s=4.0)


def opened(at_s: float = 100.0) -> Breaker:
    return Breaker(POLICY).failed(at_s, timed_out=True)


def after_failed_trial(breaker: Breaker) -> Breaker:
    trial, permitted = breaker.permit(breaker.until_s)
    assert permitted
    return trial.failed(breaker.until_s)


def test_a_closed_breaker_lets_every_call_through() -> None:
    breaker = Breaker(POLICY)

    assert breaker.permit(0.0) == (breaker, True)


def test_it_opens_at_the_given_number_of_failures_in_a_row() -> None:
    breaker = Breaker(POLICY).failed(1.0).failed(2.0)
    assert breaker.state == CLOSED

    breaker = breaker.failed(3.0)

    assert (breaker.state, breaker.until_s) == (OPEN, 4.0)


def test_a_success_between_failures_starts_the_count_again() -> None:
    breaker = Breaker(POLICY).failed(1.0).failed(2.0).succeeded().failed(3.0).failed(4.0)

    assert breaker.state == CLOSED


def test_one_time_out_opens_it_at_once() -> None:
    assert opened().state == OPEN


def test_an_open_breaker_lets_nothing_through_until_its_pause_is_over() -> None:
    breaker = opened(100.0)

    assert breaker.permit(100.99) == (breaker, False)
    assert breaker.permit(101.0)[1]


def test_after_the_pause_exactly_one_trial_goes_through() -> None:
    trial, permitted = opened(100.0).permit(101.0)

    assert (trial.state, permitted) == (HALF_OPEN, True)
    assert not trial.permit(101.5)[1]


def test_a_trial_that_works_closes_it() -> None:
    trial, _ = opened(100.0).permit(101.0)

    assert trial.succeeded() == Breaker(POLICY)


def test_each_failed_trial_doubles_the_pause_up_to_the_longest() -> None:
    breaker = opened(100.0)
    pauses = []
    for _ in range(4):
        breaker = after_failed_trial(breaker)
        pauses.append(breaker.pause_s)

    assert pauses == [2.0, 4.0, 4.0, 4.0]


def test_a_trial_whose_outcome_never_comes_is_followed_by_another() -> None:
    trial, _ = opened(100.0).permit(101.0)

    again, permitted = trial.permit(102.0)

    assert permitted
    assert again.state == HALF_OPEN


def test_late_news_of_older_calls_does_not_lengthen_the_pause() -> None:
    breaker = opened(100.0)

    assert breaker.failed(100.5, timed_out=True) == breaker


@given(st.lists(st.tuples(st.sampled_from(["permit", "fail", "time out", "succeed"]), st.floats(0, 5)), max_size=60))
def test_whatever_happens_it_lets_a_call_through_again_after_the_longest_pause(events: list[tuple[str, float]]) -> None:
    breaker, now_s = Breaker(POLICY), 0.0
    for event, seconds in events:
        now_s += seconds
        match event:
            case "permit":
                breaker, _ = breaker.permit(now_s)
            case "succeed":
                breaker = breaker.succeeded()
            case _:
                breaker = breaker.failed(now_s, timed_out=event == "time out")

    assert breaker.permit(now_s + POLICY.open_max_s)[1]


@pytest.mark.parametrize("failures", [1, 2, 5])
def test_a_policy_of_one_failure_opens_at_the_first(failures: int) -> None:
    breaker = Breaker(BreakerPolicy(failures=failures)).failed(0.0)

    assert (breaker.state == OPEN) == (failures == 1)


class SimpleBreaker:
    """The state diagram at the top of the module, written down again in the plainest way."""

    def __init__(self) -> None:
        self.failures = 0
        self.pause_s = 0.0
        self.closed_again_s: float | None = None  # None: closed
        self.trial = False

    def permit(self, now_s: float) -> bool:
        if self.closed_again_s is None:
            return True
        if now_s < self.closed_again_s:
            return False
        self.trial, self.closed_again_s = True, now_s + self.pause_s
        return True

    def succeed(self) -> None:
        self.__init__()  # type: ignore[misc]

    def fail(self, now_s: float, timed_out: bool) -> None:
        if self.closed_again_s is not None and not self.trial:
            return
        self.failures += POLICY.failures if timed_out else 1
        if self.trial or self.failures >= POLICY.failures:
            self.pause_s = min(2 * self.pause_s, POLICY.open_max_s) if self.trial else POLICY.open_s
            self.closed_again_s, self.trial = now_s + self.pause_s, False


@given(st.lists(st.tuples(st.sampled_from(["permit", "fail", "time out", "succeed"]), st.integers(0, 20)), max_size=80))
def test_it_does_what_the_state_diagram_says_for_any_history(events: list[tuple[str, int]]) -> None:
    breaker, simple, now_s = Breaker(POLICY), SimpleBreaker(), 0.0
    for event, quarters in events:
        now_s += quarters / 4
        match event:
            case "permit":
                breaker, permitted = breaker.permit(now_s)
                assert permitted == simple.permit(now_s)
            case "succeed":
                breaker = breaker.succeeded()
                simple.succeed()
            case _:
                breaker = breaker.failed(now_s, timed_out=event == "time out")
                simple.fail(now_s, event == "time out")
        assert (breaker.state == CLOSED) == (simple.closed_again_s is None)
        assert (breaker.state == HALF_OPEN) == simple.trial


@given(st.lists(st.sampled_from(["fail", "time out"]), min_size=1, max_size=30))
def test_a_pause_never_passes_the_longest_one(kinds: list[str]) -> None:
    breaker = opened()
    for kind in kinds:
        breaker = breaker.permit(breaker.until_s)[0].failed(breaker.until_s, timed_out=kind == "time out")
        assert POLICY.open_s <= breaker.pause_s <= POLICY.open_max_s


def test_a_breaker_is_a_value_that_no_transition_changes() -> None:
    before = opened(100.0)
    copy = Breaker(POLICY).failed(100.0, timed_out=True)
    before.permit(200.0)
    before.failed(200.0)
    before.succeeded()
    assert before == copy
