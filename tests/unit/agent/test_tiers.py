"""Which tiers an agent opens, and in which order."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from kveik.agent import tiers
from kveik.agent.tiers import (
    KINDS,
    TierContext,
    TierKind,
    filesystem_threads,
    open_filesystem,
    open_redis,
    open_yuanrong,
    tier_names,
)
from kveik.config import AgentSettings, RedisSettings, StoreSettings, YuanrongSettings
from kveik.engine.process import free_port
from kveik.errors import ConfigError, StoreError
from kveik.store.base import OUT, READY, BlockStore
from tests.yuanrong import package

NONE = StoreSettings()


def kind(*, wanted: bool = True) -> TierKind:
    def never(_: TierContext) -> BlockStore:
        raise AssertionError("nothing is opened to say which tiers there are")

    return TierKind(wanted=lambda _, __: wanted, threads=lambda _, __: 1, open=never)


ALL: Mapping[str, TierKind] = {"near": kind(), "far": kind(), "unused": kind(wanted=False)}


def test_tiers_that_are_configured_come_in_the_order_of_nearness_unless_said_otherwise() -> None:
    assert tier_names(AgentSettings(), NONE, ALL) == ["near", "far"]
    assert tier_names(AgentSettings(tiers="far, near"), NONE, ALL) == ["far", "near"]
    assert tier_names(AgentSettings(), NONE, {}) == []


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ("near,far,nearest", "there is no tier 'nearest', expected some of near, far, unused"),
        ("near,far,near", "'near' stands there twice"),
        ("near,far,unused", "'unused' is not configured: set its address or folder, or leave it out"),
        ("far", "'near' is configured but not named: add it, or remove its settings"),
    ],
)
def test_an_order_that_does_not_fit_the_tiers_is_refused(order: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tier_names(AgentSettings(tiers=order), NONE, ALL)
    assert str(caught.value) == f"agent.tiers is {order!r}: {words}"


def test_a_folder_makes_a_tier_and_a_wrong_one_stops_the_start(tmp_path: Path) -> None:
    agent = AgentSettings(filesystem=str(tmp_path), filesystem_threads=7)
    assert tier_names(agent, NONE) == ["filesystem"]
    assert tier_names(AgentSettings(), NONE) == []
    assert KINDS["filesystem"].threads(agent, NONE) == 7
    context = TierContext(agent, NONE, memoryview(bytearray(1)))
    store = open_filesystem(context)
    assert (store.name, store.stats().state) == ("filesystem", READY)
    store.close()
    (tmp_path / "file").touch()
    with pytest.raises(StoreError):
        open_filesystem(replace(context, agent=AgentSettings(filesystem=str(tmp_path / "file"))))


def test_no_kind_is_used_unless_the_settings_ask_for_it() -> None:
    for name, made in KINDS.items():
        assert not made.wanted(AgentSettings(), NONE), f"{name} is used although nothing asks for it"
        assert made.threads(AgentSettings(), NONE) >= 1


def test_a_redis_server_that_is_down_stops_no_start_and_a_wrong_address_does() -> None:
    pytest.importorskip("redis")
    stores = StoreSettings(redis=RedisSettings(address=f"127.0.0.1:{free_port()}", threads=3))
    assert tier_names(AgentSettings(), stores) == ["redis"]
    assert KINDS["redis"].threads(AgentSettings(), stores) == 3
    context = TierContext(AgentSettings(), stores, memoryview(bytearray(1)))
    store = open_redis(context)
    assert store.stats().state == OUT
    assert "does not take this client" in store.stats().notes[0]
    store.close()
    with pytest.raises(ConfigError):
        open_redis(replace(context, stores=StoreSettings(redis=RedisSettings(address="nowhere"))))


def test_a_datasystem_worker_that_is_down_stops_no_start_and_a_wrong_address_does() -> None:
    package()
    settings = YuanrongSettings(worker=f"127.0.0.1:{free_port()}", connect_s=0.5, processes=3)
    stores = StoreSettings(yuanrong=settings)
    assert tier_names(AgentSettings(), stores) == ["yuanrong"]
    assert KINDS["yuanrong"].threads(AgentSettings(), stores) == 3
    context = TierContext(AgentSettings(tier_deadline_s=60.0), stores, memoryview(bytearray(1)))
    store = open_yuanrong(context)
    assert store.stats().state == OUT
    assert "no datasystem worker answers at 127.0.0.1:" in store.stats().notes[0]
    store.close()
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        open_yuanrong(replace(context, stores=StoreSettings(yuanrong=YuanrongSettings(worker="nowhere"))))


def test_a_datasystem_tier_without_its_package_stops_the_start_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    stores = StoreSettings(yuanrong=YuanrongSettings(worker="127.0.0.1:1"))
    with pytest.raises(ConfigError, match=r"pip install kveik\[yuanrong\]"):
        open_yuanrong(TierContext(AgentSettings(), stores, memoryview(bytearray(1))))


def test_a_folder_on_a_network_gets_more_threads_unless_their_number_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    table = ["1 0 8:1 / / rw - ext4 /dev/sda rw", "2 1 0:9 / /mnt/kv rw - nfs4 server:/kv rw"]
    monkeypatch.setattr(tiers, "mount_table", lambda: table)

    assert filesystem_threads(AgentSettings(filesystem="/mnt/kv/blocks")) == 16
    assert filesystem_threads(AgentSettings(filesystem="/mnt/../var/kv")) == 4
    assert filesystem_threads(AgentSettings(filesystem="/mnt/kv", filesystem_threads=7)) == 7
