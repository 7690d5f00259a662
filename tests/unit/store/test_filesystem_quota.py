"""Shares of the room in a folder: together never more than there is."""

from hypothesis import given
from hypothesis import strategies as st

from kveik.clock import FakeClock
from kveik.store.filesystem_quota import Allowance, Round, ShareBook, room_for, share

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
    allowance.renew(Round(LIMIT, 2, True, 0))
    allowance.heard()
    assert allowance.take(LIMIT // 4)
    assert not allowance.take(1)


def test_without_a_limit_everything_may_be_written() -> None:
    assert Allowance(0, FakeClock(), alone=False).take(1 << 60)


def test_alone_the_whole_limit_may_be_used_and_what_was_removed_again() -> None:
    allowance = Allowance(LIMIT, FakeClock(), alone=True)

    write(allowance, LIMIT)
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
    allowance.renew(Round(LIMIT, 1, True, 0))
    allowance.heard()
    return allowance


def write(allowance: Allowance, size: int) -> None:
    assert allowance.take(size)
    allowance.wrote(size)


def test_what_was_written_beyond_the_report_that_a_round_knew_of_counts_against_the_new_share() -> None:
    allowance = shared(FakeClock())
    write(allowance, 1000)
    write(allowance, 500)
    assert allowance.take(7), "under way"
    assert allowance.written_bytes == 1500

    allowance.renew(Round(LIMIT - 1000, 1, True, 1000))
    assert repr(allowance) == f"Allowance(507 of {(LIMIT - 1000) * 3 // 4} bytes used)"
    allowance.renew(Round(LIMIT, 1, False, 0))
    assert repr(allowance) == f"Allowance(507 of {LIMIT // 16} bytes used)", "an older report tells nothing"


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


def test_a_block_that_is_large_against_its_share_tells_how_much_room_it_needs() -> None:
    allowance = shared(FakeClock())
    allowance.renew(Round(1000, 4, True, 0))

    assert not allowance.take(500)
    allowance.renew(Round(allowance.room_for(500), 4, True, 0))
    assert allowance.take(500)


def test_between_counts_the_book_adds_what_was_reported_since_the_count_began() -> None:
    book = ShareBook()
    book.counted(1000, {"a": 50, "b": 0})

    assert book.used({"a": 50, "b": 0}) == 1000
    assert book.used({"a": 80, "b": 7, "new": 3}) == 1040
    assert book.used({"a": 90}) == 1050, "of one that is gone the last report counts"
    book.counted(1045, {"a": 90})
    assert book.used({"a": 90}) == 1045
    assert book.used({"a": 10}) == 1045, "a report that became smaller is another process's, or nonsense"


def test_the_book_knows_who_came_and_who_went() -> None:
    book = ShareBook()
    assert book.grew({"a"})
    assert not book.lost_one({"a"})
    book.given({"a", "b"})

    assert book.shares == 2
    assert not book.grew({"a", "b"})
    assert not book.grew({"a"})
    assert book.grew({"a", "c"})
    assert book.lost_one({"a", "c"})
    assert not book.lost_one({"a", "b", "c"})


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans(), st.integers(1, 60_000)), max_size=80),
    st.integers(2, 4),
)
def test_processes_that_write_as_they_may_never_pass_the_limit_together(
    steps: list[tuple[int, bool, bool, int]], writers: int
) -> None:
    """The first counts, or goes by reports; no share before all have heard of the last. All report when they like."""
    clock, book = FakeClock(), ShareBook()
    nodes = [Allowance(LIMIT, clock, alone=False) for _ in range(writers)]
    reports = {str(number): 0 for number in range(writers)}
    stored, room, given = 0, LIMIT, dict(reports)
    heard = [True] * writers
    for node in nodes:
        node.renew(Round(LIMIT, writers, True, 0))
    for number, counts, tells, size in steps:
        who = number % writers
        node = nodes[who]
        if who == 0 and all(heard):
            reports["0"] = node.written_bytes
            if counts:
                book.counted(stored, reports)
            room, given, heard = LIMIT - book.used(reports), dict(reports), [False] * writers
        if not heard[who]:
            node.renew(Round(room, writers, True, given[str(who)]))
            heard[who] = True
        node.heard()
        if node.take(size):
            node.wrote(size)
            stored += size
        if tells:
            reports[str(who)] = node.written_bytes
        assert stored <= LIMIT
