"""The tables of ``kveik status``. Pure: a document in, things to print out.

All texts come from outside; none of them is taken for markup or for orders to the terminal.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kveik.byte_size import size_text
from kveik.fleet.report import SICK_CONDITIONS, plain_text
from kveik.fleet.status import EngineStatus, FleetStatus, NodeStatus
from kveik.supervise.messages import StatusAnswer

NONE = "-"
#: Events that are shown.
EVENTS_SHOWN = 8
#: Columns of a terminal on which the table of engines is one.
WIDE = 140
_DAY_S = 20 * 3600.0

Cell = Callable[[EngineStatus], Text]
Column = tuple[str, Cell]

_COLOURS = {
    **dict.fromkeys(("ready", "on", "read-only"), "green"),
    **dict.fromkeys(("announced", "draining", "busy", "starting", "waiting", "stopping"), "yellow"),
    **dict.fromkeys((*SICK_CONDITIONS, "isolated", "lost", "out", "failed", "not in the fleet"), "red"),
}


def fleet_tables(status: FleetStatus, router: str, width: int = 200) -> RenderableType:
    """The whole fleet: how it is, engines, tiers, processes and the last events, on ``width`` columns."""
    return Group(
        _heading(status, router),
        *_verdict(status),
        *_engines(status, width),
        *_tiers(status.nodes),
        *_parts(status.nodes),
        *_events(status),
    )


def supervisor_tables(answer: StatusAnswer, why: str) -> RenderableType:
    """What a node's supervisor keeps, shown where no router answers and ``why``."""
    table = _table("processes", "name", "kind", "state", "pid", "since", "restarts", "mode", "why")
    for view in answer.processes:
        mode = f"{view.mode}, degraded: {view.degraded}" if view.degraded else view.mode
        why_not = " / ".join(filter(None, (view.why, f"held: {view.held}" if view.held else "")))
        table.add_row(
            _plain(view.name), _plain(view.kind), _state(view.state), str(view.pid or NONE), _clock(view.since_s),
            str(view.restarts), _plain(mode or NONE), _plain(why_not),
        )  # fmt: skip
    return Group(
        Text(f"no router says how the fleet is: {plain_text(why)}", "red"),
        _plain(f"The supervisor of node {answer.node} (process {answer.pid}) keeps, for fleet {answer.fleet}:"),
        table,
    )


def _heading(status: FleetStatus, router: str) -> Text:
    totals, measured = status.totals, status.totals.measured
    name = f"fleet {status.fleet}" if status.fleet else "fleet"
    line = Text(f"{plain_text(name)} at {router}: ", "bold")
    line.append(f"{totals.ready} of {totals.engines} engines ready, {totals.in_flight} requests in flight, ")
    line.append(
        f"{figure_text(measured.requests_s)} requests/s, first token {seconds_text(measured.ttft_p50_s)} (p50) "
    )
    line.append(f"{seconds_text(measured.ttft_p95_s)} (p95), {figure_text(measured.output_tokens_s)} tokens/s")
    return line


def _verdict(status: FleetStatus) -> Iterator[Text]:
    if simulated := status.totals.simulated:
        which = "1 engine is" if simulated == 1 else f"{simulated} engines are"
        yield Text(f"{which} simulated: figures of such say nothing about real ones", "yellow")
    if status.well:
        yield Text("all is well" + (", with warnings" if status.warnings else ""), "green")
    for texts, sign, colour in (
        (status.troubles, "not well: ", "red"),
        (status.warnings, "warning: ", "yellow"),
        (status.notes, "", "dim"),
    ):
        yield from (Text(sign + plain_text(text, 1000), colour) for text in texts)


def _engines(status: FleetStatus, width: int) -> Iterator[Table]:
    """One table where the terminal is wide enough for it, else two."""
    parts = [(*_STATE_COLUMNS, *_FIGURE_COLUMNS)] if width >= WIDE else [_STATE_COLUMNS, _FIGURE_COLUMNS]
    for title, columns in zip(("engines", "engines: their work in the last minute"), parts, strict=False):
        table = _table(
            title, "engine", *(name for name, _ in columns), right=range(3 if columns[0] == _STATE else 1, 99)
        )
        for engine in status.engines:
            tag = "\nsimulated" if engine.simulated else ""
            table.add_row(_plain(engine.id).append(tag, "yellow"), *(cell(engine) for _, cell in columns))
        yield table


def _output_tokens_s(engine: EngineStatus) -> float:
    if engine.report is not None and engine.report.output_tokens_s is not None:
        return engine.report.output_tokens_s
    return engine.measured.output_tokens_s


