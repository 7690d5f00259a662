"""System calls of the filesystem tier where they meet odd mounts, races and foreign processes."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kveik.errors import StoreError
from kveik.store import filesystem_files
from kveik.store.filesystem_files import (
    FileTree,
    check_root,
    identify,
    process_alive,
    read_into,
    read_opened,
    this_writer,
    touch,
    unless_full,
)


@pytest.fixture
def tree(tmp_path: Path) -> FileTree:
    check_root(tmp_path)
    return FileTree(tmp_path)


def refusing(code: int) -> Callable[..., None]:
    """A system call that gives this error."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return refuse


def names(tree: FileTree) -> list[str]:
    return sorted(os.listdir(tree.root / "kveik-1"))


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])
def test_a_mount_that_stops_having_hard_links_gets_renames_from_then_on(
    tree: FileTree, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    links: list[int] = []

    def link(*arguments: object, **_: object) -> None:
        links.append(1)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", link)
    with tree.directory() as directory:
        assert tree.publish(directory, "a", "a.kvb", [b"first"])
        assert tree.publish(directory, "b", "b.kvb", [b"second"])
        assert not tree.publish(directory, "a", "a.kvb", [b"another"]), "the first writer wins here too"
    assert len(links) == 1, "it is not tried again for each block"
    assert names(tree) == ["a.kvb", "b.kvb"]
    assert (tree.root / "kveik-1" / "a.kvb").read_bytes() == b"first"


def test_another_error_of_a_link_leaves_nothing_behind(tree: FileTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", refusing(errno.EIO))
    with tree.directory() as directory, pytest.raises(OSError, match="Input/output error"):
        tree.publish(directory, "a", "a.kvb", [b"bytes"])
    assert names(tree) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_file_that_fails_at_its_end_leaves_nothing_behind(
    tree: FileTree, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A network mount may tell only when a file is closed that there was no room."""
    sound = os.close

    def close(descriptor: int) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        sound(descriptor)
        if name.endswith(".tmp"):
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "close", close)
    with tree.directory() as directory, pytest.raises(OSError, match=os.strerror(code)):
        tree.publish(directory, "a", "a.kvb", [b"bytes"])
    assert names(tree) == []


def test_a_write_that_stores_nothing_is_an_error_and_no_endless_loop(
    tree: FileTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "write", lambda *_: 0)
    with tree.directory() as directory, pytest.raises(OSError, match="wrote nothing"):
        tree.write_temporary(directory, "a", [b"bytes"])
    assert names(tree) == []


def test_writes_and_reads_in_pieces_give_the_whole_file(tree: FileTree, monkeypatch: pytest.MonkeyPatch) -> None:
    write, preadv = os.write, os.preadv
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: preadv(fd, [buffers[0][:2]], at))
    with tree.directory() as directory:
        tree.publish(directory, "a", "a.kvb", [b"some ", b"bytes"])
        buffer = memoryview(bytearray(20))
        identity, count = read_into(directory, "a.kvb", buffer)
    assert (identity.size, bytes(buffer[:count])) == (10, b"some bytes")


def test_a_file_that_shrinks_while_it_is_read_gives_what_is_left(
    tree: FileTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tree.root / "kveik-1" / "a.kvb"
    path.write_bytes(b"0123456789")
    preadv = os.preadv

    def cut_then_read(descriptor: int, buffers: list[memoryview], at: int) -> int:
        os.truncate(path, 4)
        return preadv(descriptor, [buffers[0][:3]], at)

    monkeypatch.setattr(os, "preadv", cut_then_read)
    with tree.directory() as directory:
        identity, count = read_into(directory, "a.kvb", memoryview(bytearray(20)))
    assert (identity.size, count) == (10, 4)


def test_a_file_that_is_gone_is_not_touched_and_nobody_minds(tree: FileTree) -> None:
    with tree.directory() as directory:
        touch(directory, "gone")
        assert identify(directory, "gone") is None


@pytest.mark.parametrize(
    ("error", "alive"),
    [(ProcessLookupError(), False), (PermissionError(), True), (OverflowError(), True)],
    ids=["gone", "of another user", "no such number"],
)
def test_a_process_counts_as_dead_only_when_the_kernel_says_so(
    monkeypatch: pytest.MonkeyPatch, error: Exception, alive: bool
) -> None:
    def kill(pid: int, number: int) -> None:
        assert number == 0, "nobody may be hurt by the question"
        raise error

    monkeypatch.setattr(os, "kill", kill)
    assert process_alive(12345) is alive


def test_this_process_lives_and_has_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert process_alive(os.getpid())
    writer = this_writer()
    assert writer == this_writer()
    assert writer.pid == os.getpid()
    # Where the process-id space cannot be seen, the machine's identity alone tells hosts apart.
    monkeypatch.setattr(os, "readlink", refusing(errno.EACCES))
    assert len(this_writer().host) == 8
    assert this_writer().host != writer.host


def test_two_trees_of_one_process_never_give_two_files_one_name(tree: FileTree) -> None:
    other = FileTree(tree.root)
    with tree.directory() as directory, other.directory() as same:
        written = [each.write_temporary(at, "check", [b"x"]) for each, at in ((tree, directory), (other, same))]
    assert sorted(written) == names(tree)


@pytest.mark.parametrize(("code", "works"), [(errno.EPERM, False), (errno.ENOSPC, True), (errno.EDQUOT, True)])
def test_whether_links_work_is_tried_out_and_a_full_disk_does_not_decide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, works: bool
) -> None:
    monkeypatch.setattr(os, "link", refusing(code))
    assert check_root(tmp_path) is works
    assert os.listdir(tmp_path / "kveik-1") == []


def test_a_folder_that_fails_in_an_unknown_way_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", refusing(errno.EIO))
    with pytest.raises(StoreError, match=r"cannot be used .Input/output error.") as caught:
        check_root(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert os.listdir(tmp_path / "kveik-1") == []


@pytest.fixture(params=["in one step", "step by step"])
def any_tree(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileTree:
    """A tree on a kernel that opens a path in one step, and on one that does not."""
    if request.param == "step by step":
        monkeypatch.setattr(filesystem_files, "is_supported", lambda: False)
    check_root(tmp_path)
    return FileTree(tmp_path)


def test_directories_are_made_and_found_again(any_tree: FileTree) -> None:
    with pytest.raises(FileNotFoundError), any_tree.directory("a", "b"):
        pass
    with any_tree.directory("a", "b", create=True) as directory:
        any_tree.publish(directory, "x", "x.kvb", [b"bytes"])
    with any_tree.directory("a", "b") as directory:
        assert os.listdir(directory) == ["x.kvb"]


def test_a_file_is_opened_by_its_path_or_looked_for_in_its_directory(any_tree: FileTree) -> None:
    with any_tree.directory("a", create=True) as directory:
        any_tree.publish(directory, "x", "x.kvb", [b"bytes"])

    descriptor = any_tree.open_file("a", "x.kvb")

    if descriptor is not None:
        buffer = memoryview(bytearray(10))
        identity, count = read_opened(descriptor, buffer)
        assert (identity.size, bytes(buffer[:count])) == (5, b"bytes")
        with pytest.raises(FileNotFoundError):
            any_tree.open_file("a", "y.kvb")


@pytest.mark.parametrize("planted", ["a", "a/b", "kveik-1"])
def test_a_link_below_the_root_leads_nowhere(any_tree: FileTree, tmp_path: Path, planted: str) -> None:
    with any_tree.directory("a", "b", create=True):
        pass
    place = tmp_path / planted if planted == "kveik-1" else tmp_path / "kveik-1" / planted
    place.rename(tmp_path / "aside")
    place.symlink_to(tmp_path / "aside")

    with pytest.raises(OSError) as caught, any_tree.directory("a", "b"):
        pass
    assert caught.value.errno in (errno.ELOOP, errno.ENOTDIR)


def test_a_link_above_the_root_is_the_owners_business_even_when_it_is_made_later(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "disk")
    check_root(tmp_path / "cache" / "kv")
    tree = FileTree(tmp_path / "cache" / "kv")
    with tree.directory("a", create=True):
        pass

    (tmp_path / "disk").rename(tmp_path / "larger disk")
    (tmp_path / "disk").symlink_to(tmp_path / "larger disk")

    with tree.directory("a") as directory:
        assert os.path.samestat(os.fstat(directory), (tmp_path / "larger disk/kv/kveik-1/a").stat())


def test_on_a_network_an_absent_file_is_looked_for_in_its_directory(tmp_path: Path) -> None:
    check_root(tmp_path)

    assert FileTree(tmp_path, fresh=True).open_file("a", "x.kvb") is None


def test_a_file_may_be_written_over_another(tree: FileTree) -> None:
    with tree.directory() as directory:
        assert tree.publish(directory, "a", "a.kvb", [b"first"])
        assert tree.publish(directory, "a", "a.kvb", [b"second"], over=True)
    assert (tree.root / "kveik-1" / "a.kvb").read_bytes() == b"second"
    assert names(tree) == ["a.kvb"]


def test_a_replacement_that_fails_leaves_nothing_behind(tree: FileTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "replace", refusing(errno.EIO))
    with tree.directory() as directory, pytest.raises(OSError, match="Input/output error"):
        tree.replace(directory, "sweeper", "sweeper.lease", b"note")
    assert names(tree) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_what_is_only_convenient_may_fail_on_a_full_disk_but_not_otherwise(code: int) -> None:
    with unless_full():
        raise OSError(code, "full")
    with pytest.raises(OSError, match="read-only"), unless_full():
        raise OSError(errno.EROFS, "read-only")


def test_files_of_the_tier_are_never_mapped() -> None:
    """A mapped file that is cut short on a server kills the process that reads it."""
    sources = Path(filesystem_files.__file__).parent.glob("filesystem*.py")
    assert [source.name for source in sources if "mmap" in source.read_text()] == []
