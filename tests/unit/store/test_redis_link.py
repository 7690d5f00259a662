"""From settings to a client; nothing is connected before it is used."""

import sys
from pathlib import Path
from typing import Any

import pytest

from kveik.config_stores import RedisSettings
from kveik.errors import ConfigError
from kveik.store.redis_link import connect


@pytest.mark.parametrize("address", ["localhost", "host:", ":6379x", "host:0", "host:70000", ":6379"])
def test_an_address_that_is_none_is_refused_with_what_was_expected(address: str) -> None:
    pytest.importorskip("redis")
    with pytest.raises(ConfigError, match="expected HOST:PORT or the path of a Unix socket"):
        connect(RedisSettings(address=address))


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigError, match=r"pip install 'kveik\[redis\]'"):
        connect(RedisSettings(address="127.0.0.1:6379"))


def test_tls_and_a_unix_socket_exclude_each_other() -> None:
    pytest.importorskip("redis")
    with pytest.raises(ConfigError, match=r"redis\.tls"):
        connect(RedisSettings(address="/run/redis.sock", tls=True))


def test_a_password_file_that_says_nothing_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    empty = tmp_path / "empty"
    empty.write_text("\nsecret on the second line\n")
    for path, said in ((tmp_path / "none", "cannot be read"), (empty, "first line is empty")):
        with pytest.raises(ConfigError, match=said):
            connect(RedisSettings(address="127.0.0.1:6379", password_file=str(path)))


def test_settings_reach_the_client_and_no_secret_reaches_the_place(tmp_path: Path) -> None:
    redis = pytest.importorskip("redis")
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    link = connect(
        RedisSettings(
            address="[::1]:6380", database=3, user="kveik", password_file=str(secret), tls=True, connect_s=1.5
        )
    )
    pool: Any = link.client.connection_pool
    given = pool.connection_kwargs
    assert (given["host"], given["port"], given["db"]) == ("::1", 6380, 3)
    assert given["protocol"] == 2, "or the server may send what was not asked for"
    assert (given["username"], given["password"], given["socket_timeout"]) == ("kveik", "s3cret", 1.5)
    assert pool.connection_class is redis.SSLConnection
    packer = given["command_packer"]
    value = memoryview(bytearray(100_000))
    assert any(part is value for part in packer.pack("SET", "name", value)), "large values are not copied"
    assert link.place == "[::1]:6380, database 3"
    assert "s3cret" not in repr(link.place)
