"""What nodes report: read within bounds, whatever they send."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.errors import ConfigError
from kveik.fleet.report import (
    LIST_MAX,
    SICK_CONDITIONS,
    TEXT_MAX,
    ChecksReport,
    EngineReport,
    EventReport,
    NodeReport,
    PartReport,
    TierReport,
    plain_text,
    read_report,
)
from kveik.watchdog.verdict import Condition


def sent(report: NodeReport) -> bytes:
    return msgspec.json.encode(report)


def node(**fields: object) -> NodeReport:
    return msgspec.convert({"node": "n0", "fleet": "demo", "at_s": 5.0, **fields}, NodeReport)


FULL = NodeReport(
    node="n0",
    fleet="demo",
    at_s=1790000000.0,
    engines=(
        EngineReport(
            engine_id="a", condition="ready", running=3, waiting=0, kv_use=0.5, restarts=1, warnings=("slow",)
        ),
    ),
    tiers=(TierReport(name="arena", state="on", blocks=10, bytes=1 << 30, bytes_max=1 << 31, read_bytes_s=1e6),),
    parts=(PartReport(name="agent", kind="agent", state="ready"),),
    events=(EventReport(at_s=1789999999.0, part="a", told="is ready"),),
)


def test_a_report_comes_as_it_was_sent() -> None:
    assert read_report(sent(FULL), "n0") == FULL


def test_what_a_later_version_adds_is_left_out() -> None:
    assert read_report(b'{"node": "n0", "fleet": "f", "at_s": 1, "weather": "fine"}', "n0").fleet == "f"


def test_a_report_says_the_node_of_its_path() -> None:
    with pytest.raises(ConfigError, match="node is 'n0', expected 'n1' as in the path"):
        read_report(sent(FULL), "n1")


@pytest.mark.parametrize("name", ["", "a/b", "<b>", "x" * 129, "-a", "é"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="expected 1 to 128 letters"):
        read_report(sent(msgspec.structs.replace(FULL, node=name)), name)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "not valid"),
        (b"{", "not valid"),
        (b"[]", "expected `object`"),
        (b"{}", "missing required field `node`"),
        (b'{"node": "n0", "fleet": "f", "at_s": "now"}', r"\$\.at_s"),
        (b'{"node": "n0", "fleet": "f", "at_s": 1, "tiers": [{"name": 5}]}', r"\$\.tiers\[0\]"),
        (b"[" * 100_000, "body is 100000 bytes, expected 65536 at most"),
        (b"[" * 60_000, "not valid"),
        (b'"\xff"', "not valid"),
    ],
)
def test_what_is_no_report_is_refused_with_the_place(body: bytes, told: str) -> None:
    with pytest.raises(ConfigError, match=f"(?i){told}"):
        read_report(body, "n0")


def test_long_texts_are_shortened_and_say_so() -> None:
    report = read_report(sent(node(engines=[{"engine_id": "a", "condition": "hung", "why": "x" * 5000}])), "n0")
    (engine,) = report.engines
    assert len(engine.why) == TEXT_MAX
    assert engine.why.endswith("…")


def test_lists_are_cut_to_what_a_router_keeps_and_of_events_the_newest_stay() -> None:
    events = [{"at_s": n, "part": "a", "told": "x"} for n in range(200)]
    parts = [{"name": f"p{n}", "kind": "engine", "state": "ready"} for n in range(200)]
    report = read_report(sent(node(events=events, parts=parts)), "n0")
    assert len(report.parts) == LIST_MAX["parts"]
    assert report.parts[0].name == "p0"
    assert len(report.events) == LIST_MAX["events"]
    assert report.events[-1].at_s == 199


def test_every_list_of_a_report_has_a_bound() -> None:
    lists = {
        field.name
        for kind in (NodeReport, EngineReport, TierReport, PartReport, EventReport, ChecksReport)
        for field in msgspec.structs.fields(kind)
        if "tuple" in str(field.type)
    }
    assert lists == LIST_MAX.keys()


def test_impossible_figures_are_unknown_and_shares_are_shares() -> None:
    engines = [{"engine_id": "a", "condition": "ready", "kv_use": 1.0000001, "ttft_s": -1.0, "running": -3}]
    (engine,) = read_report(sent(node(engines=engines)), "n0").engines
    assert (engine.kv_use, engine.ttft_s, engine.running) == (1.0, None, None)
    report = read_report(b'{"node": "n0", "fleet": "f", "at_s": -5}', "n0")
    assert report.at_s == 0


def test_texts_are_one_line_and_cannot_steer_a_terminal_or_turn_the_direction() -> None:
    assert plain_text("a\x1b[31m\nb\u202ec  d") == "a [31m b c d"


@given(st.text(max_size=2000))
def test_a_plain_text_is_bounded_and_stays_what_it_is(text: str) -> None:
    once = plain_text(text)
    assert len(once) <= TEXT_MAX
    assert plain_text(once) == once
    assert not any(ord(letter) < 0x20 or 0x7F <= ord(letter) < 0xA0 for letter in once)


@given(st.binary(max_size=300))
def test_whatever_is_sent_is_a_report_or_refused(body: bytes) -> None:
    try:
        report = read_report(body, "n0")
    except ConfigError:
        return
    assert report.node == "n0"


def test_sick_conditions_are_those_of_the_watchdog() -> None:
    assert {condition.value for condition in Condition if condition.sick} == SICK_CONDITIONS
