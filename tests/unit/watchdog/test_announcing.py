import itertools
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kveik.clock import FakeClock
from kveik.engine.client import EngineClient
from kveik.engine.process import free_port
from kveik.errors import FleetError
from kveik.fleet.announcement import EngineAnnouncement
from kveik.fleet.client import FleetClient
from kveik.fleet.embedded import EmbeddedRegistry
from kveik.fleet.lifecycle import Event, State
from kveik.fleet.member_file import MemberFile
from kveik.fleet.registration import Look
from kveik.router.fleet_api import Admission, FleetAdmin, FleetApi
from kveik.watchdog.announcing import (
    AtRouter,
    Door,
    EngineWatch,
    Move,
    RouterView,
    Shown,
    Wish,
    look_at_router,
    next_move,
)
from tests.fleet import engine, served
from tests.pages import Pages, served_pages

WORDS = engine(1, lease_s=600.0)
TOLD = AtRouter(announced=WORDS, beat_due_s=100.0)
HELD = AtRouter(announced=WORDS, held=True, beat_due_s=100.0)
OURS, READY = Shown("isolated", "watchdog: hung"), Shown("ready")


@pytest.mark.parametrize(
    ("wish", "at", "words", "shown", "now_s", "move"),
    [
        (Wish.NOTHING, AtRouter(), WORDS, None, 0.0, None),
        (Wish.OPEN, AtRouter(), None, None, 0.0, None),  # nothing is known of it
        (Wish.OPEN, AtRouter(), WORDS, None, 0.0, Move.ANNOUNCE),
        (Wish.OPEN, TOLD, WORDS, None, 0.0, None),
        (Wish.OPEN, TOLD, WORDS, None, 100.0, Move.RENEW),
        (Wish.OPEN, TOLD, engine(1, models=("new",)), None, 0.0, Move.ANNOUNCE),
        (Wish.OPEN, HELD, WORDS, None, 0.0, Move.READMIT),
        (Wish.OPEN, AtRouter(), None, OURS, 0.0, Move.READMIT),  # of a watchdog before this one
        (Wish.OPEN, AtRouter(), None, Shown("isolated", "a person said so"), 0.0, None),
        (Wish.CLOSED, AtRouter(), None, None, 0.0, Move.ISOLATE),  # by name: it may be known from before
        (Wish.CLOSED, TOLD, WORDS, READY, 0.0, Move.ISOLATE),
        (Wish.CLOSED, HELD, WORDS, OURS, 0.0, None),
        (Wish.CLOSED, HELD, WORDS, OURS, 100.0, Move.RENEW),
        (Wish.AWAY, TOLD, WORDS, None, 0.0, Move.WITHDRAW),
        (Wish.AWAY, AtRouter(), WORDS, None, 0.0, None),
        (Wish.AWAY, AtRouter(), None, READY, 0.0, Move.WITHDRAW),  # announced by a watchdog before this one
        (Wish.AWAY, AtRouter(), None, OURS, 0.0, None),  # isolation outlives a withdrawal
    ],
)
def test_what_a_router_is_told_next(
    wish: Wish, at: AtRouter, words: EngineAnnouncement | None, shown: Shown | None, now_s: float, move: Move | None
) -> None:
    assert next_move(wish, at, words, shown, now_s) is move


class Router:
    """A router's registry and fleet API on a port that it keeps; to be ended, and started with and without memory."""

    def __init__(self, folder: Path, clock: FakeClock) -> None:
        self.file = folder / "fleet.json"
        self._clock = clock
        self._running = ExitStack()
        self.port = 0
        self.start()
        self.client = FleetClient(f"127.0.0.1:{self.port}")

    def start(self) -> None:
        self.registry = EmbeddedRegistry(MemberFile(self.file, lock_wait_s=0.0), clock=self._clock, ticking=False)
        admin = FleetAdmin(FleetApi(self.registry, self._clock), Admission("", loopback=True))
        self.port = int(self._running.enter_context(served(admin, self.port)).rpartition(":")[2])

    def stop(self) -> None:
        self._running.pop_all().close()
        self.registry.close()

    def prove(self) -> None:
        """The router's own request was answered: the engine is ready."""
        self.registry.change_state("e1", Event.PROVE, "answered")

    @property
    def state(self) -> State | None:
        member = self.registry.view.members.get("e1")
        return member.state if member else None

    @property
    def why(self) -> str:
        return self.registry.view.members["e1"].why


