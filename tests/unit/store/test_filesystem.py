"""The filesystem tier in a real folder: what lies there, damage of every kind, and sweeping."""

import errno
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kveik.clock import Deadline, FakeClock
from kveik.config import AgentSettings
from kveik.errors import StoreError
from kveik.kv import frame
from kveik.kv.namespace import REQUIRED_FACTS, Namespace
from kveik.records import EvictionRecord, Record
from kveik.store.base import MISS, BlockResult, Status
from kveik.store.filesystem import FilesystemStore
from kveik.store.filesystem_files import FileTree, check_root
from kveik.store.filesystem_layout import block_name, leaf_of, parse_quarantine_name
from kveik.store.filesystem_options import FilesystemOptions
from tests.blocks import Block, make_block


def soon() -> Deadline:
    return Deadline.after(20.0)


class Folder:
    """A folder with one store in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.records: list[Record] = []
        self.opened: list[FilesystemStore] = []
        self.store = self.open()

    def open(self, **options: object) -> FilesystemStore:
        chosen = FilesystemOptions(**{"root": self.root, "sweep_interval_s": 0, **options})  # type: ignore[arg-type]
        store = FilesystemStore(chosen, listener=self.records.append)
        self.opened.append(store)
        return store

    def path(self, block: Block) -> Path:
        return self.root.joinpath("kveik-1", *leaf_of(block.key), block_name(block.key))

    def put(self, *blocks: Block) -> list[BlockResult]:
        return self.store.put([b.key for b in blocks], [b.frame for b in blocks], soon())

    def get(self, block: Block) -> BlockResult:
        buffer = block.buffer()
        (result,) = self.store.get([block.key], [buffer], soon())
        assert not result.ok or block.is_in(buffer)
        return result

    def quarantined(self) -> list[str]:
        folder = self.root / "kveik-1" / "quarantine"
        return sorted(file.name for file in folder.iterdir()) if folder.exists() else []


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path / "cache")
    yield made
    for store in made.opened:
        store.close()


def until(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.002)


# What lies in the folder


def test_a_block_is_one_file_that_holds_exactly_its_frame(folder: Folder) -> None:
    block = make_block(1)
    folder.put(block)

    assert folder.path(block).read_bytes() == bytes(block.frame)
    assert [file for file in folder.root.rglob("*") if file.is_file()] == [folder.path(block)]


def test_files_and_folders_are_for_their_owner_only(folder: Folder) -> None:
    folder.put(make_block(1))

    for path in [folder.root, *folder.root.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_what_a_namespace_stands_for_can_be_read_by_a_person(folder: Folder) -> None:
    namespace = Namespace(dict.fromkeys(REQUIRED_FACTS, "x") | {"dtype": "bfloat16"}, "some model")

    folder.store.describe(namespace)
    folder.store.describe(Namespace(namespace.facts, "the same under another name"))

    told = json.loads((folder.root / "kveik-1" / namespace.digest.hex() / "namespace.json").read_text())
    assert told == {"digest": namespace.digest.hex(), "label": "some model", "facts": dict(namespace.facts)}
    assert Namespace(told["facts"]).digest == namespace.digest


def test_forced_writes_store_the_same(folder: Folder) -> None:
    folder.store = folder.open(fsync=True)
    block = make_block(1)

    assert folder.put(block)[0].status is Status.STORED
    assert folder.get(block).status is Status.HIT


def test_without_hard_links_blocks_are_published_by_renaming(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    folder.store = folder.open()
    block = make_block(1)

    assert not check_root(folder.root)
    assert [result.status for result in folder.put(block, block)] == [Status.STORED, Status.EXISTS]
    assert folder.get(block).status is Status.HIT
    assert [file for file in folder.root.rglob("*") if file.is_file()] == [folder.path(block)]


# Damage: never a hit, reported once, kept for inspection


def flip_payload(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[frame.HEADER_BYTES + 5000] ^= 0x10
    path.write_bytes(content)


def flip_header(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)


def put_zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def put_text(path: Path) -> None:
    path.write_bytes(b"something else " * 1000)


def put_other_block(path: Path) -> None:
    path.write_bytes(make_block(2).frame)


def put_later_version(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(frame.MAGIC)] += 1
    path.write_bytes(content)


def put_link(path: Path) -> None:
    aside = path.parent.parent / "aside"
    path.rename(aside)
    path.symlink_to(aside)


def put_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def put_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "one byte short": (lambda path: os.truncate(path, path.stat().st_size - 1), "truncated"),
    "header only": (lambda path: os.truncate(path, frame.HEADER_BYTES), "truncated"),
    "within the header": (lambda path: os.truncate(path, 50), "truncated"),
    "empty": (lambda path: os.truncate(path, 0), "truncated"),
    "longer": (lambda path: os.truncate(path, path.stat().st_size + 1), "truncated"),
    "payload bit flipped": (flip_payload, "checksum"),
    "header bit flipped": (flip_header, "checksum"),
    "zeros of the right length": (put_zeros, "foreign"),
    "other content": (put_text, "foreign"),
    "another block": (put_other_block, "foreign"),
    "a later version": (put_later_version, "foreign"),
    "a symbolic link": (put_link, "foreign"),
    "a folder": (put_folder, "foreign"),
    "a pipe": (put_pipe, "foreign"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_corrupt_once_then_a_miss_and_can_be_stored_again(folder: Folder, kind: str) -> None:
    damage, reason = DAMAGE[kind]
    block = make_block(1)
    folder.put(block)
    damage(folder.path(block))

    result = folder.get(block)

    assert (result.status, result.reason) == (Status.CORRUPT, reason)
    assert result.detail
    assert folder.get(block) == MISS
    assert folder.store.lookup([block.key], soon()) == [False]
    (kept,) = folder.quarantined()
    assert kept.startswith(f"{block.key.text}.{reason}.")
    assert folder.put(block)[0].status is Status.STORED
    assert folder.get(block).status is Status.HIT


def test_two_swapped_files_are_both_foreign(folder: Folder) -> None:
    one, two = make_block(1), make_block(2)
    folder.put(one, two)
    aside = folder.root / "aside"
    folder.path(one).rename(aside)
    folder.path(two).rename(folder.path(one))
    aside.rename(folder.path(two))

    assert [folder.get(block).reason for block in (one, two)] == ["foreign", "foreign"]
    assert len(folder.quarantined()) == 2


@pytest.mark.parametrize("kind", ["one byte short", "empty", "longer", "a folder", "a symbolic link"])
def test_a_put_replaces_a_file_of_the_wrong_length_or_kind(folder: Folder, kind: str) -> None:
    block = make_block(1)
    folder.put(block)
    DAMAGE[kind][0](folder.path(block))

    assert folder.put(block)[0].status is Status.STORED
    assert folder.get(block).status is Status.HIT
    assert len(folder.quarantined()) == 1


def test_a_file_without_room_for_a_header_is_not_found_by_a_lookup(folder: Folder) -> None:
    block = make_block(1)
    folder.put(block)
    os.truncate(folder.path(block), 100)

    assert folder.store.lookup([block.key], soon()) == [False]


def test_of_many_readers_of_a_corrupt_block_exactly_one_reports_it(folder: Folder) -> None:
    for number in range(10):
        block = make_block(number)
        folder.put(block)
        flip_payload(folder.path(block))
        barrier = threading.Barrier(4)
        results: list[BlockResult] = []

        def read(block: Block, barrier: threading.Barrier, results: list[BlockResult]) -> None:
            barrier.wait()
            results.append(folder.get(block))

        threads = [threading.Thread(target=read, args=(block, barrier, results)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert sorted(result.status.value for result in results) == ["corrupt", "miss", "miss", "miss"]
    assert len(folder.quarantined()) == 10


def test_the_quarantine_is_bounded(folder: Folder) -> None:
    folder.store = folder.open(quarantine_blocks=3)
    for number in range(6):
        block = make_block(number)
        folder.put(block)
        flip_payload(folder.path(block))
        assert folder.get(block).status is Status.CORRUPT

    assert len(folder.quarantined()) == 3
    assert all(parse_quarantine_name(name) for name in folder.quarantined())


def test_a_wrong_file_that_cannot_be_moved_aside_is_told_and_told_again(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = make_block(1)
    folder.put(block)
    folder.path(block).write_bytes(block.damaged())

    def rename(*_: object, **__: object) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "rename", rename)
    assert folder.get(block).status is Status.CORRUPT
    assert folder.get(block).status is Status.CORRUPT, "it lies there still"
    assert f"cannot quarantine {block_name(block.key)}: Permission denied" in folder.store.stats().notes


def test_a_wrong_file_that_another_reader_took_away_is_a_miss(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    block = make_block(1)
    folder.put(block)
    folder.path(block).write_bytes(block.damaged())

    def rename(*_: object, **__: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(os, "rename", rename)
    assert folder.get(block) == MISS


def test_a_file_that_was_replaced_since_it_was_judged_is_left_alone(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = make_block(1)
    folder.put(block)
    folder.path(block).write_bytes(block.damaged())
    sound = folder.store._quarantine

    def replaced_first(*arguments: object) -> bool:
        folder.path(block).rename(folder.root / "taken by another reader")
        folder.put(block)
        return sound(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(folder.store, "_quarantine", replaced_first)
    assert folder.get(block) == MISS
    monkeypatch.undo()
    assert folder.get(block).status is Status.HIT
    assert folder.quarantined() == []


def test_a_file_that_vanishes_between_lookup_and_get_is_a_miss(folder: Folder) -> None:
    block = make_block(1)
    folder.put(block)
    assert folder.store.lookup([block.key], soon()) == [True]

    folder.path(block).unlink()

    assert folder.get(block) == MISS


def test_a_link_in_place_of_a_directory_is_not_followed(folder: Folder, tmp_path: Path) -> None:
    block = make_block(1)
    folder.put(block)
    namespace = folder.root / "kveik-1" / leaf_of(block.key)[0]
    elsewhere = tmp_path / "elsewhere"
    namespace.rename(elsewhere)
    namespace.symlink_to(elsewhere)
    new = make_block(2)

    assert (folder.get(block).status, folder.get(block).reason) == (Status.FAILED, "foreign")
    assert (folder.put(new)[0].status, folder.put(new)[0].reason) == (Status.FAILED, "foreign")
    assert not list(elsewhere.rglob(block_name(new.key)))
    assert folder.store.delete([block.key])[0].status is Status.FAILED
    assert list(elsewhere.rglob(block_name(block.key)))


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO])
def test_a_transient_error_of_a_mount_is_read_over_once(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    block = make_block(1)
    folder.put(block)
    errors = [OSError(code, os.strerror(code))]

    read = os.preadv

    def flaky(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        if errors:
            raise errors.pop()
        return read(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", flaky)

    assert folder.get(block).status is Status.HIT
    errors.extend([OSError(code, os.strerror(code))] * 2)
    result = folder.get(block)
    assert (result.status, result.reason) == (Status.FAILED, "io_error")
    assert os.strerror(code) in result.detail
    assert folder.quarantined() == []


# Use and room


def test_reading_an_old_block_makes_it_young_again_at_most_every_ten_minutes(folder: Folder) -> None:
    block = make_block(1)
    folder.put(block)
    path = folder.path(block)
    now_s = time.time()

    os.utime(path, (now_s - 500, now_s - 500))
    folder.get(block)
    assert path.stat().st_mtime == pytest.approx(now_s - 500, abs=1)

    os.utime(path, (now_s - 700, now_s - 700))
    folder.get(block)
    assert path.stat().st_mtime == pytest.approx(now_s, abs=60)


def test_storing_a_block_that_is_there_counts_as_use(folder: Folder) -> None:
    block = make_block(1)
    folder.put(block)
    os.utime(folder.path(block), (0, 0))

    assert folder.put(block)[0].status is Status.EXISTS

    assert folder.path(block).stat().st_mtime > 0


def test_sizes_are_right_again_after_a_restart(folder: Folder) -> None:
    folder.put(make_block(1), make_block(2))
    folder.store.close()

    again = folder.open()
    again.sweep()

    assert (again.stats().blocks, again.stats().bytes) == (2, 2 * (4096 + 8192))


def test_a_restarted_store_counts_in_the_background(folder: Folder) -> None:
    folder.put(make_block(1), make_block(2))
    folder.store.close()

    again = folder.open(sweep_interval_s=0.05)

    until(lambda: again.stats().blocks == 2)


def test_above_its_limit_nothing_is_stored_until_a_round_has_evicted(folder: Folder) -> None:
    blocks = [make_block(number) for number in range(11)]
    size = len(blocks[0].frame)
    folder.store = folder.open(limit_bytes=10 * size)
    assert all(result.status is Status.STORED for result in folder.put(*blocks[:10]))
    for age, block in enumerate(blocks[:10]):
        os.utime(folder.path(block), (0, 1_000_000 + age))

    assert folder.put(blocks[10])[0].reason == "no_room"
    report = folder.store.sweep()

    assert report is not None
    assert report.evicted_blocks == 1
    assert folder.put(blocks[10])[0].status is Status.STORED
    assert folder.get(blocks[0]) == MISS
    assert EvictionRecord("filesystem", 1, size) in folder.records


def test_a_block_that_is_large_against_the_limit_gets_its_room(folder: Folder) -> None:
    one, two = make_block(1), make_block(2)
    folder.store = folder.open(limit_bytes=len(one.frame) * 3 // 2)
    folder.put(one)

    assert folder.put(two)[0].reason == "no_room"
    folder.store.sweep()

    assert folder.put(two)[0].status is Status.STORED


def test_a_frame_larger_than_the_limit_is_refused(folder: Folder) -> None:
    block = make_block(1)
    folder.store = folder.open(limit_bytes=len(block.frame) - 1)

    assert folder.put(block)[0].reason == "too_large"


def test_the_reserve_of_free_space_is_left_to_others(folder: Folder) -> None:
    folder.store = folder.open(reserve_bytes=1 << 60)

    assert folder.put(make_block(1))[0].reason == "no_room"
    assert folder.store.capabilities.bounded


def test_two_stores_on_one_folder_sweep_one_at_a_time_and_agree_on_sizes(folder: Folder) -> None:
    other = folder.open()
    folder.put(make_block(1), make_block(2))

    assert folder.store.sweep() is not None
    assert other.sweep() is None

    assert "sweeps" in other.stats().notes[1]
    folder.store.close()


def test_the_one_that_does_not_sweep_learns_the_sizes_from_the_lease(folder: Folder, tmp_path: Path) -> None:
    clock = FakeClock(time.time())
    options = FilesystemOptions(root=tmp_path / "shared", sweep_interval_s=0)
    owner, other = FilesystemStore(options, clock=clock), FilesystemStore(options, clock=clock)
    block = make_block(1)
    owner.put([block.key], [block.frame], Deadline.after(10.0))
    owner.sweep()
    clock.advance(options.lease_stale_s / 2)
    owner.sweep()

    assert other.sweep() is None
    assert (other.stats().blocks, other.stats().bytes) == (1, len(block.frame))


def test_when_the_sweeping_store_closes_another_takes_over(folder: Folder) -> None:
    folder.store.close()
    first = folder.open(sweep_interval_s=0.02)
    until(lambda: first.stats().notes[1] == "this process sweeps")
    second = folder.open(sweep_interval_s=0.02)
    until(lambda: "on host" in second.stats().notes[1])

    first.close()

    until(lambda: second.stats().notes[1] == "this process sweeps")


def test_closing_gives_up_a_lease_that_was_taken_without_a_thread(folder: Folder) -> None:
    lease = folder.root / "kveik-1" / "sweeper.lease"
    assert folder.store.sweep() is not None
    assert lease.exists()
    folder.store.close()
    assert not lease.exists()
    assert folder.store.sweep() is None, "a closed store must not take the lease again"
    assert not lease.exists()


def test_closing_leaves_the_lease_of_another_store_alone(folder: Folder) -> None:
    other = folder.open()
    assert other.sweep() is not None
    assert folder.store.sweep() is None
    folder.store.close()
    assert (folder.root / "kveik-1" / "sweeper.lease").exists()
    assert other.sweep() is not None


def test_closing_gives_the_lease_up_and_ends_the_thread(folder: Folder) -> None:
    store = folder.open(sweep_interval_s=0.02)
    until(lambda: store.stats().notes[1] == "this process sweeps")

    store.close()

    until(lambda: not (folder.root / "kveik-1" / "sweeper.lease").exists())
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "kveik-filesystem-sweep"])


# The folder itself


def test_a_folder_is_made_with_its_parents(tmp_path: Path) -> None:
    assert check_root(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b" / "kveik-1").is_dir()
    assert list((tmp_path / "a" / "b" / "kveik-1").iterdir()) == []


def test_a_file_in_place_of_the_folder_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreError, match=r"/file cannot be used \(.*\); name a folder"):
        FilesystemStore(FilesystemOptions(root=tmp_path / "file"))


def test_a_link_in_place_of_the_format_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kveik-1").symlink_to(tmp_path)

    with pytest.raises(StoreError, match="cannot be used"):
        check_root(tmp_path)


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")

    assert check_root(tmp_path / "link")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)

    with pytest.raises(StoreError, match="Permission denied"):
        check_root(tmp_path)


def test_when_the_folder_is_gone_everything_is_a_miss_and_writes_fail_softly(folder: Folder) -> None:
    block = make_block(1)
    folder.put(block)
    folder.root.rename(folder.root.with_name("gone"))

    assert folder.get(block) == MISS
    assert folder.put(make_block(2))[0].reason == "io_error"
    folder.root.with_name("gone").rename(folder.root)
    assert folder.get(block).status is Status.HIT


def test_options_come_from_the_settings() -> None:
    settings = AgentSettings(
        filesystem="/cache", filesystem_bytes=10, filesystem_reserve_bytes=20, filesystem_fsync=True
    )

    options = FilesystemOptions.from_settings(settings)

    assert (options.root, options.limit_bytes, options.reserve_bytes, options.fsync) == (Path("/cache"), 10, 20, True)


def test_a_temporary_name_is_never_used_twice(folder: Folder) -> None:
    tree = FileTree(folder.root)
    with tree.directory() as directory:
        names = [tree.write_temporary(directory, "check", [b"x"]) for _ in range(3)]

    assert len(set(names)) == 3
