"""A folder that several processes or nodes share: one limit, crashes, a server that fails, stalls or hangs.

Nodes have the folder through mounts of their own (:mod:`tests.slow_mount`): system calls are real, and a server
answers them.
"""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kveik.breaker import BreakerPolicy
from kveik.clock import Deadline
from kveik.kv.keys import BlockKey
from kveik.store.base import MISS, BlockResult, Status
from kveik.store.filesystem import FilesystemStore
from kveik.store.filesystem_options import FilesystemOptions
from kveik.store.fsck_walk import FolderWalk
from kveik.store.guarded import GuardedStore
from tests.agents import AgentProcess, connected, load_blocks, some_keys, store_blocks, wait_until
from tests.blocks import Block, make_block
from tests.slow_mount import SlowMount, slow_mounts

ROOT = Path(__file__).resolve().parents[2]
BLOCK = make_block(1, payload_bytes=100_000)


def soon() -> Deadline:
    return Deadline.after(60.0)


def blocks_below(folder: Path) -> list[Path]:
    return list(folder.glob("kveik-1/*/??/??/*.kvb"))


def bytes_below(folder: Path) -> int:
    total = 0
    for path in blocks_below(folder):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # evicted just now
            continue
    return total


# One limit for all

WRITER = """
import sys, time
from pathlib import Path
from kveik.clock import Deadline
from kveik.store.filesystem import FilesystemStore
from kveik.store.filesystem_options import FilesystemOptions
from tests.blocks import make_block
root, limit_bytes, number = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
store = FilesystemStore(
    FilesystemOptions(root=root, limit_bytes=limit_bytes, sweep_interval_s=5.0, lease_stale_s=5.0, shared_turn_s=0.1)
)
print("open", flush=True)
stored = 0
for one in range(number * 1_000_000, (number + 1) * 1_000_000):
    block = make_block(one, payload_bytes=28_672)
    while not store.put([block.key], [block.frame], Deadline.after(10.0))[0].ok:
        time.sleep(0.005)
    stored += len(block.frame)
    print(stored, flush=True)
"""


class Writer:
    """A process that writes blocks into a folder as fast as it may, and tells how many bytes it wrote."""

    def __init__(self, folder: Path, limit_bytes: int, number: int) -> None:
        command = [sys.executable, "-c", WRITER, str(folder), str(limit_bytes), str(number)]
        self._told = folder.parent / f"writer-{number}"
        with self._told.open("wb") as told:
            self._process = subprocess.Popen(command, stdout=told, env={**os.environ, "PYTHONPATH": str(ROOT)})

    @property
    def stored(self) -> int:
        words = self._told.read_text().rpartition("\n")[0].split()
        return int(words[-1]) if len(words) > 1 else 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def test_four_processes_keep_one_limit_together_and_the_count_after_their_kill_is_what_is_there(tmp_path: Path) -> None:
    folder, limit_bytes = tmp_path / "cache", 8 << 20
    writers = [Writer(folder, limit_bytes, number) for number in range(4)]
    highest = 0

    def much_was_written() -> bool:
        nonlocal highest
        highest = max(highest, bytes_below(folder))
        return sum(writer.stored for writer in writers) > limit_bytes * 11 // 10 and all(one.stored for one in writers)

    try:
        wait_until(much_was_written, "more than the limit was written, by all four", 90)
    finally:
        for writer in writers:
            writer.kill()
    assert limit_bytes // 2 < highest <= limit_bytes

    store = FilesystemStore(FilesystemOptions(root=folder, sweep_interval_s=0, lease_stale_s=0))
    report = store.sweep()

    assert report is not None
    assert store.stats().bytes == bytes_below(folder)
    assert store.stats().blocks == len(blocks_below(folder))
    assert not list(folder.glob("kveik-1/**/.*.tmp")), "what was being written is gone"
    assert FolderWalk(folder).run().bad == 0


# A server that fails, stalls or hangs


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[str], SlowMount]]:
    with slow_mounts(tmp_path) as mounts:

        def made(name: str) -> SlowMount:
            found = mounts(name)
            if found is None:
                pytest.skip("may not mount a file system here")
            return found

        yield made


