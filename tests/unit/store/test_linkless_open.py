"""Opening a path in one step, without following any link in it."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kveik.store.linkless_open import is_supported, open_below

pytestmark = pytest.mark.skipif(not is_supported(), reason="this kernel has no openat2, or forbids it")
FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    descriptor = os.open(tmp_path, FLAGS)
    yield descriptor
    os.close(descriptor)


def test_the_directory_at_the_end_of_the_path_is_opened(root: int, tmp_path: Path) -> None:
    found = open_below(root, "a/b/c", FLAGS)

    assert os.path.samestat(os.fstat(found), (tmp_path / "a/b/c").stat())
    assert not os.get_inheritable(found)
    os.close(found)


@pytest.mark.parametrize("link", ["a", "a/b", "a/b/c"])
def test_a_link_anywhere_in_the_path_leads_nowhere(root: int, tmp_path: Path, link: str) -> None:
    (tmp_path / link).rename(tmp_path / "aside")
    (tmp_path / link).symlink_to(tmp_path / "aside")

    with pytest.raises(OSError) as caught:
        open_below(root, "a/b/c", FLAGS)
    assert caught.value.errno in (errno.ELOOP, errno.ENOTDIR)


def test_what_is_not_there_is_a_file_not_found(root: int) -> None:
    with pytest.raises(FileNotFoundError):
        open_below(root, "a/x/c", FLAGS)


def test_a_file_in_the_place_of_a_directory_is_no_directory(root: int, tmp_path: Path) -> None:
    (tmp_path / "a" / "file").write_bytes(b"")

    with pytest.raises(NotADirectoryError):
        open_below(root, "a/file", FLAGS)
