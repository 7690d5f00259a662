import argparse
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kveik.cli import main, register
from kveik.engine.process import free_port
from kveik.fleet.announcement import EngineAnnouncement
from kveik.fleet.embedded import EmbeddedRegistry
from kveik.fleet.lifecycle import State
from kveik.fleet.member_file import MemberFile
from kveik.router.fleet_api import Admission, FleetAdmin, FleetApi
from kveik.simulate.engine import SimulatedEngine
from tests.fleet import served

TOKEN = "s3cret-token"


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[EmbeddedRegistry]:
    registry = EmbeddedRegistry(MemberFile(tmp_path / "run" / "fleet.json"))
    yield registry
    registry.close()


@pytest.fixture
def router(registry: EmbeddedRegistry) -> Iterator[str]:
    with served(FleetAdmin(FleetApi(registry), Admission(TOKEN, loopback=True))) as url:
        yield url


@pytest.fixture
def engine() -> Iterator[SimulatedEngine]:
    with SimulatedEngine() as engine:
        yield engine


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVEIK_ADMISSION_TOKEN", TOKEN)


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    register.add_arguments(parser)
    return parser.parse_args(arguments)


class Running:
    """The command on a thread, until it is stopped."""

    def __init__(self, *arguments: str) -> None:
        self.stop = threading.Event()
        self.code = -1
        self._args = parsed(*arguments)
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.code = register.register(self._args, self.stop)

    def __enter__(self) -> "Running":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join()


def wait_for_engine(registry: EmbeddedRegistry, revision: int = 0) -> EngineAnnouncement:
    view = registry.wait_change(revision, 30.0)
    (member,) = view.members.values()
    return member.announcement


def test_an_engine_is_announced_with_what_it_says_of_itself_and_withdrawn_at_the_end(
    registry: EmbeddedRegistry, router: str, engine: SimulatedEngine
) -> None:
    with Running("--router", router, "--engine", engine.url, "--label", "rack=7", "--namespace", "abcd") as command:
        announcement = wait_for_engine(registry)
    assert announcement.url == engine.url
    assert announcement.models == ("simulated",)
    assert (announcement.max_model_tokens, announcement.block_tokens) == (2048, 16)
    assert (announcement.namespace, announcement.labels, announcement.lease_s) == ("abcd", {"rack": "7"}, 15.0)
    assert (command.code, registry.members()) == (0, ())


def test_heartbeats_keep_a_short_lease(registry: EmbeddedRegistry, router: str, engine: SimulatedEngine) -> None:
    with Running("--router", router, "--engine", engine.url, "--lease", "1"):
        wait_for_engine(registry)
        view = registry.wait_change(registry.view.revision, 2.5)
        assert [member.state for member in view.members.values()] == [State.ANNOUNCED]


def test_an_engine_that_ends_is_taken_out_before_its_lease_ends(registry: EmbeddedRegistry, router: str) -> None:
    with ExitStack() as life:
        mortal = life.enter_context(SimulatedEngine())
        with Running("--router", router, "--engine", mortal.url, "--lease", "3"):
            wait_for_engine(registry)
            life.close()
            assert registry.wait_change(registry.view.revision, 30.0).members == {}


def test_once_announces_without_a_lease_and_ends(
    registry: EmbeddedRegistry, router: str, engine: SimulatedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["register", "--router", router, "--engine", engine.url, "--once", "--json"]) == 0
    (member,) = registry.members()
    assert member.lease_ends_s is None
    line = json.loads(capsys.readouterr().out)
    assert line["state"] == "registered"
    assert "without a lease" in line["text"]


def test_an_engine_that_does_not_come_ends_the_wait_with_3(router: str, capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    arguments = ["register", "--router", router, "--engine", f"http://127.0.0.1:{port}", "--wait", "0.1"]
    assert main.main(arguments) == 3
    output = capsys.readouterr()
    assert "the engine did not answer within 0.1 s" in output.err
    assert output.out.count("waiting for the engine") == 1


def test_an_engine_that_comes_later_is_waited_for(registry: EmbeddedRegistry, router: str) -> None:
    port = free_port()
    with Running("--router", router, "--engine", f"http://127.0.0.1:{port}"):
        assert registry.wait_change(0, 0.3).members == {}
        with SimulatedEngine(port=port):
            assert wait_for_engine(registry).models == ("simulated",)


def test_once_without_a_router_exits_with_3(engine: SimulatedEngine, capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    assert main.main(["register", "--router", f"127.0.0.1:{port}", "--engine", engine.url, "--once"]) == 3
    assert "Connection refused" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--router", "ftp://x", "--engine", "http://127.0.0.1:1"], "is no address of a router"),
        (["--router", "http://127.0.0.1:1", "--engine", "ftp://x"], "url is 'ftp://x'"),
        (["--router", "http://127.0.0.1:1", "--engine", "http://127.0.0.1"], "expected http://HOST:PORT"),
        (["--router", "http://127.0.0.1:1", "--engine", "127.0.0.1:1", "--lease", "0"], "--lease is 0, expected 1 to"),
        (["--router", "http://127.0.0.1:1", "--engine", "127.0.0.1:1", "--label", "x"], "expected NAME=TEXT"),
        (["--router", "http://127.0.0.1:1", "--engine", "127.0.0.1:1", "--namespace", "x"], "namespace is 'x'"),
        (["--router", "http://10.0.0.9:1", "--engine", "127.0.0.1:1"], "say how it can with --advertise URL"),
        (
            ["--router", "http://127.0.0.1:1", "--engine", "127.0.0.1:1", "--token-file", "/none"],
            "cannot read the token",
        ),
    ],
)
def test_arguments_that_are_not_valid_exit_with_2_before_anything_is_waited_for(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["register", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_wrong_token_exits_with_2_and_is_not_shown(
    router: str, engine: SimulatedEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVEIK_ADMISSION_TOKEN", "wr0ng")
    assert main.main(["register", "--router", router, "--engine", engine.url]) == 2
    error = capsys.readouterr().err
    assert "needs the admission token" in error
    assert "wr0ng" not in error


def test_a_signal_withdraws_the_engine_and_ends_with_0(
    registry: EmbeddedRegistry, router: str, engine: SimulatedEngine, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n", encoding="utf8")
    command = [sys.executable, "-m", "kveik.cli.main", "register", "--router", router, "--engine", engine.url]
    process = subprocess.Popen(
        [*command, "--engine-id", "seven", "--token-file", str(tmp_path / "token")],
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert wait_for_engine(registry).name == "seven"
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert output.splitlines() == [
        f"engine seven is announced at {router}, state announced",
        f"engine seven is withdrawn from {router}",
    ]
    assert registry.members() == ()
