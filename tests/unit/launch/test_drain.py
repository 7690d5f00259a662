"""Out of the pool without a lost request, and in again."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from kveik.clock import FakeClock
from kveik.errors import FleetError, RegistryError, UnknownEngineError
from kveik.launch.drain import Drained, begin_drain, readmit, wait_drained, wait_ready
from kveik.launch.pool import PooledEngine

Moment = PooledEngine | None | FleetError


def engine(state: str, in_flight: int = 0, *, takes: bool = False, why: str = "") -> PooledEngine:
    out = state in ("draining", "isolated", "lost")
    return PooledEngine("a", "http://a", state, takes, out, in_flight, why)


@dataclass
class ScriptedPool:
    """Routers that show one moment after the other; the last one stays."""

    moments: list[Moment]
    holds: list[str] = field(default_factory=list)

    def look(self) -> Mapping[str, PooledEngine]:
        moment = self.moments.pop(0) if len(self.moments) > 1 else self.moments[0]
        if isinstance(moment, FleetError):
            raise moment
        return {} if moment is None else {"a": moment}

    def hold(self, name: str, action: str, reason: str) -> None:
        self.holds.append(action)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def pause(clock: FakeClock) -> Callable[[float], bool]:
    def wait(seconds: float) -> bool:
        clock.advance(seconds)
        return False

    return wait


def drained(pool: ScriptedPool, clock: FakeClock, pause: Callable[[float], bool], limit_s: float = 10.0) -> Drained:
    return wait_drained(pool, "a", limit_s, pause=pause, clock=clock)


def test_it_is_drained_when_no_router_sends_anything_and_nothing_is_under_way(
    clock: FakeClock, pause: Callable[[float], bool]
) -> None:
    told: list[int] = []
    moments: list[Moment] = [engine("ready", 3), engine("draining", 3), engine("draining", 1), engine("draining")]
    done = wait_drained(ScriptedPool(moments), "a", 10.0, pause=pause, told=told.append, clock=clock)
    assert (done.left, done.stopped) == (0, False)
    assert told == [3, 1, 0], "each number is told once"


def test_nothing_under_way_is_not_enough_while_a_router_may_still_send_requests(
    clock: FakeClock, pause: Callable[[float], bool]
) -> None:
    late = ScriptedPool([engine("ready"), engine("ready", 1), engine("draining", 1), engine("draining")])
    assert drained(late, clock, pause).left == 0
    assert len(late.moments) == 1


def test_at_the_limit_it_says_how_many_are_left(clock: FakeClock, pause: Callable[[float], bool]) -> None:
    done = drained(ScriptedPool([engine("draining", 2)]), clock, pause, limit_s=5.0)
    assert done.left == 2
    assert done.seconds == pytest.approx(5.0)


def test_an_engine_that_has_left_the_fleet_is_drained(clock: FakeClock, pause: Callable[[float], bool]) -> None:
    assert drained(ScriptedPool([None]), clock, pause).left == 0


def test_a_router_that_restarts_meanwhile_is_asked_again(clock: FakeClock, pause: Callable[[float], bool]) -> None:
    away = RegistryError("connection refused")
    assert drained(ScriptedPool([engine("draining", 2), away, away, engine("draining")]), clock, pause).left == 0
    assert drained(ScriptedPool([engine("draining", 2), away]), clock, pause).left == 2, "what it said last"
    with pytest.raises(RegistryError):
        drained(ScriptedPool([away]), clock, pause)


def test_who_does_not_want_to_wait_gets_the_number_that_is_left(clock: FakeClock) -> None:
    done = wait_drained(ScriptedPool([engine("draining", 2)]), "a", 10.0, pause=lambda _: True, clock=clock)
    assert (done.left, done.stopped) == (2, True)


def test_no_new_requests_go_to_an_engine_that_begins_to_drain_and_an_unknown_one_is_named() -> None:
    pool = ScriptedPool([engine("ready")])
    begin_drain(pool, "a", "why")
    assert pool.holds == ["drain"]
    with pytest.raises(UnknownEngineError, match="no engine 'b' in the fleet; known are a"):
        begin_drain(pool, "b", "why")


@pytest.mark.parametrize(
    ("state", "holds"), [("draining", ["readmit"]), ("isolated", ["readmit"]), ("ready", []), ("lost", [])]
)
def test_only_an_engine_on_hold_is_readmitted(state: str, holds: list[str]) -> None:
    pool = ScriptedPool([engine(state)])
    readmit(pool, "a", "why")
    assert pool.holds == holds


def test_ready_is_waited_for_and_what_it_is_instead_is_told(clock: FakeClock, pause: Callable[[float], bool]) -> None:
    moments: list[Moment] = [None, RegistryError("no answer"), engine("announced"), engine("ready", takes=True)]
    assert wait_ready(ScriptedPool(moments), "a", 10.0, pause=pause, clock=clock) == (True, "")
    for moment, why in (
        (None, "a is not announced at the router"),
        (engine("announced", why="its /v1/models lists no model"), "a is announced: its /v1/models lists no model"),
        (engine("ready", why="no answer"), "a is out after failures: no answer"),
        (RegistryError("connection refused"), "connection refused"),
    ):
        assert wait_ready(ScriptedPool([moment]), "a", 1.0, pause=pause, clock=clock) == (False, why)
