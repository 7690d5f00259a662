import json
import threading
from pathlib import Path
from typing import Any

import pytest

from kveik.cli import main
from kveik.cli.stats import tables
from kveik.store import filesystem
from tests.agents import running_agent, wait_until


def test_the_state_is_printed_as_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_agent(tmp_path, filesystem=str(tmp_path / "tier")):
        assert main.main(["stats", "--socket", str(tmp_path / "agent.sock")]) == 0
    text = capsys.readouterr().out
    assert "free slabs" in text
    assert "16.0 MiB" in text
    assert "filesystem" in text


def test_a_tier_that_is_not_open_yet_is_shown_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(filesystem, "check_root", lambda _: answers.wait(60))
    with running_agent(tmp_path, filesystem=str(tmp_path / "tier"), tier_deadline_s=0.05):
        assert main.main(["stats", "--socket", str(tmp_path / "agent.sock")]) == 0
        answers.set()
    assert "opening" in capsys.readouterr().out


def test_the_state_is_printed_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_agent(tmp_path):
        assert main.main(["stats", "--json", "--socket", str(tmp_path / "agent.sock")]) == 0
    assert json.loads(capsys.readouterr().out)["arena"]["blocks"] == 0


def test_whom_a_node_sees_in_a_shared_tier_is_shown(tmp_path: Path) -> None:
    given: dict[str, Any] = {"probe_period_s": 0.1, "node": "n0", "nodes": "n1"}
    given["filesystem"] = str(tmp_path / "tier")
    with running_agent(tmp_path, **given) as agent:

        def shown() -> list[list[str]]:
            (table,) = [table for table in tables(agent.service.state()) if table.title == "roll call"]
            return [[str(cell) for cell in column.cells] for column in table.columns[:3]]

        wait_until(lambda: shown()[2][1] == "here", "the node sees itself")
        assert shown()[:2] == [["filesystem", "filesystem"], ["n1", "n0"]]


def test_no_agent_exits_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["stats", "--socket", str(tmp_path / "agent.sock")]) == 3
    assert "no agent at" in capsys.readouterr().err


def test_fences_and_outages_of_tiers_are_told_in_words(tmp_path: Path) -> None:
    with running_agent(tmp_path, filesystem=str(tmp_path / "tier")) as agent:
        assert "outages" not in [table.title for table in tables(agent.service.state())]
        standing = agent.lower.guards[0][1].standing
        standing.put_fence("it is empty")
        standing.cost(not_stored=3)

        (shown,) = [table for table in tables(agent.service.state()) if table.title == "outages"]

    first, second = shown.columns[0].cells
    assert first == "filesystem tier fenced: it is empty"
    assert str(second).endswith("it is empty; 3 blocks not stored, 0 not read")
