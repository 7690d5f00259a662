"""What must go: pure decisions by the hundred. And one round over a real folder."""

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.clock import SYSTEM_CLOCK, Deadline
from kveik.store.filesystem import FilesystemStore
from kveik.store.filesystem_files import FileTree, this_writer
from kveik.store.filesystem_layout import FileWriter, block_name, leaf_of, temporary_name
from kveik.store.filesystem_options import FilesystemOptions
from kveik.store.filesystem_sweep import (
    HIGH_MARK,
    LOW_MARK,
    OldestFiles,
    Space,
    StoredFile,
    SweepReport,
    bytes_to_free,
    excess_quarantine,
    is_leftover,
    plan_eviction,
    stored_keys,
    sweep,
)
from tests.blocks import Block, make_block

file_lists = st.lists(
    st.builds(
        StoredFile,
        path=st.uuids().map(str),
        size=st.integers(1, 1000),
        mtime_s=st.integers(0, 20).map(float),
    ),
    max_size=30,
)
PLENTY = 1 << 40


def total(files: list[StoredFile]) -> int:
    return sum(file.size for file in files)


@given(file_lists, st.integers(0, 20_000))
def test_victims_free_what_is_needed_or_everything(files: list[StoredFile], need_bytes: int) -> None:
    victims = plan_eviction(files, need_bytes)

    assert total(victims) >= min(need_bytes, total(files))


@given(file_lists, st.integers(0, 20_000))
def test_no_victim_more_than_needed(files: list[StoredFile], need_bytes: int) -> None:
    victims = plan_eviction(files, need_bytes)

    assert total(victims[:-1]) < max(need_bytes, 1)
    assert bool(victims) == (need_bytes > 0 and bool(files))


@given(file_lists, st.integers(0, 20_000))
def test_no_file_that_stays_is_older_than_one_that_goes(files: list[StoredFile], need_bytes: int) -> None:
    victims = plan_eviction(files, need_bytes)
    staying = [file for file in files if file not in victims]

    assert all(gone.mtime_s <= kept.mtime_s for gone in victims for kept in staying)


@given(file_lists, st.integers(0, 20_000))
def test_the_plan_does_not_depend_on_the_order_of_the_walk(files: list[StoredFile], need_bytes: int) -> None:
    shuffled = sorted(files, key=lambda file: file.path[::-1])

    assert plan_eviction(files, need_bytes) == plan_eviction(shuffled, need_bytes)


@given(file_lists, st.integers(0, 5_000))
def test_the_files_remembered_are_the_oldest_and_enough(files: list[StoredFile], need_bytes: int) -> None:
    oldest = OldestFiles(need_bytes)
    for file in files:
        oldest.offer(file)

    assert total(oldest.files()) >= min(need_bytes, total(files))
    forgotten = [file for file in files if file not in oldest.files()]
    assert all(kept.mtime_s <= young.mtime_s for kept in oldest.files() for young in forgotten)


def test_a_huge_folder_needs_memory_for_its_candidates_only() -> None:
    oldest = OldestFiles(10_000)
    for number in range(100_000):
        oldest.offer(StoredFile(str(number), 1_000, float(number * 7919 % 100_000)))

    assert sorted(file.mtime_s for file in oldest.files()) == [float(number) for number in range(10)]


