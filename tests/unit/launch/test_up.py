"""What a start finds, asks and says."""

import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from kveik.engine.group import ProcessId, identity_of
from kveik.errors import AdmissionError, ConfigError, SuperviseError
from kveik.launch.parts import Here
from kveik.launch.pool import Pool, PooledEngine
from kveik.launch.up import Launch, check, detach, first_answer, join_pool, with_log_ends
from kveik.supervise.adopt import KeptRecord, write_estate
from kveik.supervise.messages import ProcessView, StatusAnswer
from tests.fleets import SimFleet

HERE = Here(cores=(0, 1), environ=dict(os.environ))


def read(folder: Path, **given: object) -> Launch:
    return Launch.read(SimFleet(folder, **given).config, "", os.environ, HERE)  # type: ignore[arg-type]


def test_a_launch_knows_where_its_router_is_and_what_it_serves(tmp_path: Path) -> None:
    fleet = SimFleet(tmp_path)
    launch = Launch.read(fleet.config, "", os.environ, HERE)
    assert (launch.node, launch.router_url, launch.model) == ("local", fleet.url, "simulated")
    assert [part.name for part in launch.parts] == ["agent", "engine-1", "engine-2", "router", "watchdog"]
    assert launch.folder.root == tmp_path / "s" / "local"


def test_another_state_of_the_file_and_other_settings_make_other_parts(tmp_path: Path) -> None:
    launch = read(tmp_path)
    same = launch.describe(launch.config, {})
    assert [part.digest for part in same] == [part.digest for part in launch.parts]
    other = launch.describe(launch.config, {"engine-2": {"served_name": "other"}})
    changed = [part.name for part, before in zip(other, launch.parts, strict=True) if part.digest != before.digest]
    assert changed == ["engine-2"]
    with pytest.raises(ConfigError, match="settings of engine-1"):
        launch.describe(launch.config, {"engine-1": {"modle": 1}})


def answer(launch: Launch, *views: ProcessView) -> StatusAnswer:
    return StatusAnswer(fleet="f", node="local", pid=os.getpid(), config=str(launch.config), processes=views)


@pytest.fixture
def listening() -> Iterator[int]:
    """Somebody on a port: this process."""
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    yield server.server_address[1]
    server.server_close()


def test_ports_of_parts_that_run_are_no_obstacle(tmp_path: Path, listening: int) -> None:
    fleet = SimFleet(tmp_path, engines=1)
    fleet.engine_ports[0] = listening
    fleet.write(engines=1)
    launch = Launch.read(fleet.config, "", os.environ, HERE)
    (problem,) = check(launch, None)
    assert problem.about == "engine-1"
    engine = next(part for part in launch.parts if part.name == "engine-1")
    same = ProcessView(name="engine-1", kind="engine", state="ready", pid=1, pids=(1,), digest=engine.digest)
    assert check(launch, answer(launch, same)) == ()
    replaced = ProcessView(name="engine-1", kind="engine", state="ready", pid=os.getpid(), pids=(os.getpid(),))
    assert check(launch, answer(launch, replaced)) == ()


def test_what_a_killed_supervisor_left_counts_as_running(tmp_path: Path, listening: int) -> None:
    fleet = SimFleet(tmp_path, engines=1)
    fleet.engine_ports[0] = listening
    fleet.write(engines=1)
    launch = Launch.read(fleet.config, "", os.environ, HERE)
    launch.folder.root.mkdir(parents=True, mode=0o700)
    me = identity_of(os.getpid())
    assert me is not None

    def leave(process: ProcessId, *, tethered: bool) -> None:
        engine = next(part for part in launch.parts if part.name == "engine-1")
        record = KeptRecord(
            name="engine-1", kind="engine", process=process, digest=engine.digest, log="", ready=True, tethered=tethered
        )
        write_estate(launch.folder.supervisor, [record])

    leave(me, tethered=False)
    assert check(launch, None) == ()
    leave(me, tethered=True)
    assert [problem.about for problem in check(launch, None)] == ["engine-1"]
    leave(ProcessId(me.pid, 1, me.boot), tethered=False)
    assert [problem.about for problem in check(launch, None)] == ["engine-1"]