class Fleet:
    """Two routers and the door of engine e1."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.routers = [Router(folder / str(number), self.clock) for number in range(2)]
        self.first, self.second = self.routers
        self.news: list[str] = []
        self.watchdog_begins()

    def watchdog_begins(self) -> None:
        self.door = Door("e1", [router.client for router in self.routers], clock=self.clock)

    def keep(self, *, looking: bool = False) -> list[str]:
        """Two seconds later."""
        self.clock.advance(2.0)
        views = {}
        for router in self.routers if looking else ():
            try:
                views[router.client.url] = look_at_router(router.client, self.clock)
            except FleetError:
                continue
        self.views = views
        self.clock.advance(0.01)
        self.news = self.door.keep(views)
        return self.news

    @property
    def states(self) -> list[State | None]:
        return [router.state for router in self.routers]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path)
    yield fleet
    for router in fleet.routers:
        router.stop()


def test_an_engine_is_announced_at_all_routers_with_a_long_lease(fleet: Fleet) -> None:
    fleet.door.open(WORDS)
    assert len(fleet.keep()) == 2
    assert fleet.states == [State.ANNOUNCED] * 2
    assert fleet.first.registry.members()[0].announcement.lease_s == 600.0
    assert fleet.keep() == []


def test_its_lease_is_renewed_in_time(fleet: Fleet) -> None:
    fleet.door.open(WORDS)
    for _ in range(5):
        fleet.keep()
        fleet.clock.advance(250.0)
        fleet.keep()
        fleet.first.registry.tick()
        assert fleet.states == [State.ANNOUNCED] * 2


def test_it_is_isolated_with_the_reason_and_readmitted(fleet: Fleet) -> None:
    fleet.door.open(WORDS)
    fleet.keep()
    fleet.door.close("hung: 3 requests wait")
    fleet.keep()
    assert fleet.states == [State.ISOLATED] * 2
    assert fleet.first.why == "watchdog: hung: 3 requests wait"
    fleet.door.open(WORDS)
    fleet.keep()
    assert fleet.states == [State.ANNOUNCED] * 2, "it has to prove itself at the router, and starts slowly"


def test_a_router_that_is_away_is_told_when_it_is_back(fleet: Fleet) -> None:
    fleet.door.open(WORDS)
    fleet.keep()
    fleet.first.prove()
    fleet.first.stop()
    fleet.door.close("dead")
    news = fleet.keep()
    assert fleet.second.state is State.ISOLATED
    assert any("it is tried again" in line for line in news)
    assert fleet.door.trouble
    assert all("tried again" not in line for line in fleet.keep()), "said once"
    fleet.first.start()
    fleet.keep(looking=True)
    assert fleet.states == [State.ISOLATED] * 2
    assert not fleet.door.trouble


def test_a_router_that_does_not_answer_is_asked_more_and_more_seldom(fleet: Fleet) -> None:
    fleet.first.stop()
    asked: list[float] = []
    announce = fleet.first.client.announce

    def counting(announcement: EngineAnnouncement) -> Mapping[str, Any]:
        asked.append(fleet.clock.monotonic())
        return announce(announcement)

    fleet.first.client.announce = counting  # type: ignore[method-assign]
    fleet.door.open(WORDS)
    for _ in range(40):
        fleet.keep()
    pauses = [after - before for before, after in itertools.pairwise(asked)]
    assert pauses[0] < 3
    assert pauses == sorted(pauses)
    assert 10 <= pauses[-1] < 13
    fleet.first.start()
    fleet.keep()
    fleet.keep(looking=True)
    assert fleet.states == [State.ANNOUNCED] * 2, "as soon as it shows anything it is told"


def test_a_router_without_memory_learns_all_again_the_isolation_too(fleet: Fleet) -> None:
    fleet.door.open(WORDS)
    fleet.keep()
    fleet.door.close("dead")
    fleet.keep()
    fleet.first.stop()
    fleet.first.file.unlink()
    fleet.first.start()
    fleet.keep(looking=True)
    assert fleet.states == [State.ISOLATED] * 2


def test_an_engine_that_a_router_forgot_is_announced_again(fleet: Fleet) -> None:
    fleet.door.open(WORDS)
    fleet.keep()
    fleet.first.registry.withdraw("e1", "somebody did")
    fleet.keep(looking=True)
    assert fleet.states == [State.ANNOUNCED] * 2


def test_what_a_person_readmits_is_noticed_and_isolated_again_only_on_a_new_order(fleet: Fleet) -> None:
    fleet.door.open(WORDS)
    fleet.keep()
    fleet.door.close("5 restarts did not help")
    fleet.keep(looking=True)
    assert not fleet.door.readmitted
    fleet.first.client.hold("e1", "readmit", "")
    fleet.keep(looking=True)
    assert fleet.door.readmitted
    assert fleet.first.state is State.ANNOUNCED
    fleet.door.close("hung again")
    assert not fleet.door.readmitted
    fleet.keep()
    assert fleet.states == [State.ISOLATED] * 2


def test_a_view_from_before_our_own_word_is_no_readmission(fleet: Fleet) -> None:
    fleet.door.open(WORDS)
    fleet.keep(looking=True)
    before = fleet.views
    fleet.door.close("hung")
    fleet.keep()
    fleet.door.keep(before)
    assert not fleet.door.readmitted


def test_holds_of_people_are_theirs(fleet: Fleet) -> None:
    fleet.door.open(WORDS)
    fleet.keep()
    fleet.first.client.hold("e1", "drain", "update")
    fleet.keep(looking=True)
    assert fleet.door.held_by_others(fleet.views) == "it is draining at the router: update"
    assert fleet.states[0] is State.DRAINING
    fleet.first.client.hold("e1", "isolate", "I do not trust it")
    fleet.keep(looking=True)
    assert fleet.first.state is State.ISOLATED, "only who isolated it readmits it"


def test_our_own_holds_are_no_holds_of_people(fleet: Fleet) -> None:
    fleet.door.open(WORDS)
    fleet.keep()
    fleet.door.close("hung")
    fleet.keep()
    fleet.keep(looking=True)
    assert fleet.door.held_by_others(fleet.views) == ""


def test_the_next_watchdog_isolates_by_name_what_it_cannot_ask(fleet: Fleet) -> None:
    fleet.door.open(WORDS)
    fleet.keep()
    fleet.watchdog_begins()
    fleet.door.close("hung")
    fleet.keep()
    assert fleet.states == [State.ISOLATED] * 2


def test_the_next_watchdog_readmits_what_the_one_before_isolated(fleet: Fleet) -> None:
    fleet.door.open(WORDS)
    fleet.keep()
    fleet.door.close("hung")
    fleet.keep()
    fleet.watchdog_begins()
    fleet.door.open(WORDS)
    fleet.keep()
    assert fleet.states == [State.ANNOUNCED] * 2


def test_the_next_watchdog_obeys_who_readmitted_it_while_there_was_none(fleet: Fleet) -> None:
    fleet.door.open(WORDS)
    fleet.keep()
    fleet.door.close("5 restarts did not help")
    fleet.keep()
    fleet.watchdog_begins()
    for router in fleet.routers:
        router.client.hold("e1", "readmit", "")
    fleet.door.closed_before("5 restarts did not help")
    fleet.keep(looking=True)
    assert fleet.door.readmitted
    assert fleet.states == [State.ANNOUNCED] * 2


def test_an_engine_that_never_answered_needs_no_isolation(fleet: Fleet) -> None:
    fleet.door.close("it answers nonsense")
    (news, _) = fleet.keep()
    assert "does not know e1 yet" in news
    assert fleet.states == [None, None]


def test_a_listed_engine_is_held_and_never_announced(fleet: Fleet) -> None:
    fleet.door.listed = True
    for router in fleet.routers:
        router.registry.announce(engine(1, lease_s=0.0), listed=True)
    fleet.door.open(WORDS)
    assert fleet.keep() == []
    fleet.door.close("hung")
    fleet.keep()
    assert fleet.states == [State.ISOLATED] * 2
    fleet.door.open(WORDS)
    fleet.keep()
    assert fleet.states == [State.ANNOUNCED] * 2


def test_an_engine_that_was_stopped_on_purpose_is_taken_out(fleet: Fleet) -> None:
    fleet.door.open(WORDS)
    fleet.keep()
    fleet.door.leave()
    fleet.keep()
    assert fleet.states == [None, None]
    assert fleet.keep() == []


def test_an_engine_whose_lease_ended_announces_itself_before_it_is_readmitted(fleet: Fleet) -> None:
    fleet.door.open(WORDS)
    fleet.keep()
    fleet.door.close("hung")
    fleet.keep()
    for router in fleet.routers:
        router.registry.withdraw("e1", "gone")
    fleet.door.open(WORDS)
    fleet.keep()
    assert fleet.states == [State.ANNOUNCED] * 2


def test_an_engine_that_was_lost_is_announced_again(fleet: Fleet) -> None:
    fleet.door.open(WORDS)
    fleet.keep()
    fleet.clock.advance(601.0)
    fleet.first.registry.tick()
    assert fleet.states[0] is State.LOST
    fleet.keep(looking=True)
    assert fleet.states == [State.ANNOUNCED] * 2


def test_views_say_which_engines_get_requests(fleet: Fleet) -> None:
    fleet.door.open(WORDS)
    fleet.keep()
    fleet.first.prove()
    fleet.keep(looking=True)
    assert [sorted(view.ready) for view in fleet.views.values()] == [["e1"], []]


def test_what_is_no_router_is_said() -> None:
    with (
        served_pages({"/fleet/engines": (200, "{}")}) as url,
        pytest.raises(FleetError, match="is that a Kveik router"),
    ):
        look_at_router(FleetClient(url))
    with pytest.raises(FleetError):
        look_at_router(FleetClient(f"127.0.0.1:{free_port()}"))
    assert RouterView(0.0, {}).ready == frozenset()


def test_a_namespace_that_the_engine_tells_later_is_announced_and_metrics_are_read_no_more() -> None:
    asked: list[str] = []
    pages: Pages = {
        "/v1/models": (200, '{"data": [{"id": "qwen3-8b"}]}'),
        "/metrics": (200, "kveik_connector_attached 1.0\n"),
    }
    with served_pages(pages, asked) as url:
        watch = EngineWatch(EngineClient(url), EngineAnnouncement(url=url))
        assert seen(watch).namespace == ""
        pages["/metrics"] = 200, 'kveik_connector_attached 1.0\nkveik_connector_namespace{digest="abcd"} 1.0\n'
        assert seen(watch).namespace == "abcd"
        asked.clear()
        assert seen(watch).namespace == "abcd"
        assert asked == ["/v1/models"]


def test_an_adapter_that_was_loaded_is_announced() -> None:
    pages: Pages = {"/v1/models": (200, '{"data": [{"id": "qwen3-8b"}]}'), "/metrics": (200, "")}
    with served_pages(pages) as url:
        watch = EngineWatch(EngineClient(url), EngineAnnouncement(url=url))
        assert seen(watch).models == ("qwen3-8b",)
        pages["/v1/models"] = 200, '{"data": [{"id": "qwen3-8b"}, {"id": "adapter"}]}'
        assert seen(watch).models == ("qwen3-8b", "adapter")


def test_an_engine_that_answers_nonsense_is_silent_and_one_that_is_not_there_refuses() -> None:
    pages: Pages = {"/v1/models": (500, "oops")}
    with served_pages(pages) as url:
        watch = EngineWatch(EngineClient(url), EngineAnnouncement(url=url))
        look, words, why = watch.look()
        assert (look, words) == (Look.SILENT, None)
        assert "HTTP 500: oops" in why
    assert watch.look()[0] is Look.REFUSES


def seen(watch: EngineWatch) -> EngineAnnouncement:
    look, words, _ = watch.look()
    assert look is Look.ANSWERS
    assert words is not None
    return words
