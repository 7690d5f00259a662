import json
import os
import stat
from pathlib import Path

import pytest

from kveik.errors import RegistryError
from kveik.fleet.lifecycle import Event, State
from kveik.fleet.member_file import MemberFile, default_file
from kveik.fleet.membership import DEFAULT_RETENTION, Membership
from tests.fleet import engine

NOW = 1000.0
FLEET = (
    Membership()
    .announce(engine(1), NOW)
    .announce(engine(2), NOW, listed=True)
    .apply("e1", Event.DRAIN, "wegen Wartung ✓", NOW)
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "fleet.json"


def loaded(path: Path, now_s: float = NOW) -> Membership:
    file = MemberFile(path, lock_wait_s=0.0)
    try:
        return file.load(DEFAULT_RETENTION, now_s)
    finally:
        file.close()


def saved(path: Path, membership: Membership = FLEET, now_s: float = NOW) -> None:
    file = MemberFile(path, lock_wait_s=0.0)
    file.save(membership, now_s)
    file.close()


def test_what_is_saved_is_loaded_again_for_this_user_only(path: Path) -> None:
    assert loaded(path).members == {}
    saved(path)
    assert loaded(path) == FLEET
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert sorted(file.name for file in path.parent.iterdir()) == ["fleet.json", "fleet.json.lock"]


@pytest.mark.parametrize("hours", [0.0, 5.0, -5.0])
def test_leases_go_on_for_the_time_they_had_left_however_long_no_router_ran(path: Path, hours: float) -> None:
    saved(path, FLEET, NOW + 10)
    later_s = NOW + 10 + hours * 3600
    assert loaded(path, later_s).member("e1").lease_ends_s == later_s + 5
    assert loaded(path, later_s).member("e2").lease_ends_s is None


def test_no_lease_is_longer_than_its_engine_asked_for(path: Path) -> None:
    saved(path, FLEET, NOW - 3600)
    assert loaded(path).member("e1").lease_ends_s == NOW + 15


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 100,
        b"{",
        b"[" * 100_000,
        b"null",
        b'{"format": "kveik fleet 2", "revision": 1, "saved_at_s": 1, "members": []}',
        b'{"format": "kveik fleet 1", "revision": 1, "saved_at_s": 1, "members": [{"announcement": {"url": "x"}}]}',
        b'{"format": "kveik fleet 1", "revision": 1, "saved_at_s": 1, "members": [{}]}',
        b'{"format": "kveik fleet 1", "revision": "1", "saved_at_s": 1, "members": []}',
    ],
)
def test_a_file_that_is_not_understood_is_set_aside_with_one_line(
    path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir(mode=0o700)
    path.write_bytes(content)
    assert loaded(path).members == {}
    aside = path.with_name("fleet.json.not-understood")
    assert aside.read_bytes() == content
    assert len(caplog.records) == 1
    assert f"{path} is not understood" in caplog.text
    saved(path)
    assert loaded(path) == FLEET


@pytest.mark.parametrize("cut", range(0, 900, 97))
def test_half_a_file_is_set_aside_too(path: Path, cut: int) -> None:
    saved(path)
    path.write_bytes(path.read_bytes()[:cut])
    assert loaded(path).members == {}


def test_a_save_that_fails_leaves_the_old_content_and_no_rubbish(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(path)

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    file = MemberFile(path, lock_wait_s=0.0)
    with pytest.raises(RegistryError, match=r"cannot write the registry file .*: No space left on device"):
        file.save(Membership(), NOW)
    file.close()
    monkeypatch.undo()
    assert loaded(path) == FLEET
    saved(path)
    assert sorted(file.name for file in path.parent.iterdir()) == ["fleet.json", "fleet.json.lock"]


def test_two_routers_cannot_share_a_file_and_the_second_is_told_what_to_do(path: Path) -> None:
    first = MemberFile(path)
    with pytest.raises(RegistryError, match=r"another router uses .*; stop it, or set another router.registry_file"):
        MemberFile(path, lock_wait_s=0.1)
    first.close()
    MemberFile(path, lock_wait_s=0.0).close()


def test_a_folder_that_others_may_change_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.parent.chmod(0o777)
    with pytest.raises(RegistryError, match=r"can be changed by other users; set another router.registry_file"):
        MemberFile(path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RegistryError, match=r"cannot use the folder .*file/run"):
        MemberFile(tmp_path / "file" / "run" / "fleet.json")


def test_the_file_is_for_people_too(path: Path) -> None:
    saved(path)
    document = json.loads(path.read_text(encoding="utf8"))
    drained = document["members"][0]
    assert (drained["announcement"]["engine_id"], drained["state"], drained["why"]) == (
        "e1",
        State.DRAINING.value,
        "wegen Wartung ✓",
    )


def test_the_default_file_lies_in_the_runtime_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert default_file() == Path("/run/user/7/kveik/fleet.json")
