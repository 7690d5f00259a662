"""The watchdog heals real processes: simulated engines under a real supervisor, behind a real router."""

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from kveik.fleet.announcement import EngineAnnouncement
from kveik.fleet.client import FleetClient
from kveik.watchdog.patients import Listed
from tests.routers import RouterProcess, RouterThread, SimProcess
from tests.watched import SupervisedNode, WatchdogProcess, Watched, set_fault, wait


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterThread]:
    with RouterThread(tmp_path_factory.mktemp("router"), []) as router:
        yield router


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SupervisedNode]:
    with SupervisedNode(tmp_path_factory.mktemp("node"), engines=2) as node:
        yield node


@pytest.fixture
def node(engines: SupervisedNode, router: RouterThread) -> SupervisedNode:
    """Two engines that are well; nobody remembers anything of them."""
    return engines.as_new(FleetClient(router.url))


def both_serve(watched: Watched) -> None:
    for name in ("engine-1", "engine-2"):
        watched.wait_state("ready", name)


def test_a_hung_engine_is_isolated_evidence_is_saved_and_it_is_restarted_once(
    tmp_path: Path, node: SupervisedNode, router: RouterThread
) -> None:
    with Watched(tmp_path, router.url, node=node) as watched:
        both_serve(watched)
        hung, restarts = node.view().pid, node.view().restarts
        node.signal(signal.SIGSTOP)
        watched.wait_state("isolated")
        watched.wait_kind("readmitted")
        watched.wait_state("ready")
        assert watched.kinds() == ["announced", "isolated", "evidence", "restarted", "readmitted"]
        assert watched.kinds("engine-2") == ["announced"], "the other one was left alone"
        assert node.view().pid != hung
        assert node.view().restarts == restarts + 1
    (bundle,) = (node.folder.root / "evidence").iterdir()
    assert bundle.name.endswith("engine-1-hung")
    files = {file.name for file in bundle.iterdir()}
    assert {"summary.txt", "processes.txt", "samples.json", "log.txt", "metrics.txt", "restart.txt"} <= files
    assert "stopped" in (bundle / "processes.txt").read_text()


def test_a_hung_engine_that_goes_on_within_the_grace_is_not_restarted(
    tmp_path: Path, node: SupervisedNode, router: RouterThread
) -> None:
    with Watched(tmp_path, router.url, node=node, restart_grace_s=50.0) as watched:
        both_serve(watched)
        pid = node.view().pid
        node.signal(signal.SIGSTOP)
        watched.wait_state("isolated")
        node.signal(signal.SIGCONT)
        watched.wait_state("ready")
        assert watched.kinds() == ["announced", "isolated", "evidence", "readmitted"]
        assert node.view().pid == pid


def test_a_killed_engine_is_restarted_at_once(tmp_path: Path, node: SupervisedNode, router: RouterThread) -> None:
    with Watched(tmp_path, router.url, node=node, restart_grace_s=500.0) as watched:
        both_serve(watched)
        node.signal(signal.SIGKILL)
        watched.wait_kind("readmitted")
        watched.wait_state("ready")
        assert watched.kinds() == ["announced", "isolated", "evidence", "restarted", "readmitted"]


def test_an_engine_that_answers_errors_is_restarted(tmp_path: Path, node: SupervisedNode, router: RouterThread) -> None:
    with Watched(tmp_path, router.url, node=node) as watched:
        both_serve(watched)
        node.fault(status=500, status_body="EngineCore encountered an issue")
        watched.wait_kind("readmitted")
        watched.wait_state("ready")
        assert watched.kinds() == ["announced", "isolated", "evidence", "restarted", "readmitted"]
        assert any("half-dead" in line and "EngineCore encountered an issue" in line for line in watched.told())


def test_a_crash_loop_ends_with_the_budget_and_a_person_readmits(
    tmp_path: Path, node: SupervisedNode, router: RouterThread
) -> None:
    with Watched(tmp_path, router.url, node=node, restarts_max=2) as watched:
        both_serve(watched)
        node.refuse.touch()
        node.signal(signal.SIGKILL)
        watched.wait_kind("left")
        assert watched.kinds().count("restarted") == 2
        assert watched.state() == "isolated"
        assert any("kveik readmit" in line for line in watched.told())
        node.refuse.unlink()
        node.control.start("engine-1")
        wait(lambda: node.view().state == "ready", "the engine runs again")
        assert watched.state() == "isolated", "it waits for a person"
        watched.router.hold("engine-1", "readmit", "")
        watched.wait_kind("readmitted")
        watched.wait_state("ready")
        assert watched.kinds()[-2:] == ["left", "readmitted"]


