"""Stores are tried for real: a folder, one that lies, one where nobody answers, settings that cannot be meant."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from kveik.config import AgentSettings, MooncakeSettings, RedisSettings, StoreSettings, YuanrongSettings
from kveik.doctor.store_trial import TriedStore, put_and_read, stores_of, try_store, why_refused
from kveik.engine.process import free_port
from kveik.store.base import OPENING, BlockStore, StoreStats
from kveik.store.faulty import Faults, FaultyStore
from kveik.store.memory import MemoryStore
from kveik.store.probe_verdict import Verdict


def tried(store: Callable[[], BlockStore]) -> TriedStore:
    return TriedStore("redis", "/nowhere", store)


def folder_store(folder: Path) -> TriedStore:
    (one,) = stores_of(AgentSettings(filesystem=str(folder)), StoreSettings())
    return one


def test_the_settings_name_the_stores_nearest_first() -> None:
    stores = StoreSettings(
        mooncake=MooncakeSettings(master="a:1", segment_bytes=1 << 30),
        yuanrong=YuanrongSettings(worker="b:2"),
        redis=RedisSettings(address="c:3"),
    )
    found = stores_of(AgentSettings(filesystem="/kv"), stores)
    assert [(one.name, one.address) for one in found] == [
        ("mooncake", "a:1"), ("yuanrong", "b:2"), ("redis", "c:3"), ("filesystem", "/kv"),
    ]  # fmt: skip
    assert stores_of(AgentSettings(), StoreSettings()) == []


def test_a_folder_that_works_is_sound_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    facts = try_store(folder_store(tmp_path))
    assert facts.found.verdict is Verdict.SOUND
    assert facts.seconds > 0
    assert list(tmp_path.rglob("*.kvb")) == []


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    facts = try_store(folder_store(tmp_path / "missing"))
    assert (facts.found.verdict, "a mount is missing" in facts.found.detail) == (Verdict.UNKNOWN, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("faults", "verdict"),
    [
        (Faults(), Verdict.SOUND),
        (Faults(lose=True), Verdict.NOT_SERVED),
        (Faults(corrupt=True), Verdict.OTHER_BYTES),
        (Faults(foreign=True, unverified=True), Verdict.OTHER_BYTES),
        (Faults(fail="unavailable"), Verdict.FAILING),
        (Faults(fail="no_room", operations=frozenset({"put"})), Verdict.UNKNOWN),
    ],
)
def test_a_store_that_acknowledges_and_does_not_serve_is_found_out(faults: Faults, verdict: Verdict) -> None:
    assert put_and_read(FaultyStore(MemoryStore(), faults)).verdict is verdict


def test_a_store_that_does_not_open_in_time_says_why() -> None:
    class Opening(MemoryStore):
        def stats(self) -> StoreStats:
            return StoreStats(0, 0, 0, notes=("the master says nothing",), state=OPENING)

    assert try_store(tried(Opening), open_s=0.05).closed == "the master says nothing"


def test_an_address_where_nobody_listens_is_known_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert why_refused(f"127.0.0.1:{listening.getsockname()[1]}") == ""
    assert "refused" in why_refused(f"127.0.0.1:{free_port()}")
    assert why_refused("no.such.host.invalid:1", 5.0)


def test_folders_and_half_addresses_are_left_to_who_opens_them(tmp_path: Path) -> None:
    assert [why_refused(text) for text in (str(tmp_path), "/not/there", "localhost", ":1")] == [""] * 4
    assert why_refused(f"{tmp_path}/redis.sock")


def test_a_socket_that_answers_is_well(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{tmp_path}/redis.sock")
        listening.listen()
        assert why_refused(f"{tmp_path}/redis.sock") == ""


@pytest.mark.parametrize(
    "stores",
    [StoreSettings(mooncake=MooncakeSettings(master="nonsense")), StoreSettings(yuanrong=YuanrongSettings(worker="x"))],
)
def test_settings_that_cannot_be_meant_are_told_before_anything_is_asked(stores: StoreSettings) -> None:
    (one,) = stores_of(AgentSettings(), stores)
    assert "expected" in try_store(one).settings