def opened(mounted: SlowMount) -> FilesystemStore:
    return FilesystemStore(FilesystemOptions(root=mounted.target / "kv", sweep_interval_s=0))


def put(store: FilesystemStore, block: Block = BLOCK) -> BlockResult:
    return store.put([block.key], [block.frame], soon())[0]


def get(store: FilesystemStore, block: Block = BLOCK) -> BlockResult:
    buffer = block.buffer()
    (result,) = store.get([block.key], [buffer], soon())
    assert not result.ok or block.is_in(buffer)
    return result


def test_a_block_of_one_node_is_a_hit_on_the_other(mount: Callable[[str], SlowMount]) -> None:
    one, two = opened(mount("one")), opened(mount("two"))
    assert one.medium.network
    assert two.lookup([BLOCK.key], soon()) == [False]

    assert put(one).status is Status.STORED

    assert two.lookup([BLOCK.key], soon()) == [True]
    assert get(two).status is Status.HIT
    assert put(two).status is Status.EXISTS
    assert two.delete([BLOCK.key])[0].status is Status.DELETED
    assert get(one) == MISS


@pytest.mark.parametrize("operation", ["open", "read"])
@pytest.mark.parametrize("number", [errno.ESTALE, errno.EREMOTEIO, errno.EIO])
def test_an_error_of_the_server_is_a_failure_of_the_tier_and_no_damage(
    mount: Callable[[str], SlowMount], operation: str, number: int
) -> None:
    mounted = mount("one")
    store = opened(mounted)
    put(store)

    mounted.set(errors={operation: number})
    assert (get(store).status, get(store).reason) == (Status.FAILED, "io_error")
    mounted.set()
    assert get(store).status is Status.HIT


@pytest.mark.parametrize(("number", "reason"), [(errno.EDQUOT, "read_only"), (errno.EIO, "io_error")])
def test_an_error_at_close_is_an_error_of_the_write_and_nothing_is_visible(
    mount: Callable[[str], SlowMount], number: int, reason: str
) -> None:
    mounted = mount("one")
    store = opened(mounted)

    mounted.set(errors={"flush": number})
    assert put(store).reason == reason
    assert store.stats().read_only is (reason == "read_only")
    mounted.set()
    assert blocks_below(mounted.source / "kv") == []
    assert not list((mounted.source / "kv").glob("kveik-1/**/.*.tmp"))


def test_a_hung_server_costs_each_caller_its_deadline_and_nothing_more(mount: Callable[[str], SlowMount]) -> None:
    mounted = mount("one")
    inner = opened(mounted)
    put(inner)
    policy = BreakerPolicy(failures=3, open_s=0.2, open_max_s=0.2)
    store = GuardedStore(inner, threads=2, hang_s=0.5, policy=policy)
    buffer = BLOCK.buffer()

    mounted.set(hang=("open",))
    (result,) = store.get([BLOCK.key], [buffer], Deadline.after(0.3))
    assert result.reason == "timeout"
    assert result.buffer_busy, "the call is in the kernel still, and may write into the buffer"
    wait_until(lambda: store.stuck_threads == 1, "the call counts as hung", 30)
    store.check()
    assert store.breaker_state == "open"
    assert store.get([BLOCK.key], [BLOCK.buffer()], soon())[0].reason == "breaker_open"
    assert store.lookup([BLOCK.key], soon()) == [False]

    mounted.set()
    wait_until(lambda: not result.buffer_busy, "the server answered, so the buffer is free", 30)

    def is_back() -> bool:
        return store.get([BLOCK.key], [BLOCK.buffer()], Deadline.after(5.0))[0].status is Status.HIT

    wait_until(is_back, "the tier came back by itself", 30)
    store.close()


def test_a_client_that_keeps_names_is_asked_again_before_a_block_counts_as_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount: Callable[[str], SlowMount]
) -> None:
    network = opened(mount("one"))
    local = FilesystemStore(FilesystemOptions(root=tmp_path / "local", sweep_interval_s=0))
    later = make_block(2)
    for store in (network, local):
        put(store)

    def remembered(*_: object, **__: object) -> os.stat_result:
        raise FileNotFoundError(errno.ENOENT, "as the client remembers it")

    monkeypatch.setattr(os, "lstat", remembered)
    assert network.lookup([BLOCK.key], soon()) == [True]
    assert network.lookup([later.key, BLOCK.key], soon()) == [False, False], "of no use without the one before it"
    assert local.lookup([BLOCK.key], soon()) == [False]


