"""What a file's name and bytes say, without a folder."""

import pytest

from kveik.kv import frame
from kveik.store.filesystem_files import FileIdentity
from kveik.store.filesystem_layout import FileWriter, block_name, leaf_of, temporary_name, writer_name
from kveik.store.fsck import (
    LISTED_MAX,
    Depth,
    Finding,
    FolderReport,
    Found,
    Role,
    age_name,
    judge_block,
    may_remove,
    role_of,
)
from tests.blocks import make_block

BLOCK = make_block(1)
LEAF = "/".join(leaf_of(BLOCK.key))
WRITER = FileWriter("0" * 8, 7)


def identity(size: int = len(BLOCK.frame), *, regular: bool = True) -> FileIdentity:
    return FileIdentity(1, 2, size, 0.0, regular)


@pytest.mark.parametrize(
    ("directory", "name", "role"),
    [
        (LEAF, block_name(BLOCK.key), Role(key=BLOCK.key)),
        (LEAF, "notes.kvb", Role()),
        (LEAF, temporary_name("x", WRITER, 1), Role(writer=WRITER)),
        ("", temporary_name("sweeper", WRITER, 1), Role(writer=WRITER)),
        ("", "sweeper.lease", Role(own=True)),
        ("", "sweeper.wanted", Role(own=True)),
        ("", block_name(BLOCK.key), Role()),
        ("a" * 32, "namespace.json", Role(own=True)),
        ("a" * 32, "sweeper.lease", Role()),
        ("writers", writer_name("0" * 16), Role(own=True)),
        ("writers", "notes", Role()),
        ("quarantine", "notes", Role()),
    ],
)
def test_a_files_place_and_name_say_what_it_should_be(directory: str, name: str, role: Role) -> None:
    assert role_of(directory, name) == role


def test_a_whole_block_is_sound_at_every_depth() -> None:
    for depth in Depth:
        assert judge_block(LEAF, BLOCK.key, BLOCK.frame, identity(), depth) == (Finding.SOUND, "")


@pytest.mark.parametrize(
    ("present", "found", "finding"),
    [
        (BLOCK.damaged(), identity(), Finding.CORRUPT),
        (BLOCK.damaged(30), identity(), Finding.CORRUPT),
        (BLOCK.frame[:100], identity(100), Finding.TRUNCATED),
        (BLOCK.frame[:-1], identity(len(BLOCK.frame) - 1), Finding.TRUNCATED),
        (make_block(2).frame, identity(), Finding.FOREIGN),
        (memoryview(bytes(len(BLOCK.frame))), identity(), Finding.FOREIGN),
        (BLOCK.frame[:0], identity(regular=False), Finding.FOREIGN),
    ],
)
def test_bytes_that_are_not_the_block_say_how(present: memoryview, found: FileIdentity, finding: Finding) -> None:
    told, why = judge_block(LEAF, BLOCK.key, present, found, Depth.BYTES)

    assert told is finding
    assert why


def test_a_block_in_another_directory_is_foreign_whatever_its_bytes() -> None:
    finding, why = judge_block("a/b/c", BLOCK.key, BLOCK.frame, identity(), Depth.BYTES)

    assert finding is Finding.FOREIGN
    assert "a/b/c" in why


def test_a_frame_of_another_version_is_unknown_not_damage() -> None:
    newer = bytearray(BLOCK.frame)
    newer[len(frame.MAGIC)] = frame.FRAME_VERSION + 1

    finding, why = judge_block(LEAF, BLOCK.key, memoryview(newer), identity(), Depth.BYTES)

    assert finding is Finding.UNKNOWN
    assert "version 2" in why


@pytest.mark.parametrize(("age_s", "name"), [(0.0, "1 h"), (3600.0, "1 d"), (86400.0, "7 d"), (1e9, "older")])
def test_ages_fall_into_four_classes(age_s: float, name: str) -> None:
    assert age_name(age_s) == name


@pytest.mark.parametrize("finding", Finding)
def test_only_certain_damage_that_is_old_enough_may_be_removed(finding: Finding) -> None:
    damage = finding in (Finding.CORRUPT, Finding.TRUNCATED, Finding.FOREIGN)

    assert may_remove(Found("x", finding, 1, 60.0), 60.0) is (damage or finding is Finding.ORPHANED)
    assert may_remove(Found("x", finding, 1, 59.0), 60.0) is (finding is Finding.ORPHANED)


def test_a_report_of_many_wrong_files_counts_all_and_lists_some() -> None:
    report = FolderReport("/cache")
    for number in range(LISTED_MAX + 5):
        report.add(Found(str(number), Finding.CORRUPT, 10, 0.0))
    report.add(Found("sound", Finding.SOUND, 10, 0.0))

    assert report.bad == LISTED_MAX + 5
    assert report.bytes["corrupt"] == 10 * (LISTED_MAX + 5)
    assert len(report.listed) == LISTED_MAX
