"""What the router knows and what nodes report, joined into one document."""

from collections.abc import Sequence
from typing import Any

import pytest

from kveik.breaker import Breaker, BreakerPolicy
from kveik.fleet.report import EngineReport, EventReport, NodeReport, PartReport, SightReport, TierReport
from kveik.fleet.status import EventLine, FleetStatus, History, Measured, RouterStatus
from kveik.router.engines import EngineView
from kveik.router.fleet_status import (
    EVENTS_KEPT,
    EVENTS_SHOWN,
    Seen,
    StateLog,
    called,
    engine_reports,
    hit_shares,
    joined,
    merged_events,
    part_name,
)
from kveik.router.node_reports import SILENT_AFTER_S, Heard
from tests.fleet import engine as announced

NOTHING = Measured(window_s=60.0)


def view(number: int = 1, **fields: Any) -> EngineView:
    words = {name: fields.pop(name) for name in ("simulated", "engine_id") if name in fields}
    return EngineView(announced(number, **words), slot=number, **fields)


def out(number: int = 1, why: str = "it was silent") -> EngineView:
    return view(number, why=why, breaker=Breaker(BreakerPolicy(1, 1.0, 2.0)).failed(0.0, timed_out=True))


def said(condition: str = "ready", number: int = 1, **fields: Any) -> EngineReport:
    return EngineReport(engine_id=f"e{number}", condition=condition, **fields)


def heard(*engines: EngineReport, node: str = "n0", age_s: float = 1.0, **fields: Any) -> Heard:
    return Heard(NodeReport(node=node, fleet="demo", at_s=0.0, engines=engines, **fields), age_s)


def status(engines: Sequence[EngineView], *nodes: Heard, **fields: Any) -> FleetStatus:
    router = fields.pop("router", RouterStatus(version="1", started_s=0.0, now_s=5.0))
    seen = Seen(
        router,
        engines,
        {engine.name: 3.0 for engine in engines},
        fields.pop("of_engine", lambda _: NOTHING),
        NOTHING,
        fields.pop("refused", {}),
        fields.pop("events", ()),
    )
    return joined(seen, nodes, History(sample_s=3.0, window_s=15.0))


def test_an_engine_is_shown_with_what_its_watchdog_says() -> None:
    shown = status([view(models=("m",), in_flight=4)], heard(said(kv_use=0.5, restarts=2), age_s=1.23))
    (engine,) = shown.engines
    assert (engine.id, engine.state, engine.well, engine.since_s, engine.in_flight) == ("e1", "ready", True, 3.0, 4)
    assert (engine.node, engine.report_age_s) == ("n0", 1.2)
    assert engine.report is not None
    assert (engine.report.kv_use, engine.report.restarts) == (0.5, 2)
    assert (shown.well, shown.fleet, shown.troubles, shown.notes) == (True, "demo", (), ())


def test_without_reports_what_is_known_is_shown_and_what_is_not_is_said() -> None:
    shown = status([view()])
    assert shown.engines[0].report is None
    assert shown.engines[0].report_age_s is None
    assert shown.well
    (note,) = shown.notes
    assert note.startswith("no watchdog reports here: conditions, KV use")


def test_an_engine_that_no_watchdog_speaks_of_is_named() -> None:
    shown = status([view(1), view(2)], heard(said()))
    assert shown.notes == ("no watchdog reports engine e2: its condition, KV use and hits are not known",)


def test_an_engine_that_only_a_watchdog_knows_is_shown_as_not_in_the_fleet() -> None:
    shown = status([view(1)], heard(said(), said("starting", number=9, why="loading")))
    assert [(engine.id, engine.state, engine.well) for engine in shown.engines] == [
        ("e1", "ready", True), ("e9", "gone", False)
    ]  # fmt: skip
    assert shown.troubles == ("engine e9 is not in the fleet; its watchdog calls it starting: loading",)
    assert (shown.totals.ready, shown.totals.engines) == (1, 2)


def test_what_a_silent_node_said_of_engines_that_nobody_knows_is_forgotten() -> None:
    shown = status([view(1)], heard(said(), said("starting", number=9), age_s=SILENT_AFTER_S + 1))
    assert [engine.id for engine in shown.engines] == ["e1"]


