from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kveik.router.limits import KeyQueue, Place, Places, Standing, TokenBucket

steps = st.lists(st.tuples(st.floats(0, 100), st.integers(1, 30)), max_size=60)


@given(st.integers(1, 600), steps)
def test_no_stretch_of_time_gets_more_than_burst_and_rate(per_min: int, tries: list[tuple[float, int]]) -> None:
    bucket = TokenBucket(per_min, 0.0)
    now_s, taken = 0.0, []
    for pause_s, amount in tries:
        now_s += pause_s
        if amount <= per_min and bucket.take(amount, now_s) == 0.0:
            taken.append((now_s, amount))
    for start in range(len(taken)):
        for end in range(start, len(taken)):
            total = sum(amount for _, amount in taken[start : end + 1])
            assert total <= per_min + (taken[end][0] - taken[start][0]) * per_min / 60 + 1e-6


@given(st.integers(1, 600), steps)
def test_the_wait_that_is_told_is_enough_and_not_too_long(per_min: int, tries: list[tuple[float, int]]) -> None:
    bucket = TokenBucket(per_min, 0.0)
    now_s = 0.0
    for pause_s, amount in tries:
        now_s += pause_s
        wait_s = bucket.take(amount, now_s)
        if wait_s:
            assert bucket.wait_s(amount, now_s + wait_s * 0.5) > 0
            now_s += wait_s + 1e-6
            assert bucket.take(amount, now_s) == 0.0


def test_a_debt_must_be_refilled_first() -> None:
    bucket = TokenBucket(60, 0.0)
    bucket.spend(90, 0.0)
    assert bucket.level(0.0) == -30
    assert bucket.take(1, 0.0) == pytest.approx(31)
    assert bucket.take(1, 31.1) == 0.0


def test_what_was_booked_too_much_comes_back_but_never_beyond_the_burst() -> None:
    bucket = TokenBucket(60, 0.0)
    bucket.spend(50, 0.0)
    bucket.spend(-200, 0.0)
    assert bucket.level(0.0) == 60


def test_more_than_the_burst_is_let_through_when_the_bucket_is_full_and_leaves_a_debt() -> None:
    bucket = TokenBucket(60, 0.0)
    assert bucket.take(100, 0.0) == 0.0
    assert bucket.level(0.0) == -40


def test_a_clock_that_steps_back_adds_nothing() -> None:
    bucket = TokenBucket(60, 100.0)
    bucket.spend(60, 100.0)
    assert bucket.level(50.0) == 0
    assert bucket.level(101.0) == pytest.approx(1)


@pytest.mark.parametrize(("spent", "level"), [(30, 300), (0, 600), (60, 0), (90, -30)])
def test_another_rate_keeps_how_full_the_bucket_is_and_a_debt(spent: float, level: float) -> None:
    bucket = TokenBucket(60, 0.0)
    bucket.spend(spent, 0.0)
    assert bucket.moved_to(600, 0.0).level(0.0) == pytest.approx(level)


def entered(places: Places[Place], queue: KeyQueue[Place], now_s: float = 0.0) -> Place:
    place = Place(queue)
    places.enter(place, now_s)
    return place


def test_without_limits_everybody_gets_in() -> None:
    places: Places[Place] = Places(0, 0, 1.0)
    key: KeyQueue[Place] = KeyQueue("a")
    assert {entered(places, key).standing for _ in range(50)} == {Standing.INSIDE}
    assert places.inside == 50


def test_waiting_requests_get_in_by_turns_of_their_keys_and_in_order_within_one() -> None:
    places: Places[Place] = Places(1, 10, 9.0)
    many: KeyQueue[Place] = KeyQueue("many")
    few: KeyQueue[Place] = KeyQueue("few")
    running = entered(places, many)
    floods = [entered(places, many) for _ in range(4)]
    single = entered(places, few)
    order = []
    while places.inside:
        (running,) = places.leave(running) or [running]
        if running.standing is Standing.OUTSIDE:
            break
        order.append(running)
    assert order == [floods[0], single, floods[1], floods[2], floods[3]]


