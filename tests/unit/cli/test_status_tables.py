"""What `kveik status` prints of a document, whatever its texts hold."""

import io

import msgspec
import pytest
from rich.console import Console, RenderableType

from kveik.cli.status_tables import (
    EVENTS_SHOWN,
    WIDE,
    figure_text,
    fleet_tables,
    seconds_text,
    share_text,
    supervisor_tables,
)
from kveik.fleet.report import EngineReport, PartReport, TierReport
from kveik.fleet.status import EngineStatus, EventLine, FleetStatus, History, Measured, NodeStatus, RouterStatus, Totals
from kveik.supervise.messages import ProcessView, StatusAnswer

MEASURED = Measured(
    window_s=60, requests=90, requests_s=1.5, ttft_p50_s=0.045, ttft_p95_s=1.25, output_tokens_s=100.0, errors=2
)
REPORT = EngineReport(
    engine_id="engine-1",
    condition="ready",
    waiting=4,
    kv_use=0.375,
    local_hit_share=0.25,
    external_hit_share=0.5,
    output_tokens_s=321.0,
    restarts=7,
)
ENGINE = EngineStatus(
    id="engine-1",
    url="http://10.0.0.1:8000",
    state="ready",
    in_flight=3,
    measured=MEASURED,
    node="n0",
    report=REPORT,
    report_age_s=1.0,
)
STATUS = FleetStatus(
    fleet="demo",
    well=True,
    troubles=(),
    warnings=(),
    notes=(),
    router=RouterStatus(version="1", started_s=0.0, now_s=10.0),
    totals=Totals(engines=1, ready=1, in_flight=3, measured=MEASURED),
    engines=(ENGINE,),
    refused_engines={},
    nodes=(
        NodeStatus(
            node="n0",
            fleet="demo",
            age_s=1.0,
            tiers=(TierReport(name="arena", state="on", blocks=1200, bytes=3 << 30, bytes_max=8 << 30),),
            parts=(PartReport(name="agent", kind="agent", state="ready", restarts=1),),
        ),
    ),
    events=(EventLine(at_s=1790000000.0, source="n0", text="engine-1: ready"),),
    history=History(sample_s=3, window_s=15),
)


