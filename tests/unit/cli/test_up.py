"""What ``kveik up`` says before it starts anything, and which code it ends with."""

import argparse
import json
import socket
import threading
import time
from pathlib import Path

import pytest

from kveik.cli import up
from kveik.cli.main import main
from kveik.cli.up import Start
from kveik.errors import SuperviseError
from kveik.launch.up import Launch
from kveik.supervise.client import ControlClient
from kveik.supervise.control import Answer, ControlServer
from kveik.supervise.messages import Order, ProcessView, StatusAnswer
from tests.fleets import SimFleet

READY = ProcessView(name="engine-1", kind="engine", state="ready", pid=7)


def test_a_configuration_that_is_not_there_or_not_valid_is_wrong_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", "--config", str(tmp_path / "none.toml")]) == 2
    assert "none.toml: write one with `kveik init`" in capsys.readouterr().err
    file = tmp_path / "kveik.toml"
    file.write_text("[router]\nprot = 8\n")
    assert main(["up", "--config", str(file)]) == 2
    assert "unknown setting 'prot'" in capsys.readouterr().err
    file.write_text('[[nodes]]\nname = "a"\n[[nodes]]\nname = "b"\n')
    assert main(["up", "--config", str(file)]) == 2
    assert "say with --node NAME which this machine is" in capsys.readouterr().err


def test_everything_that_stands_against_a_start_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = SimFleet(tmp_path, engines=1, engine='model = "/nowhere"\npython = "/no/python"')
    with socket.create_server(("127.0.0.1", fleet.router_port)):
        assert main(["up", "--config", str(fleet.config)]) == 3
    said = capsys.readouterr().err
    for words in (
        f"router: cannot listen on 127.0.0.1:{fleet.router_port}",
        "engine-1: /nowhere is no model folder",
        "engine-1: the Python /no/python cannot be run",
        "nothing was started: these stand against it (--force starts nevertheless)",
    ):
        assert words in said
    assert not list((tmp_path / "s").glob("**/*.log"))


def start(tmp_path: Path, *, as_json: bool = False, tables: str = "") -> tuple[Start, list[str]]:
    said: list[str] = []
    launch = Launch.read(SimFleet(tmp_path, engines=1, tables=tables).config, "", {})
    return Start(launch, lambda told, **fields: said.append(told), as_json=as_json, detached=True), said


def test_parts_that_failed_are_told_with_the_end_of_their_logs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "engine-1.log"
    log.write_text("".join(f"line {number}\n" for number in range(30)))
    failed = ProcessView(name="engine-1", kind="engine", state="failed", why="no room", log=str(log))
    begun, said = start(tmp_path)
    assert begun.until_ready(lambda: [failed]) == 3
    err = capsys.readouterr().err
    assert "engine-1 failed: no room" in err
    assert "| line 29" in err
    assert "| line 3\n" not in err
    assert str(log) in err
    assert "the other parts go on" in err
    assert said == ["engine-1 is failed: no room"]


def test_a_start_that_is_given_up_meanwhile_is_no_success(tmp_path: Path) -> None:
    begun, _ = start(tmp_path)
    assert begun.until_ready(lambda: [READY], alive=lambda: False) == 3


def test_readiness_is_an_answer_through_the_router(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def answer(launch: Launch, alive: object) -> str:
        asked.append(launch.router_url)
        return "said about it"

    monkeypatch.setattr(up, "first_answer", answer)
    monkeypatch.setattr(up, "join_pool", lambda launch, pool, alive: "engine-2 gets no requests")
    begun, said = start(tmp_path)
    assert begun.until_ready(lambda: [READY]) == 0
    assert asked == [begun.launch.router_url]
    assert said[-3:] == [
        "said about it",
        "engine-2 gets no requests",
        f"the fleet is ready at {begun.launch.router_url}",
    ]
    assert "curl" in capsys.readouterr().out


def test_a_router_without_engines_that_it_could_ask_ends_the_wait_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(launch: Launch, alive: object) -> str:
        raise SuperviseError("engines are ready, but the router gives no answer: HTTP 503")

    monkeypatch.setattr(up, "first_answer", refuse)
    begun, _ = start(tmp_path)
    with pytest.raises(SuperviseError, match="HTTP 503"):
        begun.until_ready(lambda: [READY])


def test_how_long_starts_took_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "first_answer", lambda launch, alive: "")
    begun, said = start(tmp_path)
    begun.launch.folder.root.mkdir(parents=True)
    states = iter(["starting", "ready"])
    begun.until_ready(lambda: [ProcessView(name="engine-1", kind="engine", state=next(states), pid=7)])
    assert json.loads(begun.launch.folder.starts.read_text()).keys() == {"engine-1"}
    assert any(told.startswith("engine-1 is ready after") for told in said)


def test_the_option_for_the_process_in_the_background_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    up.add_arguments(parser)
    shown = parser.format_help()
    assert "--supervise" not in shown
    assert {"--detach", "--force", "--node", "--json"} <= set(shown.replace(",", " ").split())


def test_the_first_signal_ends_in_order_and_the_second_at_once() -> None:
    told: list[float | None] = []
    heard = threading.Semaphore(0)

    class Supervised:
        def down(self, grace_s: float | None = None) -> None:
            told.append(grace_s)
            heard.release()

    signals = up._Signals(Supervised())  # type: ignore[arg-type]
    for _ in range(2):
        signals._hear()
        assert heard.acquire(timeout=10)
    assert told == [None, 0.0]
    assert signals.told == 2


def test_while_everything_starts_the_supervisor_may_take_its_time(tmp_path: Path) -> None:
    """Engines that start may leave it no core for longer than a command waits otherwise."""

    def slowly(_: Order) -> Answer:
        time.sleep(0.5)
        return StatusAnswer(fleet="f", node="n", pid=1, config="", processes=(READY,))

    (tmp_path / "run").mkdir(mode=0o700)
    server = ControlServer(str(tmp_path / "run" / "control.sock"), slowly).start()
    try:
        impatient = ControlClient(str(tmp_path / "run" / "control.sock"), deadline_s=0.1)
        with pytest.raises(SuperviseError, match="no answer within"):
            impatient.status()
        assert list(up.views_of(impatient)()) == [READY]
    finally:
        server.close()
