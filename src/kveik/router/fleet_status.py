"""Joins what the router knows with what nodes report into one document. Pure: all that changes is passed in."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kveik.breaker import CLOSED
from kveik.fleet.report import SICK_CONDITIONS, EngineReport, EventReport, PartReport
from kveik.fleet.sharing import splits
from kveik.fleet.status import (
    EngineStatus,
    EventLine,
    FleetStatus,
    History,
    Measured,
    NodeStatus,
    RouterStatus,
    Totals,
)
from kveik.router.engines import EngineView
from kveik.router.node_reports import SILENT_AFTER_S, Heard

#: Events that are shown, the newest ones; of the router's own so many are kept.
EVENTS_SHOWN, EVENTS_KEPT = 40, 40
#: Of a part that is as it should be.
PART_IS_WELL = frozenset({"ready"})
TIER_IS_WELL = frozenset({"on", "read-only"})
#: Of an engine that a watchdog reports and the router does not know, as before its first right answer.
GONE = "gone"


class StateLog:
    """When each engine changed its state, as this router saw it, and what it was: the router's own events."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, float]] = {}
        self.events: deque[EventLine] = deque(maxlen=EVENTS_KEPT)

    def look(self, engines: Iterable[EngineView], at_s: float) -> None:
        """See what changed since the last look. ``at_s``: wall time."""
        now = {engine.name: engine for engine in engines}
        for name in self._known.keys() - now.keys():
            del self._known[name]
            self._tell(f"{called(name)} left the fleet", at_s)
        for name, engine in now.items():
            state, before = shown_state(engine), self._known.get(name)
            if before is not None and before[0] == state:
                continue
            self._known[name] = state, at_s
            why = f": {engine.why}" if engine.why else ""
            self._tell(f"{called(name)} is {state}{f', was {before[0]}' if before else ''}{why}", at_s)

    def since_s(self, name: str) -> float | None:
        """Since when the engine has been in its state, as seen from here; wall time."""
        known = self._known.get(name)
        return known[1] if known else None

    def _tell(self, text: str, at_s: float) -> None:
        self.events.append(EventLine(text=text, source="router", at_s=round(at_s, 1)))


@dataclass(frozen=True, slots=True)
class Seen:
    """What the router itself knows at one moment.

    ``since_s``: wall time at which engines got into their states. ``of_engine`` and ``total``: what was measured.
    """

    router: RouterStatus
    engines: Sequence[EngineView]
    since_s: Mapping[str, float | None]
    of_engine: Callable[[str], Measured]
    total: Measured
    refused_engines: Mapping[str, str]
    events: Sequence[EventLine]


def joined(seen: Seen, heard: Sequence[Heard], history: History) -> FleetStatus:
    """The whole document."""
    reports = engine_reports(heard)
    engines = (
        *(_engine(engine, seen, reports.get(engine.name)) for engine in seen.engines),
        *_not_here(reports, {engine.name for engine in seen.engines}),
    )
    nodes = tuple(
        NodeStatus(
            node=node.report.node,
            fleet=node.report.fleet,
            age_s=round(node.age_s, 1),
            silent=node.silent,
            tiers=node.report.tiers,
            parts=node.report.parts,
            own_checks=node.report.own_checks,
        )
        for node in heard
    )
    troubles = tuple(_troubles(seen, engines, nodes))
    return FleetStatus(
        fleet=next((node.fleet for node in nodes if node.fleet), ""),
        well=not troubles,
        troubles=troubles,
        warnings=(*_warnings(engines), *_machine_warnings(nodes)),
        notes=tuple(_notes(engines, nodes)),
        router=seen.router,
        totals=_totals(seen, engines, heard),
        engines=engines,
        refused_engines=dict(seen.refused_engines),
        nodes=nodes,
        events=merged_events(seen.events, heard),
        history=history,
    )


def called(engine: str) -> str:
    """An engine in a sentence: what it is, and its name where that does not say it."""
    return engine if "engine" in engine else f"engine {engine}"


def shown_state(engine: EngineView) -> str:
    """The state of an engine in one word."""
    return engine.state if engine.breaker.state == CLOSED else "out"


def engine_reports(heard: Iterable[Heard]) -> dict[str, tuple[EngineReport, Heard]]:
    """The last that was reported of each engine; where several nodes speak of it, the newest."""
    reports: dict[str, tuple[EngineReport, Heard]] = {}
    for node in sorted(heard, key=lambda node: -node.age_s):
        reports.update({report.engine_id: (report, node) for report in node.report.engines})
    return reports


def hit_shares(heard: Iterable[Heard]) -> tuple[float | None, float | None]:
    """Local and external hit share of all engines that report, weighted by the tokens of their prompts."""
    reports = [report for report, node in engine_reports(heard).values() if not node.silent]
    return (
        _mean([(report.local_hit_share, _weight(report)) for report in reports]),
        _mean([(report.external_hit_share, _weight(report)) for report in reports]),
    )


def _weight(report: EngineReport) -> float:
    return 1.0 if report.prompt_tokens_s is None else report.prompt_tokens_s


def _mean(weighted: Iterable[tuple[float | None, float]]) -> float | None:
    known = [(value, weight) for value, weight in weighted if value is not None]
    total = sum(weight for _, weight in known)
    return round(sum(value * weight for value, weight in known) / total, 4) if total > 0 else None