def test_an_empty_fleet_is_not_well() -> None:
    assert status([]).troubles == ("no engine is in the fleet",)


@pytest.mark.parametrize("state", ["announced", "draining", "isolated", "lost"])
def test_an_engine_that_takes_no_requests_is_a_trouble_with_its_reason(state: str) -> None:
    shown = status([view(state=state, why="because")], heard(said()))
    assert shown.troubles == (f"engine e1 is {state}: because",)
    assert not shown.well
    assert shown.totals.ready == 0


def test_an_engine_whose_breaker_is_open_is_out() -> None:
    shown = status([out()], heard(said()))
    assert (shown.engines[0].state, shown.engines[0].breaker) == ("out", "open")
    assert shown.troubles == ("engine e1 is out: it was silent",)


def test_a_sick_engine_is_a_trouble_in_the_words_of_its_watchdog() -> None:
    shown = status([view()], heard(said("hung", why="nothing moved for 12 s")))
    assert shown.troubles == ("engine e1 is ready; its watchdog calls it hung: nothing moved for 12 s",)
    assert shown.totals.ready == 1


def test_a_busy_engine_is_well() -> None:
    assert status([view()], heard(said("busy", why="a probe is late"))).well


def test_what_a_silent_node_said_of_an_engine_condemns_it_no_more_but_the_silence_is_told() -> None:
    shown = status([view()], heard(said("hung"), age_s=SILENT_AFTER_S + 33))
    assert shown.engines[0].well
    assert shown.nodes[0].silent
    assert shown.troubles == ("node n0 has not reported for 43 s: what it said then may no longer be so",)


def test_parts_and_tiers_that_are_not_as_they_should_be_are_troubles() -> None:
    shown = status(
        [view()],
        heard(
            said(),
            parts=(
                PartReport(name="agent", kind="agent", state="ready"),
                PartReport(name="main", kind="router", state="waiting", why="it ended with code 1"),
                PartReport(name="etcd", kind="etcd", state="failed"),
            ),
            tiers=(
                TierReport(name="arena", state="on"),
                TierReport(name="old", state="read-only"),
                TierReport(name="filesystem", state="breaker is open"),
            ),
        ),
    )
    assert shown.troubles == (
        "router main on node n0 is waiting: it ended with code 1",
        "etcd on node n0 has failed",
        "tier filesystem on node n0 is not on: breaker is open",
    )
    assert len(shown.nodes[0].parts) == 3


def test_a_tier_that_nodes_only_seem_to_share_is_a_trouble() -> None:
    def tier(**sees: str) -> tuple[TierReport, ...]:
        sights = tuple(SightReport(node=node, presence=presence) for node, presence in sees.items())
        return (TierReport(name="redis", state="on", sights=sights),)

    shown = status(
        [view()],
        heard(said(), tiers=tier(n0="here", n1="never")),
        heard(node="n1", tiers=tier(n0="here", n1="here")),
    )
    assert shown.troubles == ("node n0 does not find in tier redis what node n1 puts there: it is not shared",)


def test_an_engine_in_trouble_is_not_told_a_second_time_as_a_process() -> None:
    part = PartReport(name="e1", kind="engine", state="starting")
    assert status([view(state="isolated")], heard(said("dead"), parts=(part,))).troubles == (
        "engine e1 is isolated; its watchdog calls it dead",
    )
    assert status([view()], heard(said(), parts=(part,))).troubles == ("engine e1 on node n0 is starting",)


def test_the_router_and_its_registry_may_be_the_trouble() -> None:
    router = RouterStatus(version="1", started_s=0.0, now_s=5.0, draining=True, registry_trouble="etcd is away")
    assert status([view()], router=router).troubles == (
        "the router is stopping and takes no new requests",
        "the registry: etcd is away",
    )
    assert status([view()], refused={"e9": "64 at most"}).troubles == ("engine e9 is not used: 64 at most",)


def test_degraded_engines_and_leaks_are_warnings_and_no_troubles() -> None:
    shown = status([view()], heard(said(degraded="eager", warnings=("memory grows", "slower"))))
    assert shown.well
    assert shown.warnings == (
        "engine e1 runs in a simpler mode: eager", "engine e1: memory grows", "engine e1: slower"
    )  # fmt: skip


