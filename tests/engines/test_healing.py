"""Two real engines with the one default configuration: a core that stands still, with and without going on."""

import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from kveik.config import WatchdogSettings
from kveik.fleet.client import FleetClient
from kveik.telemetry.events import Event, read_events
from tests.agents import wait_until
from tests.engines.node import MODEL, Node

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(1800)]

SETTINGS = WatchdogSettings()
#: Engines that share two cores with other tests start in minutes.
PATIENCE_S = 900.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, model: Callable[[str], Path], engine_python: str) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("heal"), model(MODEL), engine_python)
    try:
        node.started = node.run("up", "-d")
        wait(lambda: states(node) == {"a": "ready", "b": "ready"}, "both engines serve")
        yield node
    finally:
        node.run("down", "--now", "--forget")


def wait(condition: Callable[[], bool], what: str) -> None:
    def slowly() -> bool:
        time.sleep(0.5)
        return condition()

    wait_until(slowly, what, PATIENCE_S)


def states(node: Node) -> dict[str, str]:
    return {engine["engine_id"]: engine["state"] for engine in FleetClient(node.url).engines()["data"]}


def events(node: Node, since_s: float, name: str = "a") -> list[Event]:
    kinds = ("announced", "isolated", "evidence", "restarted", "readmitted", "restart failed", "warm-up failed", "left")
    found = read_events(node.launch.folder.events, since_s)
    return [event for event in found if event.part == name and event.kind in kinds]


def core_of(node: Node, name: str) -> psutil.Process:
    """The engine core's process, which computes; the engine's HTTP server is another."""
    (core,) = (
        process
        for pid in node.launch.control.view(name).pids
        if "VLLM::EngineCore" in " ".join((process := psutil.Process(pid)).cmdline())
    )
    return core


class Clients:
    """Requests under way at both engines, and what became of them."""

    def __init__(self, node: Node, count: int = 4) -> None:
        self._url = node.url
        self.answers: list[dict[str, Any]] = []
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def _ask(self, number: int) -> None:
        prompt = f"{number} people walk along the river and talk about"
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 48, "ignore_eos": True, "temperature": 0}
        head = {"Content-Type": "application/json"}
        try:
            request = urllib.request.Request(f"{self._url}/v1/completions", json.dumps(body).encode(), head)
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                self.answers.append(json.load(answer))
        except OSError as error:
            self.failures.append(str(error))

    def wait(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE_S)


def quiet_machine() -> bool:
    return os.getloadavg()[0] < 2 * (os.cpu_count() or 1)


def test_a_core_that_goes_on_within_the_grace_is_not_restarted_and_no_request_is_lost(node: Node) -> None:
    began_s, core, leader = time.time(), core_of(node, "a"), node.launch.control.view("a").pid
    clients = Clients(node)
    core.send_signal(signal.SIGSTOP)
    stopped_s = time.time()
    wait(lambda: states(node)["a"] == "isolated", "it is isolated")
    core.send_signal(signal.SIGCONT)
    wait(lambda: states(node)["a"] == "ready", "it gets requests again")
    clients.wait()
    assert (len(clients.answers), clients.failures) == (4, [])
    assert [event.kind for event in events(node, began_s)] == ["isolated", "evidence", "readmitted"]
    assert node.launch.control.view("a").pid == leader
    if quiet_machine():
        isolated_s = events(node, began_s)[0].at_s
        assert isolated_s - stopped_s < 3 * SETTINGS.probe_period_s


def test_a_core_that_stands_still_is_isolated_evidence_is_saved_and_it_is_restarted_once(node: Node) -> None:
    began_s, core, leader = time.time(), core_of(node, "a"), node.launch.control.view("a").pid
    clients = Clients(node)
    core.send_signal(signal.SIGSTOP)
    clients.wait()
    assert (len(clients.answers), clients.failures) == (4, []), "the other engine answers"
    wait(lambda: "readmitted" in [event.kind for event in events(node, began_s)], "it is healed")
    wait(lambda: states(node)["a"] == "ready", "it gets requests again")
    isolated, _, restarted, _ = found = events(node, began_s)
    assert [event.kind for event in found] == ["isolated", "evidence", "restarted", "readmitted"]
    assert restarted.at_s - isolated.at_s >= SETTINGS.restart_grace_s / 2, "it had its grace"
    view = node.launch.control.view("a")
    assert (view.pid != leader, view.restarts) == (True, 1)
    assert events(node, began_s, "b") == [], "the other engine was left alone"
    bundle = max(node.launch.folder.evidence.iterdir())
    assert bundle.name.endswith("a-hung")
    assert f"{core.pid} " in (bundle / "processes.txt").read_text()
    assert (
        "EngineCore" in (bundle / f"stacks-{core.pid}.txt").read_text()
        or "waits in" in (bundle / f"stacks-{core.pid}.txt").read_text()
    )
    assert "vllm:num_requests_running" in (bundle / "metrics.txt").read_text()
