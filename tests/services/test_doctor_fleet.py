"""The doctor and a whole fleet under ``kveik up`` (engines simulated): well, and with one thing wrong after another."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kveik.config import SimEngineSettings
from kveik.engine.client import EngineClient
from kveik.engine.metrics import Metric
from kveik.engine.process import free_port
from kveik.fleet.client import FleetClient
from kveik.fleet.report import ChecksReport
from tests.agents import wait_until
from tests.etcd import running_etcd
from tests.fleets import SimFleet
from tests.routers import SimProcess

Answers = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimFleet]:
    with SimFleet(tmp_path_factory.mktemp("fleet")) as fleet:
        fleet.up()
        yield fleet


def looked(fleet: SimFleet, *words: str, code: int) -> Answers:
    """What the doctor says, with that exit code."""
    done = fleet.run("doctor", "--json", *words)
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}\n{fleet.logs()}"
    return {answer["check"]: answer for answer in json.loads(done.stdout)}


def told(answer: dict[str, Any], outcome: str = "wrong") -> dict[str, str]:
    return {point["about"]: point["told"] for point in answer["points"] if point["outcome"] == outcome}


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A whole process group that stands still."""
    os.killpg(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(pid, signal.SIGCONT)


def test_a_fleet_that_is_well_raises_no_alarm(fleet: SimFleet) -> None:
    answers = looked(fleet, code=0)
    alarms = {
        (name, point["about"]): point["told"]
        for name, answer in answers.items()
        for point in answer["points"]
        if point["outcome"] not in {"well", "unknown"} and name != "versions"  # what this environment has installed
    }
    assert alarms == {}
    well = {name for name, answer in answers.items() if answer["outcome"] == "well"}
    assert {"answers", "prefix-caching", "rendering", "etcd", "addresses", "memory", "start", "ports"} <= well


def test_engines_are_found_through_the_router_alone(fleet: SimFleet, capsys: pytest.CaptureFixture[str]) -> None:
    def well() -> bool:
        done = fleet.run("status")
        said.append(done.stdout)
        return done.returncode == 0

    said: list[str] = []
    wait_until(well, lambda: f"the fleet is well: {said[-1]}", 60)
    answers = looked(fleet, "answers", "hashes", code=0)
    assert "block hashes of simulated" in told(answers["hashes"], "well")
    assert "engine-1: " not in str(told(answers["answers"]))
    assert answers["hashes"]["evidence"][-1] == "KV events of 2 engines about one prompt"


def test_checks_of_the_machine_ask_no_engine_and_the_watchdog_makes_them_too(fleet: SimFleet) -> None:
    def counted(*metrics: Metric) -> list[float]:
        clients = [EngineClient(f"http://127.0.0.1:{port}") for port in fleet.engine_ports[:2]]
        return [client.metrics().total(metric) for client in clients for metric in metrics]

    def served() -> list[float]:
        return counted(Metric.PROMPT_TOKENS)

    def idle() -> bool:
        return not any(counted(Metric.RUNNING, Metric.WAITING))

    def seen() -> ChecksReport | None:
        (node,) = FleetClient(fleet.url).status().nodes
        return node.own_checks

    with stopped(fleet.pids()["watchdog"]):  # its probes are requests
        wait_until(idle, "requests under way have ended", 60)
        before = served()
        answers = looked(fleet, "--machine", code=0)
        assert served() == before
    assert {"memory", "huge-pages", "devices", "ports", "addresses", "options", "environment", "versions"} == set(
        answers
    )
    wait_until(lambda: seen() is not None, "the watchdog has looked", 90)
    assert (checks := seen())
    assert (checks.checks, checks.trouble) == (len(answers), "")
    assert [fault for fault in checks.faults if fault.outcome == "wrong" and fault.check != "versions"] == []


def test_an_engine_that_stands_still_is_wrong_and_named(fleet: SimFleet) -> None:
    fleet.wait_ready("engine-2")
    with stopped(fleet.pids()["engine-2"]):
        answers = looked(fleet, "answers", "prefix-caching", code=1)
    assert "engine-2" in told(answers["answers"])
    assert "engine-1" not in told(answers["answers"])
    assert [point["about"] for point in answers["prefix-caching"]["points"]] == ["engine-1"]


def test_a_stranger_among_the_engines_hashes_otherwise(fleet: SimFleet, tmp_path: Path) -> None:
    events = f"tcp://127.0.0.1:{free_port()}"
    with SimProcess(tmp_path, events=events, block_tokens=32) as stranger:
        answers = looked(fleet, "hashes", "answers", "--engine", stranger.url, code=1)
    assert "block size of simulated" in told(answers["hashes"])
    assert "no router knows it" in str(told(answers["answers"]))


def test_a_port_of_the_next_engine_that_somebody_has_keeps_it_from_starting(fleet: SimFleet) -> None:
    fleet.write(engines=3)
    try:
        with socket.create_server(("127.0.0.1", fleet.engine_ports[2])):
            answers = looked(fleet, "start", code=1)
        assert "engine-3" in told(answers["start"])
    finally:
        fleet.write(engines=2)


def test_nodes_that_use_an_etcd_of_their_own_are_found_by_their_files(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("n0", "n1")]
    for folder in folders:
        folder.mkdir()
    with running_etcd(folders[0]) as one, running_etcd(folders[1]) as two:
        fleets = [SimFleet(folder) for folder in folders]
        for fleet, etcd in zip(fleets, (one, two), strict=True):
            text = fleet.config.read_text()
            fleet.config.write_text(text.replace("[router]\n", f'[router]\nregistry = "etcd://{etcd.address}"\n'))
        answers = looked(fleets[0], "etcd", "--config", str(fleets[1].config), code=1)
        assert "not one etcd but 2" in told(answers["etcd"])["etcd"]
        assert looked(fleets[0], "etcd", code=0)["etcd"]["outcome"] == "well"


def test_before_a_start_nothing_is_wrong_and_what_runs_is_unknown(tmp_path: Path) -> None:
    answers = looked(SimFleet(tmp_path), code=0)
    unknown = {name for name, answer in answers.items() if answer["outcome"] == "unknown"}
    assert {"answers", "connector", "hashes", "rendering", "counters", "ports"} <= unknown
    assert answers["start"]["outcome"] == "well"


def test_an_engine_that_asks_for_a_key_is_asked_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SimProcess(tmp_path, api_key="secret") as engine:
        fleet = SimFleet(tmp_path)
        answers = looked(fleet, "answers", "--engine", engine.url, code=0)  # nothing answers: nothing is known
        assert answers["answers"]["outcome"] == "unknown"
        monkeypatch.setenv("KVEIK_ENGINE_API_KEY", "secret")
        answers = looked(fleet, "prefix-caching", "--engine", engine.url, code=0)
        assert answers["prefix-caching"]["outcome"] == "well"
    assert SimEngineSettings().api_key == ""
