import json
import os
from pathlib import Path

import pytest

from kveik.errors import ConfigError
from kveik.records import Record, StateRecord
from kveik.router.api_keys import ApiKeys
from kveik.router.keys_file import (
    ApiKey,
    KeysFile,
    editing,
    empty_keys,
    read_keys,
    with_key_added,
    with_key_revoked,
    write_keys,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def add(path: Path, **fields: object) -> bytes:
    """Put one more key into the file; what a client presents."""
    with editing(path) as before:
        keys, secret = with_key_added(before, ApiKey(**fields))  # type: ignore[arg-type]
        write_keys(path, keys)
    return b"Bearer " + secret.encode()


def test_a_key_is_found_by_what_a_client_presents(path: Path) -> None:
    credentials = add(path, name="team", models=("qwen-*",), tenant="lab")
    keys = ApiKeys(path)
    bare = credentials.removeprefix(b"Bearer ")
    for presented in (credentials, credentials, bare, b"bearer  " + bare + b" "):
        found = keys.find(presented)
        assert found is not None
        assert (found.name, found.tenant_name, found.models) == ("team", "lab", ("qwen-*",))


@pytest.mark.parametrize(
    "presented", [None, b"", b"Bearer", b"Bearer ", b"Bearer sk-kveik-no", b"Basic x", b"x" * 9999]
)
def test_anything_else_is_nobody(path: Path, presented: bytes | None) -> None:
    add(path, name="team")
    assert ApiKeys(path).find(presented) is None


def test_the_file_holds_no_key_and_is_its_owner_s_only(path: Path) -> None:
    secret = add(path, name="team").removeprefix(b"Bearer ")
    assert secret not in path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir() if entry.stat().st_size] == ["keys.json"]


def test_equal_keys_have_different_hashes_in_different_files() -> None:
    assert empty_keys().hash_of(b"sk-x") != empty_keys().hash_of(b"sk-x")


def test_the_hash_of_a_key_is_not_a_key(path: Path) -> None:
    add(path, name="team")
    hashed = read_keys(path).keys[0].hash
    assert ApiKeys(path).find(b"Bearer " + hashed.encode()) is None


def test_guesses_do_not_fill_the_table_of_known_credentials(path: Path) -> None:
    credentials = add(path, name="team")
    keys = ApiKeys(path)
    for guess in range(100):
        keys.find(b"Bearer sk-%d" % guess)
        keys.find(credentials + b" " * guess)
    assert set(keys._cached) <= {credentials + b" " * blanks for blanks in range(100)}


def test_the_table_of_known_credentials_is_bounded(path: Path) -> None:
    credentials = add(path, name="team")
    keys = ApiKeys(path)
    for blanks in range(400):
        for spelling in (b"Bearer", b"bearer", b"BEARER", b"bEarer", b"beArer", b"beaRer", b"BeArer", b"BEArer",
                         b"BEARer", b"BEAREr", b"bearEr", b"bearER"):  # fmt: skip
            keys.find(spelling + b" " * (1 + blanks) + credentials.removeprefix(b"Bearer "))
    assert 0 < len(keys._cached) <= 4096


def test_a_changed_file_is_in_force_without_a_restart(path: Path) -> None:
    first = add(path, name="first")
    records: list[Record] = []
    keys = ApiKeys(path, records.append)
    assert not keys.reload_if_changed()
    second = add(path, name="second")
    assert keys.reload_if_changed()
    assert keys.find(second) is not None
    with editing(path) as file:
        write_keys(path, with_key_revoked(file, "first"))
    assert keys.find(first) is not None, "not looked at yet"
    assert keys.reload_if_changed()
    assert keys.find(first) is None
    assert list(keys.by_name) == ["second"]
    assert [record.why for record in records if isinstance(record, StateRecord)] == [
        "2 keys in force", "1 keys in force",
    ]  # fmt: skip


@pytest.mark.parametrize("broken", [b"", b"{", b"[]", b'{"salt": "x", "keys": []}', None])
def test_a_broken_or_lost_file_keeps_the_keys_and_says_so_once(path: Path, broken: bytes | None) -> None:
    credentials = add(path, name="team")
    sound = path.read_bytes()
    records: list[Record] = []
    keys = ApiKeys(path, records.append)
    path.unlink() if broken is None else path.write_bytes(broken)
    assert not keys.reload_if_changed()
    assert not keys.reload_if_changed()
    assert keys.find(credentials) is not None
    assert str(path) in keys.problem
    path.write_bytes(sound + b"\n")
    assert keys.reload_if_changed()
    assert keys.problem == ""
    assert [(record.part, record.before, record.after) for record in records if isinstance(record, StateRecord)] == [
        ("router.keys", "ready", "broken"), ("router.keys", "broken", "ready"),
    ]  # fmt: skip
    assert "1 keys" in repr(keys)


def test_a_router_does_not_start_without_its_keys(path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        ApiKeys(path)


def test_a_file_that_others_may_change_is_refused(path: Path) -> None:
    add(path, name="team")
    path.chmod(0o620)
    with pytest.raises(ConfigError, match="chmod go-w"):
        read_keys(path)


GOOD = {"name": "a", "hash": "0" * 64}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([GOOD, GOOD], "two keys are named 'a'"),
        ([{**GOOD, "name": 'a"\n'}], "no name"),
        ([{**GOOD, "tenant": "x y"}], "'x y' is no name"),
        ([{**GOOD, "hash": "sk-kveik-plain"}], "64 hex digits"),
        ([{**GOOD, "concurrent": -1}], "negative"),
        ([{**GOOD, "requests_per_minute": 3}], "unknown field `requests_per_minute`"),
        ([{**GOOD, "tokens_per_min": "many"}], r"keys\[0\]\.tokens_per_min"),
    ],
)
def test_a_wrong_entry_is_named(path: Path, keys: list[dict[str, object]], message: str) -> None:
    path.write_text(json.dumps({"salt": "0" * 64, "keys": keys}))
    with pytest.raises(ConfigError, match=message):
        read_keys(path)


def test_a_name_is_given_once_and_only_known_ones_are_revoked() -> None:
    keys, _ = with_key_added(empty_keys(), ApiKey(name="a"))
    with pytest.raises(ConfigError, match="already a key named 'a'"):
        with_key_added(keys, ApiKey(name="a"))
    with pytest.raises(ConfigError, match="no key named 'b'"):
        with_key_revoked(keys, "b")
    assert with_key_revoked(keys, "a").keys == ()


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    taken = tmp_path / "folder"
    taken.mkdir()
    (taken / "inside").touch()
    with pytest.raises(ConfigError, match="cannot write"):
        write_keys(taken, empty_keys())
    assert os.listdir(tmp_path) == ["folder"]


def test_cache_salts_differ_by_tenant_and_file_and_stay_the_same() -> None:
    file, other = KeysFile(salt="1" * 64), KeysFile(salt="2" * 64)
    assert file.cache_salt("a") == KeysFile(salt="1" * 64).cache_salt("a")
    assert len({file.cache_salt("a"), file.cache_salt("b"), other.cache_salt("a")}) == 3
    assert file.cache_salt("a").isalnum()
