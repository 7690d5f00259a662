"""The Redis tier against a real server: what the contract suite does not ask."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kveik.clock import Deadline
from kveik.engine.process import free_port
from kveik.errors import StoreError
from kveik.kv.keys import BlockKey
from kveik.kv.namespace import REQUIRED_FACTS, Namespace
from kveik.store.base import Status
from kveik.store.key_text import KeyTexts
from kveik.store.redis import RedisStore
from kveik.store.redis_link import connect
from tests.agents import wait_until
from tests.blocks import Block, make_block
from tests.redis_server import RedisServer, running_redis

PAGE = Path(__file__).resolve().parents[3] / "docs" / "redis.md"


def soon() -> Deadline:
    return Deadline.after(20.0)


def put(store: RedisStore, *blocks: Block) -> list[Status]:
    return [result.status for result in store.put([b.key for b in blocks], [b.frame for b in blocks], soon())]


def name(key: BlockKey) -> str:
    return KeyTexts().of(key)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    server.command("FLUSHALL")
    opened = RedisStore.open(server.settings())
    yield opened
    opened.close()


def test_a_batch_moves_in_one_call_each_way(store: RedisStore) -> None:
    blocks = [make_block(number, payload_bytes=100_000) for number in range(20)]
    assert put(store, *blocks) == [Status.STORED] * 20
    buffers = [block.buffer() for block in blocks]

    results = store.get([block.key for block in blocks], buffers, soon())

    assert [result.status for result in results] == [Status.HIT] * 20
    assert all(block.is_in(buffer) for block, buffer in zip(blocks, buffers, strict=True))
    assert store.capabilities.batch_keys > 1


def test_a_unix_socket_serves_as_well(server: RedisServer) -> None:
    opened = RedisStore.open(server.settings(address=server.socket, database=5))
    block = make_block(1)
    assert put(opened, block) == [Status.STORED]
    assert opened.lookup([block.key], soon()) == [True]
    opened.close()


def test_databases_are_apart(server: RedisServer, store: RedisStore) -> None:
    other = RedisStore.open(server.settings(database=7))
    put(store, make_block(1))
    assert other.lookup([make_block(1).key], soon()) == [False]
    other.close()


def test_a_block_lives_as_long_as_it_was_told_to(server: RedisServer) -> None:
    opened = RedisStore.open(server.settings(ttl_hours=1 / 3600 / 5, database=9))
    block = make_block(1)
    assert put(opened, block) == [Status.STORED]
    wait_until(lambda: opened.lookup([block.key], soon()) == [False], "the block's time is over")
    opened.close()


@pytest.mark.parametrize("what", ["flipped", "cut", "grown", "foreign", "empty"])
def test_a_value_that_was_changed_behind_its_back_is_corrupt_once_and_stored_anew(
    server: RedisServer, store: RedisStore, what: str
) -> None:
    block, other = make_block(1), make_block(2)
    put(store, block)
    value = {
        "flipped": bytes(block.damaged()),
        "cut": bytes(block.frame[:-1]),
        "grown": bytes(block.frame) + b"x",
        "foreign": bytes(other.frame),
        "empty": b"",
    }[what]
    server.command("SET", name(block.key), value)
    buffer = memoryview(bytearray(len(block.frame) + 10))

    (found,) = store.get([block.key], [buffer], soon())

    assert found.status is Status.CORRUPT
    assert store.get([block.key], [buffer], soon())[0].status is Status.MISS
    assert put(store, block) == [Status.STORED]


def test_a_key_of_another_kind_is_no_block(server: RedisServer, store: RedisStore) -> None:
    block = make_block(1)
    server.command("LPUSH", name(block.key), "x")
    assert store.get([block.key], [block.buffer()], soon())[0].status is Status.MISS


def test_others_keys_in_the_database_are_not_listed(server: RedisServer, store: RedisStore) -> None:
    server.command("SET", "somebody-elses", "x")
    server.command("SET", "kveik-not-a-key", "x")
    blocks = [make_block(number) for number in range(3)]
    put(store, *blocks)
    assert sorted(key for portion in store.keys(b"") for key in portion) == sorted(block.key for block in blocks)


def test_a_full_server_says_no_room_and_keeps_serving(tmp_path: Path) -> None:
    with running_redis(tmp_path, "--maxmemory", "3mb", "--maxmemory-policy", "noeviction") as full:
        opened = RedisStore.open(full.settings())
        blocks = [make_block(number, payload_bytes=500_000) for number in range(10)]
        results = opened.put([b.key for b in blocks], [b.frame for b in blocks], soon())

        stored = [block for block, result in zip(blocks, results, strict=True) if result.ok]
        refused = {result.reason for result in results if not result.ok}
        assert stored
        assert refused == {"no_room"}
        assert stored[0].is_in(_read(opened, stored[0]))
        assert "does not evict" in " ".join(opened.stats().notes)
        assert opened.stats().capacity_bytes == 3 << 20
        opened.close()


def _read(store: RedisStore, block: Block) -> memoryview:
    buffer = block.buffer()
    store.get([block.key], [buffer], soon())
    return buffer


def test_a_password_is_taken_from_its_file_and_a_wrong_one_is_told(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("open sesame\n")
    with running_redis(tmp_path, "--requirepass", "open sesame") as locked:
        opened = RedisStore.open(locked.settings(password_file=str(secret)))
        assert put(opened, make_block(1)) == [Status.STORED]
        opened.close()
        with pytest.raises(StoreError, match="does not take this client"):
            RedisStore.open(locked.settings())


def test_a_user_with_the_rights_that_the_page_names_can_do_everything(tmp_path: Path, server: RedisServer) -> None:
    rights = re.search(r"needs `([^`]+)`", PAGE.read_text())
    assert rights is not None
    server.command("ACL", "SETUSER", "limited", "on", ">pw", "resetchannels", *rights[1].split())
    secret = tmp_path / "secret"
    secret.write_text("pw")
    opened = RedisStore.open(server.settings(user="limited", password_file=str(secret), database=11))
    block = make_block(1)
    assert put(opened, block) == [Status.STORED]
    assert opened.lookup([block.key], soon()) == [True]
    assert block.is_in(_read(opened, block))
    assert [key for portion in opened.keys(b"") for key in portion] == [block.key]
    assert opened.delete([block.key])[0].status is Status.DELETED
    assert not [note for note in opened.stats().notes if "not known" in note]
    opened.close()


def _certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that vouches for itself, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl here, which makes the certificate")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    words = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=kveik"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(words, check=True, capture_output=True)
    return certificate, key


def test_with_tls_only_a_server_that_the_system_trusts_is_talked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = _certificate(tmp_path)
    port = free_port()
    tls = ["--tls-port", str(port), "--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
    with running_redis(tmp_path, *tls, "--tls-auth-clients", "no") as secured:
        settings = secured.settings(address=f"127.0.0.1:{port}", tls=True)
        with pytest.raises(StoreError, match="certificate verify failed"):
            RedisStore.open(settings)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        opened = RedisStore.open(settings)
        block = make_block(1, payload_bytes=1 << 20)
        assert put(opened, block) == [Status.STORED]
        assert block.is_in(_read(opened, block))
        opened.close()


def test_a_server_that_is_not_there_cannot_be_opened(tmp_path: Path) -> None:
    absent = RedisServer(tmp_path)
    with pytest.raises(StoreError, match="does not take this client"):
        RedisStore.open(absent.settings())


def test_a_killed_server_fails_calls_and_the_same_store_works_again_after_its_restart(tmp_path: Path) -> None:
    with running_redis(tmp_path) as server:
        opened = RedisStore(connect(server.settings()), refresh_s=0.05)
        block = make_block(1)
        put(opened, block)
        server.kill()

        assert opened.lookup([block.key], soon()) == [False]
        assert opened.get([block.key], [block.buffer()], soon())[0].reason == "unavailable"
        assert opened.put([block.key], [block.frame], soon())[0].reason == "unavailable"
        assert opened.delete([block.key])[0].reason == "unavailable"
        with pytest.raises(StoreError, match="cannot list"):
            list(opened.keys(b""))
        wait_until(lambda: "not known" in " ".join(opened.stats().notes), "the sizes are not known")

        server.start()
        assert opened.get([block.key], [block.buffer()], soon())[0].status is Status.MISS
        assert put(opened, block) == [Status.STORED]
        wait_until(lambda: opened.stats().blocks == 1, "the sizes are known again")
        opened.close()


def test_a_paused_server_is_given_up_after_its_time_out(tmp_path: Path) -> None:
    with running_redis(tmp_path) as server:
        opened = RedisStore.open(replace(server.settings(), connect_s=0.2))
        server.pause()
        assert opened.get([make_block(1).key], [make_block(1).buffer()], soon())[0].reason == "timeout"
        server.resume()
        opened.close()


def test_a_namespace_is_described_beside_its_blocks(server: RedisServer, store: RedisStore) -> None:
    namespace = Namespace(dict.fromkeys(REQUIRED_FACTS, "x"), "model")
    store.describe(namespace)
    assert b'"label": "model"' in server.command("GET", f"kveik:namespace:{namespace.digest.hex()}")


def test_the_repr_says_where_it_is(server: RedisServer, store: RedisStore) -> None:
    assert repr(store) == f"RedisStore('{server.address}, database 0', 0 blocks)"
