"""A real Redis or Valkey server on loopback for tests: started, killed, paused and restarted at will."""

import contextlib
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kveik.config_stores import RedisSettings
from kveik.engine.process import free_port
from tests.servers import Server


def redis_binary() -> str:
    """The program, or a skip that says how to get it."""
    candidates = (os.environ.get("KVEIK_REDIS"), shutil.which("redis-server"), shutil.which("valkey-server"))
    found = next((path for path in candidates if path and Path(path).is_file()), None)
    if found is None:
        pytest.skip("no Redis here: apt-get install redis-server, or set KVEIK_REDIS to the program")
    pytest.importorskip("redis")
    return found


class RedisServer(Server):
    """One server in memory only: after a restart it is empty. Its address stays the same."""

    def __init__(self, folder: Path, *options: str) -> None:
        super().__init__(folder / "redis.log")
        self._binary = redis_binary()
        self._folder = folder
        self._options = options
        self.port = free_port()
        self.socket = str(folder / "redis.sock")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def settings(self, **given: str | int | float | bool) -> RedisSettings:
        return RedisSettings(**({"address": self.address, "connect_s": 20.0} | given))  # type: ignore[arg-type]

    def start(self) -> "RedisServer":
        command = [self._binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        command += ["--unixsocket", self.socket, "--save", "", "--appendonly", "no", *self._options]
        self.run(command)
        self._wait_until_it_answers()
        return self

    def _wait_until_it_answers(self) -> None:
        until_s = time.monotonic() + 30
        while not self._answers():
            assert self.runs, self.log
            assert time.monotonic() < until_s
            time.sleep(0.02)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5) as asked:
            asked.sendall(b"PING\r\n")
            return bool(asked.recv(64))  # also a refusal without a password is an answer
        return False

    def command(self, *words: str | bytes) -> bytes:
        """Send one command past the tier; the raw beginning of the answer."""
        parts = [word.encode() if isinstance(word, str) else word for word in words]
        message = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as asked:
            asked.sendall(message)
            return asked.recv(1 << 16)


@contextmanager
def running_redis(folder: Path, *options: str) -> Iterator[RedisServer]:
    server = RedisServer(folder, *options)
    server.start()
    try:
        yield server
    finally:
        server.kill()
