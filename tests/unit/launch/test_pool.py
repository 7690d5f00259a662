"""Several routers asked as one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from kveik.errors import FleetError, RefusedError, RegistryError, UnknownEngineError
from kveik.launch.pool import PooledEngine, Routers, joined


def shown(name: str = "a", **fields: Any) -> dict[str, Any]:
    """An engine as /fleet shows it."""
    return {
        "id": name,
        "url": f"http://10.0.0.1/{name}",
        "fleet_state": "ready",
        "breaker": "closed",
        "in_flight": 0,
        "why": "",
        "namespace": "ab",
        "models": ["m"],
        **fields,
    }


@dataclass
class ShownRouter:
    """A router that shows these engines."""

    engines: list[dict[str, Any]]
    url: str = "http://router"
    held: list[tuple[str, str, str]] = field(default_factory=list)

    def traffic(self) -> Mapping[str, Any]:
        return {"engines": self.engines}

    def requests(self) -> Sequence[Mapping[str, Any]]:
        return [{"request_id": self.url}]

    def hold(self, name: str, action: str, reason: str) -> Mapping[str, Any]:
        if name not in [engine["id"] for engine in self.engines]:
            raise UnknownEngineError(f"no engine {name!r}")
        self.held.append((name, action, reason))
        return {}


def test_an_engine_takes_requests_if_it_is_ready_and_its_breaker_closed() -> None:
    pool = joined([{"engines": [shown("a"), shown("b", breaker="open"), shown("c", fleet_state="draining")]}])
    assert {name: engine.takes for name, engine in pool.items()} == {"a": True, "b": False, "c": False}
    assert pool["a"] == PooledEngine("a", "http://10.0.0.1/a", "ready", takes=True, namespace="ab", models=("m",))


def test_what_is_under_way_counts_at_all_routers_and_the_furthest_from_traffic_is_the_state() -> None:
    routers = Routers(
        [
            ShownRouter([shown(in_flight=2)]),
            ShownRouter([shown(in_flight=3, fleet_state="isolated", why="hung", namespace="")]),
        ]
    )
    engine = routers.look()["a"]
    assert (engine.in_flight, engine.state, engine.takes) == (5, "isolated", False)
    assert (engine.why, engine.namespace) == ("hung", "ab")
    assert not engine.out, "one router may still send it requests"
    assert Routers([ShownRouter([shown(fleet_state=state)]) for state in ("isolated", "lost")]).look()["a"].out


def test_an_engine_that_one_router_does_not_know_is_not_in_the_pool() -> None:
    engine = Routers([ShownRouter([shown()]), ShownRouter([])]).look()["a"]
    assert not engine.takes
    assert engine.why == "only 1 of 2 routers know it"


def test_a_hold_is_set_at_all_routers_that_know_the_engine() -> None:
    knows, knows_not = ShownRouter([shown()]), ShownRouter([])
    Routers([knows_not, knows]).hold("a", "drain", "why")
    assert knows.held == [("a", "drain", "why")]
    with pytest.raises(UnknownEngineError, match="no engine 'b'"):
        Routers([knows_not, knows]).hold("b", "drain", "why")


@dataclass
class FailingRouter(ShownRouter):
    """A router that answers everything with an error."""

    error: FleetError = field(default_factory=lambda: RegistryError("no answer"))

    def traffic(self) -> Mapping[str, Any]:
        raise self.error

    def hold(self, name: str, action: str, reason: str) -> Mapping[str, Any]:
        raise self.error


def refused() -> FleetError:
    error = RegistryError("connection refused")
    error.__cause__ = ConnectionRefusedError()
    return error


def test_a_router_that_is_not_there_sends_nothing_and_is_done_without() -> None:
    there, gone = ShownRouter([shown()]), FailingRouter([], error=refused())
    routers = Routers([gone, there])
    assert routers.look()["a"].takes
    routers.hold("a", "drain", "why")
    assert there.held == [("a", "drain", "why")]
    for call in (Routers([gone]).look, lambda: Routers([gone]).hold("a", "drain", "why")):
        with pytest.raises(FleetError, match="connection refused"):
            call()


def test_an_engine_that_is_isolated_already_need_not_be_drained() -> None:
    Routers([FailingRouter([], error=RefusedError("it gets no requests already"))]).hold("a", "drain", "why")


def test_a_router_that_does_not_answer_is_an_error_since_it_may_still_send_requests() -> None:
    routers = Routers([ShownRouter([shown()]), FailingRouter([])])
    for call in (routers.look, lambda: routers.hold("a", "drain", "why")):
        with pytest.raises(FleetError, match="no answer"):
            call()


@pytest.mark.parametrize("document", [{}, {"engines": {}}, {"engines": [{"id": "a"}]}, {"engines": [7]}])
def test_what_is_no_routers_document_is_told(document: Mapping[str, Any]) -> None:
    with pytest.raises(FleetError, match="of this version"):
        joined([document])


def test_the_latest_requests_of_all_routers_are_told() -> None:
    routers = Routers([ShownRouter([], "http://one"), ShownRouter([], "http://two")])
    assert [row["request_id"] for row in routers.requests()] == ["http://one", "http://two"]
