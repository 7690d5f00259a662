"""A whole node under ``kveik up``: parts that are killed, a supervisor that is killed, changes, and orderly ends."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kveik.engine.group import living_members_of
from kveik.supervise.adopt import read_estate
from kveik.telemetry.events import read_events
from tests.agents import wait_until
from tests.fleets import SimFleet
from tests.supervised import group_is_empty

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimFleet]:
    """A node in the background that tests leave as they found it."""
    with SimFleet(tmp_path_factory.mktemp("fleet")) as fleet:
        fleet.up()
        yield fleet


def test_a_second_up_changes_nothing_and_says_so(fleet: SimFleet) -> None:
    before = fleet.pids()
    done = fleet.up("--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[0]["told"] == "nothing to change"
    assert lines[-1]["url"] == fleet.url
    assert fleet.pids() == before


def test_the_example_works_when_it_is_pasted(fleet: SimFleet) -> None:
    lines = [json.loads(line) for line in fleet.up("--json").stdout.splitlines()]
    done = subprocess.run(lines[-1]["example"], shell=True, capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["choices"], done.stderr


@pytest.mark.parametrize("name", ["agent", "router", "watchdog", "engine-1"])
def test_a_part_that_is_killed_comes_back_and_the_others_go_on(fleet: SimFleet, name: str) -> None:
    """The engine on the watchdog's order, the others by the supervisor itself."""
    before = fleet.pids()
    os.kill(before[name], signal.SIGKILL)
    wait_until(lambda: fleet.pids()[name] not in (0, before[name]), f"{name} is started again", 60)
    fleet.wait_ready()
    after = fleet.pids()
    assert {part for part in after if after[part] != before[part]} == {name}
    wait_until(lambda: answers(fleet), "requests are served", 60)


def test_each_part_of_ours_shows_that_its_loop_runs(fleet: SimFleet) -> None:
    pulses = [fleet.launch.folder.pulse(name) for name in ("agent", "router", "watchdog")]
    first = [pulse.stat().st_mtime_ns for pulse in pulses]
    wait_until(lambda: all(p.stat().st_mtime_ns > at for p, at in zip(pulses, first, strict=True)), "all beat", 30)


def test_a_watchdog_that_hangs_is_started_again(fleet: SimFleet) -> None:
    before = fleet.pids()
    os.kill(before["watchdog"], signal.SIGSTOP)
    wait_until(lambda: fleet.pids()["watchdog"] not in (0, before["watchdog"]), "it is started again", 90)
    told = [event.told for event in read_events(fleet.launch.folder.events) if event.part == "watchdog"]
    assert any("it hangs: no sign of life" in one for one in told), told
    fleet.wait_ready()


def answers(fleet: SimFleet) -> bool:
    try:
        return bool(fleet.ask()["choices"])
    except OSError:
        return False


def test_a_killed_supervisor_leaves_all_serving_and_the_next_up_adopts_it(fleet: SimFleet) -> None:
    before, supervisor = fleet.pids(), fleet.status().pid
    os.kill(supervisor, signal.SIGKILL)
    wait_until(lambda: group_is_empty(supervisor), "the supervisor is gone")
    assert answers(fleet)
    done = fleet.up()
    assert "supervises this node in the background" in done.stdout
    assert fleet.pids() == before
    assert fleet.status().pid != supervisor
    kinds = {event.part for event in read_events(fleet.launch.folder.events) if "adopted" in event.told}
    assert kinds == {"agent", "engine-1", "engine-2", "router", "watchdog"}


def test_a_change_starts_what_is_new_and_stops_what_is_gone(fleet: SimFleet) -> None:
    before = fleet.pids()
    fleet.write(engines=3)
    told = fleet.up().stdout
    assert "engine-3 is being started" in told
    after = fleet.pids()
    assert {name for name in after if after[name] != before.get(name)} == {"engine-3"}
    fleet.write()
    assert "engine-3 is being stopped: it is no longer described" in fleet.up().stdout
    wait_until(lambda: "engine-3" not in fleet.pids(), "it is gone", 60)
    assert group_is_empty(after["engine-3"])
    assert fleet.pids() == before


def test_logs_are_shown_by_name_and_all_together(fleet: SimFleet) -> None:
    one = fleet.run("logs", "engine-1", "-n", "3")
    assert one.returncode == 0
    assert len(one.stdout.splitlines()) <= 3
    together = fleet.run("logs", "-n", "2").stdout
    assert {line.split(" ")[0] for line in together.splitlines()} >= {"agent", "engine-1", "router", "supervisor"}
    missing = fleet.run("logs", "engine-9")
    assert missing.returncode == 3
    assert "no log of engine-9" in missing.stderr


