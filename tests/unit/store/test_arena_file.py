import os
import re
from pathlib import Path

import pytest

from kveik.errors import ArenaError
from kveik.store import arena_file
from kveik.store.arena_file import ArenaFile, ArenaRequest, open_arena_file
from kveik.store.arena_layout import ArenaLayout

MIB = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "arena"


def opened(path: Path, arena_bytes: int = 8 * MIB, slab_bytes: int = 0) -> ArenaFile:
    return open_arena_file(ArenaRequest(str(path), arena_bytes, slab_bytes))


def test_a_new_arena_has_all_its_pages_and_is_for_its_owner_only(path: Path) -> None:
    file = opened(path)
    status = path.stat()
    assert status.st_mode & 0o777 == 0o600
    assert status.st_blocks * 512 >= 8 * MIB
    assert len(file.view) == 8 * MIB
    assert not file.notes
    file.close()


def test_an_arena_that_is_opened_again_keeps_its_bytes(path: Path) -> None:
    file = opened(path)
    file.view[MIB : MIB + 5] = b"bytes"
    file.close()
    again = opened(path)
    assert bytes(again.view[MIB : MIB + 5]) == b"bytes"
    assert not again.notes
    again.close()


def test_sizes_that_are_left_open_are_those_of_the_existing_arena(path: Path) -> None:
    opened(path, 6 * MIB, MIB).close()
    again = opened(path, 0)
    assert again.layout == ArenaLayout(6 * MIB, MIB)
    again.close()


@pytest.mark.parametrize(("arena_bytes", "slab_bytes"), [(4 * MIB, 0), (8 * MIB, MIB)])
def test_an_arena_of_another_size_is_replaced_with_a_word(path: Path, arena_bytes: int, slab_bytes: int) -> None:
    opened(path).close()
    again = opened(path, arena_bytes, slab_bytes)
    assert again.layout.arena_bytes == arena_bytes
    assert re.search(r"replaced.*its (arena|slab) size is \d+ bytes, \d+ are configured", again.notes[0])
    again.close()


def test_an_engine_that_maps_the_old_arena_survives_its_replacement(path: Path) -> None:
    first = opened(path, 8 * MIB)
    first.view[-1] = 7
    last = first.view[-1:]
    first.close()
    second = opened(path, 4 * MIB)
    assert last[0] == 7  # a truncated file would kill this process here
    second.close()


def test_two_agents_cannot_have_one_arena(path: Path) -> None:
    file = opened(path)
    with pytest.raises(ArenaError, match="another agent uses the arena"):
        opened(path)
    file.close()
    opened(path).close()


def test_what_a_client_got_does_not_keep_the_arena_locked(path: Path) -> None:
    file = opened(path)
    descriptor = file.open_for_client()
    file.close()
    opened(path).close()
    os.close(descriptor)


def test_a_file_of_something_else_is_refused_and_kept(path: Path) -> None:
    path.write_bytes(b"a diary, not an arena" * 100)
    path.chmod(0o600)
    with pytest.raises(ArenaError, match="holds something else"):
        opened(path)
    assert path.read_bytes().startswith(b"a diary")


def test_a_file_that_others_may_read_is_refused(path: Path) -> None:
    opened(path).close()
    path.chmod(0o640)
    with pytest.raises(ArenaError, match="open to other users"):
        opened(path)


def test_a_symbolic_link_is_refused(path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ArenaError, match="symbolic link"):
        opened(path)
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_is_refused(path: Path) -> None:
    path.mkdir(mode=0o700)
    with pytest.raises(ArenaError):
        opened(path)


def test_an_arena_whose_creation_was_cut_short_is_made_anew(path: Path) -> None:
    path.write_bytes(bytes(8 * MIB))
    path.chmod(0o600)
    file = opened(path)
    assert "never finished" in file.notes[0]
    file.close()


def test_an_arena_that_was_cut_off_is_replaced_with_a_word(path: Path) -> None:
    opened(path).close()
    os.truncate(path, 5 * MIB)
    file = opened(path)
    assert "its header says" in file.notes[0]
    file.close()


def test_an_arena_that_cannot_fit_says_how_much_is_needed_and_what_to_do(path: Path) -> None:
    with pytest.raises(ArenaError, match=r"needs 1125899906842624 bytes.*agent\.arena_bytes"):
        opened(path, 1 << 50)
    assert not path.exists()


def test_a_small_file_system_is_named_with_advice(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_file, "free_file_bytes", lambda folder: 64 * MIB)
    with pytest.raises(ArenaError, match=rf"{path.parent} has {64 * MIB} free; enlarge it.*--shm-size"):
        opened(path, 100 * MIB)


def test_an_arena_of_no_given_size_leaves_room_in_a_small_file_system(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena_file, "free_file_bytes", lambda folder: 10 * MIB)
    file = opened(path, 0)
    assert file.layout.arena_bytes == 9 * MIB
    assert "only" in file.notes[0]
    file.close()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArenaError, match="nowhere"):
        opened(tmp_path / "nowhere" / "arena")
