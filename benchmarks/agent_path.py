"""How fast blocks go through client and arena, against a plain memory copy on the same cores.

Runs an agent in its own process on a fresh arena in shared memory. All rates are measured in
turns within one run, so that the ratios do not depend on what else the machine does:

    copy              numpy.copyto between two private buffers
    copy into shm     the same into shared memory, which usually has no huge pages
    ..., with digest  and the digest of what was copied: what a put cannot do without
    reserve, commit   a put without its copying: what the agent and the way to it cost
    put               reserve, copy into the slot, digest of the slot, commit; as the connector does it: in
                      steps, and the agent reserves the next step and publishes the last one meanwhile
    get               read, copy out of the slot, digest of the copy, release
    ..., 2 threads    the same, the blocks spread over two threads
    get, no digest    without the digest

Wants two idle cores. The processor time of this process is measured too: it tells about the
ways themselves even where other programs take the cores away meanwhile.
"""

import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from kveik.agent.client import AgentClient
from kveik.agent.protocol import Committed, Reserved
from kveik.clock import Deadline
from kveik.config import ConnectorSettings
from kveik.errors import AgentError
from kveik.kv.keys import BlockKey
from kveik.store.arena import Arena
from kveik.store.arena_file import ArenaRequest, open_arena_file
from kveik.store.copying import copy_and_digest
from kveik.store.writer import Writer

MIB = 1 << 20
NAMESPACE = b"n" * 16
LIMITS = {"put": 0.7, "get": 0.7, "lookup_256_ms": 1.0, "index_bytes_per_block": 300.0}
Buffer = NDArray[np.uint8]
#: Applies a function to each index, on one thread or several.
Spread = Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]]


@contextmanager
def running_agent(folder: Path, arena_bytes: int) -> Iterator[AgentClient]:
    """A client of a fresh agent, both with every page of the arena faulted in."""
    socket, arena = folder / "agent.sock", Path(f"/dev/shm/kveik-benchmark-{os.getpid()}.arena")
    command = [sys.executable, "-m", "kveik.cli.main", "agent", f"--socket={socket}", f"--arena={arena}"]
    with (folder / "agent.log").open("w") as log:
        process = subprocess.Popen([*command, f"--arena-bytes={arena_bytes}"], stderr=log)
    try:
        client = connect(str(socket))
        while "faulted in" not in (folder / "agent.log").read_text():
            time.sleep(0.05)
        time.sleep(0.5)  # this process's own mapping is faulted in beside it
        yield client
        client.close()
    finally:
        process.terminate()
        process.wait(timeout=30)
        arena.unlink(missing_ok=True)


def connect(socket: str) -> AgentClient:
    """Wait for the agent and connect."""
    until_s = time.monotonic() + 60
    while True:
        try:
            return AgentClient.connect(socket, role="benchmark")
        except AgentError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.05)


