import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from kveik.config_fleet import WatchdogSettings
from kveik.engine.process import free_port
from kveik.errors import ConfigError
from kveik.fleet.client import FleetClient
from kveik.simulate.server import SimServer
from kveik.supervise.control import Answer, ControlServer
from kveik.supervise.messages import Order, ProcessView, StatusAnswer
from kveik.telemetry.events import EventLog
from kveik.watchdog.evidence import EvidenceFolder
from kveik.watchdog.node import NodePlace, NodeWatchdog
from kveik.watchdog.restarters import NoRestarter
from kveik.watchdog.state_file import StateFile
from kveik.watchdog.ward import Patient
from tests.agents import running_agent, wait_until

SETTINGS = WatchdogSettings(probe_period_s=0.2, report_period_s=0.1)


class Node:
    """A watchdog whose patients are a variable, with a control socket that says what it is told to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.patients: list[Patient] = []
        self.trouble = ""
        self.processes: tuple[ProcessView, ...] = ()
        self.asked: list[Mapping[str, ProcessView]] = []
        (folder / "run").mkdir(mode=0o700)
        self.socket = str(folder / "run" / "control.sock")
        self.server: ControlServer | None = None
        self.state = StateFile(folder / "run" / "watchdog.json")
        self.events = EventLog(folder / "run" / "events.jsonl", bytes_max=1 << 20)
        self.watchdog = NodeWatchdog(
            NodePlace("demo", "n0", self.socket, str(folder / "agent.sock")),
            SETTINGS,
            self._patients,
            routers=[FleetClient(f"127.0.0.1:{free_port()}")],
            state=self.state,
            evidence=EvidenceFolder(folder / "evidence", bundles_max=3),
            events=self.events,
        )

    def _patients(self, processes: Mapping[str, ProcessView]) -> Sequence[Patient]:
        self.asked.append(processes)
        if self.trouble:
            raise ConfigError(self.trouble)
        return self.patients

    def supervise(self) -> None:
        def handle(order: Order) -> Answer:
            return StatusAnswer(fleet="demo", node="n0", pid=1, config="", processes=self.processes)

        self.server = ControlServer(self.socket, handle).start()

    def unsupervise(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None

    def close(self) -> None:
        self.watchdog.close()
        self.unsupervise()
        self.state.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.close()


def patient(url: str, name: str = "one", why: str = "nobody") -> Patient:
    return Patient(name, url, NoRestarter(why))


def test_engines_join_and_leave_while_it_runs(node: Node) -> None:
    with SimServer() as one, SimServer() as two:
        node.patients = [patient(one.url)]
        node.watchdog.step()
        assert node.watchdog.watches.keys() == {"one"}
        node.patients = [patient(one.url), patient(two.url, "two")]
        node.watchdog.step()
        assert node.watchdog.watches.keys() == {"one", "two"}
        kept = node.watchdog.watches["two"]
        node.patients = [patient(two.url, "two")]

        def left() -> bool:
            node.watchdog.step()
            return node.watchdog.watches.keys() == {"two"}

        wait_until(left, "one has left", 30)
        assert node.watchdog.watches["two"] is kept, "the other goes on as it was"


def test_an_engine_that_is_described_otherwise_gets_another_watch(node: Node) -> None:
    with SimServer() as engine:
        node.patients = [patient(engine.url)]
        node.watchdog.step()
        before = node.watchdog.watches["one"]
        node.patients = [patient(engine.url, why="another reason")]

        def other() -> bool:
            node.watchdog.step()
            return node.watchdog.watches.get("one", before) is not before

        wait_until(other, "it has another watch", 30)


def test_a_configuration_that_is_wrong_changes_nothing_and_is_said_once(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    with SimServer() as engine:
        node.patients = [patient(engine.url)]
        node.watchdog.step()
        node.trouble = "kveik.toml is not valid TOML"
        node.watchdog.step()
        node.watchdog.step()
        assert node.watchdog.watches.keys() == {"one"}
        assert caplog.text.count("kveik.toml is not valid TOML") == 1


def test_the_report_has_engines_parts_and_events(node: Node) -> None:
    node.processes = (
        ProcessView(name="one", kind="engine", state="ready", pid=os.getpid(), restarts=2, degraded="eager"),
        ProcessView(name="router", kind="router", state="waiting", why="ended with code 1"),
    )
    node.supervise()
    node.events.tell("x", "one", "it happened")
    with SimServer() as engine:
        node.patients = [patient(engine.url)]
        node.watchdog.step()
        assert node.asked[-1].keys() == {"one", "router"}
        wait_until(lambda: node.watchdog.report().engines[0].condition == "ready", "it is ready", 30)
        wait_until(lambda: node.watchdog.report().engines[0].running is not None, "its metrics are read", 30)
        report = node.watchdog.report()
    (one,) = report.engines
    assert (one.engine_id, one.restarts, one.degraded) == ("one", 2, "eager")
    assert (report.node, report.fleet) == ("n0", "demo")
    assert [(part.name, part.state) for part in report.parts] == [("one", "ready"), ("router", "waiting")]
    assert "it happened" in [event.told for event in report.events]


def test_a_supervisor_that_is_gone_is_said_and_its_last_word_holds(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.processes = (ProcessView(name="one", kind="engine", state="ready"),)
    node.supervise()
    node.watchdog.step()
    node.unsupervise()
    node.watchdog.step()
    node.watchdog.step()
    assert caplog.text.count("engines are watched all the same") == 1
    assert node.asked[-1].keys() == {"one"}


def test_the_agents_tiers_are_told_and_an_agent_that_ends_is_no_trouble(node: Node) -> None:
    assert node.watchdog.report().tiers == ()
    with running_agent(node.folder):
        (arena,) = node.watchdog.report().tiers
        assert (arena.name, arena.state, arena.blocks) == ("arena", "on", 0)
        (again,) = node.watchdog.report().tiers
        assert again.read_bytes_s == 0.0
    assert node.watchdog.report().tiers == ()
    with running_agent(node.folder):
        assert len(node.watchdog.report().tiers) == 1


def test_it_ends_when_it_is_told_to_and_engines_go_on(node: Node) -> None:
    with SimServer() as engine:
        node.patients = [patient(engine.url)]
        stop = threading.Event()
        thread = threading.Thread(target=node.watchdog.run, args=(stop,))
        thread.start()
        wait_until(lambda: bool(node.watchdog.watches), "it watches", 30)
        stop.set()
        thread.join(30)
        assert not thread.is_alive()
        assert engine.change_faults(reset=True)


def test_a_fault_of_its_own_does_not_end_it(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.patients = None  # type: ignore[assignment]
    stop = threading.Event()
    thread = threading.Thread(target=node.watchdog.run, args=(stop,))
    thread.start()
    wait_until(lambda: len(node.asked) >= 2, "it goes on", 30)
    stop.set()
    thread.join(30)
    assert "looking after the node failed" in caplog.text