def _engine(engine: EngineView, seen: Seen, reported: tuple[EngineReport, Heard] | None) -> EngineStatus:
    report, node = reported or (None, None)
    sick = report is not None and node is not None and not node.silent and report.condition in SICK_CONDITIONS
    return EngineStatus(
        id=engine.name,
        url=engine.announcement.url,
        state=shown_state(engine),
        why=engine.why,
        well=engine.takes_requests and not sick,
        since_s=seen.since_s.get(engine.name),
        models=engine.models,
        simulated=engine.announcement.simulated or any(card.get("simulated") is True for card in engine.cards),
        breaker=engine.breaker.state,
        failures_in_a_row=engine.breaker.failures_in_a_row,
        share=round(engine.share, 2),
        exact=engine.exact,
        in_flight=engine.in_flight,
        waiting_tokens=engine.waiting_tokens,
        measured=seen.of_engine(engine.name),
        node=node.report.node if node else "",
        report=report,
        report_age_s=round(node.age_s, 1) if node else None,
    )


def _not_here(reports: Mapping[str, tuple[EngineReport, Heard]], here: set[str]) -> Iterator[EngineStatus]:
    """Engines that only a watchdog knows: they start, or no router was told of them."""
    for name, (report, node) in sorted(reports.items()):
        if name not in here and not node.silent:
            yield EngineStatus(
                id=name,
                url="",
                state=GONE,
                well=False,
                measured=Measured(window_s=0.0),
                node=node.report.node,
                report=report,
                report_age_s=round(node.age_s, 1),
            )


def _totals(seen: Seen, engines: Sequence[EngineStatus], heard: Sequence[Heard]) -> Totals:
    local, external = hit_shares(heard)
    return Totals(
        engines=len(engines),
        ready=sum(engine.takes_requests for engine in seen.engines),
        simulated=sum(engine.simulated for engine in engines),
        in_flight=sum(engine.in_flight for engine in engines),
        measured=seen.total,
        local_hit_share=local,
        external_hit_share=external,
    )


def _troubles(seen: Seen, engines: Sequence[EngineStatus], nodes: Sequence[NodeStatus]) -> Iterator[str]:
    """What is not well, in words, the worst first."""
    if not engines:
        yield "no engine is in the fleet"
    if seen.router.draining:
        yield "the router is stopping and takes no new requests"
    if seen.router.registry_trouble:
        yield f"the registry: {seen.router.registry_trouble}"
    for engine in engines:
        if not engine.well:
            yield f"{called(engine.id)} {_of_engine(engine)}"
    for name, why in seen.refused_engines.items():
        yield f"{called(name)} is not used: {why}"
    unwell = {engine.id for engine in engines if not engine.well}
    for node in nodes:
        yield from _of_node(node, unwell)
    yield from (split.told for split in splits(nodes))


def _of_engine(engine: EngineStatus) -> str:
    state = "not in the fleet" if engine.state == GONE else engine.state
    text = f"is {state}" + (f": {engine.why}" if engine.why else "")
    report, age_s = engine.report, engine.report_age_s
    if report is not None and age_s is not None and age_s <= SILENT_AFTER_S and report.condition != "ready":
        why = f": {report.why}" if report.why and report.why not in engine.why else ""
        text += f"; its watchdog calls it {report.condition}{why}"
    return text


def _of_node(node: NodeStatus, told_already: set[str]) -> Iterator[str]:
    if node.silent:
        yield f"node {node.node} has not reported for {node.age_s:.0f} s: what it said then may no longer be so"
        return
    for part in node.parts:
        if part.state not in PART_IS_WELL and not (part.kind == "engine" and part.name in told_already):
            is_so = "has failed" if part.state == "failed" else f"is {part.state}"
            yield f"{part_name(part)} on node {node.node} {is_so}" + (f": {part.why}" if part.why else "")
    for tier in node.tiers:
        if tier.state not in TIER_IS_WELL:
            yield f"tier {tier.name} on node {node.node} is not on: {tier.state}"


def part_name(part: PartReport) -> str:
    """What a part is called: its kind, and its name where that says more."""
    return part.name if part.kind in part.name else f"{part.kind} {part.name}"


def _warnings(engines: Iterable[EngineStatus]) -> Iterator[str]:
    for engine in engines:
        if engine.report is not None:
            if engine.report.degraded:
                yield f"{called(engine.id)} runs in a simpler mode: {engine.report.degraded}"
            yield from (f"{called(engine.id)}: {warning}" for warning in engine.report.warnings)


def _machine_warnings(nodes: Iterable[NodeStatus]) -> Iterator[str]:
    """What the doctor's checks called wrong, there."""
    for node in nodes:
        for fault in node.own_checks.faults if node.own_checks is not None else ():
            if fault.outcome == "wrong":
                yield f"node {node.node}: {fault.about}: {fault.told} (kveik doctor {fault.check})"


def _notes(engines: Sequence[EngineStatus], nodes: Sequence[NodeStatus]) -> Iterator[str]:
    if not nodes:
        yield "no watchdog reports here: conditions, KV use, hits, restarts, tiers and processes are not known"
        return
    for engine in engines:
        if engine.report is None:
            yield f"no watchdog reports {called(engine.id)}: its condition, KV use and hits are not known"


def merged_events(own: Iterable[EventLine], heard: Iterable[Heard]) -> tuple[EventLine, ...]:
    """The router's events and those of the reports by time, the oldest first; the newest :data:`EVENTS_SHOWN`."""
    events = [*own]
    for node in heard:
        events += [
            EventLine(at_s=event.at_s, source=node.report.node, text=_told(event)) for event in node.report.events
        ]
    events.sort(key=lambda event: event.at_s)
    return tuple(events[-EVENTS_SHOWN:])


def _told(event: EventReport) -> str:
    return event.told if event.told.startswith(event.part) else f"{event.part}: {event.told}"