def test_a_key_at_its_own_limit_holds_nobody_else_up() -> None:
    places: Places[Place] = Places(3, 10, 9.0)
    slow: KeyQueue[Place] = KeyQueue("slow", limit=1)
    other: KeyQueue[Place] = KeyQueue("other")
    first = entered(places, slow)
    second = entered(places, slow)
    assert second.standing is Standing.WAITING
    assert entered(places, other).standing is Standing.INSIDE
    assert places.leave(first) == [second]


def test_a_full_queue_refuses_but_a_key_with_fewer_requests_crowds_out_the_one_with_most() -> None:
    places: Places[Place] = Places(1, 3, 9.0)
    flood: KeyQueue[Place] = KeyQueue("flood")
    quiet: KeyQueue[Place] = KeyQueue("quiet")
    waiting = [entered(places, flood) for _ in range(4)][1:]
    assert entered(places, flood).standing is Standing.OUTSIDE
    place = Place(quiet)
    assert places.enter(place, 0.0) is waiting[-1]
    assert waiting[-1].standing is Standing.OUTSIDE
    assert place.standing is Standing.WAITING
    assert places.enter(Place(quiet), 0.0) is None, "two against one is no reason to crowd anybody out"
    assert places.waiting == 3


def test_who_waits_too_long_is_taken_out_and_those_behind_stay() -> None:
    places: Places[Place] = Places(1, 10, 5.0)
    key: KeyQueue[Place] = KeyQueue("a")
    entered(places, key)
    early, late = entered(places, key, 1.0), entered(places, key, 3.0)
    assert places.expired(5.9) == []
    assert places.expired(6.0) == [early]
    assert (early.standing, late.standing) == (Standing.OUTSIDE, Standing.WAITING)
    assert places.waiting == 1


def test_leaving_while_waiting_and_leaving_twice_free_one_place_only() -> None:
    places: Places[Place] = Places(1, 10, 5.0)
    key: KeyQueue[Place] = KeyQueue("a")
    running, gone, next_one = (entered(places, key) for _ in range(3))
    places.leave(gone)
    assert places.leave(running) == [next_one]
    assert places.leave(running) == []
    assert repr(places) == "Places(inside=1/1, waiting=0/10)"
    assert repr(key) == "KeyQueue(a, inside=1/0, waiting=0)"


def test_a_raised_limit_lets_in_who_waits() -> None:
    places: Places[Place] = Places(0, 10, 5.0)
    key: KeyQueue[Place] = KeyQueue("a", limit=1)
    entered(places, key)
    waiting = [entered(places, key) for _ in range(3)]
    key.limit = 3
    assert places.let_in() == waiting[:2]


class AnyOrderOfCalls(RuleBasedStateMachine):
    """Whatever clients do: counts stay true, limits hold, nobody waits while there is room."""

    def __init__(self) -> None:
        super().__init__()
        self.places: Places[Place] = Places(3, 4, 10.0)
        self.keys: list[KeyQueue[Place]] = [KeyQueue("a"), KeyQueue("b", limit=1), KeyQueue("c", limit=2)]
        self.known: list[Place] = []
        self.now_s = 0.0

    @rule(key=st.integers(0, 2))
    def enter(self, key: int) -> None:
        place = Place(self.keys[key])
        crowded_out = self.places.enter(place, self.now_s)
        self.known.append(place)
        assert crowded_out is None or crowded_out.standing is Standing.OUTSIDE

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(self.known))
        self.known.remove(place)
        assert all(admitted.standing is Standing.INSIDE for admitted in self.places.leave(place))

    @rule(seconds=st.floats(0, 12))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        assert all(late.standing is Standing.OUTSIDE for late in self.places.expired(self.now_s))

    @invariant()
    def counts_are_true(self) -> None:
        standings = Counter(place.standing for place in self.known)
        assert self.places.inside == standings[Standing.INSIDE] <= 3
        assert self.places.waiting == standings[Standing.WAITING] <= 4
        for key in self.keys:
            mine = [place for place in self.known if place.queue is key]
            assert key.inside == sum(place.standing is Standing.INSIDE for place in mine)
            assert list(key.waiting) == [place for place in mine if place.standing is Standing.WAITING]
            assert not key.limit or key.inside <= key.limit

    @invariant()
    def nobody_waits_while_there_is_room(self) -> None:
        free = self.places.inside < 3
        assert not any(free and key.has_room and key.waiting for key in self.keys)


TestAnyOrderOfCalls = AnyOrderOfCalls.TestCase
