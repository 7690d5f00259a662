"""Whether a node would start, and whether its parts listen at their ports themselves."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kveik.diagnose.described import Named, described_fleet
from kveik.diagnose.start_check import check_ports, check_start, judge_ports
from kveik.doctor.check import Context, Outcome
from kveik.doctor.fleet_described import DescribedFleet
from kveik.doctor.fleet_view import Fleet, listeners
from kveik.engine.process import free_port
from kveik.supervise.messages import ProcessView
from tests.fleets import SimFleet
from tests.small_fleet import SmallFleet


def context_of(config: Path) -> Context:
    return Context("python", os.environ, fleet=Fleet(described_fleet(Named([config]), os.environ)))


def test_a_node_that_could_start_is_well(tmp_path: Path) -> None:
    fleet = SimFleet(tmp_path)
    verdict = check_start(context_of(fleet.config))
    assert verdict.outcome is Outcome.WELL, verdict
    assert "nothing runs" in verdict.evidence[0]
    assert not fleet.launch.folder.root.exists()  # a doctor leaves nothing behind


def test_a_port_that_somebody_has_keeps_a_node_from_starting(tmp_path: Path) -> None:
    fleet = SimFleet(tmp_path)
    with socket.create_server(("127.0.0.1", fleet.engine_ports[0])):
        verdict = check_start(context_of(fleet.config))
    assert verdict.outcome is Outcome.WRONG
    assert f"cannot listen on 127.0.0.1:{fleet.engine_ports[0]}" in verdict.points[0].told


def test_ports_of_a_node_that_does_not_run_are_unknown(tmp_path: Path) -> None:
    assert check_ports(context_of(SimFleet(tmp_path).config)).outcome is Outcome.UNKNOWN


def test_without_a_file_neither_is_known() -> None:
    context = Context("python", {}, fleet=Fleet(DescribedFleet("flags")))
    assert check_start(context).outcome is Outcome.UNKNOWN
    assert check_ports(context).outcome is Outcome.UNKNOWN


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallFleet]:
    with SmallFleet(tmp_path_factory.mktemp("fleet"), names=("engine-1",)) as fleet:
        yield fleet


def test_parts_that_run_hold_their_own_ports(running: SmallFleet) -> None:
    verdict = check_ports(context_of(running.config))
    assert verdict.outcome is Outcome.WELL, verdict
    assert verdict.points[0].about == f"port {running.ports['engine-1']} of engine-1"


def test_a_port_that_another_process_holds_is_wrong_and_the_process_is_named() -> None:
    view = ProcessView(name="a", kind="engine", state="ready", pid=1, pids=(1,), url="http://127.0.0.1:8001")
    (point,) = judge_ports([view], {8001: os.getpid()})
    assert point.outcome is Outcome.WRONG
    assert f"process {os.getpid()} (" in point.told
    assert "which is not a's" in point.told


def test_a_port_that_a_stranger_took_on_this_machine_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        view = ProcessView(name="a", kind="router", state="starting", pid=1, pids=(1,), url=f"http://127.0.0.1:{port}")
        (point,) = judge_ports([view], listeners())
    assert (point.outcome, point.about) == (Outcome.WRONG, f"port {port} of a")
    assert f"process {os.getpid()} (" in point.told


def test_what_cannot_be_seen_is_unknown() -> None:
    port = free_port()
    ready = ProcessView(name="a", kind="engine", state="ready", pids=(1,), url=f"http://127.0.0.1:{port}")
    starting = ProcessView(name="b", kind="engine", state="starting", pids=(1,), url=f"http://127.0.0.1:{port}")
    headless = ProcessView(name="c", kind="engine", state="ready", pids=(1,))
    points = list(judge_ports([ready, starting, headless], {}))
    assert [point.outcome for point in points] == [Outcome.UNKNOWN, Outcome.UNKNOWN]
    assert "b is starting" in points[1].told
