"""What a block of a shared folder costs: round trips, threads, read-ahead, and several blocks in one file.

``python -m benchmarks.shared_folder`` as root on Linux. The folder is mounted from a server that answers each
operation a millisecond late (``tests/slow_mount.py``); names are kept for half a minute, as network file systems do.
Each way of reading takes its turn in random order, three times; the best counts, since the machine does other things
as well. Then blocks on the disk below ``--folder`` are read with a cold page cache.
"""

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from kveik.clock import Deadline
from kveik.store.filesystem import FilesystemStore
from kveik.store.filesystem_layout import block_name, leaf_of
from kveik.store.filesystem_options import FilesystemOptions
from tests.blocks import Block, make_block
from tests.slow_mount import slow_mounts

KIB, MIB = 1 << 10, 1 << 20
DELAY_S = 0.001
TOGETHER = 8
AHEAD = 4
ROUNDS = 3
DELAYED = ("lookup", "getattr", "opendir", "open", "read", "write", "create", "mkdir", "link", "unlink", "flush")

Read = Callable[[int], None]


class Blocks:
    """Some blocks of one size in a store, and ways of reading them."""

    def __init__(self, store: FilesystemStore, root: Path, count: int, size: int, first: int = 0) -> None:
        self.store = store
        self.root = root
        self.blocks = [make_block(first + number, payload_bytes=size) for number in range(count)]
        self.buffers = [block.buffer() for block in self.blocks]
        done = store.put([b.key for b in self.blocks], [b.frame for b in self.blocks], Deadline.after(600))
        assert all(result.ok for result in done)

    def path(self, block: Block) -> Path:
        return self.root.joinpath("kveik-1", *leaf_of(block.key), block_name(block.key))

    def read(self, number: int) -> None:
        (result,) = self.store.get([self.blocks[number].key], [self.buffers[number]], Deadline.after(600))
        assert result.ok

    def step_by_step(self, number: int) -> None:
        """Each directory opened by itself, as where the kernel has no ``openat2``."""
        self.store._tree._in_one_step = False
        self.read(number)
        self.store._tree._in_one_step = True

    def ahead(self, number: int) -> None:
        """The kernel is told of a later block before this one is read."""
        if number + AHEAD < len(self.blocks):
            self._advise(self.blocks[number + AHEAD], os.POSIX_FADV_WILLNEED)
        self.read(number)

    def make_cold(self) -> None:
        for block in self.blocks:
            self._advise(block, os.POSIX_FADV_DONTNEED, sync=True)

    def _advise(self, block: Block, advice: int, *, sync: bool = False) -> None:
        descriptor = os.open(self.path(block), os.O_RDONLY)
        if sync:
            os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, advice)
        os.close(descriptor)


@contextmanager
def store_in(root: Path) -> Iterator[FilesystemStore]:
    store = FilesystemStore(FilesystemOptions(root=root, sweep_interval_s=0))
    try:
        yield store
    finally:
        store.close()


def best_of(
    ways: dict[str, tuple[Read, int]], threads: int, before: Callable[[], None] = lambda: None
) -> dict[str, float]:
    """Seconds of the fastest turn of each way: what reads one block, and how many of them there are."""
    best = dict.fromkeys(ways, float("inf"))
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(ROUNDS):
            for name in random.sample(list(ways), len(ways)):
                read, count = ways[name]
                before()
                started = time.perf_counter()
                list(pool.map(read, range(count)))
                best[name] = min(best[name], time.perf_counter() - started)
    return best


def behind_a_server(sizes: Sequence[tuple[int, int]]) -> None:
    print(f"server that answers {DELAY_S * 1000:g} ms late: milliseconds a block")
    with tempfile.TemporaryDirectory() as folder, slow_mounts(Path(folder)) as mount:
        mounted = mount("node")
        if mounted is None:
            raise SystemExit("may not mount a file system here")
        for size, count in sizes:
            mounted.set(names_s=30)
            root = mounted.target / str(size)
            with store_in(root) as store:
                single = Blocks(store, root, count, size)
                packed = Blocks(store, root, count // TOGETHER, size * TOGETHER, first=1_000_000)
                mounted.set(names_s=30, delay_s=dict.fromkeys(DELAYED, DELAY_S))
                for threads in (1, 4, 16):
                    ways = {
                        "step by step": (single.step_by_step, count),
                        "as it is": (single.read, count),
                        f"ahead {AHEAD}": (single.ahead, count),
                        f"{TOGETHER} in a file": (packed.read, count // TOGETHER),
                    }
                    best = best_of(ways, threads)
                    told = ", ".join(f"{name} {seconds * 1000 / count:.2f}" for name, seconds in best.items())
                    print(f"  {size // KIB} KiB, {threads} threads: {told}", flush=True)


def on_a_disk(folder: Path, sizes: Sequence[tuple[int, int]]) -> None:
    print("disk, page cache cold: MiB/s")
    with tempfile.TemporaryDirectory(dir=folder) as made:
        for size, count in sizes:
            root = Path(made) / str(size)
            with store_in(root) as store:
                blocks = Blocks(store, root, count, size)
                for threads in (1, 4):
                    ways = {"as it is": (blocks.read, count), f"ahead {AHEAD}": (blocks.ahead, count)}
                    best = best_of(ways, threads, blocks.make_cold)
                    told = ", ".join(f"{name} {size * count / MIB / seconds:.0f}" for name, seconds in best.items())
                    print(f"  {size // KIB} KiB, {threads} threads: {told}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(), help="on the disk to read from (the current one)")
    args = parser.parse_args()
    behind_a_server([(64 * KIB, 128), (256 * KIB, 64), (MIB, 32)])
    on_a_disk(args.folder, [(256 * KIB, 256), (MIB, 96), (4 * MIB, 32)])


if __name__ == "__main__":
    main()