@pytest.mark.parametrize(
    ("space", "need"),
    [
        (Space(used=500, limit=0, free=PLENTY, reserve=0), 0),
        (Space(used=949, limit=1000, free=PLENTY, reserve=0), 0),
        (Space(used=950, limit=1000, free=PLENTY, reserve=0), 50),
        (Space(used=2000, limit=1000, free=PLENTY, reserve=0), 1100),
        (Space(used=500, limit=0, free=100, reserve=100), 0),
        (Space(used=500, limit=0, free=90, reserve=100), 20),
        (Space(used=5, limit=0, free=0, reserve=100), 5),  # others filled the disk: not more than all
        (Space(used=500, limit=0, free=PLENTY, reserve=0, disk_full=True), 50),
        (Space(used=1000, limit=1000, free=0, reserve=400, disk_full=True), 440),
        (Space(used=900, limit=1000, free=PLENTY, reserve=0, wanted=100), 0),
        (Space(used=901, limit=1000, free=PLENTY, reserve=0, wanted=100), 1),  # 901 is no high mark, and yet no room
        (Space(used=500, limit=600, free=PLENTY, reserve=0, wanted=500), 400),
        (Space(used=500, limit=0, free=150, reserve=100, wanted=60), 20),
        (Space(used=0, limit=1000, free=0, reserve=400, disk_full=True), 0),
    ],
)
def test_how_much_must_go(space: Space, need: int) -> None:
    assert bytes_to_free(space) == need


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(0, 10**6), st.integers(0, 10**6), st.booleans())
def test_after_freeing_that_much_nothing_more_must_go(
    used: int, limit: int, free: int, reserve: int, disk_full: bool
) -> None:
    need = bytes_to_free(Space(used, limit, free, reserve, disk_full=disk_full))

    assert 0 <= need <= used
    after = Space(used - need, limit, free + need, reserve)
    assert bytes_to_free(after) == 0 or after.used == 0 or limit < 20


def test_the_marks_leave_room_between_rounds() -> None:
    assert 0 < LOW_MARK < HIGH_MARK < 1


@pytest.mark.parametrize(
    ("host", "alive", "age_s", "leftover"),
    [
        ("mine", True, 10.0, False),
        ("mine", False, 10.0, True),
        ("other", False, 10.0, False),  # its process ids mean nothing here
        ("other", False, 3601.0, True),
        ("mine", True, 3601.0, True),
    ],
)
def test_a_temporary_file_is_a_leftover_when_nobody_can_be_writing_it(
    host: str, alive: bool, age_s: float, leftover: bool
) -> None:
    assert is_leftover(FileWriter(host, 1), age_s, host="mine", alive=lambda _: alive, max_age_s=3600.0) is leftover


def test_the_oldest_quarantined_files_go_when_there_are_too_many_or_too_large_ones() -> None:
    files = [StoredFile(str(age), 100, float(-age)) for age in range(5)]

    assert excess_quarantine(files, 5, 500) == []
    assert [file.path for file in excess_quarantine(files, 3, 500)] == ["3", "4"]
    assert [file.path for file in excess_quarantine(files, 5, 250)] == ["2", "3", "4"]


# One round over a real folder


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FilesystemStore]:
    made = FilesystemStore(FilesystemOptions(root=tmp_path, sweep_interval_s=0))
    yield made
    made.close()


def put(store: FilesystemStore, *blocks: Block) -> None:
    results = store.put([b.key for b in blocks], [b.frame for b in blocks], Deadline.after(10.0))
    assert all(result.ok for result in results)


def path_of(root: Path, block: Block) -> Path:
    return root.joinpath("kveik-1", *leaf_of(block.key), block_name(block.key))


def round_of(root: Path, *, used: int = 0, limit: int = 0, leftover_age_s: float = 3600.0) -> SweepReport:
    space = Space(used, limit, PLENTY, 0)
    return sweep(FileTree(root), space, leftover_age_s=leftover_age_s, clock=SYSTEM_CLOCK)


def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_a_round_counts_blocks_of_all_namespaces(store: FilesystemStore, tmp_path: Path) -> None:
    put(store, make_block(1), make_block(2), make_block(3, namespace=b"O" * 16))

    report = round_of(tmp_path)

    assert (report.blocks, report.bytes) == (3, 3 * (4096 + 8192))


