"""When a file that looked wrong is wrong for certain."""

from dataclasses import replace

from kveik.store.filesystem_files import FileIdentity
from kveik.store.filesystem_suspects import Suspects, Suspicion
from tests.blocks import make_block

KEY = make_block(1).key
FILE = FileIdentity(1, 2, 100, mtime_s=1000.0, regular=True)


def look(
    suspects: Suspects, now_s: float, file: FileIdentity = FILE, reason: str = "checksum", wall_s: float = 2000.0
) -> Suspicion:
    return suspects.look(KEY, file, reason, now_s=now_s, wall_s=wall_s)


def test_on_a_local_disk_one_look_is_certain() -> None:
    suspects = Suspects(network=False)

    assert look(suspects, 0.0, wall_s=1000.0) is Suspicion.CERTAIN
    assert not suspects.has(KEY, FILE)


def test_on_a_network_two_looks_apart_are() -> None:
    suspects = Suspects(network=True)

    assert look(suspects, 10.0) is Suspicion.NEW
    assert look(suspects, 10.5) is Suspicion.KNOWN
    assert repr(suspects) == "Suspects(1 watched)"
    assert look(suspects, 11.0) is Suspicion.CERTAIN
    assert repr(suspects) == "Suspects(0 watched)"


def test_a_young_file_is_left_alone_however_often_it_looks_wrong() -> None:
    suspects = Suspects(network=True)
    look(suspects, 0.0, wall_s=1059.0)

    assert {look(suspects, float(second), wall_s=1059.0) for second in range(1, 20)} == {Suspicion.KNOWN}
    assert look(suspects, 30.0, wall_s=1060.0) is Suspicion.CERTAIN


def test_another_file_or_another_fault_begins_anew() -> None:
    suspects = Suspects(network=True)
    look(suspects, 0.0)

    assert look(suspects, 5.0, reason="truncated") is Suspicion.NEW
    assert look(suspects, 10.0, replace(FILE, size=200), "truncated") is Suspicion.NEW
    assert look(suspects, 15.0, replace(FILE, inode=3), "truncated") is Suspicion.NEW
    assert look(suspects, 20.0, replace(FILE, inode=3), "truncated") is Suspicion.CERTAIN


def test_a_file_is_suspect_until_it_is_another_one_or_was_found_sound() -> None:
    suspects = Suspects(network=True)
    look(suspects, 0.0)

    assert suspects.has(KEY, FILE)
    assert not suspects.has(KEY, replace(FILE, mtime_s=1001.0))
    assert not suspects.has(make_block(2).key, FILE)
    suspects.clear(KEY)
    suspects.clear(KEY)
    assert not suspects.has(KEY, FILE)


def test_only_so_many_are_watched() -> None:
    suspects = Suspects(network=True)
    for number in range(1100):
        suspects.look(make_block(number, payload_bytes=8).key, FILE, "checksum", now_s=0.0, wall_s=2000.0)

    assert repr(suspects) == "Suspects(1024 watched)"