def test_an_engine_that_somebody_holds_is_watched_and_not_touched(
    tmp_path: Path, node: SupervisedNode, router: RouterThread
) -> None:
    with Watched(tmp_path, router.url, node=node) as watched:
        both_serve(watched)
        node.control.hold("engine-1", "roll")
        pid = node.view().pid
        wait(lambda: watched.watchdog.report().parts != (), "the hold is known")
        node.signal(signal.SIGSTOP)
        wait(lambda: "hung" in repr(watched.watchdog.watches["engine-1"]), "it is seen to be hung")
        assert watched.kinds() == ["announced"]
        assert node.view().pid == pid
        node.control.release("engine-1")
        watched.wait_kind("readmitted")
        assert watched.kinds() == ["announced", "isolated", "evidence", "restarted", "readmitted"]


def test_an_engine_that_is_stopped_on_purpose_leaves_the_fleet_and_comes_back(
    tmp_path: Path, node: SupervisedNode, router: RouterThread
) -> None:
    with Watched(tmp_path, router.url, node=node) as watched:
        both_serve(watched)
        node.control.stop("engine-1", grace_s=0.0)
        watched.wait_state("unknown")
        node.control.start("engine-1")
        watched.wait_state("ready")
        assert watched.kinds() == ["announced", "stopped", "announced"]


@pytest.mark.slow
def test_healing_goes_on_without_a_router_which_is_told_later(tmp_path: Path, node: SupervisedNode) -> None:
    with RouterProcess(tmp_path) as router, Watched(tmp_path, router.url, node=node) as watched:
        both_serve(watched)
        router.kill()
        pid = node.view().pid
        node.signal(signal.SIGKILL)
        watched.wait_kind("readmitted")
        assert node.view().pid != pid
        router.start()
        watched.wait_state("ready")


@pytest.mark.slow
def test_a_router_that_was_away_when_an_engine_hung_isolates_it_when_it_is_back(
    tmp_path: Path, node: SupervisedNode
) -> None:
    with RouterProcess(tmp_path) as router, Watched(tmp_path, router.url, node=node, restart=False) as watched:
        both_serve(watched)
        router.kill()
        node.signal(signal.SIGSTOP)
        watched.wait_kind("not restarted")
        router.start()
        watched.wait_state("isolated")
        node.signal(signal.SIGCONT)
        watched.wait_state("ready")


@pytest.mark.slow
def test_a_watchdog_that_is_killed_in_the_midst_of_healing_goes_on_and_restarts_once(
    tmp_path: Path, node: SupervisedNode, router: RouterThread
) -> None:
    view = Watched(tmp_path, router.url, node=node)
    process = WatchdogProcess(tmp_path, node, router.url, restart_grace_s=3.0)
    try:
        both_serve(view)
        hung, restarts = node.view().pid, node.view().restarts
        node.signal(signal.SIGSTOP)
        view.wait_kind("isolated")
        process.kill()
        assert view.state() == "isolated"
        assert view.state("engine-2") == "ready", "engines and router go on without it"
        process.start()
        view.wait_kind("readmitted")
        view.wait_state("ready")
        # Whether it had saved evidence when it was killed is chance; at least once it is saved.
        kinds = view.kinds()
        assert [kind for kind in kinds if kind != "evidence"] == ["announced", "isolated", "restarted", "readmitted"]
        assert "evidence" in kinds[: kinds.index("restarted")]
        assert (node.view().restarts, node.view().pid != hung) == (restarts + 1, True)
        assert view.kinds("engine-2") == ["announced"]
    finally:
        assert process.end() == 0, process.log.read_text()


@pytest.mark.slow
def test_a_watchdog_that_is_killed_while_all_is_well_changes_nothing(
    tmp_path: Path, node: SupervisedNode, router: RouterThread
) -> None:
    view = Watched(tmp_path, router.url, node=node)
    process = WatchdogProcess(tmp_path, node, router.url)
    try:
        both_serve(view)
        pids = [node.view(name).pid for name in ("engine-1", "engine-2")]
        process.kill()
        process.start()
        wait(lambda: process.log.read_text().count("resumed as serving") == 2, "it goes on")
        wait(lambda: process.log.read_text().count("is announced at") == 4, "the engines are announced again")
        assert [node.view(name).pid for name in ("engine-1", "engine-2")] == pids
        assert [view.state(name) for name in ("engine-1", "engine-2")] == ["ready", "ready"]
        assert view.kinds() == ["announced"]
    finally:
        assert process.end() == 0, process.log.read_text()