def _reported(name: str, text: Callable[[Any], str]) -> Cell:
    def cell(engine: EngineStatus) -> Text:
        value = getattr(engine.report, name, None)
        return Text(NONE, "dim") if value is None else Text(text(value))

    return cell


def _condition(engine: EngineStatus) -> Text:
    report = engine.report
    if report is None:
        return Text("not reported", "dim")
    text = _state(report.condition)
    if report.degraded:
        text.append(" (degraded)", "yellow")
    if engine.report_age_s is not None and engine.report_age_s > 10:
        text.append(f" {engine.report_age_s:.0f} s ago", "dim")
    return text


def _tiers(nodes: Iterable[NodeStatus]) -> Iterator[Table]:
    rows = [(node, tier) for node in nodes for tier in node.tiers]
    if not rows:
        return
    table = _table("tiers", "node", "tier", "state", "blocks", "size", "limit", "read", "written", right=range(3, 8))
    for node, tier in rows:
        table.add_row(
            _plain(node.node), _plain(tier.name), _state(tier.state), _number(tier.blocks), _size(tier.bytes),
            _size(tier.bytes_max), _size(tier.read_bytes_s, "/s"), _size(tier.write_bytes_s, "/s"),
        )  # fmt: skip
    yield table


def _parts(nodes: Iterable[NodeStatus]) -> Iterator[Table]:
    rows = [(node, part) for node in nodes for part in node.parts]
    if not rows:
        return
    table = _table("processes", "node", "name", "kind", "state", "restarts", "why", right=(4,))
    for node, part in rows:
        table.add_row(
            _plain(node.node), _plain(part.name), _plain(part.kind), _state(part.state), str(part.restarts),
            _plain(part.why),
        )  # fmt: skip
    yield table


def _events(status: FleetStatus) -> Iterator[Table]:
    if status.events:
        table = _table("last events", "time", "from", "what")
        for event in status.events[-EVENTS_SHOWN:]:
            table.add_row(_clock(event.at_s, status.router.now_s), _plain(event.source), _plain(event.text))
        yield table


def seconds_text(value: float | None) -> str:
    """A time for people: ``45 ms``, ``1.25 s``."""
    if value is None:
        return NONE
    return f"{value * 1000:.3g} ms" if value < 0.9995 else f"{value:.3g} s"


def figure_text(value: float) -> str:
    """A figure for people: three digits that count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def share_text(value: float | None) -> str:
    """A share for people: ``37.5 %``."""
    return NONE if value is None else f"{round(value * 100, 1):g} %"


def _size(value: float | None, unit: str = "") -> str:
    return NONE if value is None else size_text(value) + unit


def _number(value: int | None) -> str:
    return NONE if value is None else f"{value:,}"


def _clock(at_s: float, now_s: float = 0.0) -> str:
    """Local time, with the day where that is not today's; ``-`` for none."""
    if not at_s:
        return NONE
    return time.strftime("%d %b %H:%M" if now_s - at_s > _DAY_S else "%H:%M:%S", time.localtime(at_s))


def _plain(text: str) -> Text:
    return Text(plain_text(text))


def _state(word: str) -> Text:
    return Text(plain_text(word), _COLOURS.get(word, ""))


def _table(title: str, *columns: str, right: Iterable[int] = ()) -> Table:
    table = Table(
        title=f"\n{title}",
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    numbers = frozenset(right)
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place in numbers else "left", overflow="fold")
    return table


_STATE: Column = ("state", lambda engine: _state("not in the fleet" if engine.state == "gone" else engine.state))
_STATE_COLUMNS: tuple[Column, ...] = (
    _STATE,
    ("condition", _condition),
    ("in flight", lambda engine: Text(str(engine.in_flight))),
    ("waiting", _reported("waiting", str)),
    ("KV use", _reported("kv_use", share_text)),
    ("restarts", _reported("restarts", str)),
)
_FIGURE_COLUMNS: tuple[Column, ...] = (
    ("local\nhits", _reported("local_hit_share", share_text)),
    ("external\nhits", _reported("external_hit_share", share_text)),
    ("first token\np50", lambda engine: Text(seconds_text(engine.measured.ttft_p50_s))),
    ("first token\np95", lambda engine: Text(seconds_text(engine.measured.ttft_p95_s))),
    ("output\ntokens/s", lambda engine: Text(figure_text(_output_tokens_s(engine)))),
    ("requests/s", lambda engine: Text(figure_text(engine.measured.requests_s))),
    ("failed\nlast min", lambda engine: Text(str(engine.measured.errors))),
)