def test_down_ends_what_a_killed_supervisor_left(tmp_path: Path) -> None:
    with SimFleet(tmp_path, engines=1) as fleet:
        fleet.up()
        pids = fleet.pids()
        os.kill(fleet.status().pid, signal.SIGKILL)
        os.kill(pids["agent"], signal.SIGKILL)
        done = fleet.run("down")
        assert done.returncode == 0, done.stderr
        assert "ending what one left running" in done.stdout
        assert all(map(group_is_empty, pids.values()))
        assert read_estate(fleet.launch.folder.supervisor) == ()


def start_in_foreground(fleet: SimFleet) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        fleet.command("up"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if "to end it:" in line:
            return process
    raise AssertionError(f"it ended: {''.join(seen)}\n{fleet.logs()}")


def test_ctrl_c_ends_a_node_in_the_foreground_in_order(tmp_path: Path) -> None:
    with SimFleet(tmp_path, engines=1) as fleet:
        process = start_in_foreground(fleet)
        pids = fleet.pids()
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=90)
        assert process.returncode == 0, output
        assert "all parts have ended" in output
        assert all(map(group_is_empty, pids.values()))


def test_a_second_ctrl_c_ends_it_at_once(tmp_path: Path) -> None:
    with SimFleet(tmp_path, engines=1) as fleet:
        process = start_in_foreground(fleet)
        pids = fleet.pids()
        os.kill(pids["watchdog"], signal.SIGSTOP)
        os.kill(living_members_of(pids["watchdog"])[-1], signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        wait_until(lambda: fleet.views()["watchdog"].state == "stopping", "it ends in order")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=90)
        assert process.returncode == 0
        assert all(map(group_is_empty, pids.values()))


def test_a_node_in_the_foreground_ends_with_its_supervisor_and_another_one_ends_in_order(tmp_path: Path) -> None:
    with SimFleet(tmp_path, engines=1) as fleet:
        process = start_in_foreground(fleet)
        before = fleet.pids()
        process.kill()
        process.wait()
        wait_until(lambda: all(map(group_is_empty, before.values())), "the tethers ended all", 60)
        fleet.up()
        pids = [*fleet.pids().values(), fleet.status().pid]
        assert not set(before.values()) & set(pids)
        done = fleet.run("down")
        assert done.returncode == 0, done.stderr
        assert "all parts of node local have ended" in done.stdout
        stopped = [line.split()[3] for line in done.stdout.splitlines() if line.endswith("is stopped")]
        assert stopped.index("watchdog") < stopped.index("router") < stopped.index("engine-1")
        assert all(map(group_is_empty, pids))
        assert (tmp_path / "arena").exists()
        assert "nothing of node local runs" in fleet.run("down", "--forget").stdout
        assert not (tmp_path / "arena").exists()


def test_an_engine_that_cannot_start_is_told_with_its_log_and_the_rest_goes_on(tmp_path: Path) -> None:
    with SimFleet(tmp_path, engine='simulated = true\narguments = "--capacity none"') as fleet:
        done = fleet.run("up", "-d")
        assert done.returncode == 3
        assert "capacity is 'none', expected a whole number" in done.stderr
        assert "the other parts go on" in done.stderr
        assert fleet.views()["engine-1"].state == "failed"
        fleet.wait_ready("agent", "router", "watchdog")
        fleet.write()
        assert fleet.up().returncode == 0
        assert answers(fleet)


def test_an_engine_that_cannot_start_ends_a_start_in_the_foreground(tmp_path: Path) -> None:
    with SimFleet(tmp_path, engines=1, engine='simulated = true\narguments = "--capacity none"') as fleet:
        done = fleet.run("up")
        assert done.returncode == 3
        assert "engine-1 failed" in done.stderr
        assert "all parts have ended" in done.stdout


def test_what_stands_against_a_start_is_said_at_once_and_nothing_is_started(tmp_path: Path) -> None:
    with SimFleet(tmp_path) as fleet, socket.create_server(("127.0.0.1", fleet.router_port)):
        done = fleet.run("up", "-d")
        assert done.returncode == 3
        assert (
            f"router: cannot listen on 127.0.0.1:{fleet.router_port}: it is in use by process {os.getpid()}"
            in done.stderr
        )
        assert "nothing was started" in done.stderr
        assert not fleet.launch.folder.control_socket.exists()