def test_on_a_network_a_young_wrong_file_is_told_once_and_left_and_an_old_one_is_taken_away(
    mount: Callable[[str], SlowMount],
) -> None:
    mounted = mount("one")
    store = opened(mounted)
    put(store)
    (path,) = blocks_below(mounted.source / "kv")
    path.write_bytes(BLOCK.damaged())

    assert [get(store).status for _ in range(3)] == [Status.CORRUPT, Status.MISS, Status.MISS]
    assert store.lookup([BLOCK.key], soon()) == [False]
    assert path.exists()
    os.utime(path, (1_000_000_000, 1_000_000_000))
    assert get(store).status is Status.CORRUPT, "another file now, as far as anybody can tell: the first look"
    wait_until(lambda: get(store) == MISS and not path.exists(), "two looks apart agree", 30)
    assert store.stats().blocks == 0


def test_on_a_network_a_wrong_file_is_written_over_and_seen_by_all(mount: Callable[[str], SlowMount]) -> None:
    mounted = mount("one")
    one, two = opened(mounted), opened(mount("two"))
    put(one)
    (path,) = blocks_below(mounted.source / "kv")
    path.write_bytes(BLOCK.damaged()[:-50])
    assert get(two).status is Status.CORRUPT

    assert put(two).status is Status.STORED

    assert get(one).status is get(two).status is Status.HIT
    assert two.lookup([BLOCK.key], soon()) == [True]
    assert blocks_below(mounted.source / "kv") == [path]


# Two nodes with an agent each


class Node:
    """An agent of its own over one mount of the shared folder."""

    def __init__(self, folder: Path, mounted: SlowMount) -> None:
        folder.mkdir()
        self.folder = folder
        self.agent = AgentProcess(folder, filesystem=str(mounted.target / "kv"), probe_period_s=0)

    def store(self, keys: list[BlockKey]) -> None:
        client = connected(self.folder)
        assert store_blocks(client, keys) == ["stored"] * len(keys)
        client.close()

    def load(self, keys: list[BlockKey]) -> list[str]:
        client = connected(self.folder)
        try:
            return load_blocks(client, keys, seconds=30)
        finally:
            client.close()


@pytest.fixture
def nodes(tmp_path: Path, mount: Callable[[str], SlowMount]) -> Iterator[tuple[Node, Node, SlowMount]]:
    first, second = mount("one"), mount("two")
    one, two = Node(tmp_path / "node one", first), Node(tmp_path / "node two", second)
    yield one, two, first
    first.set()
    for node in (one, two):
        node.agent.close()


def test_two_agents_share_a_folder_across_restarts_and_a_kill_in_the_middle_of_a_write(
    tmp_path: Path, nodes: tuple[Node, Node, SlowMount]
) -> None:
    one, two, mounted = nodes
    shared = tmp_path / "shared" / "kv"
    keys = some_keys(6)
    one.store(keys)
    wait_until(lambda: len(blocks_below(shared)) == 6, "node one wrote its blocks down", 30)

    assert two.load(keys) == ["hit"] * 6
    two.agent.restart()
    assert two.load(keys) == ["hit"] * 6

    mounted.set(hang=("write",))
    late = some_keys(2)
    one.store(late)
    wait_until(lambda: len(list(shared.glob("kveik-1/*/??/??/.*.tmp"))) > 0, "node one is writing", 30)
    one.agent.signal(signal.SIGKILL)
    mounted.set()  # a killed process ends when the server answers it
    one.agent.process.wait(timeout=30)

    assert two.load(late) == ["miss"] * 2
    assert FolderWalk(shared).run().blocks == 6
    one.agent.restart()
    assert one.load(keys) == ["hit"] * 6
    wait_until(lambda: not list(shared.glob("kveik-1/*/??/??/.*.tmp")), "the leftovers are gone", 30)
    assert bytes_below(shared) == FolderWalk(shared).run().block_bytes
