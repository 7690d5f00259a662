"""The page about the status document names every field of it."""

import re
from pathlib import Path

import msgspec
import pytest

from kveik.fleet import report, status
from kveik.router.node_reports import KEPT_S, NODES_MAX, SILENT_AFTER_S

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "status.md").read_text(encoding="utf8")


@pytest.mark.parametrize(
    "kind",
    [
        status.FleetStatus,
        status.RouterStatus,
        status.Totals,
        status.EngineStatus,
        status.Measured,
        status.NodeStatus,
        status.EventLine,
        status.History,
        status.HistoryRow,
    ],
    ids=lambda kind: kind.__name__,
)
def test_every_field_is_explained(kind: type[msgspec.Struct]) -> None:
    named = set(re.findall(r"`(\w+)`", PAGE))
    assert set(kind.__struct_fields__) - named == set()


def test_the_example_is_a_report() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    read = report.read_report(example.encode(), "n0")
    assert (len(read.engines), len(read.tiers), len(read.parts), len(read.events)) == (1, 2, 1, 1)


def test_the_limits_are_those_of_the_router() -> None:
    text = " ".join(PAGE.split())
    assert f"has {report.REPORT_MAX_BYTES >> 10} KiB at most" in text
    assert f"last report of {NODES_MAX} nodes" in text
    assert f"for {SILENT_AFTER_S:g} seconds is *silent*" in text
    assert f"After {KEPT_S / 60:g} minutes" in text