def test_a_round_evicts_the_least_recently_used_blocks_down_to_the_low_mark(
    store: FilesystemStore, tmp_path: Path
) -> None:
    blocks = [make_block(number) for number in range(10)]
    put(store, *blocks)
    for age, block in enumerate(blocks):
        os.utime(path_of(tmp_path, block), (0, 1_000_000.0 - 60 * age))
    used = 10 * len(blocks[0].frame)

    report = round_of(tmp_path, used=used, limit=used)

    assert (report.blocks, report.evicted_blocks, report.evicted_bytes) == (9, 1, len(blocks[0].frame))
    present = store.lookup([block.key for block in blocks], Deadline.after(10.0))
    assert present == [True] * 9 + [False]


def test_a_round_removes_what_writers_that_died_left_behind(store: FilesystemStore, tmp_path: Path) -> None:
    block = make_block(1)
    put(store, block)
    leaf = path_of(tmp_path, block).parent
    mine = this_writer()
    leftover = leaf / temporary_name(block.key.text, FileWriter(mine.host, dead_pid()), 1)
    in_use = leaf / temporary_name(block.key.text, mine, 1)
    elsewhere = leaf / temporary_name(block.key.text, FileWriter("00000000", 1), 1)
    old = leaf / temporary_name(block.key.text, FileWriter("00000000", 2), 1)
    top = tmp_path / "kveik-1" / temporary_name("sweeper", FileWriter(mine.host, dead_pid()), 1)
    for file in (leftover, in_use, elsewhere, old, top):
        file.write_bytes(b"half a block")
    os.utime(old, (0, 0))

    report = round_of(tmp_path)

    assert report.leftovers == 3
    assert [file.exists() for file in (leftover, in_use, elsewhere, old, top)] == [False, True, True, False, False]


def test_a_round_never_touches_what_is_not_ours(store: FilesystemStore, tmp_path: Path) -> None:
    block = make_block(1)
    put(store, block)
    leaf = path_of(tmp_path, block).parent
    foreign = [
        tmp_path / "notes.txt",
        tmp_path / "kveik-1" / "README",
        tmp_path / "kveik-1" / path_of(tmp_path, block).name,  # a block's name, but not its place
        leaf / "thesis.doc",
        leaf / f"{block.key.text}.kvb.bak",
        leaf / ".hidden.tmp",
    ]
    for file in foreign:
        file.write_bytes(b"x" * 100)
        os.utime(file, (0, 0))
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    (outside / "00" / "00").mkdir(parents=True)
    precious = outside / "00" / "00" / path_of(tmp_path, block).name
    precious.write_bytes(b"x" * 8192)
    os.utime(precious, (0, 0))
    (tmp_path / "kveik-1" / ("f" * 32)).symlink_to(outside)

    report = round_of(tmp_path, used=1 << 30, limit=20, leftover_age_s=1.0)

    assert report.evicted_blocks == 1  # our only block: the limit is smaller than it
    assert all(file.exists() for file in [*foreign, precious])


def test_a_block_that_was_used_since_the_walk_is_spared(store: FilesystemStore, tmp_path: Path) -> None:
    block = make_block(1)
    put(store, block)
    path = path_of(tmp_path, block)
    os.utime(path, (0, 0))
    beats = itertools.count(1)

    def beat() -> None:
        # One beat before each of the four directories, then one before the victim.
        if next(beats) == 5:
            os.utime(path)

    report = sweep(
        FileTree(tmp_path), Space(1 << 30, 20, PLENTY, 0), leftover_age_s=3600.0, clock=SYSTEM_CLOCK, beat=beat
    )

    assert (report.evicted_blocks, report.blocks) == (0, 1)
    assert path.exists()


def test_an_empty_or_vanished_folder_is_no_error_of_the_round(tmp_path: Path) -> None:
    FilesystemStore(FilesystemOptions(root=tmp_path / "cache", sweep_interval_s=0))

    assert round_of(tmp_path / "cache").blocks == 0
    with pytest.raises(FileNotFoundError):
        round_of(tmp_path / "absent")


