"""A real etcd on loopback for tests: started in a temporary folder, killed, paused and restarted at will."""

import os
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kveik.engine.process import free_port
from tests.servers import Server

ROOT = Path(__file__).resolve().parents[1]


def etcd_binary() -> str:
    """The program, or a skip that says how to get it."""
    candidates = (os.environ.get("KVEIK_ETCD"), shutil.which("etcd"), str(ROOT / ".kveik/etcd/usr/bin/etcd"))
    found = next((path for path in candidates if path and Path(path).is_file()), None)
    if found is None:
        pytest.skip("no etcd here: apt-get install etcd-server, or set KVEIK_ETCD to the program")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    numbers = re.search(r"(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < (3, 4):
        pytest.skip(f"this etcd is too old, 3.4 is needed: {version.splitlines()[0]}")
    return found


class Etcd(Server):
    """One member. Its address and data folder stay the same from start to start."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "etcd.log")
        self._binary = etcd_binary()
        self._folder = folder
        self.port, self._peer_port = free_port(), free_port()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        client, peer = f"http://{self.address}", f"http://127.0.0.1:{self._peer_port}"
        command = [self._binary, "--data-dir", str(self._folder / "data"), "--log-level", "error"]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", f"default={peer}"]
        # Leases of a second are for tests: their least time is that of an election.
        command += ["--heartbeat-interval", "50", "--election-timeout", "250"]
        self.run(command)
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        until_s = time.monotonic() + 30
        while True:
            try:
                with urllib.request.urlopen(f"http://{self.address}/health", timeout=2) as answer:
                    if b'"true"' in answer.read():
                        return
            except OSError:
                assert self.runs, self.log
            assert time.monotonic() < until_s
            time.sleep(0.02)

    def lose_data(self) -> None:
        shutil.rmtree(self._folder / "data")


@contextmanager
def running_etcd(folder: Path) -> Iterator[Etcd]:
    etcd = Etcd(folder)
    etcd.start()
    try:
        yield etcd
    finally:
        etcd.kill()
