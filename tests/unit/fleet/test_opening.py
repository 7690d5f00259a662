from pathlib import Path

import pytest

from kveik.config import RouterSettings
from kveik.engine.process import free_port
from kveik.errors import ConfigError, RegistryError
from kveik.fleet.embedded import EmbeddedRegistry
from kveik.fleet.etcd import EtcdRegistry
from kveik.fleet.opening import open_registry
from tests.fleet import engine


def test_a_router_keeps_its_fleet_in_a_file_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    settings = RouterSettings(registry_file=str(tmp_path / "run" / "fleet.json"), lost_kept_s=7.0, hold_kept_hours=2.0)
    for known in ([], ["e1"]):
        registry = open_registry(settings)
        assert isinstance(registry, EmbeddedRegistry)
        assert [member.name for member in registry.members()] == known
        assert (registry.view.retention.lost_s, registry.view.retention.hold_s) == (7.0, 7200.0)
        registry.announce(engine(1))
        registry.close()


def test_an_etcd_that_is_away_does_not_stop_the_start(tmp_path: Path) -> None:
    port = free_port()
    settings = RouterSettings(
        registry=f"etcd://127.0.0.1:{port}", registry_file=str(tmp_path / "run" / "fleet.json"), registry_deadline_s=0.2
    )
    registry = open_registry(settings)
    assert isinstance(registry, EtcdRegistry)
    assert "etcd does not answer" in registry.trouble
    assert "trouble" in repr(registry)
    with pytest.raises(RegistryError):
        registry.announce(engine(1))
    registry.close()


def test_two_routers_of_one_etcd_may_run_on_one_machine_and_one_of_them_keeps_the_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    settings = RouterSettings(registry=f"etcd://127.0.0.1:{port}", registry_file=str(tmp_path / "run" / "fleet.json"))
    first, second = open_registry(settings), open_registry(settings)
    assert "no copy of the fleet is kept: another router uses" in caplog.text
    second.close()
    first.close()


def test_an_address_that_is_none_is_said_at_once() -> None:
    with pytest.raises(ConfigError, match="the registry is 'consul://x'"):
        open_registry(RouterSettings(registry="consul://x"))