def test_simulated_engines_are_said_to_be_so_by_announcement_or_by_model_card() -> None:
    shown = status([view(1, simulated=True), view(2, cards=[{"id": "m", "simulated": True}]), view(3)])
    assert [engine.simulated for engine in shown.engines] == [True, True, False]
    assert shown.totals.simulated == 2


def test_of_two_nodes_that_speak_of_an_engine_the_newer_report_counts() -> None:
    nodes = [heard(said("hung"), node="old", age_s=8.0), heard(said("ready"), node="new", age_s=1.0)]
    for order in (nodes, nodes[::-1]):
        report, node = engine_reports(order)["e1"]
        assert (report.condition, node.report.node) == ("ready", "new")


def test_hit_shares_are_weighted_by_prompt_tokens() -> None:
    busy = said(local_hit_share=0.2, external_hit_share=0.6, prompt_tokens_s=900.0)
    idle = said(number=2, local_hit_share=1.0, external_hit_share=0.0, prompt_tokens_s=100.0)
    assert hit_shares([heard(busy, idle)]) == (0.28, 0.54)
    shown = status([view(1), view(2)], heard(busy, idle))
    assert (shown.totals.local_hit_share, shown.totals.external_hit_share) == (0.28, 0.54)


def test_hit_shares_of_nobody_of_silent_nodes_and_of_idle_engines_are_not_known() -> None:
    known = said(local_hit_share=0.5, external_hit_share=0.5, prompt_tokens_s=10.0)
    assert hit_shares([]) == (None, None)
    assert hit_shares([heard(said())]) == (None, None)
    assert hit_shares([heard(known, age_s=60.0)]) == (None, None)
    assert hit_shares([heard(said(local_hit_share=0.5, prompt_tokens_s=0.0))]) == (None, None)
    assert hit_shares([heard(said(local_hit_share=0.5))]) == (0.5, None), "without rates all count the same"


def test_changes_of_state_are_told_once_with_what_was_before() -> None:
    log, engine = StateLog(), view(state="announced", why="announced itself")
    log.look([engine], 10.0)
    log.look([engine], 13.0)
    engine.state, engine.why = "ready", "it answered a request"
    log.look([engine], 16.0)
    log.look([], 19.0)
    assert [(event.at_s, event.text) for event in log.events] == [
        (10.0, "engine e1 is announced: announced itself"),
        (16.0, "engine e1 is ready, was announced: it answered a request"),
        (19.0, "engine e1 left the fleet"),
    ]
    assert {event.source for event in log.events} == {"router"}


def test_the_log_knows_since_when_an_engine_is_out() -> None:
    log = StateLog()
    log.look([out()], 10.0)
    log.look([out()], 13.0)
    assert log.since_s("e1") == 10.0
    assert log.since_s("e2") is None


def test_the_log_is_bounded() -> None:
    log = StateLog()
    for n in range(100):
        log.look([view(state="ready" if n % 2 else "lost")], float(n))
    assert len(log.events) == EVENTS_KEPT


def test_events_of_router_and_nodes_come_by_time_and_the_newest_stay() -> None:
    own = [EventLine(at_s=5.0, source="router", text="out")]
    node = heard(events=(EventReport(at_s=4.0, part="e1", told="hung"), EventReport(at_s=6.0, part="e1", told="ready")))
    assert [(event.source, event.text) for event in merged_events(own, [node])] == [
        ("n0", "e1: hung"), ("router", "out"), ("n0", "e1: ready")
    ]  # fmt: skip
    named = heard(events=(EventReport(at_s=4.0, part="e1", told="e1 gets requests"),))
    assert merged_events([], [named])[0].text == "e1 gets requests"
    many = [EventLine(at_s=float(n), source="router", text=str(n)) for n in range(EVENTS_SHOWN + 5)]
    assert merged_events(many, [])[0].text == "5"


def test_a_part_is_called_by_its_kind_unless_its_name_says_it() -> None:
    assert part_name(PartReport(name="engine-1", kind="engine", state="ready")) == "engine-1"
    assert part_name(PartReport(name="a", kind="engine", state="ready")) == "engine a"
    assert called("engine-1") == "engine-1"
    assert called("a") == "engine a"