def test_a_supervisor_in_the_background_that_ends_at_once_is_told_with_its_words(tmp_path: Path) -> None:
    launch = read(tmp_path)
    launch.config.write_text("[router]\nprot = 1\n")
    with pytest.raises(SuperviseError, match=r"the supervisor ended: kveik up: .*unknown setting 'prot'"):
        detach(launch)


class Router(http.server.BaseHTTPRequestHandler):
    """Answers completions with these statuses, one after the other, the last one for ever."""

    statuses: ClassVar[list[int]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0])
        self.end_headers()
        self.wfile.write(b"data: " + json.dumps({"choices": [{"token_ids": [5], "text": "x"}]}).encode())
        self.wfile.write(b"\n\ndata: [DONE]\n\n")

    def log_message(self, format: str, *args: object) -> None:
        """Tests show what they need to."""


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """A launch whose router is the one above."""
    fleet = SimFleet(tmp_path)
    server = http.server.HTTPServer(("127.0.0.1", fleet.router_port), Router)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Launch.read(fleet.config, "", os.environ, HERE)
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_router_that_has_no_engine_yet_is_asked_again(launch: Launch) -> None:
    Router.statuses = [503, 503, 200]
    assert first_answer(launch, lambda: True) == ""


def test_a_router_with_keys_is_taken_at_its_word(launch: Launch) -> None:
    Router.statuses = [401]
    assert "asks for an API key" in first_answer(launch, lambda: True)


def test_a_router_that_never_answers_is_given_up_with_its_words(launch: Launch) -> None:
    Router.statuses = [503]
    with pytest.raises(SuperviseError, match=r"engines are ready, but the router gives no answer: .*HTTP 503"):
        first_answer(launch, lambda: True, timeout_s=0.0)
    with pytest.raises(SuperviseError, match="HTTP 503"):
        first_answer(launch, lambda: False)


def pool(state: str, *, takes: bool = False, out: bool = False) -> Pool:
    """The first engine so, the second one in order."""
    return {
        "engine-1": PooledEngine("engine-1", "http://127.0.0.1:1", state, takes, out, why="update"),
        "engine-2": PooledEngine("engine-2", "http://127.0.0.1:2", "ready", takes=True),
    }


def test_all_engines_are_waited_for_until_the_router_sends_to_them(launch: Launch) -> None:
    looks: list[Pool] = [{}, pool("announced"), pool("ready", takes=True)]
    assert join_pool(launch, lambda: looks.pop(0), lambda: True) == ""
    assert looks == []


def test_an_engine_that_somebody_holds_is_told_and_not_waited_for(launch: Launch) -> None:
    told = join_pool(launch, lambda: pool("draining", out=True), lambda: True)
    assert told == "these get no requests: engine-1 (draining: update)"


def test_an_engine_that_does_not_join_in_time_is_named(launch: Launch) -> None:
    assert "does not send to these yet: engine-1" in join_pool(
        launch, lambda: pool("announced"), lambda: True, timeout_s=0.0
    )
    assert "does not send to these yet: engine-1" in join_pool(launch, lambda: pool("lost"), lambda: False)


def test_a_router_that_does_not_tell_its_engines_is_no_failure(launch: Launch) -> None:
    def refuses() -> Pool:
        raise AdmissionError("the router wants a token")

    assert "not known: the router wants a token" in join_pool(launch, refuses, lambda: True)


def test_what_failed_is_told_with_the_end_of_its_log() -> None:
    failed = ProcessView(name="engine-1", kind="engine", state="failed", why="no room", log="/l/engine-1.log")
    assert with_log_ends([failed], lambda log: f"last line of {log.name}") == [
        "engine-1 failed: no room",
        "  | last line of engine-1.log",
        "  its whole log: /l/engine-1.log",
    ]
