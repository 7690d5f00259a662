"""``kveik roll`` on a fleet that runs under its supervisor: what happens, what is said, and the exit codes."""

import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kveik.cli.main import main
from kveik.launch.roll_plan import Stage
from kveik.launch.roll_state import RollNotebook
from kveik.telemetry.events import last_events
from tests.agents import wait_until
from tests.small_fleet import SmallFleet


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallFleet]:
    with SmallFleet(tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


@pytest.fixture
def fleet(running: SmallFleet) -> Iterator[SmallFleet]:
    """One fleet for all tests, each of which finds it serving, and no roll unfinished."""
    yield running
    running.broken.clear()
    running.config.write_text(running.text())
    for name in running.names:
        assert main(["readmit", name, "--config", str(running.config)]) == 0
    (running.node.root / "roll.json").unlink(missing_ok=True)


def roll(fleet: SmallFleet, *arguments: str) -> int:
    return main(["roll", "--config", str(fleet.config), *arguments])


def spoken(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_dry_run_tells_the_plan_and_changes_nothing(fleet: SmallFleet, capsys: pytest.CaptureFixture[str]) -> None:
    before = fleet.pids()
    assert roll(fleet, "--dry-run", "--wait", "7") == 0
    text = capsys.readouterr().out
    assert [line for line in text.splitlines() if not line.startswith(" ")] == [
        f"{name} at {fleet.url(name)}" for name in fleet.names
    ]
    assert "wait up to 7 s" in text
    assert (fleet.pids(), fleet.held()) == (before, {})


def test_all_engines_are_restarted_by_their_supervisor_and_each_step_is_told(
    fleet: SmallFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    before = fleet.pids()
    assert roll(fleet, "--json") == 0
    lines = spoken(capsys)
    after = fleet.pids()
    assert all(after[name] not in (0, before[name]) for name in fleet.names)
    assert (fleet.at_router(), fleet.held()) == (dict.fromkeys(fleet.names, "ready"), {})
    done = [(line["engine"], line["stage"]) for line in lines if line.get("state") == "done" and "stage" in line]
    assert done == [(name, stage.value) for name in fleet.names for stage in Stage]
    assert lines[-1]["rolled"] == list(fleet.names)
    assert last_events(fleet.node.events, 1)[0].told == "the roll is done: engine-1, engine-2 rolled"
    assert all(line["at_s"] >= 0 and line["told"] for line in lines)


def test_an_engine_that_does_not_start_with_what_is_new_ends_the_roll_and_the_next_one_begins_with_it(
    fleet: SmallFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = fleet.names
    before = fleet.pids()
    fleet.broken = {first, second}
    assert roll(fleet) == 1
    text = capsys.readouterr().out
    for words in (
        "no memory for weights",
        f"{first} gets no requests, and the watchdog keeps its hands off it",
        f"not touched: {second}",
        f"kveik readmit {first}",
        f"the roll stopped at {first}",
    ):
        assert words in text
    assert fleet.at_router() == {first: "isolated", second: "ready"}
    assert fleet.pids()[second] == before[second], "it serves as before"
    assert f"kveik readmit {first}" in last_events(fleet.node.events, 1)[0].told
    fleet.broken.clear()
    assert roll(fleet) == 0
    assert f"an earlier roll had {first} in hand (answer), so it comes first" in capsys.readouterr().out
    assert fleet.at_router() == dict.fromkeys(fleet.names, "ready")


def test_another_description_is_another_version_and_what_cannot_be_wrong_needs_no_proof(
    fleet: SmallFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.facts = "v2"
    assert roll(fleet, "--json") == 0
    notes = [line["note"] for line in spoken(capsys) if line.get("stage") == "verify" and line["state"] == "note"]
    assert notes == [
        "the first of a new version: its configuration is another",
        "it has no shared cache, so there are no hits to prove",
        "this version is proved already",
    ]


def test_a_proof_can_be_left_out_and_that_is_told(fleet: SmallFleet, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.facts = "v3"
    assert roll(fleet, fleet.names[0], "--no-verify") == 0
    assert "it serves unproved" in capsys.readouterr().out


def test_an_engine_that_nobody_supervises_is_restarted_by_its_command(
    fleet: SmallFleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its command here only says that it was called: the engine serves on."""
    called = tmp_path / "called"
    script = f"import os; open({str(called)!r}, 'a').write(os.environ['KVEIK_ENGINE'])"
    name, url = fleet.names[0], fleet.url(fleet.names[0])
    port = fleet.router.url.rpartition(":")[2]
    listed = tmp_path / "listed.toml"
    listed.write_text(
        f'[fleet]\nengines = 0\nstate_folder = "{tmp_path}"\n[router]\nport = {port}\n'
        f'[[engines]]\nurl = "{url}"\nengine_id = "{name}"\nrestart = {json.dumps([sys.executable, "-c", script])}\n'
    )
    assert main(["roll", "--config", str(listed)]) == 0, capsys.readouterr().err
    assert called.read_text() == name
    assert fleet.at_router()[name] == "ready"


@contextmanager
def long_stream(fleet: SmallFleet) -> Iterator[http.client.HTTPResponse]:
    """A stream that goes on for longer than any test, until the client leaves."""
    connection = http.client.HTTPConnection(fleet.router.url.removeprefix("http://"), timeout=120)
    body = {"model": "simulated", "prompt": [5, 6, 7], "max_tokens": 30_000, "stream": True, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    yield connection.getresponse()
    connection.close()


def test_ctrl_c_while_an_engine_drains_puts_it_back(fleet: SmallFleet, tmp_path: Path) -> None:
    log = tmp_path / "roll.log"
    with long_stream(fleet) as stream:
        assert stream.readline().startswith(b"data:")
        (name,) = (engine["id"] for engine in fleet.fleet.traffic()["engines"] if engine["in_flight"])
        command = [sys.executable, "-m", "kveik.cli.main", "roll", "--config", str(fleet.config), "--wait", "600", name]
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out)
        wait_until(lambda: "drain: 1 requests left" in log.read_text(), "it drains", 60)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130, log.read_text()
        assert f"interrupted; not rolled: {name}" in log.read_text()
        assert fleet.held() == {}
        fleet.wait_serving(name)
        lines = [stream.readline() for _ in range(200)]
    assert {line[:5] for line in lines} == {b"data:", b"\n"}
    assert not any(b"error" in line for line in lines), "its request never noticed"


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["engine-9"], 2, "no engine 'engine-9' to roll here, expected one of engine-1, engine-2"),
        (["--ready-min", "-1"], 2, "--ready-min is -1"),
        (["--config", "/nowhere.toml"], 2, "/nowhere.toml"),
        (["--router", "http://127.0.0.1:1"], 3, "Connection refused"),
    ],
)
def test_what_cannot_begin_has_its_exit_code_and_says_why(
    fleet: SmallFleet, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, why: str
) -> None:
    before = fleet.pids()
    assert roll(fleet, *arguments) == code
    assert why in capsys.readouterr().err
    assert fleet.pids() == before


def test_a_fleet_that_is_not_up_is_said_to_be_so(
    fleet: SmallFleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "kveik.toml"
    elsewhere.write_text(fleet.text().replace(str(fleet.folder / "state"), str(tmp_path / "state")))
    assert main(["roll", "--config", str(elsewhere)]) == 3
    assert "no supervisor keeps engine-1, engine-2: is the fleet up on this node (kveik up)?" in capsys.readouterr().err


def test_one_roll_at_a_time(fleet: SmallFleet, capsys: pytest.CaptureFixture[str]) -> None:
    with RollNotebook(fleet.node.root / "roll.json"):
        assert roll(fleet) == 3
    assert "another kveik roll is at work" in capsys.readouterr().err


def test_a_roll_needs_a_configuration(fleet: SmallFleet, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["roll", "--router", fleet.router.url]) == 2
    assert "give it with --config FILE" in capsys.readouterr().err