class BlockPath:
    """Moves batches of blocks between private buffers and the arena."""

    def __init__(self, client: AgentClient, blocks: int, size: int) -> None:
        random = np.random.default_rng(1)
        self.size = size
        self.step = max(1, ConnectorSettings().batch_bytes // size)
        self._client = client
        self._sources = [random.integers(0, 256, size, np.uint8) for _ in range(blocks)]
        self._targets: list[Buffer] = [np.zeros(size, np.uint8) for _ in range(blocks)]
        shared = np.frombuffer(mmap.mmap(-1, blocks * size), np.uint8)
        self._shared = [shared[index * size :][:size] for index in range(blocks)]
        self.keys: list[BlockKey] = []

    def copy(self) -> None:
        """A plain copy of all blocks."""
        for target, source in zip(self._targets, self._sources, strict=True):
            np.copyto(target, source)

    def copy_into_shared_memory(self) -> None:
        """The same into memory that other processes could map."""
        for target, source in zip(self._shared, self._sources, strict=True):
            np.copyto(target, source)

    def copy_with_digest(self) -> None:
        """Copies into shared memory with their digests, without any agent."""
        for target, source in zip(self._shared, self._sources, strict=True):
            copy_and_digest(target.data, source.data)

    def reserve_and_commit(self) -> None:
        """A put of blocks that nobody fills."""
        self._put(lambda reserved, first, index: (index - first, bytes(16)), map)

    def put(self, spread: Spread = map) -> None:
        """Store all blocks under fresh keys."""
        self._put(self._write, spread)

    def _put(self, write: Callable[[Reserved, int, int], tuple[int, bytes]], spread: Spread) -> None:
        self.keys = [BlockKey.of(NAMESPACE, os.urandom(32)) for _ in self._sources]
        steps = [range(start, min(start + self.step, len(self.keys))) for start in range(0, len(self.keys), self.step)]
        reserving = [self._reserve(steps[0])]
        publishing = []
        for number, step in enumerate(steps):
            if number + 1 < len(steps):
                reserving.append(self._reserve(steps[number + 1]))
            reserved = self._client.wait(reserving[number], Reserved, Deadline.after(30))
            digests = list(spread(partial(write, reserved, step.start), step))
            publishing.append(self._client.submit_commit(reserved.lease, digests, 30))
        for future in publishing:
            self._client.wait(future, Committed, Deadline.after(30))

    def _reserve(self, step: range) -> "Future[Reserved]":
        return self._client.submit_reserve(self.keys[step.start : step.stop], self.size, 30)

    def _write(self, reserved: Reserved, first: int, index: int) -> tuple[int, bytes]:
        payload = self._client.payload(reserved.grants[index - first], self.size)
        return index - first, copy_and_digest(payload, self._sources[index].data)

    def get(self, spread: Spread = map, *, digest: bool = True) -> None:
        """Read all blocks back, with or without the digest of each copy."""
        granted = self._client.read(self.keys, self.size, Deadline.after(30))

        def read(index: int) -> None:
            slot = self._client.slot(granted.grants[index])
            if digest:
                slot.copy_to(self.keys[index], self._targets[index].data)
            else:
                np.copyto(self._targets[index], np.frombuffer(slot.payload, np.uint8))

        list(spread(read, range(len(self.keys))))
        self._client.release(granted.lease)


@dataclass(frozen=True, slots=True)
class Timing:
    """Median seconds of one way for a batch: elapsed, and of this process's processors."""

    elapsed_s: float
    processor_s: float


def measure(path: BlockPath, rounds: int) -> dict[str, Timing]:
    """Time each way, the rounds of all ways taking turns."""
    with ThreadPoolExecutor(2) as two:
        ways: dict[str, Callable[[], None]] = {
            "copy": path.copy,
            "copy into shm": path.copy_into_shared_memory,
            "copy into shm, with digest": path.copy_with_digest,
            "reserve, commit": path.reserve_and_commit,
            "put": path.put,
            "get": path.get,
            "put, 2 threads": lambda: path.put(two.map),
            "get, 2 threads": lambda: path.get(two.map),
            "get, no digest": lambda: path.get(digest=False),
        }
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for turn in range(rounds + 1):
            for name, way in ways.items():
                start_s, processor_start_s = time.perf_counter(), time.process_time()
                way()
                if turn:  # the first turn warms caches and threads
                    taken[name].append((time.perf_counter() - start_s, time.process_time() - processor_start_s))
    return {name: Timing(*map(statistics.median, zip(*values, strict=True))) for name, values in taken.items()}


def measure_lookup_ms(client: AgentClient, keys: Sequence[BlockKey], rounds: int = 500) -> float:
    """Median milliseconds of a lookup of 256 keys that are all there."""
    hashes = [key.block_hash for key in (list(keys) * 256)[:256]]
    taken = []
    for _ in range(rounds):
        start_s = time.perf_counter()
        client.lookup(NAMESPACE, [0], [(0, hashes)], Deadline.after(5))
        taken.append(time.perf_counter() - start_s)
    return statistics.median(taken) * 1e3


def measure_index_bytes(folder: Path, blocks: int = 50_000) -> float:
    """Growth of this process's private memory for each block that an arena holds."""
    file = open_arena_file(ArenaRequest(str(folder / "index.arena"), blocks * 8192 + 64 * MIB, 16 * MIB))
    arena, writer = Arena(file), Writer.of(os.getpid())
    before = private_bytes()
    for start in range(0, blocks, 1000):
        keys = [BlockKey.of(NAMESPACE, os.urandom(32)) for _ in range(start, min(start + 1000, blocks))]
        slots = [found.slot for found in arena.reserve(keys, 64, writer)]
        arena.commit(slots, [bytes(16)] * len(slots))
        del keys
    grown = private_bytes() - before
    assert arena.stats().blocks == blocks
    arena.close()
    return grown / blocks


def private_bytes() -> int:
    """Anonymous memory of this process: without the arena, which is shared."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise LookupError("no RssAnon in /proc/self/status")


def main() -> int:
    """Measure and print; 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--block-bytes", type=int, default=4 * MIB)
    parser.add_argument("--blocks", type=int, default=32, help="blocks of one batch")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    total = args.block_bytes * args.blocks
    with tempfile.TemporaryDirectory() as folder:
        index_bytes = measure_index_bytes(Path(folder))
        with running_agent(Path(folder), 4 * total + 64 * MIB) as client:
            path = BlockPath(client, args.blocks, args.block_bytes)
            timings = measure(path, args.rounds)
            lookup_ms = measure_lookup_ms(client, path.keys)
    result: dict[str, Any] = {
        "block_bytes": args.block_bytes,
        "blocks": args.blocks,
        "gb_per_s": {name: total / timing.elapsed_s / 1e9 for name, timing in timings.items()},
        "ratio_to_copy": {name: timings["copy"].elapsed_s / timing.elapsed_s for name, timing in timings.items()},
        "processor_ratio_to_copy": {
            name: timings["copy"].processor_s / timing.processor_s for name, timing in timings.items()
        },
        "lookup_256_ms": lookup_ms,
        "index_bytes_per_block": index_bytes,
    }
    if args.json:
        print(json.dumps(result, indent=1))
    else:
        show(result)
    return 0 if within_limits(result["ratio_to_copy"], lookup_ms, index_bytes) else 1


def within_limits(ratios: dict[str, float], lookup_ms: float, index_bytes: float) -> bool:
    """Whether the figures are as good as they have to be; one or two threads, whichever is faster."""
    fast = all(max(ratios[way], ratios[f"{way}, 2 threads"]) >= LIMITS[way] for way in ("put", "get"))
    return fast and lookup_ms < LIMITS["lookup_256_ms"] and index_bytes < LIMITS["index_bytes_per_block"]


def show(result: dict[str, Any]) -> None:
    """Print the result as a table and two lines."""
    table = Table(
        "way",
        "GB/s",
        "ratio to copy",
        "by processor time",
        title=f"{result['blocks']} blocks of {result['block_bytes']} bytes",
    )
    for name, rate in result["gb_per_s"].items():
        ratios = (result[column][name] for column in ("ratio_to_copy", "processor_ratio_to_copy"))
        table.add_row(name, f"{rate:.2f}", *(f"{ratio:.2f}" for ratio in ratios))
    console = Console()
    console.print(table)
    console.print(f"lookup of 256 keys: {result['lookup_256_ms']:.3f} ms at the median")
    console.print(f"index: {result['index_bytes_per_block']:.0f} bytes a block")


if __name__ == "__main__":
    sys.exit(main())
