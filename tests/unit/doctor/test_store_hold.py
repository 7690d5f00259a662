"""The doctor's own roll call before agents run: nodes that hold it at once see each other, or have two stores."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kveik.config import AgentSettings, StoreSettings
from kveik.doctor import store_hold
from kveik.doctor.check import Outcome, Point
from kveik.doctor.fleet_described import DescribedEngine, DescribedFleet
from kveik.doctor.store_hold import Held, hold, judge_held
from kveik.doctor.store_pairs import NodeCalls, Seen
from kveik.doctor.store_pairs_check import check_pairs
from kveik.doctor.store_trial import stores_of
from kveik.store.roll_call import Roster
from kveik.store.roll_call_verdict import Presence
from tests.agents import running_agent
from tests.unit.doctor.paper_fleet import context_of

NODES = ("n0", "n1")
LONG_S = 60.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_hold, "PERIOD_S", 0.1)
    monkeypatch.setattr(store_hold, "LINGER_S", 0.5)


def held(folder: Path, node: str, hold_s: float = LONG_S) -> Held:
    stores = stores_of(AgentSettings(filesystem=str(folder), filesystem_reserve_bytes=0), StoreSettings())
    return hold(stores, Roster("f", node, NODES), hold_s)


def at_once(calls: list[Callable[[], Held]]) -> list[Held]:
    found: list[Held] = []
    threads = [threading.Thread(target=lambda call=call: found.append(call())) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(found, key=lambda one: one.calls.node)


def judged(one: Held) -> list[Point]:
    return list(judge_held(one, 1.0))


def test_two_nodes_on_one_folder_see_each_other_and_leave_nothing_there(tmp_path: Path) -> None:
    found = at_once([lambda: held(tmp_path, "n0"), lambda: held(tmp_path, "n1")])
    assert [point.outcome for one in found for point in judged(one)] == [Outcome.WELL, Outcome.WELL]
    assert "n0, n1 were all seen" in judged(found[0])[0].told
    assert list(tmp_path.rglob("*.kvb")) == []


def test_two_nodes_with_a_folder_each_do_not(tmp_path: Path) -> None:
    for node in NODES:
        (tmp_path / node).mkdir()
    found = at_once([lambda: held(tmp_path / "n0", "n0", 0.5), lambda: held(tmp_path / "n1", "n1", 0.5)])
    points = [point for one in found for point in judged(one)]
    assert [point.outcome for point in points] == [Outcome.WRONG, Outcome.WRONG]
    assert points[0].about == "n0 reads n1 in the filesystem tier"
    assert "same time" in points[0].remedy


def test_a_store_that_cannot_be_used_is_not_judged(tmp_path: Path) -> None:
    (point,) = judged(held(tmp_path / "missing", "n0"))
    assert (point.outcome, "a mount is missing" in point.told) == (Outcome.UNKNOWN, True)


@pytest.mark.parametrize(
    ("presence", "outcome"),
    [
        (Presence.HERE, Outcome.WELL),
        (Presence.NO_ANSWER, Outcome.UNKNOWN),
        (Presence.OTHER_BYTES, Outcome.WRONG),
        (Presence.WAITING, Outcome.WRONG),
        (Presence.OLD, Outcome.WRONG),
    ],
)
def test_each_way_of_not_being_seen_has_its_outcome(presence: Presence, outcome: Outcome) -> None:
    calls = NodeCalls("n0", {"redis": {"n0": Seen(Presence.HERE), "n1": Seen(presence, "why")}})
    assert [point.outcome for point in judged(Held(calls, {}))] == [outcome]


def described(folder: Path) -> DescribedFleet:
    config = folder / "kveik.toml"
    config.write_text('[fleet]\nname = "f"\n')
    (folder / "tier").mkdir(exist_ok=True)
    settings = AgentSettings(filesystem=str(folder / "tier"), filesystem_reserve_bytes=0)
    engines = tuple(DescribedEngine(f"e-{node}", "http://10.0.0.1:1", node=node, shared_cache=True) for node in NODES)
    return DescribedFleet("paper", engines=engines, node="n0", config=config, agent=settings)


def test_the_check_holds_it_where_no_agent_answers_and_sees_one_that_runs_elsewhere(tmp_path: Path) -> None:
    context = context_of(described=described(tmp_path), hold_s=LONG_S)
    with running_agent(
        tmp_path, filesystem=str(tmp_path / "tier"), probe_period_s=0.1, fleet="f", node="n1", nodes="n0,n1"
    ):
        verdict = check_pairs(context)
    assert verdict.outcome is Outcome.WELL
    assert list(verdict.evidence) == ["a roll call of the doctor's own, as node n0"]
