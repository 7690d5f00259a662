"""A store's own client in a process of its own, which reads blocks by their names and says how long that took.

``python -m benchmarks.own_clients KIND OPTIONS BYTES`` reads a JSON list of names a line and answers the seconds.
What is read lies in memory whose pages are there already, as an arena's are.
"""

import importlib
import json
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from kveik.store.shared_memory import Mapping as SharedMapping

Read = Callable[[Sequence[str]], None]


class OwnClient:
    """The process. A context manager."""

    def __init__(self, kind: str, options: Mapping[str, object], size: int) -> None:
        command = [sys.executable, "-m", "benchmarks.own_clients", kind, json.dumps(dict(options)), str(size)]
        environment = {**os.environ, **dict(options.get("environment") or {})}  # type: ignore[call-overload]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def read(self, names: Sequence[str]) -> float:
        """Seconds that reading all of them took."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(list(names)) + "\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith("answer "):  # libraries print as well
                return line.removeprefix("answer ").strip()
        raise RuntimeError(f"the store's own client ended with {self._process.wait()}")


def files(_: Mapping[str, Any], memory: SharedMapping) -> Read:
    """Plain reads of one file after the other."""

    def read(names: Sequence[str]) -> None:
        start = 0
        for name in names:
            with open(name, "rb", buffering=0) as file:
                while count := file.readinto(memory.view[start : start + (8 << 20)]):
                    start += count

    return read


def mooncake(options: Mapping[str, Any], memory: SharedMapping) -> Read:
    """``batch_get_into`` of its Python client."""
    store = importlib.import_module("mooncake.store").MooncakeDistributedStore()
    assert store.setup(*options["setup"]) == 0
    assert store.register_buffer(memory.address, memory.size) == 0

    def read(names: Sequence[str]) -> None:
        share = memory.size // len(names)
        codes = store.batch_get_into(
            list(names), [memory.address + index * share for index in range(len(names))], [share] * len(names)
        )
        assert min(codes) > 0, codes

    return read


def yuanrong(options: Mapping[str, Any], memory: SharedMapping) -> Read:
    """``get_read_only_buffers`` and a copy of each value."""
    library = importlib.import_module("yr.datasystem.kv_client")
    client = library.KVClient(options["host"], options["port"], connect_timeout_ms=10_000, req_timeout_ms=60_000)
    client.init()
    target = np.frombuffer(memory.view, np.uint8)

    def read(names: Sequence[str]) -> None:
        start = 0
        for buffer in client.get_read_only_buffers(list(names)):
            value = np.frombuffer(buffer.immutable_data(), np.uint8)
            np.copyto(target[start : start + value.size], value)
            start += value.size

    return read


def redis(options: Mapping[str, Any], _: SharedMapping) -> Read:
    """``MGET``."""
    client = importlib.import_module("redis").Redis(port=options["port"])

    def read(names: Sequence[str]) -> None:
        assert all(client.mget(names))

    return read


READERS = {"files": files, "mooncake": mooncake, "yuanrong": yuanrong, "redis": redis}


def main() -> None:
    """Answer until the other end is closed."""
    kind, options, size = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    descriptor = os.memfd_create("kveik-own-client")
    os.ftruncate(descriptor, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
    memory = SharedMapping(descriptor, os.fstat(descriptor).st_size)
    memory.populate(threading.Event())
    read = READERS[kind](options, memory)
    print("answer ready", flush=True)
    for line in sys.stdin:
        names = json.loads(line)
        start_s = time.perf_counter()
        read(names)
        print(f"answer {time.perf_counter() - start_s}", flush=True)


if __name__ == "__main__":
    main()