RESTART = """
import os, signal, subprocess, sys
pid_file, log, *command = sys.argv[1:]
os.kill(int(open(pid_file).read()), signal.SIGKILL)
new = subprocess.Popen(command, stdout=open(log, "ab"), stderr=subprocess.STDOUT, start_new_session=True)
open(pid_file, "w").write(str(new.pid))
print("restarted", os.environ["KVEIK_ENGINE"])
"""


def listed(url: str, *restart: str) -> Listed:
    return Listed(EngineAnnouncement(url=url, engine_id="foreign", lease_s=0.0), restart)


def test_a_foreign_engine_is_restarted_by_its_command(tmp_path: Path) -> None:
    with SimProcess(tmp_path) as engine, RouterThread(tmp_path, []) as router:
        config = tmp_path / "kveik.toml"
        pid_file, script = tmp_path / "pid", tmp_path / "restart.py"
        pid_file.write_text(str(engine.process.pid))
        script.write_text(RESTART)
        config.write_text(f'[[engines]]\nurl = "{engine.url}"\nengine_id = "foreign"\n')
        command = [sys.executable, str(script), str(pid_file), str(tmp_path / "new.log"), *engine._command]
        try:
            with Watched(tmp_path, router.url, listed=[listed(engine.url, *command)]) as watched:
                watched.wait_state("ready", "foreign")
                watched.wait_kind("announced", "foreign")
                set_fault(engine.url, hang=True)
                watched.wait_kind("readmitted", "foreign")
                watched.wait_state("ready", "foreign")
                assert watched.kinds("foreign") == ["announced", "isolated", "evidence", "restarted", "readmitted"]
                (bundle,) = (watched.folder.root / "evidence").iterdir()
                assert "restarted foreign" in (bundle / "restart.txt").read_text()
        finally:
            if (pid := int(pid_file.read_text())) != engine.process.pid:
                psutil.Process(pid).kill()


def test_an_engine_that_nobody_can_restart_is_isolated_and_comes_back_when_it_does(tmp_path: Path) -> None:
    with (
        SimProcess(tmp_path) as engine,
        RouterThread(tmp_path, []) as router,
        Watched(tmp_path, router.url, given=[engine.url]) as watched,
    ):
        name = f"127.0.0.1:{engine.port}"
        watched.wait_state("ready", name)
        engine.signal(signal.SIGSTOP)
        watched.wait_kind("not restarted", name)
        assert watched.state(name) == "isolated"
        engine.signal(signal.SIGCONT)
        watched.wait_state("ready", name)
        assert watched.kinds(name) == ["announced", "isolated", "evidence", "not restarted", "readmitted"]


@pytest.mark.slow
def test_a_busy_engine_is_never_touched(tmp_path: Path) -> None:
    with (
        RouterThread(tmp_path, []) as router,
        SupervisedNode(tmp_path, engines=1, decode_s=0.05, capacity=1) as node,
        Watched(tmp_path, router.url, node=node) as watched,
    ):
        watched.wait_state("ready")
        # One request at a time for two and a half seconds each: probes are late, and tokens move.
        load = [ask_for_tokens(node.urls["engine-1"], 50) for _ in range(3)]
        wait(lambda: "busy" in repr(watched.watchdog.watches["engine-1"]), "it is seen to be busy")
        for one in load:
            assert one.wait(60) == 0
        assert watched.kinds() == ["announced"]


ASK = """
import json, sys, urllib.request
url, tokens = sys.argv[1:]
body = {"model": "simulated", "prompt": "hello", "max_tokens": int(tokens), "ignore_eos": True}
head = {"Content-Type": "application/json"}
request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), head)
urllib.request.urlopen(request).read()
"""


def ask_for_tokens(url: str, tokens: int) -> "subprocess.Popen[bytes]":
    """A request under way."""
    return subprocess.Popen([sys.executable, "-c", ASK, url, str(tokens)])


def test_the_router_is_told_how_the_node_is(tmp_path: Path, node: SupervisedNode, router: RouterThread) -> None:
    with Watched(tmp_path, router.url, node=node) as watched:
        both_serve(watched)
        wait(lambda: len(told_to(router).get("engines", [])) == 2, "the report came")
        report = watched.watchdog.report()
        assert [engine.condition for engine in report.engines] == ["ready", "ready"]
        assert {part.name for part in report.parts} == {"engine-1", "engine-2"}
        assert any("gets requests" in event.told for event in report.events)


def told_to(router: RouterThread) -> dict[str, list[object]]:
    with urllib.request.urlopen(f"{router.url}/fleet/status", timeout=20) as answer:
        document: dict[str, list[object]] = json.load(answer)
    return document
