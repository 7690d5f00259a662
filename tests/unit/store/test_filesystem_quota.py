"""Shares of the room in a folder: together never more than there is."""

from hypothesis import given
from hypothesis import strategies as st

from kveik.clock import FakeClock
from kveik.store.filesystem_quota import Allowance, Round, room_for, share

LIMIT = 1_000_000


@given(st.integers(-10, 1 << 50), st.integers(1, 300), st.integers(0, 300))
def test_the_shares_of_all_who_write_and_of_as_many_newcomers_fit_into_the_room(
    room: int, writers: int, late: int
) -> None:
    newcomers = min(late, max(4, writers))
    given_away = writers * share(room, writers, listed=True) + newcomers * share(room, writers, listed=False)

    assert given_away <= max(0, room)


@given(st.integers(1, 1 << 40), st.integers(1, 300))
def test_a_round_that_leaves_the_room_asked_for_gives_a_share_for_the_block(size: int, writers: int) -> None:
    assert share(room_for(size, writers), writers, listed=True) >= size


def test_nothing_may_be_written_before_somebody_counted() -> None:
    allowance = Allowance(LIMIT, FakeClock(), alone=False)

    assert not allowance.take(1)
    allowance.renew(Round(0, 2, True))
    allowance.heard()
    assert allowance.take(LIMIT // 4)
    assert not allowance.take(1)


def test_without_a_limit_everything_may_be_written() -> None:
    assert Allowance(0, FakeClock(), alone=False).take(1 << 60)


def test_alone_the_whole_limit_may_be_used_and_what_was_removed_again() -> None:
    allowance = Allowance(LIMIT, FakeClock(), alone=True)

    assert allowance.take(LIMIT)
    allowance.wrote(LIMIT)
    assert not allowance.take(1)
    allowance.removed(10)
    assert allowance.take(10)
    assert not allowance.take(1)


def test_what_was_taken_and_not_written_can_be_taken_again() -> None:
    allowance = Allowance(LIMIT, FakeClock(), alone=True)

    assert allowance.take(LIMIT)
    allowance.give_back(LIMIT)
    assert allowance.take(LIMIT)


def shared(clock: FakeClock) -> Allowance:
    allowance = Allowance(LIMIT, clock, alone=False, stale_s=30.0)
    allowance.renew(Round(0, 1, True))
    allowance.heard()
    return allowance


def write(allowance: Allowance, size: int) -> None:
    assert allowance.take(size)
    allowance.wrote(size)


def test_what_was_written_before_an_own_round_began_is_in_its_count_and_what_came_after_is_not() -> None:
    allowance = shared(FakeClock())
    write(allowance, 1000)
    allowance.begin()
    write(allowance, 500)
    assert allowance.take(7), "under way"

    allowance.renew(Round(1000, 1, True))

    assert repr(allowance) == f"Allowance(507 of {(LIMIT - 1000) * 3 // 4} bytes used)"


def test_what_may_have_been_written_after_anothers_round_began_counts_against_the_new_share() -> None:
    clock = FakeClock()
    allowance = shared(clock)
    write(allowance, 1000)
    clock.advance(10.0)
    write(allowance, 500)
    clock.advance(10.0)

    allowance.renew(Round(1500, 1, True, began_s=clock.monotonic() - 15.0))
    assert repr(allowance).startswith("Allowance(500 of")
    allowance.renew(Round(1500, 1, True, began_s=clock.monotonic() - 9.9))
    assert repr(allowance).startswith("Allowance(500 of"), "writes are remembered in spans of a quarter of a second"
    allowance.renew(Round(1500, 1, True, began_s=clock.monotonic() - 5.0))
    assert repr(allowance).startswith("Allowance(0 of")


def test_of_a_round_whose_beginning_nobody_knows_all_own_writes_count() -> None:
    clock = FakeClock()
    allowance = shared(clock)
    write(allowance, 1000)
    clock.advance(10.0)

    allowance.renew(Round(1000, 1, True, began_s=float("-inf")))

    assert repr(allowance).startswith("Allowance(1000 of")


def test_a_process_that_heard_nothing_for_a_while_may_not_write() -> None:
    clock = FakeClock()
    allowance = shared(clock)
    clock.advance(30.0)
    assert allowance.take(1)
    clock.advance(0.1)
    assert not allowance.take(1)
    allowance.heard()
    assert allowance.take(1)


def test_a_share_that_is_mostly_used_asks_for_a_round() -> None:
    allowance = shared(FakeClock())
    assert not allowance.low
    write(allowance, LIMIT * 3 // 4 * 3 // 4 + 1)
    assert allowance.low


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60_000)), max_size=80), st.integers(2, 4))
def test_processes_that_write_as_they_may_never_pass_the_limit_together(
    steps: list[tuple[int, int]], writers: int
) -> None:
    """Rounds by the first of them, no next one before all have heard of the last; each writes as much as it likes."""
    clock = FakeClock()
    all_of_them = [Allowance(LIMIT, clock, alone=False) for _ in range(writers)]
    stored, told = 0, Round(0, writers, True, 0.0)
    all_of_them[0].renew(Round(0, writers, True))
    heard: list[Round | None] = [None] * writers
    for who, size in steps:
        clock.advance(1.0)
        mine = all_of_them[who % writers]
        if who % writers == 0 and all(one is told for one in heard[1:]):
            mine.begin()
            told = Round(stored, writers, True, clock.monotonic())
            mine.renew(Round(stored, writers, True))
        elif who % writers and heard[who % writers] is not told:
            mine.renew(told)
            heard[who % writers] = told
        mine.heard()
        if mine.take(size):
            mine.wrote(size)
            stored += size
        assert stored <= LIMIT
