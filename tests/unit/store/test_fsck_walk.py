"""Walking a real folder with every kind of damage in it, and repairing it."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kveik.clock import Deadline
from kveik.errors import StoreError
from kveik.kv import frame
from kveik.kv.namespace import REQUIRED_FACTS, Namespace
from kveik.store.filesystem import FilesystemStore
from kveik.store.filesystem_files import this_writer
from kveik.store.filesystem_layout import block_name, leaf_of, temporary_name
from kveik.store.filesystem_options import FilesystemOptions
from kveik.store.fsck import Depth, FolderReport
from kveik.store.fsck_walk import FolderWalk, Progress
from tests.blocks import Block, make_block

NAMESPACE = Namespace(dict.fromkeys(REQUIRED_FACTS, "x") | {"dtype": "bfloat16"}, "some model")
OLD = (1_000_000_000, 1_000_000_000)


class Folder:
    """A tier with four sound blocks, a minute old and more."""

    def __init__(self, root: Path) -> None:
        self.root = root
        store = FilesystemStore(FilesystemOptions(root=root, sweep_interval_s=0))
        store.describe(NAMESPACE)
        self.blocks = [make_block(number, namespace=NAMESPACE.digest) for number in range(4)]
        store.put([b.key for b in self.blocks], [b.frame for b in self.blocks], Deadline.after(20.0))
        store.close()
        for block in self.blocks:
            os.utime(self.path(block), OLD)

    def path(self, block: Block) -> Path:
        return self.root.joinpath("kveik-1", *leaf_of(block.key), block_name(block.key))

    def walk(self, *, repair: bool = False, depth: Depth = Depth.BYTES) -> FolderReport:
        return FolderWalk(self.root, depth, pause=lambda _: None).run(repair=repair)

    def files(self) -> set[Path]:
        return {path for path in self.root.rglob("*") if path.is_file() or path.is_symlink()}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "cache")


def flip(path: Path, offset: int = frame.HEADER_BYTES + 100) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)
    os.utime(path, OLD)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)
    os.utime(path, OLD)


def empty(path: Path) -> None:
    os.truncate(path, 0)
    os.utime(path, OLD)


def of_another(path: Path) -> None:
    path.write_bytes(bytes(make_block(99).frame))
    os.utime(path, OLD)


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/hostname")
    os.utime(path, OLD, follow_symlinks=False)


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a bit in the payload": (flip, "corrupt"),
    "a bit in the header": (lambda path: flip(path, 40), "corrupt"),
    "a byte missing": (cut, "truncated"),
    "nothing in it": (empty, "truncated"),
    "another block's bytes": (of_another, "foreign"),
    "a link in its place": (link, "foreign"),
}


def test_a_sound_folder_is_counted_by_namespace_and_age(folder: Folder) -> None:
    report = folder.walk()

    assert (report.bad, report.blocks) == (0, 4)
    assert report.block_bytes == sum(len(block.frame) for block in folder.blocks)
    (tally,) = report.namespaces.values()
    assert (tally.label, tally.facts["dtype"], tally.blocks) == ("some model", "bfloat16", 4)
    assert dict(tally.by_age) == {"older": 4}
    assert dict(report.counts) == {"sound": 4}


@pytest.mark.parametrize("kind", DAMAGE)
def test_each_kind_of_damage_is_found_and_nothing_is_changed_unasked(folder: Folder, kind: str) -> None:
    damage, finding = DAMAGE[kind]
    damage(folder.path(folder.blocks[0]))
    before = folder.files()

    report = folder.walk()

    assert report.counts[finding] == 1
    assert report.bad == 1
    assert report.listed[0].path.endswith(block_name(folder.blocks[0].key))
    assert folder.files() == before


@pytest.mark.parametrize("kind", DAMAGE)
def test_repair_removes_exactly_the_damaged_file(folder: Folder, kind: str) -> None:
    DAMAGE[kind][0](folder.path(folder.blocks[0]))
    before = folder.files()

    report = folder.walk(repair=True)

    assert report.removed == 1
    assert report.listed[0].removed
    assert before - folder.files() == {folder.path(folder.blocks[0])}
    assert folder.walk().bad == 0


def test_a_block_that_is_younger_than_a_minute_is_told_and_left(folder: Folder) -> None:
    path = folder.path(folder.blocks[0])
    flip(path)
    os.utime(path)

    report = folder.walk(repair=True)

    assert (report.bad, report.removed) == (1, 0)
    assert path.exists()


def test_a_file_that_was_replaced_between_the_two_looks_is_left(folder: Folder) -> None:
    path = folder.path(folder.blocks[0])
    flip(path)

    def replaced(_: float) -> None:
        path.unlink()
        path.write_bytes(bytes(folder.blocks[0].frame))

    report = FolderWalk(folder.root, pause=replaced).run(repair=True)

    assert (report.bad, report.removed) == (1, 0)
    assert path.read_bytes() == bytes(folder.blocks[0].frame)


def test_a_sound_block_where_nobody_looks_for_it_is_foreign(folder: Folder) -> None:
    path = folder.path(folder.blocks[0])
    wrong = path.parent.parent / ("00" if path.parent.name != "00" else "01")
    wrong.mkdir(exist_ok=True)
    path.rename(wrong / path.name)

    report = folder.walk(repair=True)

    assert report.counts["foreign"] == 1
    assert not (wrong / path.name).exists()


def test_a_dead_writers_temporary_file_is_orphaned_and_a_living_ones_is_not(folder: Folder) -> None:
    leaf = folder.path(folder.blocks[0]).parent
    ours = this_writer()
    ended = subprocess.Popen(["true"])
    ended.wait()
    dead = type(ours)(ours.host, ended.pid)
    (leaf / temporary_name("x", ours, 1)).write_bytes(b"half")
    (leaf / temporary_name("x", dead, 1)).write_bytes(b"half")
    (leaf / temporary_name("y", type(ours)("0" * 8, 7), 1)).write_bytes(b"half")
    os.utime(leaf / temporary_name("y", type(ours)("0" * 8, 7), 1), OLD)

    report = folder.walk(repair=True)

    assert report.counts["orphaned"] == 2
    assert report.counts["being written"] == 1
    assert report.removed == 2
    assert (leaf / temporary_name("x", ours, 1)).exists()


def test_what_is_not_kveiks_is_counted_and_never_touched(folder: Folder) -> None:
    strangers = [
        folder.root / "kveik-1" / "notes.txt",
        folder.path(folder.blocks[0]).parent / "notes.kvb",
        folder.root / "kveik-1" / NAMESPACE.digest.hex() / "readme",
    ]
    for stranger in strangers:
        stranger.write_bytes(b"mine")
        os.utime(stranger, OLD)
    newer = folder.path(folder.blocks[1])
    content = bytearray(newer.read_bytes())
    content[8] = 9  # of a later version of the frame
    newer.write_bytes(content)
    os.utime(newer, OLD)

    report = folder.walk(repair=True)

    assert report.counts["unknown"] == 4
    assert (report.bad, report.removed) == (0, 0)
    assert all(stranger.read_bytes() == b"mine" for stranger in strangers)
    assert newer.read_bytes() == bytes(content)


def test_looking_at_sizes_or_headers_reads_less_and_finds_less(folder: Folder) -> None:
    flip(folder.path(folder.blocks[0]))
    flip(folder.path(folder.blocks[1]), 40)
    cut(folder.path(folder.blocks[2]))
    empty(folder.path(folder.blocks[3]))

    assert folder.walk(depth=Depth.SIZES).bad == 1
    assert folder.walk(depth=Depth.HEADERS).bad == 3
    assert folder.walk(depth=Depth.BYTES).bad == 4


def test_quarantined_files_are_counted_apart(folder: Folder) -> None:
    flip(folder.path(folder.blocks[0]))
    store = FilesystemStore(FilesystemOptions(root=folder.root, sweep_interval_s=0))
    store.get([folder.blocks[0].key], [folder.blocks[0].buffer()], Deadline.after(20.0))
    store.close()

    report = folder.walk()

    assert (report.bad, report.blocks, report.counts["quarantined"]) == (0, 3, 1)


def test_a_description_of_another_namespace_is_not_believed(folder: Folder) -> None:
    note = folder.root / "kveik-1" / NAMESPACE.digest.hex() / "namespace.json"
    note.write_text(note.read_text().replace(NAMESPACE.digest.hex(), "0" * 32))

    (tally,) = folder.walk().namespaces.values()

    assert (tally.label, tally.facts) == ("", {})


def test_progress_is_told_after_each_directory(folder: Folder) -> None:
    told: list[Progress] = []

    FolderWalk(folder.root, progress=told.append).run()

    assert told[-1].files == 4
    assert told[-1].bytes == sum(len(block.frame) for block in folder.blocks)
    assert told[0].where == ""


def test_a_folder_without_a_tier_is_an_error_that_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="expected a folder kveik-1"):
        FolderWalk(tmp_path).run()


def test_the_report_for_programs_has_counts_bytes_and_files(folder: Folder) -> None:
    flip(folder.path(folder.blocks[0]))

    document = folder.walk().document()

    assert document["blocks"] == 4
    assert document["bad"] == 1
    assert document["findings"] == {
        "corrupt": {"files": 1, "bytes": len(folder.blocks[0].frame)},
        "sound": {"files": 3, "bytes": 3 * len(folder.blocks[0].frame)},
    }
