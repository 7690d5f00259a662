"""A full disk, a file size limit, and writers that are killed: on the real thing."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kveik.clock import Deadline, FakeClock
from kveik.records import Record, StateRecord
from kveik.store.base import Status
from kveik.store.filesystem import FilesystemStore
from kveik.store.filesystem_options import FilesystemOptions
from tests.agents import wait_until
from tests.blocks import make_block

MIB = 1 << 20
MOUNT_BYTES = 4 * MIB


def soon() -> Deadline:
    return Deadline.after(20.0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MiB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={MOUNT_BYTES}", "none", str(mount)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("may not mount a small disk here")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


class SmallDisk:
    """A store on a full disk."""

    def __init__(self, disk: Path) -> None:
        self.disk = disk
        self.clock = FakeClock()
        self.records: list[Record] = []
        options = FilesystemOptions(root=disk / "cache", sweep_interval_s=0, read_only_pause_s=10.0)
        self.store = FilesystemStore(options, listener=self.records.append, clock=self.clock)
        self.stored = []
        for number in range(100):
            block = make_block(number, payload_bytes=256 << 10)
            (result,) = self.store.put([block.key], [block.frame], soon())
            if not result.ok:
                self.refused, self.first_refusal = block, result
                break
            self.stored.append(block)


def files(folder: Path, suffix: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.name.endswith(suffix)]


def test_a_full_disk_turns_the_tier_read_only_with_one_line_and_reads_go_on(small_disk: Path) -> None:
    full = SmallDisk(small_disk)

    assert full.first_refusal.reason == "read_only"
    assert "No space left on device" in full.first_refusal.detail
    for number in range(200, 210):
        block = make_block(number, payload_bytes=256 << 10)
        assert full.store.put([block.key], [block.frame], soon())[0].reason == "read_only"
    (line,) = [record for record in full.records if isinstance(record, StateRecord)]
    assert (line.before, line.after) == ("writable", "read-only")
    assert full.store.stats().read_only
    buffer = full.stored[0].buffer()
    assert full.store.get([full.stored[0].key], [buffer], soon())[0].status is Status.HIT


def test_a_refused_write_leaves_no_file_behind(small_disk: Path) -> None:
    full = SmallDisk(small_disk)

    assert files(small_disk, ".tmp") == []
    assert len(files(small_disk, ".kvb")) == len(full.stored)


def test_it_recovers_by_itself_when_a_round_made_room(small_disk: Path) -> None:
    full = SmallDisk(small_disk)
    assert full.store.sweep() is not None  # the full disk was the reason to evict
    full.clock.advance(10.0)

    (result,) = full.store.put([full.refused.key], [full.refused.frame], soon())

    assert result.status is Status.STORED
    assert not full.store.stats().read_only
    assert [record.after for record in full.records if isinstance(record, StateRecord)] == ["read-only", "writable"]


def test_a_round_makes_room_where_not_even_a_lease_file_has_any(small_disk: Path) -> None:
    full = SmallDisk(small_disk)
    with contextlib.suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))
    options = FilesystemOptions(root=small_disk / "cache", limit_bytes=MOUNT_BYTES // 2, shared_turn_s=0.1)

    store = FilesystemStore(options)
    wait_until(lambda: len(files(small_disk, ".kvb")) < len(full.stored), "a round has evicted", 30)
    store.close()


def test_a_disk_that_stays_full_is_tried_ever_more_rarely(small_disk: Path) -> None:
    full = SmallDisk(small_disk)
    tries = 0
    for _ in range(60):
        full.clock.advance(10.0)
        (result,) = full.store.put([full.refused.key], [full.refused.frame], soon())
        tries += "No space left" in result.detail

    assert 5 <= tries <= 12
    assert len([record for record in full.records if isinstance(record, StateRecord)]) == 1


def test_a_store_opens_on_a_full_disk_and_reads(small_disk: Path) -> None:
    full = SmallDisk(small_disk)
    with contextlib.suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))

    again = FilesystemStore(FilesystemOptions(root=small_disk / "cache", sweep_interval_s=0))

    block = full.stored[0]
    assert again.get([block.key], [block.buffer()], soon())[0].status is Status.HIT


def run(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    root = Path(__file__).resolve().parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + program, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )


PRELUDE = """
import os, resource, signal, sys
from pathlib import Path
from kveik.clock import Deadline
from kveik.store.filesystem import FilesystemStore
from kveik.store.filesystem_options import FilesystemOptions
from tests.blocks import make_block
store = FilesystemStore(FilesystemOptions(root=Path(sys.argv[1]), sweep_interval_s=0))
block = make_block(1, payload_bytes=1 << 20)
"""


def test_a_limit_on_file_sizes_makes_the_tier_read_only_and_kills_nobody(tmp_path: Path) -> None:
    program = """
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
(result,) = store.put([block.key], [block.frame], Deadline.after(10.0))
print(result.status.value, result.reason, store.stats().read_only)
"""
    done = run(program, str(tmp_path))

    assert done.stdout.split() == ["failed", "read_only", "True"], done.stderr
    assert files(tmp_path, ".tmp") == []


def test_a_writer_that_is_killed_in_the_middle_leaves_only_a_leftover_that_a_round_removes(tmp_path: Path) -> None:
    # The second piece of the write never comes: the process is killed between two system calls.
    program = """
write = os.write
def killed(descriptor, data):
    write(descriptor, data[:100_000])
    os.kill(os.getpid(), signal.SIGKILL)
os.write = killed
store.put([block.key], [block.frame], Deadline.after(10.0))
"""
    done = run(program, str(tmp_path))
    assert done.returncode == -signal.SIGKILL, done.stderr
    (leftover,) = files(tmp_path, ".tmp")
    assert leftover.stat().st_size == 100_000
    assert files(tmp_path, ".kvb") == []
    store = FilesystemStore(FilesystemOptions(root=tmp_path, sweep_interval_s=0))
    block = make_block(1, payload_bytes=MIB)
    assert store.lookup([block.key], soon()) == [False]

    report = store.sweep()

    assert report is not None
    assert report.leftovers == 1
    assert files(tmp_path, ".tmp") == []
    assert store.put([block.key], [block.frame], soon())[0].status is Status.STORED


def test_a_block_that_was_stored_survives_the_kill_of_its_writer(tmp_path: Path) -> None:
    program = """
assert store.put([block.key], [block.frame], Deadline.after(10.0))[0].ok
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run(program, str(tmp_path)).returncode == -signal.SIGKILL
    store = FilesystemStore(FilesystemOptions(root=tmp_path, sweep_interval_s=0))
    block = make_block(1, payload_bytes=MIB)
    buffer = block.buffer()

    assert store.get([block.key], [buffer], soon())[0].status is Status.HIT
    assert block.is_in(buffer)


def test_two_processes_that_store_the_same_blocks_agree(tmp_path: Path) -> None:
    program = """
blocks = [make_block(number, payload_bytes=20_000) for number in range(50)]
results = store.put([b.key for b in blocks], [b.frame for b in blocks], Deadline.after(30.0))
assert all(result.ok for result in results)
print(sum(result.status.value == "stored" for result in results))
"""
    root = Path(__file__).resolve().parents[3]
    command = [sys.executable, "-c", PRELUDE + program, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(2)]
    outputs = [writer.communicate(timeout=60)[0] for writer in writers]

    assert sum(int(output) for output in outputs) == 50
    assert len(files(tmp_path, ".kvb")) == 50
    assert files(tmp_path, ".tmp") == []