def test_blocks_are_listed_a_directory_at_a_time_and_only_where_they_belong(tmp_path: Path) -> None:
    store = FilesystemStore(FilesystemOptions(root=tmp_path, sweep_interval_s=0))
    ours = [make_block(number) for number in range(3)]
    theirs = make_block(7, namespace=b"O" * 16)
    for block in [*ours, theirs]:
        store.put([block.key], [block.frame], Deadline.after(10.0))
    format_directory = tmp_path / "kveik-1"
    leaf = format_directory.joinpath(*leaf_of(ours[0].key))
    # A file of theirs that was moved to us, rubbish, and a link: none of them may lead to a deletion.
    (leaf / block_name(theirs.key)).write_bytes(b"moved")
    (leaf / "notes.txt").write_bytes(b"rubbish")
    (format_directory / (b"L" * 16).hex()).symlink_to(format_directory / theirs.key.namespace.hex())
    tree = FileTree(tmp_path)

    portions = list(stored_keys(tree, ours[0].key.namespace.hex()))

    assert sorted(key for portion in portions for key in portion) == sorted(block.key for block in ours)
    assert max(map(len, portions)) == 1, "each lies in a directory of its own"
    assert sorted(key for portion in stored_keys(tree, "") for key in portion) == sorted(
        block.key for block in [*ours, theirs]
    )
    store.close()


def test_folders_and_links_that_have_the_names_of_blocks_are_neither_counted_nor_removed(tmp_path: Path) -> None:
    store = FilesystemStore(FilesystemOptions(root=tmp_path, sweep_interval_s=0, limit_bytes=1))
    folder, link = make_block(1), make_block(2)
    outside = tmp_path / "precious"
    outside.write_text("data")
    for block in (folder, link):
        tmp_path.joinpath("kveik-1", *leaf_of(block.key)).mkdir(parents=True)
    at_folder, at_link = (tmp_path.joinpath("kveik-1", *leaf_of(b.key), block_name(b.key)) for b in (folder, link))
    at_folder.mkdir()
    at_link.symlink_to(outside)

    report = store.sweep()

    assert report is not None
    assert (report.blocks, report.bytes, report.evicted_blocks) == (0, 0, 0)
    assert at_folder.is_dir()
    assert at_link.is_symlink()
    assert outside.read_text() == "data"
    store.close()


@pytest.mark.parametrize(("meanwhile", "left"), [("removed", 0), ("used", 1)])
def test_what_others_did_with_a_file_since_the_walk_is_respected(tmp_path: Path, meanwhile: str, left: int) -> None:
    store = FilesystemStore(FilesystemOptions(root=tmp_path, sweep_interval_s=0))
    blocks = [make_block(number) for number in range(4)]
    paths = [tmp_path.joinpath("kveik-1", *leaf_of(b.key), block_name(b.key)) for b in blocks]
    for age, (block, path) in enumerate(zip(blocks, paths, strict=True)):
        store.put([block.key], [block.frame], Deadline.after(10.0))
        os.utime(path, (1000.0 + age, 1000.0 + age))
    space = Space(used=4 * len(blocks[0].frame), limit=1, free=PLENTY, reserve=0)
    walked: list[int] = []

    def beat() -> None:
        """Called for the format directory, the namespace's, two a block, and then before each victim."""
        walked.append(1)
        if len(walked) == 1 + 1 + 2 * len(blocks) + 1:
            if meanwhile == "removed":
                paths[0].unlink()
            else:
                os.utime(paths[0])

    report = sweep(FileTree(tmp_path), space, leftover_age_s=3600.0, clock=SYSTEM_CLOCK, beat=beat)

    assert report.evicted_blocks == 3
    assert report.evicted_bytes == 3 * len(blocks[0].frame)
    assert [path.exists() for path in paths] == [bool(left), False, False, False]
    store.close()
