"""Engines on this machine that somebody else started are found by their port and by vLLM's titles."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from kveik.engine.process import free_port
from kveik.watchdog.neighbour import SEARCH_PERIOD_S, Neighbour, engine_at, is_local
from tests.agents import wait_until

SERVER = """
import socket, subprocess, sys, time
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
child = subprocess.Popen([sys.argv[2], "-c", "import time; time.sleep(600)"], executable=sys.executable)
print(child.pid, flush=True)
time.sleep(600)
"""


class Server:
    """A process that listens, with a child of some title."""

    def __init__(self, title: str) -> None:
        self.port = free_port()
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(self.port), title],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.child = int(self.process.stdout.readline())
        wait_until(lambda: psutil.Process(self.child).cmdline()[:1] == [title], "it has its title")

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def engine() -> Iterator[Server]:
    server = Server("VLLM::EngineCore")
    yield server
    if server.process.poll() is None:
        server.kill()


def test_an_engine_is_found_by_its_port(engine: Server) -> None:
    assert engine_at(engine.port) == (engine.process.pid, engine.child)
    assert Neighbour(f"http://127.0.0.1:{engine.port}").pids(0.0) == (engine.process.pid, engine.child)


def test_what_else_listens_is_no_engine() -> None:
    proxy = Server("docker-proxy")
    try:
        assert engine_at(proxy.port) is None
    finally:
        proxy.kill()
    assert engine_at(free_port()) is None


def test_it_is_looked_for_now_and_then(engine: Server) -> None:
    neighbour = Neighbour(f"http://localhost:{engine.port}/v1")
    found = neighbour.pids(100.0)
    engine.kill()
    assert neighbour.pids(100.0 + SEARCH_PERIOD_S / 2) == found
    assert neighbour.pids(100.0 + SEARCH_PERIOD_S) is None


def test_engines_elsewhere_are_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(kind: str) -> list[object]:
        raise AssertionError("nothing on this machine may be taken for it")

    monkeypatch.setattr(psutil, "net_connections", never)
    assert Neighbour("http://192.0.2.1:8001").pids(0.0) is None
    assert Neighbour("http://engine-1.example:8001").pids(0.0) is None


def test_addresses_of_this_machine_are_known() -> None:
    assert is_local("127.0.0.1")
    assert is_local("127.0.0.2")
    assert is_local("localhost")
    assert is_local("::1")
    assert not is_local("192.0.2.1")
    assert not is_local("")
    own = [one.address for found in psutil.net_if_addrs().values() for one in found if one.family == socket.AF_INET]
    assert all(is_local(address) for address in own)


def test_what_may_not_be_listed_is_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(kind: str) -> list[object]:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "net_connections", denied)
    assert engine_at(8001) is None
