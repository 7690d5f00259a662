"""``kveik drain`` and ``kveik readmit`` on a fleet that runs: what happens, what is said, and the exit codes."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kveik.cli.main import main
from kveik.engine.client import CompletionRequest, EngineClient
from kveik.engine.process import free_port
from kveik.telemetry.events import last_events
from tests.agents import wait_until
from tests.small_fleet import SmallFleet


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallFleet]:
    with SmallFleet(tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


@pytest.fixture
def fleet(running: SmallFleet) -> Iterator[SmallFleet]:
    """One fleet for all tests, each of which finds it serving."""
    yield running
    for name in running.names:
        assert main(["readmit", name, "--config", str(running.config)]) == 0


def test_a_drained_engine_gets_nothing_new_until_it_is_readmitted(
    fleet: SmallFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["drain", "engine-1", "--config", str(fleet.config), "--reason", "new memory"]) == 0
    assert fleet.at_router() == {"engine-1": "draining", "engine-2": "ready"}
    assert fleet.held() == {"engine-1": "new memory"}, "the watchdog keeps its hands off"
    assert "engine-1 is drained" in capsys.readouterr().out
    assert main(["readmit", "engine-1", "--config", str(fleet.config)]) == 0
    assert fleet.at_router()["engine-1"] == "ready"
    assert fleet.held() == {}
    assert "engine-1 gets requests" in capsys.readouterr().out
    told = [(event.part, event.told) for event in last_events(fleet.node.events, 2)]
    assert told == [
        ("engine-1", "gets no new requests: new memory"),
        ("engine-1", "may have requests again: readmitted by a person"),
    ]


def test_requests_under_way_are_waited_for_and_told(fleet: SmallFleet, capsys: pytest.CaptureFixture[str]) -> None:
    client = EngineClient(fleet.router.url, read_timeout_s=60.0)
    answers: list[int] = []

    def ask() -> None:
        answers.append(len(client.complete(CompletionRequest((1, 2, 3), 2000), "simulated").token_ids))

    thread = threading.Thread(target=ask)
    thread.start()

    def at_work() -> list[str]:
        return [engine["id"] for engine in fleet.fleet.traffic()["engines"] if engine["in_flight"]]

    wait_until(lambda: bool(at_work()), "it is under way")
    (name,) = at_work()
    assert main(["drain", name, "--config", str(fleet.config), "--wait", "0.1", "--stop"]) == 1
    assert "1 requests are still under way after 0.1 s; they go on" in capsys.readouterr().out
    assert fleet.states()[name] == "ready", "what is not drained is not stopped"
    assert main(["drain", name, "--config", str(fleet.config), "--wait", "60", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.get("left") for line in lines] == [None, 1, 0, 0]
    assert lines[-1]["state"] == "drained"
    thread.join(60)
    assert answers == [2000], "it was answered to its end"


def test_with_stop_the_process_ends_and_readmit_starts_it_again(
    fleet: SmallFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    before = fleet.pids()
    assert main(["drain", "engine-2", "--config", str(fleet.config), "--stop"]) == 0
    assert fleet.states() == {"engine-1": "ready", "engine-2": "stopped"}
    assert "engine-2 is stopped" in capsys.readouterr().out
    assert main(["readmit", "engine-2", "--config", str(fleet.config)]) == 0
    assert "engine-2 is being started" in capsys.readouterr().out
    after = fleet.pids()
    assert after["engine-1"] == before["engine-1"]
    assert after["engine-2"] not in (0, before["engine-2"])


def test_an_isolated_engine_can_be_readmitted_whoever_isolated_it(fleet: SmallFleet) -> None:
    fleet.fleet.hold("engine-1", "isolate", "watchdog: hung")
    assert main(["readmit", "engine-1", "--router", fleet.router.url]) == 0
    assert fleet.at_router()["engine-1"] == "ready"


def test_routers_alone_are_enough_to_drain(fleet: SmallFleet) -> None:
    assert main(["drain", "engine-1", "--router", fleet.router.url]) == 0
    assert fleet.at_router()["engine-1"] == "draining"
    assert fleet.held() == {}


def test_an_engine_that_does_not_get_ready_is_told_with_the_reason(
    fleet: SmallFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["readmit", "nobody", "--router", fleet.router.url, "--wait", "0"]) == 1
    assert "nobody is not announced at the router" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["drain", "engine-9", "--config", "{config}"], 2, "no engine 'engine-9' in the fleet; known are engine-1"),
        (["drain", "engine-1", "--config", "{config}", "--wait", "-1"], 2, "--wait is -1, expected 0 s or more"),
        (["drain", "engine-1", "--router", "ftp://x"], 2, "is no address of a router"),
        (["drain", "engine-1", "--router", "{nobody}"], 3, "Connection refused"),
        (["drain", "engine-1", "--router", "{router}", "--stop"], 3, "--stop: no supervisor of this node keeps"),
        (["readmit", "engine-1", "--router", "{nobody}"], 3, "Connection refused"),
        (["readmit", "engine-1", "--config", "/nowhere.toml"], 2, "/nowhere.toml"),
    ],
)
def test_what_cannot_be_done_has_its_exit_code_and_says_why(
    fleet: SmallFleet, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, why: str
) -> None:
    known = {
        "config": str(fleet.config),
        "router": fleet.router.url,
        "nobody": f"http://127.0.0.1:{free_port()}",
    }
    assert main([argument.format(**known) for argument in arguments]) == code
    assert why in capsys.readouterr().err
    assert fleet.at_router() == {"engine-1": "ready", "engine-2": "ready"}


def test_without_any_word_of_where_the_fleet_is_nothing_is_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in ("drain", "readmit"):
        assert main([command, "engine-1"]) == 2
        assert "say where the fleet is with --config FILE or --router URL" in capsys.readouterr().err
