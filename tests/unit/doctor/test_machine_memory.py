"""What the kernel says of memory, read from its files."""

from pathlib import Path

import pytest

from kveik.doctor.machine_memory import look_at_memory

MEMINFO = "MemTotal:       1000 kB\nHugePages_Total:     512\nHugePages_Free:      500\nHugepagesize:       2048 kB\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in {
        "proc/meminfo": MEMINFO,
        "sys/kernel/mm/transparent_hugepage/shmem_enabled": "always within_size advise [never] deny force\n",
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


def test_sizes_and_pages_are_read(root: Path) -> None:
    seen = look_at_memory("", root)
    assert seen.total_bytes == 1_024_000
    assert (seen.huge_pages, seen.huge_pages_free, seen.huge_page_bytes) == (512, 500, 2 << 20)
    assert seen.transparent == "never"
    assert seen.limit_bytes == -1


@pytest.mark.parametrize(
    ("file", "text", "limit"),
    [
        ("sys/fs/cgroup/memory.max", "4096\n", 4096),
        ("sys/fs/cgroup/memory.max", "max\n", -1),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "8192\n", 8192),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n", -1),
    ],
)
def test_the_limit_of_a_container_is_read_in_both_versions(root: Path, file: str, text: str, limit: int) -> None:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert look_at_memory("", root).limit_bytes == limit


def test_the_arenas_file_system_is_looked_at_and_whether_the_file_is_there(root: Path) -> None:
    arena = root / "arena"
    assert not look_at_memory(str(arena), root).arena_is_there
    arena.write_bytes(b"")
    seen = look_at_memory(str(arena), root)
    assert seen.arena_is_there
    assert 0 < seen.shared_free_bytes <= seen.shared_total_bytes


def test_a_machine_that_says_nothing_gives_zeros(tmp_path: Path) -> None:
    seen = look_at_memory("/nonexistent/folder/arena", tmp_path)
    assert (seen.total_bytes, seen.shared_total_bytes, seen.transparent) == (0, 0, "")


def test_this_machine_has_memory() -> None:
    assert look_at_memory("").total_bytes > 0