def printed(shown: RenderableType, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(shown)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return str(text)


def changed(**fields: object) -> FleetStatus:
    return msgspec.structs.replace(STATUS, **fields)


def with_engine(**fields: object) -> FleetStatus:
    return changed(engines=(msgspec.structs.replace(ENGINE, **fields),))


def cells(text: str, first: str) -> list[str]:
    """The cells of the line that begins with a word."""
    line = next(line for line in text.splitlines() if line.split()[:1] == [first])
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_an_engine_is_one_line_with_units() -> None:
    row = cells(printed(fleet_tables(STATUS, "http://r")), "engine-1")
    assert row == ["engine-1", "ready", "ready", "3", "4", "37.5 %", "7", "25 %", "50 %", "45 ms", "1.25 s", "321",
                   "1.5", "2"]  # fmt: skip


def test_the_heading_says_how_the_fleet_is() -> None:
    text = " ".join(printed(fleet_tables(STATUS, "http://r")).split())
    assert text.startswith(
        "fleet demo at http://r: 1 of 1 engines ready, 3 requests in flight, 1.5 requests/s, first token 45 ms (p50) "
        "1.25 s (p95), 100 tokens/s all is well"
    )


def test_tiers_processes_and_events_are_shown() -> None:
    text = printed(fleet_tables(STATUS, "http://r"))
    assert cells(text, "n0") == ["n0", "arena", "on", "1,200", "3.0 GiB", "8.0 GiB", "-", "-"]
    assert "agent" in text
    assert "engine-1: ready" in text


def test_an_event_of_another_day_has_its_day() -> None:
    router = msgspec.structs.replace(STATUS.router, now_s=1790000000.0 + 3 * 86400)
    assert "21 Sep" in printed(fleet_tables(changed(router=router), "http://r"))
    assert "21 Sep" not in printed(fleet_tables(STATUS, "http://r"))


def test_only_the_last_events_are_shown() -> None:
    events = tuple(EventLine(at_s=1.0 + n, source="n0", text=f"event number {n}.") for n in range(30))
    text = printed(fleet_tables(changed(events=events), "http://r"))
    assert "event number 29." in text
    assert f"event number {29 - EVENTS_SHOWN}." not in text


def test_a_narrow_terminal_gets_two_tables_and_the_same_figures() -> None:
    narrow = printed(fleet_tables(STATUS, "http://r", 80), 80)
    assert "their work in the last minute" in narrow
    assert all(len(line) <= 80 for line in narrow.splitlines())
    for figure in ("37.5 %", "45 ms", "1.25 s", "321"):
        assert figure in narrow
    assert "their work" not in printed(fleet_tables(STATUS, "http://r", WIDE), WIDE)


def test_what_is_not_well_comes_before_warnings_and_notes() -> None:
    text = printed(fleet_tables(changed(well=False, troubles=("t",), warnings=("w",), notes=("nobody knows",)), "r"))
    assert text.index("not well: t") < text.index("warning: w") < text.index("nobody knows")
    assert "all is well" not in text
    assert "all is well, with warnings" in printed(fleet_tables(changed(warnings=("w",)), "http://r"))


def test_an_engine_without_reports_has_no_figures_but_what_the_router_measured() -> None:
    text = printed(fleet_tables(with_engine(report=None, report_age_s=None), "http://r"))
    assert cells(text, "engine-1") == ["engine-1", "ready", "not reported", "3", "-", "-", "-", "-", "-", "45 ms",
                                       "1.25 s", "100", "1.5", "2"]  # fmt: skip


def test_simulated_degraded_and_late_reports_are_marked() -> None:
    report = msgspec.structs.replace(REPORT, degraded="eager")
    text = printed(fleet_tables(with_engine(simulated=True, report=report, report_age_s=43.0), "http://r"))
    assert "ready (degraded) 43 s ago" in text
    assert "simulated" in text
    totals = msgspec.structs.replace(STATUS.totals, simulated=1)
    assert "1 engine is simulated" in printed(fleet_tables(changed(totals=totals), "http://r"))


HOSTILE = "[red]x[/red]\x1b[31m\x1b]0;title\x07\nsecond\u202eline"


def test_texts_from_outside_are_neither_markup_nor_orders_to_the_terminal() -> None:
    report = msgspec.structs.replace(REPORT, condition=HOSTILE)
    status = msgspec.structs.replace(
        with_engine(id=HOSTILE, state=HOSTILE, report=report),
        fleet=HOSTILE,
        troubles=(HOSTILE,),
        events=(EventLine(at_s=1.0, source=HOSTILE, text=HOSTILE),),
        nodes=(NodeStatus(node=HOSTILE, fleet="", age_s=0, tiers=(TierReport(name=HOSTILE, state=HOSTILE),),
                          parts=(PartReport(name=HOSTILE, kind=HOSTILE, state=HOSTILE, why=HOSTILE),)),),
    )  # fmt: skip
    text = printed(fleet_tables(status, "http://r"), 400)
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert "[red]x[/red]" in text


def test_a_fleet_of_nothing_can_be_shown() -> None:
    nothing = Measured(window_s=0.0)
    empty = changed(fleet="", engines=(), nodes=(), events=(), totals=Totals(measured=nothing), troubles=("no engine",))
    text = printed(fleet_tables(empty, "http://r"))
    assert "fleet at http://r: 0 of 0 engines ready" in text
    assert "tiers" not in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0, "0 ms"), (0.0042, "4.2 ms"), (0.9996, "1 s"), (1.0, "1 s"), (75.0, "75 s")],
)
def test_times_have_their_unit(value: float | None, text: str) -> None:
    assert seconds_text(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.0, "0"), (5.58655, "5.59"), (99.96, "100"), (1234.5, "1,234")])
def test_figures_have_the_digits_that_count(value: float, text: str) -> None:
    assert figure_text(value) == text


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (0.0, "0 %"), (0.1234, "12.3 %"), (1.0, "100 %")])
def test_shares_are_percent(value: float | None, text: str) -> None:
    assert share_text(value) == text


def test_a_supervisor_s_processes_are_shown_with_why_there_is_no_more() -> None:
    answer = StatusAnswer(
        fleet="demo",
        node="n0",
        pid=42,
        config="kveik.toml",
        processes=(
            ProcessView(name="engine-1", kind="engine", state="failed", restarts=3, why="out of memory", mode="eager",
                        degraded="graphs failed", held="roll"),
            ProcessView(name="agent", kind="agent", state="ready", pid=77, since_s=1790000000.0),
        ),
    )  # fmt: skip
    text = printed(supervisor_tables(answer, "connection refused"))
    assert "no router says how the fleet is: connection refused" in text
    assert "supervisor of node n0 (process 42)" in text
    assert cells(text, "engine-1") == ["engine-1", "engine", "failed", "-", "-", "3", "eager, degraded: graphs failed",
                                       "out of memory / held: roll"]  # fmt: skip
    assert cells(text, "agent")[:4] == ["agent", "agent", "ready", "77"]
