from kveik.fleet.lifecycle import Event
from kveik.fleet.membership import DEFAULT_RETENTION, Membership
from kveik.fleet.registry import Publication, SteadyTime
from kveik.records import Record
from tests.fleet import engine


class JumpingClock:
    """A machine whose wall clock is set while it runs."""

    def __init__(self) -> None:
        self.monotonic_s, self.wall_s = 5.0, 1000.0

    def monotonic(self) -> float:
        return self.monotonic_s

    def wall(self) -> float:
        return self.wall_s


def test_leases_do_not_end_because_somebody_sets_the_clock() -> None:
    clock = JumpingClock()
    time = SteadyTime(clock)
    assert time.now_s() == 1000.0
    clock.monotonic_s += 3.0
    clock.wall_s += 86_400.0
    assert time.now_s() == 1003.0


def test_a_view_without_a_visible_change_is_published_in_silence() -> None:
    views: list[Membership] = []
    records: list[Record] = []
    publication = Publication(DEFAULT_RETENTION, records.append)
    publication.subscribe(views.append)
    one = publication.view.announce(engine(1), 0.0)
    publication.publish(one)
    publication.publish(one.renew("e1", 5.0))
    assert len(views) == 2
    assert len(records) == 1
    assert publication.view.member("e1").lease_ends_s == 20.0
    publication.publish(publication.view.apply("e1", Event.DRAIN, "update", 6.0))
    assert len(views) == 3
    assert publication.wait_change(0, 0.0).revision == 2


def test_who_subscribes_is_told_how_it_is_now() -> None:
    publication = Publication(DEFAULT_RETENTION)
    publication.publish(publication.view.announce(engine(1), 0.0))
    views: list[Membership] = []
    publication.subscribe(views.append)
    assert [list(view.members) for view in views] == [["e1"]]
    assert [member.name for member in publication.members()] == ["e1"]
